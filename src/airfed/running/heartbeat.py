"""Which of several processes can be heard, whatever they are computing.

Every process answers who connects to its port with a word of its own, and asks all others for theirs a few times
within the patience. Each question is a connection of its own: a link that comes back is noticed at once, whereas a
connection from before the cut would wait for TCP's next attempt. What strangers send is never read, and what they
answer is not the word. Threads of their own do this, so a process that computes for hours is heard, and one that is
stopped, or whose host is gone, is not.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

# So many questions fit into the patience, and all of them must stay unanswered. They are counted, not timed: a process
# that was itself asleep does not take the others for lost when it wakes.
_QUESTIONS: Final = 20
_WORD: Final = 16  # bytes


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Where a process answers, and with which word."""

    rank: int
    host: str
    address: str
    port: int
    word: bytes

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} ({self.address})"

    def to_text(self) -> str:
        """Return what `from_text` reads."""
        return f"{self.host} {self.address} {self.port} {self.word.hex()}"

    @classmethod
    def from_text(cls, rank: int, text: str) -> Peer:
        """Return the peer that `to_text` describes."""
        host, address, port, word = text.split()
        return cls(rank=rank, host=host, address=address, port=int(port), word=bytes.fromhex(word))


class Heartbeat:
    """Answers for this process from now on; after `watch` it also knows whom it has lost.

    Args:
        rank: this process's.
        address: where to listen: one of this host that the others reach.
    """

    def __init__(self, rank: int, address: str) -> None:
        self._listener = socket.create_server((address, 0), family=_family(address), backlog=128)
        self._listener.settimeout(1.0)
        port = self._listener.getsockname()[1]
        word = secrets.token_bytes(_WORD)
        self.here = Peer(rank=rank, host=socket.gethostname(), address=address, port=port, word=word)
        self._peers: list[Peer] = []
        self._missed: dict[int, int] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._answer, name="airfed-answer", daemon=True).start()

    def watch(self, peers: Iterable[Peer], patience: float) -> None:
        """Begin to ask the other processes; who does not answer for `patience` seconds is lost."""
        self._peers = [peer for peer in peers if peer.rank != self.here.rank]
        self._missed = dict.fromkeys((peer.rank for peer in self._peers), 0)
        threading.Thread(target=self._ask, args=(patience / _QUESTIONS,), name="airfed-ask", daemon=True).start()

    def lost(self) -> list[Peer]:
        """Return who has been silent for longer than the patience."""
        return [peer for peer in self._peers if self._missed[peer.rank] >= _QUESTIONS]

    def silent(self, seconds: float) -> list[Peer]:
        """Return who does not answer now; ask until somebody does not, or for so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            answered = ask(self._peers, seconds)
            missing = [peer for peer in self._peers if peer.rank not in answered]
            if missing or self._closed.wait(0.1) or time.monotonic() > deadline:
                return missing

    def close(self) -> None:
        """Fall silent."""
        self._closed.set()

    def _answer(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                with suppress(OSError):  # a stranger that has left, or nobody for a second
                    connection, _ = self._listener.accept()
                    with connection:
                        connection.sendall(self.here.word)

    def _ask(self, interval: float) -> None:
        while not self._closed.is_set():
            begun = time.monotonic()
            answered = ask(self._peers, interval)
            for rank, missed in self._missed.items():
                self._missed[rank] = 0 if rank in answered else missed + 1
            self._closed.wait(max(0.0, begun + interval - time.monotonic()))


def ask(peers: Sequence[Peer], seconds: float) -> set[int]:
    """Return the ranks of those that answer with their word within so many seconds; all are asked at the same time."""
    answered: set[int] = set()
    deadline = time.monotonic() + seconds
    with suppress(OSError), ExitStack() as stack, selectors.DefaultSelector() as selector:
        for peer in peers:
            connection = stack.enter_context(socket.socket(_family(peer.address)))
            connection.setblocking(False)
            connection.connect_ex((peer.address, peer.port))  # what cannot be reached is readable at once, and fails
            selector.register(connection, selectors.EVENT_READ, (peer, connection))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                peer, connection = key.data
                selector.unregister(connection)
                with suppress(OSError):
                    if connection.recv(_WORD) == peer.word:
                        answered.add(peer.rank)
    return answered


def own_address(other: str, port: int) -> str:
    """Return the address of this host from which it would reach another; nothing is sent.

    Raises:
        ValueError: there is no such host, or no way to it.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(other, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            address: str = probe.getsockname()[0]
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"Expected MASTER_ADDR to be a host that can be reached from here; {other}: {reason}."
        ) from None
    return address


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
