"""The fused engine: local updates and evaluation, one device per task, one thread per device."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airfed import _extras
from airfed.learning.engine import ThreadedEngine, check_shards, worker_count
from airfed.network import Network

_PACKAGES = ("numba", "llvmlite")


def available() -> bool:
    """Return whether the packages that the engine needs are installed."""
    return all(_extras.has(package) for package in _PACKAGES)


class FusedEngine(ThreadedEngine):
    """Local updates of many devices on a few processor cores; see `airfed.learning.engine.ThreadedEngine`.

    Results do not depend on `threads` or `chunk`. A device whose parameters or images are not finite returns an update
    that is not finite. Implements [Yan23, (3)-(5)].
    """

    name = "fused"
    _piece = 256

    def __init__(
        self,
        network: Network,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        shards: NDArray[np.intp],
        *,
        threads: int | None = None,
        chunk: int = 32,
        **options: Any,
    ) -> None:
        _extras.require(*_PACKAGES)
        from airfed.learning.fused import compiler, tables

        threads = worker_count(threads)
        check_shards(images, labels, shards, chunk=chunk, **options)
        self.network, self.dimension, self._l2 = network, network.dimension, network.l2
        images, labels = self._contiguous(images, labels)
        self._tables, self._run = tables.build(network, tables.host()), compiler.compiled()
        self._local = threading.local()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="airfed-fused")
        rows = np.ascontiguousarray(shards, np.int64)
        super().__init__(pool, images, labels, rows, chunk=max(1, chunk // 2), **options)

    def _train(self, start: NDArray[np.float32], device: int, steps: int, round_index: int, row: Any) -> None:
        shard, picks = self._shards[device], self._picks(device, steps, round_index)
        indices, stride = (shard, 0) if picks is None else (shard[picks], picks.shape[1])
        self._call(start, self._images, self._labels, indices, stride, steps, row, None)

    def _measure(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        images, labels = self._contiguous(images, labels)
        result = np.zeros(2)
        self._call(parameters, images, labels, np.arange(len(images)), 0, 0, None, result)
        return float(result[0]), float(result[1])

    def _call(
        self,
        weights: NDArray[np.float32],
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        indices: NDArray[np.int64],
        indices_step: int,
        steps: int,
        update: NDArray[np.float32] | None,
        result: NDArray[np.float64] | None,
    ) -> None:
        """Call compiled code (without the interpreter's lock) with the workspace of this thread."""
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

    def _contiguous(
        self, images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return images and labels as contiguous arrays (no copy if they are already), checked."""
        pictures, classes = np.ascontiguousarray(images, np.float32), np.ascontiguousarray(labels, np.int64)
        if pictures.shape[1:] != self.network.input_shape or len(pictures) == 0:
            raise ValueError(f"Expected images of shape (n, {self.network.input_shape}), got {pictures.shape}.")
        if classes.shape != (len(pictures),):
            raise ValueError(f"Expected {len(pictures)} labels, one per image; got shape {classes.shape}.")
        if classes.min() < 0 or classes.max() >= self.network.classes:
            raise ValueError(f"Expected labels in 0..{self.network.classes - 1}; got {classes.min()}..{classes.max()}.")
        return pictures, classes
