"""A small scenario, a grid that delivers messages to ClientApps in this process, and a fake clock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from airfed import scenario as scenarios
from airfed.flower import OverTheAirFedAvg, messages, over_the_air_mod
from airfed.training.loop import NoRecorder, federated_averaging
from airfed.training.noise import SeededNoise
from airfed.training.run import Run
from airfed.training.setup import prepare

_COUNTER = count()


Fault = Callable[[Message, Message], Message | None]


class FakeClock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0.0
        self.now += seconds


@dataclass
class LocalGrid(Grid):
    """Nodes in this process.

    `faults` maps (node, number of earlier train messages) to its faulty reply, and `malicious` maps a node to its reply
    when it is asked for its device: a message, nothing, or an exception that is raised while the
    grid reads the reply.
    """

    nodes: dict[int, tuple[ClientApp, dict[str, Any]]]
    faults: dict[tuple[int, int], Fault] = field(default_factory=dict)
    malicious: dict[int, Fault] = field(default_factory=dict)
    sent: list[list[Message]] = field(default_factory=list)
    mail: dict[str, Any] = field(default_factory=dict)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        assert isinstance(messages, list)  # a generator fails in deployment
        self.sent.append(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {next(_COUNTER)}"
            reply = self._deliver(message)
            if reply is not None:
                self.mail[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = [self.mail.pop(identity) for identity in list(message_ids) if identity in self.mail]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("each reply is to be opened by itself")

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        app, config = self.nodes[node]
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        try:
            reply = app(message, context)
        except ValueError as error:  # what the app raises becomes an error reply, as in a SuperNode
            reply = Message(Error(code=2, reason=str(error)), reply_to=message)
        earlier = sum(
            "round-index" in other.content["over-the-air"]
            for batch in self.sent[:-1]
            for other in batch
            if other.metadata.dst_node_id == node
        )
        trains = "round-index" in message.content["over-the-air"]
        fault = self.faults.get((node, earlier)) if trains else self.malicious.get(node)
        return fault(message, reply) if fault else reply

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


@pytest.fixture(autouse=True, scope="session")
def _identity():
    """The sender of a message, which Flower sets in the process of a ServerApp."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def scenario_file(tmp_path):
    file = tmp_path / "scenario.toml"
    shutil.copy(Path(__file__).with_name("small.toml"), file)
    return file


@pytest.fixture
def scenario(scenario_file):
    return scenarios.load(scenario_file)


@pytest.fixture
def setup(scenario):
    return prepare(scenario)


@pytest.fixture
def own_app(setup):
    """A separate Flower project with two arrays, which uses only airfed's mod and strategy."""
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message, context):
        order = message.content["over-the-air"]
        weights = np.concatenate([array.numpy() for array in message.content["arrays"].values()])
        devices = np.array([context.node_config["partition-id"]])
        steps, index = order["local-steps"], order["round-index"]
        ((_, update),) = setup.task.engine.updates(weights, devices, steps=steps, round_index=index)
        trained = weights - order["learning-rate"] * update[0].astype(np.float64)
        return Message(RecordDict({"model": as_two(trained)}), reply_to=message)

    return app


def as_two(vector):
    return ArrayRecord({"a": Array(vector[:5]), "b": Array(vector[5:])})


@pytest.fixture
def initial_arrays(setup):
    return as_two(setup.task.initial_parameters)


@pytest.fixture
def clock():
    return FakeClock()


class SameNoise:
    """The noise depends on the round only, not on the transmission, so that trainings can be compared."""

    def __init__(self, source):
        self.source, self.privacy, self.repeatable = source, source.privacy, source.repeatable

    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        return self.source.draw(round_index, dimension, noise_std)


@pytest.fixture
def same_noise(setup):
    return SameNoise(setup.noise)


class Recorded(NoRecorder):
    """Return for each round the name that the recorder of a run has given its last transmission."""

    def __init__(self, ledger):
        self.ledger = ledger

    def send(self, index, signal):
        return f"{self.ledger.header['nonce']}/{self.ledger.find(index).attempt}"


@pytest.fixture
def replay(monkeypatch):
    """Repeat a recorded training without Flower, with its noise; return the named tensors.

    Flower's sums are those of float32 uploads. So that noise agrees, it is drawn here without the digest of the sum.
    """
    real = SeededNoise.draw

    def draw(self, *given, transmission=""):
        return real(self, *given, transmission=transmission.rpartition(" ")[0])

    monkeypatch.setattr(SeededNoise, "draw", draw)

    def replay(run, missing=()):
        recorded = Run.open(run).checked()
        again = prepare(recorded.scenario)
        engine, initial, recorder = Without(again.task.engine, missing), again.task.initial_parameters, recorded.ledger
        *_, last = federated_averaging(
            again.plan, again.aircomp, engine, again.noise, Recorded(recorder), parameters=initial
        )
        return again.task.named_tensors(last.parameters)

    return replay


@pytest.fixture
def start(setup, initial_arrays, clock):
    """Train the devices of a grid and return the model as one vector."""

    def start(grid, recorder, **options):
        options = {
            "aircomp": setup.aircomp,
            "noise": SameNoise(setup.noise),
            "wait_for_devices": 0.0,
            "clock": clock,
            **options,
        }
        strategy = OverTheAirFedAvg(options.pop("plan", setup.plan), recorder, **options)
        return messages.flatten(strategy.start(grid, initial_arrays, timeout=5.0).arrays)

    return start


class Without:
    """airfed's engine without the devices that are missing in a round."""

    def __init__(self, engine, missing):
        self.engine, self.missing = engine, missing

    def updates(self, parameters, devices, *, steps, round_index):
        there = np.array([k for k in devices if (k, round_index) not in self.missing])
        return self.engine.updates(parameters, there, steps=steps, round_index=round_index)


@pytest.fixture
def own_training(setup):
    """Train without Flower and return the model; `missing` has pairs of a device and a round."""

    def own_training(missing=()):
        engine, initial = Without(setup.task.engine, missing), setup.task.initial_parameters
        *_, last = federated_averaging(setup.plan, setup.aircomp, engine, SameNoise(setup.noise), parameters=initial)
        return last.parameters

    return own_training


@pytest.fixture
def make_grid():
    def make(app: ClientApp, devices: Iterable[int], **kwargs: Any) -> LocalGrid:
        return LocalGrid({100 + k: (app, {"partition-id": k}) for k in devices}, **kwargs)

    return make
