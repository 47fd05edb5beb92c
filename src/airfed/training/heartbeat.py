"""Which processes of a run are alive: each counts in a key of its own, in the store where they have met.

A thread counts, so a process that computes for hours is alive, and one that is stopped, or cut off from the store, is
not. Silence is counted in beats, not by the clock: processes that sleep and wake together do not lose each other.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any, Final

_BEAT: Final = 1.0  # s between two beats, at most
_BEATS: Final = 20  # within the patience, at least
_SILENT: Final = 4  # beats without a sign of a process whose connections are closed: it has ended


class Heartbeat:
    """Counts for this process from `start` on, and knows who has stopped counting.

    Args:
        store: torch.distributed's; nothing else uses this connection, since a call to a store that is cut off hangs.
        rank: this process's.
        size: the number of processes.
        patience: seconds after which a silent process is lost.
    """

    def __init__(self, store: Any, rank: int, size: int, patience: float) -> None:
        self.interval = min(_BEAT, patience / _BEATS)
        self.limit = math.ceil(patience / self.interval)
        self.exchange = 0  # the exchange with the others that this process has come to
        self._store, self._key = store, f"beat/{rank}"
        self._keys = [f"beat/{one}" for one in range(size)]
        self._missed, self._exchanges = [0] * size, [0] * size
        self._beats = self._seen = self._stale = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._count, name="airfed-heartbeat", daemon=True)
        store.set(self._key, "0 0")  # before anybody looks: reading a key that is missing waits for it

    def start(self) -> None:
        """Begin to count; all processes have made their heartbeats."""
        self._thread.start()

    def close(self, *, wait: bool = False) -> None:
        """Fall silent; `wait` for the thread: Python aborts where one comes back from the store while it ends."""
        self._closed.set()
        if wait:
            self._thread.join(self.limit * self.interval)

    def lost(self) -> list[int]:
        """Return the ranks that are lost; a process that waits asks this once in each interval.

        Where the store itself does not answer, that is rank 0, whose host keeps it.
        """
        self._stale = 0 if self._seen != self._beats else self._stale + 1
        self._seen = self._beats
        return [0] if self._stale >= self.limit else self._silent(self.limit)

    def ended(self) -> list[int]:
        """Wait a few beats, and return the ranks that are silent."""
        for _ in range(3 * _SILENT):
            if not self._thread.is_alive():
                return [0]
            if silent := self._silent(_SILENT):
                return silent
            self._closed.wait(self.interval)
        return []

    def all_here(self) -> bool:
        """Return whether all processes are alive and have come to the exchange in which this one waits."""
        return self._stale <= 1 and not self._silent(2) and min(self._exchanges) >= self.exchange

    def _silent(self, beats: int) -> list[int]:
        return [rank for rank, missed in enumerate(self._missed) if missed >= beats]

    def _count(self) -> None:
        before: list[bytes] = [b""] * len(self._keys)
        with suppress(RuntimeError):  # the store has ended: `ended` and `lost` notice
            while not self._closed.wait(self.interval):
                self._store.set(self._key, f"{self._beats + 1} {self.exchange}")
                now = self._store.multi_get(self._keys)
                pairs = zip(self._missed, now, before, strict=True)
                self._missed = [missed + 1 if new == old else 0 for missed, new, old in pairs]
                self._exchanges = [int(value.split()[1]) for value in now]
                before = now
                self._beats += 1
