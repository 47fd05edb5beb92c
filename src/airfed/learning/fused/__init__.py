"""Fused training engine for the built-in networks; see docs/fused.md. Importing it does not import Numba."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed import _extras
from airfed.learning.engine import Images, Labels, Parameters, ThreadedEngine, worker_count
from airfed.network import Network

_PACKAGES = ("numba", "llvmlite")


def available() -> bool:
    """Return whether the packages of the engine are installed."""
    return all(_extras.has(package) for package in _PACKAGES)


class FusedEngine(ThreadedEngine):
    """Local updates of many devices on a few processor cores; see `airfed.learning.engine.ThreadedEngine`.

    Parameters or images that are not finite give an update that is not finite. Implements [Yan23, (3)-(5)].
    """

    name = "fused"
    _piece = 256

    def __init__(self, network: Network, *data: Any, threads: int | None = None, **options: Any) -> None:
        _extras.require(*_PACKAGES)
        from airfed.learning.fused import compiler, tables

        threads = worker_count(threads)
        super().__init__(*data, **options)
        self.network, self.dimension, self._l2 = network, network.dimension, network.l2
        self._images, self._labels = self._contiguous(self._images, self._labels)
        self._shards, self._chunk = np.ascontiguousarray(self._shards, np.int64), max(1, self._chunk // 2)
        self._tables, self._run = tables.build(network, tables.host()), compiler.compiled()
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="airfed-fused")

    def _train(self, start: Parameters, device: int, steps: int, round_index: int, row: Any) -> None:
        shard, picks = self._shards[device], self._picks(device, steps, round_index)
        indices, stride = (shard, 0) if picks is None else (shard[picks], picks.shape[1])
        self._call(start, self._images, self._labels, indices, stride, steps, row, None)

    def _measure(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        images, labels = self._contiguous(images, labels)
        result = np.zeros(2)
        self._call(parameters, images, labels, np.arange(len(images)), 0, 0, None, result)
        return float(result[0]), float(result[1])

    def _call(
        self,
        weights: Parameters,
        images: Images,
        labels: Labels,
        indices: NDArray[np.int64],
        indices_step: int,
        steps: int,
        update: NDArray[np.float32] | None,
        result: NDArray[np.float64] | None,
    ) -> None:
        """Call the compiled code, without the GIL, with the workspace of this thread."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = self._tables.workspace()
        unused = ctypes.c_void_p()
        inputs = (self._tables.table, weights, images, labels, indices)
        outputs = (*self._local.workspace, update, result)
        self._run(
            *(ctypes.addressof(unused), ctypes.addressof(unused)),
            *(array.ctypes.data for array in inputs),
            *(indices_step, indices.shape[-1], steps, self._learning_rate, self._l2),
            *(None if array is None else array.ctypes.data for array in outputs),
        )

    def _contiguous(self, images: Images, labels: Labels) -> tuple[Images, Labels]:
        """Return validated images and labels as contiguous arrays, without a copy if possible."""
        pictures, classes = np.ascontiguousarray(images, np.float32), np.ascontiguousarray(labels, np.int64)
        if pictures.shape[1:] != self.network.input_shape or len(pictures) == 0:
            raise ValueError(f"images must have shape (n, {self.network.input_shape}), got {pictures.shape}.")
        if classes.shape != (len(pictures),):
            raise ValueError(f"labels must have one entry per image ({len(pictures)}), got shape {classes.shape}.")
        if classes.min() < 0 or classes.max() >= self.network.classes:
            raise ValueError(
                f"labels must be between 0 and {self.network.classes - 1}, got {classes.min()} to {classes.max()}."
            )
        return pictures, classes
