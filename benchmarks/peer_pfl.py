"""The round of `training.py` in pfl's simulation, in an environment of its own.

One process with as many PyTorch threads as requested. A call runs two central iterations and times the
second: pfl evaluates in the first. Reads the number of local steps from standard input, line by line;
answers "SECONDS x".
"""

import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

DEVICES, IMAGES, LEARNING_RATE = 100, 600, 0.1


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
        )

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict[str, float]:
        return {}


class Clock(TrainingProcessCallback):
    """When each central iteration ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Serve rounds until standard input ends; arguments: directory of the data, number of threads."""
    torch.set_num_threads(int(sys.argv[2]))
    images = torch.from_numpy(np.load(f"{sys.argv[1]}/images.npy")).reshape(DEVICES, IMAGES, 1, 28, 28)
    labels = torch.from_numpy(np.load(f"{sys.argv[1]}/labels.npy")).reshape(DEVICES, IMAGES)

    def device(k: int) -> Dataset:
        return Dataset(raw_data=[images[k], labels[k]])

    sampler = get_user_sampler("minimize_reuse", list(range(DEVICES)))
    data = FederatedDataset(device, sampler)
    backend = SimulatedBackend(training_data=data, val_data=data)
    network = Network()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    for line in sys.stdin:
        clock = Clock()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=2,
                evaluation_frequency=1000,
                train_cohort_size=DEVICES,
                val_cohort_size=0,
            ),
            backend=backend,
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=int(line), local_learning_rate=LEARNING_RATE, local_batch_size=None
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[clock],
        )
        print("SECONDS", clock.times[1] - clock.times[0], flush=True)
