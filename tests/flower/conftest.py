"""A small scenario, and a grid that hands messages to ClientApps in this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from airfed import scenario as scenarios

SCENARIO = """
name = "small"
seed = 3
[fleet]
peak_power = 1.0
[channel]
model = "fixed"
gains = [0.5, 0.1, 0.9, 0.7, 0.6]
[link]
noise_std = 0.1
[budget]
epsilon = 20.0
delta = 1e-3
scope = "round"
total_power = 50.0
[learning]
model = "quadratic"
dimension = 12
total_steps = 7
learning_rate = 0.1
clip_norm = 2.0
smoothness = 10.0
strong_convexity = 1.0
initial_gap = 2.3
[policy]
name = "top_k"
size = 4
rounds = 3
"""


@dataclass
class LocalGrid(Grid):
    """Nodes in this process. `faults` maps (node, how many train messages it got before) to what it does instead."""

    nodes: dict[int, tuple[ClientApp, dict[str, Any]]]
    faults: dict[tuple[int, int], Callable[[Message, Message], Message | None]] = field(default_factory=dict)
    sent: list[list[Message]] = field(default_factory=list)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        assert isinstance(messages, list)  # a generator fails in deployment
        self.sent.append(messages)
        replies = [self._deliver(message) for message in messages]
        return [reply for reply in reversed(replies) if reply is not None]

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
        fault = self.faults.get((node, earlier))
        return fault(message, reply) if fault and "round-index" in message.content["over-the-air"] else reply

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError


@pytest.fixture(autouse=True, scope="session")
def _identity():
    """Who sends a message: Flower sets it in the process of a ServerApp."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def scenario_file(tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO)
    return file


@pytest.fixture
def scenario(scenario_file):
    return scenarios.load(scenario_file)


@pytest.fixture
def make_grid():
    def make(app: ClientApp, devices: Iterable[int], **kwargs: Any) -> LocalGrid:
        return LocalGrid({100 + k: (app, {"partition-id": k}) for k in devices}, **kwargs)

    return make
