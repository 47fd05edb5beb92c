"""The nodes of a Flower federation: which node is which device, and each reply opened by itself.

Flower's grids open all replies that have come at once, and take the sender's word for who it is: a reply that cannot be
read raises in the server, and the others are lost with it. Here the SuperLink is asked for the reply to one message at
a time. It hands over only what the node has sent to which that message went.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from airfed.flower import messages

_LOG = logging.getLogger("flwr")
_REPLY_PAUSE: Final = 1.0  # s between two looks for replies
_NODE_PAUSE: Final = 0.5  # s between two looks at who has joined, and who has answered
# All that Flower raises for a reply it cannot read, as 30,000 damaged ones have shown, and what no reader is safe from.
_UNREADABLE: Final = (AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


def send(grid: Grid, outgoing: list[Message]) -> list[Message]:
    """Send messages, and return those that were taken; they have an id from now on."""
    taken = set(grid.push_messages(outgoing)) if outgoing else set()
    return [message for message in outgoing if message.metadata.message_id in taken]


def collect(grid: Grid, message: Message) -> Message | None:
    """Return the reply to a message, or None as long as there is none; anything else that has come is an error."""
    try:
        replies = list(grid.pull_messages([message.metadata.message_id]))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():  # the node's, or the grid's own: the message has expired, or the node has gone
            return messages.refusal(message, reply.error.reason)
    except _UNREADABLE as error:
        return messages.refusal(message, f"the reply cannot be read ({type(error).__name__})")
    if messages.sender(reply) != messages.address(message):
        return messages.refusal(message, "the reply pretends to be another one")
    return reply


class SafeGrid:
    """A Flower grid that opens each reply by itself; `clock` is the module `time` but in tests."""

    def __init__(self, grid: Grid, clock: Any = time) -> None:
        self._grid, self._clock = grid, clock

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that have come in time [s]."""
        waiting, replies = send(self._grid, list(messages)), []
        deadline = float("inf") if timeout is None else self._clock.monotonic() + timeout
        while waiting:
            heard = [collect(self._grid, message) for message in waiting]
            replies += [reply for reply in heard if reply is not None]
            waiting = [message for message, reply in zip(waiting, heard, strict=True) if reply is None]
            left = deadline - self._clock.monotonic()
            if left <= 0.0:
                break
            if waiting:
                self._clock.sleep(min(_REPLY_PAUSE, left))
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class _Asked(NamedTuple):
    """When a node was asked, and the question while it waits for its answer."""

    at: float
    question: Message | None


class Roster:
    """The nodes that are there, by the index of the device that each of them is.

    A node is asked once which device it is, and again only when a device is missing and `retry_after` has passed. A
    round that has all its devices waits for nobody. One that misses a device waits for nodes that have not answered
    yet, but at most `answer_timeout` in every `retry_after`, however many such nodes there are.

    Times are in s; `clock` is the module `time` but in tests.
    """

    def __init__(
        self, *, num_devices: int, answer_timeout: float = 60.0, retry_after: float = 600.0, clock: Any = time
    ) -> None:
        self.num_devices, self.answer_timeout, self.retry_after = num_devices, answer_timeout, retry_after
        self._clock = clock
        self._devices: dict[int, int] = {}  # of each node that has answered; of two with one index the first counts
        self._asked: dict[int, _Asked] = {}  # by node
        self._doubtful: set[int] = set()
        self._patient_from = clock.monotonic()  # when waiting for answers is allowed again

    def find(self, grid: Grid, devices: Iterable[int], *, wait: float = 0.0) -> dict[int, int]:
        """Return the node id of each of the devices that is there; wait so long [s] for those that are missing."""
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
            self._clock.sleep(_NODE_PAUSE)
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
        return {device: node for node, device in reversed(self._devices.items())}

    def _look(self, grid: Grid, wanted: list[int]) -> None:
        """Forget who has gone and, unless all who are wanted are well, ask who is new, and listen."""
        present = set(grid.get_node_ids())
        self._devices = {node: device for node, device in self._devices.items() if node in present}
        self._asked = {node: asked for node, asked in self._asked.items() if node in present}
        if set(wanted) <= {device for device, node in self._nodes().items() if node not in self._doubtful}:
            return
        now = self._clock.monotonic()
        unknown = sorted(present - self._devices.keys())
        due = [node for node in unknown if node not in self._asked or now - self._asked[node].at >= self.retry_after]
        if due:
            taken = send(grid, [messages.question(node, ttl=self.retry_after) for node in due])
            questions = {question.metadata.dst_node_id: question for question in taken}
            self._asked |= {node: _Asked(at=now, question=questions.get(node)) for node in due}
        for node, asked in list(self._asked.items()):
            reply = None if asked.question is None else collect(grid, asked.question)
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
