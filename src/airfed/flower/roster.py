"""Which node is which device."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from airfed.flower import messages, post

_LOG = logging.getLogger("flwr")
_PAUSE: Final = 0.5  # s between two looks at who has joined, and who has answered


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """When a node was asked, and the question while it waits for its answer."""

    at: float
    question: Message | None


class Roster:
    """The nodes that are there, by the index of the device that each of them is.

    A node is asked once which device it is, and again only when a device is missing and `retry_after` has passed. A
    round that has all its devices waits for nobody. One that misses a device waits for nodes that have not answered
    yet, but at most `answer_timeout` in every `retry_after`, however many such nodes there are; an answer that comes
    later counts from the next round on.

    Args:
        num_devices: N.
        answer_timeout: [s] how long a node may take to say which device it is.
        retry_after: [s] after which a node that did not say is asked again.
        clock: tells the time; the module `time` but in tests.
    """

    def __init__(
        self,
        *,
        num_devices: int,
        answer_timeout: float = 60.0,
        retry_after: float = 600.0,
        clock: post.Clock = time,
    ) -> None:
        self.num_devices, self.answer_timeout, self.retry_after = num_devices, answer_timeout, retry_after
        self._clock = clock
        self._devices: dict[int, int] = {}  # of each node that has answered; of two with one index the first counts
        self._asked: dict[int, _Asked] = {}  # by node
        self._doubtful: set[int] = set()
        self._patient_from = clock.monotonic()  # when waiting for answers is allowed again

    def find(self, grid: Grid, devices: Iterable[int], *, wait: float = 0.0) -> dict[int, int]:
        """Return the node id of each of the devices that is there.

        Args:
            grid: where the nodes are.
            devices: who is looked for.
            wait: [s] for how long to wait for those who are missing.
        """
        wanted, start = list(devices), self._clock.monotonic()
        patient = start >= self._patient_from
        while True:
            self._look(grid, wanted)
            nodes = self._nodes()
            found = {device: nodes[device] for device in wanted if device in nodes}
            elapsed = self._clock.monotonic() - start
            silent = [node for node, asked in self._asked.items() if asked.question is not None]
            waits_for_answers = patient and bool(silent) and elapsed < self.answer_timeout
            if len(found) == len(wanted) or not (elapsed < wait or waits_for_answers):
                break
            self._clock.sleep(_PAUSE)
        if patient and silent and len(found) < len(wanted):
            self._patient_from = self._clock.monotonic() + self.retry_after
            _LOG.warning("%d nodes have not said which device they are; nobody waits for them", len(silent))
        return found

    def doubt(self, nodes: Iterable[int]) -> None:
        """Take note of the nodes that sent nothing usable in the last round: another of the same index goes first."""
        self._doubtful = set(nodes)
        self._put_last()

    def _put_last(self) -> None:
        for node in self._doubtful & self._devices.keys():
            self._devices[node] = self._devices.pop(node)

    def _nodes(self) -> dict[int, int]:
        """The first node of each device."""
        nodes: dict[int, int] = {}
        for node, device in self._devices.items():
            nodes.setdefault(device, node)
        return nodes

    def _look(self, grid: Grid, wanted: list[int]) -> None:
        """Forget who has gone and, unless everybody who is wanted is well, ask who is new, and listen."""
        present = set(grid.get_node_ids())
        self._devices = {node: device for node, device in self._devices.items() if node in present}
        self._asked = {node: asked for node, asked in self._asked.items() if node in present}
        well = {device for device, node in self._nodes().items() if node not in self._doubtful}
        if set(wanted) <= well:
            return
        now = self._clock.monotonic()
        due = [
            node
            for node in sorted(present - self._devices.keys())
            if node not in self._asked or now - self._asked[node].at >= self.retry_after
        ]
        if due:
            taken = post.send(grid, [messages.question(node, ttl=self.retry_after) for node in due])
            questions = {question.metadata.dst_node_id: question for question in taken}
            self._asked |= {node: _Asked(at=now, question=questions.get(node)) for node in due}
        for node, asked in list(self._asked.items()):
            reply = None if asked.question is None else post.collect(grid, asked.question)
            if reply is not None:
                self._asked[node] = _Asked(at=asked.at, question=None)
                self._enter(node, reply)

    def _enter(self, node: int, reply: Message) -> None:
        try:
            device = messages.answered_device(reply)
        except ValueError as error:
            _LOG.warning("node %d does not say which device it is: %s", node, messages.quote(error))
            return
        if not 0 <= device < self.num_devices:
            _LOG.warning("node %d says it is device %d; the plan has 0 to %d", node, device, self.num_devices - 1)
            return
        if device in self._devices.values():
            _LOG.warning("node %d says it is device %d, which is there already; only one is used", node, device)
        self._devices[node] = device
        self._put_last()
