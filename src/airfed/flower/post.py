"""Sends messages, and opens each reply by itself: what one node sends can spoil its own reply and no other.

Flower's grids open all replies that have come at once, and take the sender's word for who it is: a reply that cannot be
read raises in the server, and the others are lost with it. Here the SuperLink is asked for the reply to one message at
a time. It hands over only what the node has sent to which that message went.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from airfed.flower import messages

_PAUSE: Final = 1.0  # s between two looks for replies
# All that Flower raises for a reply it cannot read, as 30,000 damaged ones have shown, and what no reader is safe from.
_UNREADABLE: Final = (AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


class Clock(Protocol):
    """What is needed of the module `time`."""

    def monotonic(self) -> float:
        """Return the time [s]."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


def send(grid: Grid, outgoing: list[Message]) -> list[Message]:
    """Send messages, and return those that were taken; they have an id from now on."""
    taken = set(grid.push_messages(outgoing)) if outgoing else set()
    return [message for message in outgoing if message.metadata.message_id in taken]


def collect(grid: Grid, message: Message) -> Message | None:
    """Return the reply to a message, or None as long as there is none.

    Whatever has come that is not a reply of the message's node to this message is replaced by an error that says so.
    """
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


class Post(Grid):
    """A grid that opens each reply by itself.

    Args:
        grid: carries the messages.
        clock: tells the time; the module `time` but in tests.
    """

    def __init__(self, grid: Grid, clock: Clock = time) -> None:
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
                self._clock.sleep(min(_PAUSE, left))
        return replies

    def get_node_ids(self) -> Iterable[int]:
        """Return who is there."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come, as the grid opens them."""
        return self._grid.pull_messages(message_ids)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run: Any) -> None:
        """Say whose messages these are."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Whose messages these are."""
        return self._grid.run
