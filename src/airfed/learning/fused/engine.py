"""The fused engine: local updates and evaluation, one device per task, one thread per device."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from airfed import _extras
from airfed.learning._common import batches, check_round, check_shards, worker_count
from airfed.network import Network

EVALUATION_BLOCK = 256
"""Images of one evaluation task; a constant, so that the loss does not depend on the number of threads."""
_PACKAGES = ("numba", "llvmlite")


def available() -> bool:
    """Return whether the packages that the engine needs are installed."""
    return all(_extras.has(package) for package in _PACKAGES)


def supports(network: object) -> str | None:
    """Return why the engine cannot train `network`, or None if it can: it can train every `Network`."""
    if not isinstance(network, Network):
        return f"The fused engine trains an airfed.network.Network; got {type(network).__name__}."
    return None


class FusedEngine:
    """Local updates of many devices on a few processor cores.

    Device k holds images[shards[k]]. Its update is the sum of its local gradients, g_k = Σ_{e=1..E}
    ∇L_k(w_e) with w_1 = w and w_{e+1} = w_e − τ ∇L_k(w_e), where L_k is the mean cross-entropy of its
    images plus the network's (λ/2)‖w‖². Results do not depend on `threads` or `chunk`. A device whose
    parameters or images are not finite returns an update that is not finite.

    Args:
        network: which network.
        images: float32 (n, channels, height, width).
        labels: int64 (n,), each in 0 .. classes − 1.
        shards: (N, D), the indices of the D images of each of the N devices.
        learning_rate: τ.
        batch_size: images per local step, drawn without replacement; all D if None.
        seed: seed of the draws.
        threads: devices trained at the same time; as many as there are processor cores if None.
        chunk: most updates that exist at any time.
        on_compile: called with a line of text before the code is compiled, which happens once per machine;
            logged by default.

    Raises:
        ValueError: shapes, labels or indices do not fit.
        MissingExtra: Numba is not installed.

    Implements [Yan23, (3)-(5)].
    """

    name = "fused"

    def __init__(
        self,
        network: Network,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        shards: NDArray[np.intp],
        *,
        learning_rate: float,
        batch_size: int | None = None,
        seed: int = 0,
        threads: int | None = None,
        chunk: int = 32,
        on_compile: Callable[[str], None] | None = None,
    ) -> None:
        _extras.require(*_PACKAGES)
        if reason := supports(network):
            raise ValueError(reason)
        from airfed.learning.fused import compiler, machine, tables

        threads = worker_count(threads)
        check_shards(images, labels, shards, learning_rate=learning_rate, batch_size=batch_size, chunk=chunk)
        self.network, self.dimension = network, network.dimension
        self._images, self._labels = _samples(network, images, labels)
        self._shards = np.ascontiguousarray(shards, np.int64)
        self._batch_size, self._seed, self._chunk = batch_size, seed, chunk
        self._learning_rate = learning_rate
        self._tables = tables.build(network, machine.host())
        self._run = compiler.compiled(on_compile)
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="airfed-fused")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; the engine cannot be used afterwards."""
        self._pool.shutdown(cancel_futures=True)

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=len(self._shards), steps=steps)
        return self._updates(parameters.copy(), devices.copy(), steps, round_index)

    def _updates(
        self, weights: NDArray[np.float32], order: NDArray[np.intp], steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Two half chunks are in flight: one is handed out while the threads work on the next."""
        size = max(1, self._chunk // 2)
        pieces = deque(order[i : i + size] for i in range(0, order.size, size))
        flying: deque[tuple[NDArray[np.intp], NDArray[np.float32], list[Future[None]]]] = deque()
        try:
            while pieces or flying:
                while pieces and len(flying) < (2 if self._chunk > 1 else 1):
                    piece = pieces.popleft()
                    out = np.empty((piece.size, self.dimension), np.float32)
                    tasks = [
                        self._pool.submit(self._device, weights, int(device), steps, round_index, row)
                        for device, row in zip(piece, out, strict=True)
                    ]
                    flying.append((piece, out, tasks))
                piece, out, tasks = flying.popleft()
                for task in tasks:
                    task.result()
                yield piece, out
                del piece, out
        finally:
            for _, _, tasks in flying:
                for task in tasks:
                    task.cancel()

    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return (mean loss, accuracy); see `Engine.evaluate`.

        Raises:
            ValueError: shapes or labels do not fit.
        """
        check_round(parameters, np.arange(0), dimension=self.dimension, num_devices=0, steps=1)
        weights = np.ascontiguousarray(parameters)
        pictures, classes = _samples(self.network, images, labels)
        everything = np.arange(len(pictures), dtype=np.int64)
        results = np.zeros((-(-len(pictures) // EVALUATION_BLOCK), 2))
        tasks = []
        for row, first in zip(results, range(0, len(pictures), EVALUATION_BLOCK), strict=True):
            block = everything[first : first + EVALUATION_BLOCK]
            tasks.append(self._pool.submit(self._call, weights, pictures, classes, block, 0, 0, None, row))
        for task in tasks:
            task.result()
        loss, right = results.sum(axis=0) / len(pictures)
        penalty = 0.5 * self.network.l2 * float(np.square(weights, dtype=np.float64).sum())
        return float(loss) + penalty, float(right)

    def _device(
        self,
        weights: NDArray[np.float32],
        device: int,
        steps: int,
        round_index: int,
        out: NDArray[np.float32],
    ) -> None:
        """Train one device; `out` becomes its update."""
        shard, size = self._shards[device], self._batch_size
        if size is None:
            self._call(weights, self._images, self._labels, shard, steps, 0, out, None)
            return
        picks = batches(self._seed, round_index, device, steps=steps, size=shard.size, batch_size=size)
        self._call(weights, self._images, self._labels, shard[picks], steps, size, out, None)

    def _call(
        self,
        weights: NDArray[np.float32],
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        indices: NDArray[np.int64],
        steps: int,
        indices_step: int,
        update: NDArray[np.float32] | None,
        result: NDArray[np.float64] | None,
    ) -> None:
        """Call compiled code (without the interpreter's lock) with the workspace of this thread."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = self._tables.workspace()
        floats, integers = self._local.workspace
        unused = ctypes.c_void_p()
        self._run(
            ctypes.addressof(unused),
            ctypes.addressof(unused),
            *(array.ctypes.data for array in (self._tables.table, weights, images, labels, indices)),
            *(indices_step, indices.shape[-1], steps),
            *(self._learning_rate, self.network.l2),
            *(array.ctypes.data for array in (floats, integers)),
            update.ctypes.data if update is not None else None,
            result.ctypes.data if result is not None else None,
        )


def _samples(
    network: Network, images: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images and labels as contiguous arrays (no copy if they are already), checked."""
    pictures, classes = np.ascontiguousarray(images, np.float32), np.ascontiguousarray(labels, np.int64)
    if pictures.shape[1:] != network.input_shape or len(pictures) == 0:
        raise ValueError(f"Expected images of shape (n, {network.input_shape}), got {pictures.shape}.")
    if classes.shape != (len(pictures),):
        raise ValueError(f"Expected {len(pictures)} labels, one per image; got shape {classes.shape}.")
    if classes.min() < 0 or classes.max() >= network.classes:
        raise ValueError(f"Expected labels in 0..{network.classes - 1}; got {classes.min()}..{classes.max()}.")
    return pictures, classes
