"""The round of `training.py` in Flower's simulation, in an environment of its own.

One worker process per thread, each with one PyTorch thread: the quickest arrangement for models of this
size. Workers stay alive between rounds and keep the data, so a round is messages and training only. Reads
the number of local steps from standard input, line by line; answers "SECONDS x".
"""

import sys
import time
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

DEVICES, IMAGES, LEARNING_RATE = 100, 600, 0.1


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
    )


@cache
def worker(data: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model and the data of a worker process."""
    torch.set_num_threads(1)
    images = torch.from_numpy(np.load(f"{data}/images.npy", mmap_mode="c"))
    labels = torch.from_numpy(np.load(f"{data}/labels.npy"))
    return network(), images.reshape(DEVICES, IMAGES, 1, 28, 28), labels.reshape(DEVICES, IMAGES)


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    model, images, labels = worker(config["data"])
    device = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(config["steps"]):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[device]), labels[device]).backward()
        optimiser.step()
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)


server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    model = network()
    while len(nodes := list(grid.get_node_ids())) < DEVICES:
        time.sleep(0.1)
    for line in sys.stdin:
        start = time.perf_counter()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "config": ConfigRecord({"steps": int(line), "data": sys.argv[1]}),
            }
        )
        messages = [Message(content=content, message_type="train", dst_node_id=node) for node in nodes]
        replies = list(grid.send_and_receive(messages))
        states = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
        assert len(states) == DEVICES
        {name: sum(state[name] for state in states) / DEVICES for name in states[0]}
        print("SECONDS", time.perf_counter() - start, flush=True)


def main() -> None:
    """Serve rounds until standard input ends; arguments: directory of the data, number of threads."""
    run_simulation(
        server,
        client,
        num_supernodes=DEVICES,
        backend_config={
            "init_args": {"num_cpus": int(sys.argv[2])},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
