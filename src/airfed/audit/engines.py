"""Engines that send what an adversary wants, through the real round loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed.learning.engine import Engine


class ScriptedEngine:
    """Sends fixed updates of some devices in every round; the others stay silent.

    Args:
        devices: who sends, ascending.
        updates: (m, d), what they send whatever the model is.
    """

    name = "scripted"

    def __init__(self, devices: NDArray[np.intp], updates: ArrayLike) -> None:
        self._devices, self._updates = devices, np.asarray(updates)
        self.dimension = self._updates.shape[1]

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield all updates in one chunk."""
        yield self._devices, self._updates

    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return nothing of interest: there is no loss."""
        return 0.0, 0.0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class SilentEngine(ScriptedEngine):
    """Sends an update of zeros from one device; all others stay silent."""

    name = "silent"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield the one update."""
        yield devices[:1], np.zeros((1, self.dimension), np.float32)


class Neighbour(ScriptedEngine):
    """Trains like another engine, except that one device's data makes its update `factor` times as large.

    Args:
        engine: trains the devices.
        devices: who trains, ascending; the others stay silent.
        device: whose data is replaced.
        factor: by how much.
        steps: local steps of a round.
    """

    name = "neighbour"

    def __init__(self, engine: Engine, devices: NDArray[np.intp], *, device: int, factor: float, steps: int) -> None:
        self._engine, self._devices, self._device, self._factor = engine, devices, device, factor
        self._steps, self.dimension = steps, engine.dimension

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield the updates from a model that stays at zero, so that only one device differs between neighbours."""
        start = np.zeros_like(parameters)
        for part, updates in self._engine.updates(start, self._devices, steps=self._steps, round_index=round_index):
            changed = np.array(updates)
            changed[part == self._device] *= self._factor
            yield part, changed
