"""Engines: given the global model, who is scheduled and how many local steps, stream back the updates.

What is computed is the same for every engine; threads, chunk and device say how fast, and never change a
result beyond rounding. One engine's own results are bit-identical for every chunk size and number of threads.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.learning.data import Dataset
from airfed.network import Network
from airfed.seeds import stream

if TYPE_CHECKING:
    from airfed.learning.models import Model
    from airfed.learning.quadratic import KnownTask

_log = logging.getLogger(__name__)

ENGINES: Final = ("auto", "fused", "torch", "reference")
"""The engines for images, by name."""


class Engine(Protocol):
    """The local half of federated averaging."""

    @property
    def name(self) -> str:
        """Which engine runs."""

    @property
    def dimension(self) -> int:
        """d, the length of the parameter vector."""

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (devices of the chunk, their updates (m, d) float32, the caller's own), in the order of `devices`.

        The update of device k is g_k = Σ_e ∇L_k(w_k^e) = (w⁰ − w_k^E)/τ over its E local steps w_k^{e+1} = w_k^e −
        τ ∇L_k(w_k^e) from the global w⁰ (`parameters`, float32 (d,)). It is not clipped. `round_index` keys the
        mini-batches.

        Implements [Yan23, (3)-(5)].

        Deviations: the sign of (5); mini-batches as an option.
        """

    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return the mean loss with its regulariser (λ/2)‖w‖², and the share of right answers."""

    def close(self) -> None:
        """Release threads and memory; the engine is of no use afterwards."""


def make_engine(
    name: str,
    model: Model | KnownTask,
    data: Dataset | None,
    shards: NDArray[np.intp] | None,
    *,
    learning_rate: float,
    batch_size: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chunk: int = 32,
    device: str = "auto",
) -> Engine:
    """Return the engine; its `.name` says which one runs. A ValueError says why one does not apply to the model.

    Args:
        name: "auto" takes "fused" where it applies (a network of the family, or a torch module that is one, on a
            CPU), else "torch".
        model: a `Network`, a torch module, "module:callable", or a `KnownTask` (which brings its own engine).
        data, shards: training images, and those of each device, (N, D), as `partition` gives; None for a `KnownTask`.
        learning_rate: τ.
        batch_size: images per local step; None is the full batch.
        seed: of the run; keys the mini-batches and a user model's initial values.
        threads: worker threads; None is one per processor.
        chunk: devices per yielded chunk; bounds the memory.
        device: "auto", "cpu" or a torch device such as "cuda".
    """
    from airfed.learning.quadratic import KnownTask, QuadraticEngine

    _validate.one_of(ENGINES, engine=name)
    if isinstance(model, KnownTask):
        if name != "auto" or batch_size is not None:
            raise ValueError("Expected engine='auto' and no batch_size: a known task brings its own engine.")
        return QuadraticEngine(model, learning_rate=learning_rate, chunk=chunk)
    if data is None or shards is None:
        raise ValueError("Expected data and shards for a model that learns from images.")
    network, reason = _network(model, data, device, seed) if name in ("auto", "fused") else (None, "")
    if name == "fused" and network is None:
        raise ValueError(f"The fused engine does not apply: {reason}. Use engine = 'auto' or 'torch'.")
    if name == "auto" and network is None:
        _log.info("The torch engine trains: %s.", reason)
    common: dict[str, Any] = {"learning_rate": learning_rate, "batch_size": batch_size, "seed": seed, "chunk": chunk}
    arrays = (data.train_images, data.train_labels, shards)
    if network is not None:
        from airfed.learning.fused import FusedEngine

        return FusedEngine(network, *arrays, **common, threads=threads)
    if name == "reference":
        from airfed.learning.reference import ReferenceEngine

        return ReferenceEngine(model, *arrays, **common)
    from airfed.learning.torch_engine import TorchEngine

    return TorchEngine(model, *arrays, **common, threads=threads, device=device)


def _network(model: Model, data: Dataset, device: str, seed: int) -> tuple[Network | None, str]:
    """Return what the fused engine can train the model as; None, and the reason, where it cannot."""
    from airfed.learning.fused import available

    if device not in ("auto", "cpu"):
        return None, f"it runs on CPUs, not on {device!r}"
    if not available():
        return None, "numba is not installed"
    if isinstance(model, Network):
        return model, ""
    from airfed.learning import models, recognition  # the user's own model needs torch

    try:
        return recognition.recognise(models.as_module(model, seed=seed)[0], data.image_shape), ""
    except recognition.Unlike as reason:
        return None, str(reason)


class ThreadedEngine(ABC):
    """An engine that trains each device on a thread of its own; device k holds images[shards[k]].

    One chunk of updates is with the caller and two are in the making: that bounds the memory, whatever the number of
    devices. Arguments are those of `make_engine`: images float32 (n, c, h, w), labels int64 (n,), shards (N, D).
    """

    dimension: int
    _l2: float
    _piece: int  # images of one evaluation task: a constant, so that the loss does not depend on the threads

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        shards: NDArray[np.intp],
        *,
        learning_rate: float,
        batch_size: int | None = None,
        seed: int = 0,
        chunk: int = 32,
    ) -> None:
        self._pool, self._images, self._labels, self._shards = pool, images, labels, shards
        self._learning_rate, self._batch_size, self._seed, self._chunk = learning_rate, batch_size, seed, chunk

    @abstractmethod
    def _train(self, start: NDArray[np.float32], device: int, steps: int, round_index: int, row: Any) -> None:
        """Write g_k of one device into its row."""

    @abstractmethod
    def _measure(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return the summed cross-entropy and the number of right answers."""

    def _picks(self, device: int, steps: int, round_index: int) -> NDArray[np.intp] | None:
        """The mini-batches of a device, (E, batch); None where every step takes all its images."""
        if self._batch_size is None:
            return None
        size = self._shards.shape[1]
        return batches(self._seed, round_index, device, steps=steps, size=size, batch_size=self._batch_size)

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=len(self._shards), steps=steps)
        return self._stream(parameters.copy(), devices.copy(), steps, round_index)

    def _stream(
        self, start: NDArray[np.float32], devices: NDArray[np.intp], steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        parts = deque(devices[first : first + self._chunk] for first in range(0, len(devices), self._chunk))
        ahead: deque[tuple[NDArray[np.intp], NDArray[np.float32], list[Future[None]]]] = deque()
        try:
            while parts or ahead:
                while parts and len(ahead) < 2:
                    part = parts.popleft()
                    rows = np.empty((len(part), self.dimension), np.float32)
                    pairs = zip(part.tolist(), rows, strict=True)
                    jobs = [self._pool.submit(self._train, start, k, steps, round_index, row) for k, row in pairs]
                    ahead.append((part, rows, jobs))
                part, rows, jobs = ahead[0]
                for job in jobs:
                    job.result()
                ahead.popleft()
                yield part, rows
                del part, rows
        finally:  # also when the caller stops early: leave no worker busy
            wait([job for _, _, jobs in ahead for job in jobs if not job.cancel()])

    def evaluate(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return (mean loss, accuracy); see `Engine.evaluate`."""
        check_round(parameters, np.arange(0), dimension=self.dimension, num_devices=0, steps=1)
        start = parameters.copy()
        parts = [slice(first, first + self._piece) for first in range(0, len(images), self._piece)]
        measured = list(self._pool.map(lambda part: self._measure(start, images[part], labels[part]), parts))
        loss, right = (sum(figures) / len(images) for figures in zip(*measured, strict=True))
        return loss + self._l2 / 2 * float(np.square(start, dtype=np.float64).sum()), right

    def close(self) -> None:
        """End the threads; the engine cannot be used afterwards."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def batches(seed: int, round_index: int, device: int, *, steps: int, size: int, batch_size: int) -> NDArray[np.intp]:
    """Return the positions (E, batch) of a device's mini-batches within its D images, without replacement.

    Every engine draws exactly so: from the stream "batch" keyed by round and device, one `choice` per step in order.
    """
    rng = stream(seed, "batch", round_index, device)
    return np.stack([rng.choice(size, batch_size, replace=False) for _ in range(steps)])


def check_shards(
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    shards: NDArray[np.intp],
    *,
    learning_rate: float,
    batch_size: int | None = None,
    seed: int = 0,
    chunk: int = 32,
) -> None:
    """Raise a ValueError unless the arguments that every image engine shares fit together."""
    _validate.positive(learning_rate=learning_rate)
    _validate.positive_integer(chunk=chunk)
    if images.ndim != 4 or images.dtype != np.float32:
        raise ValueError(f"Expected images float32 (n, c, h, w), got {images.dtype} {images.shape}.")
    if labels.shape != images.shape[:1] or labels.dtype != np.int64 or labels.min(initial=0) < 0:
        raise ValueError(f"Expected labels int64 ({len(images)},) from 0, got {labels.dtype} {labels.shape}.")
    if shards.ndim != 2 or shards.size == 0 or shards.dtype.kind not in "ui":
        raise ValueError(f"Expected shards to be indices (N, D), got {shards.dtype} {shards.shape}.")
    if shards.min() < 0 or shards.max() >= len(images):
        raise ValueError(f"Expected shards to index {len(images)} images, got {shards.min()} to {shards.max()}.")
    if batch_size is not None:
        _validate.positive_integer(batch_size=batch_size)
        if batch_size > (most := shards.shape[1]):
            raise ValueError(f"Expected batch_size={batch_size} to be at most the images per device, {most}.")


def check_round(
    parameters: NDArray[np.float32], devices: NDArray[np.intp], *, dimension: int, num_devices: int, steps: int
) -> None:
    """Raise a ValueError unless the arguments of `Engine.updates` fit the engine."""
    _validate.positive_integer(steps=steps)
    if parameters.shape != (dimension,) or parameters.dtype != np.float32:
        raise ValueError(f"Expected parameters float32 ({dimension},), got {parameters.dtype} {parameters.shape}.")
    if devices.ndim != 1 or devices.dtype.kind not in "ui":
        raise ValueError(f"Expected devices to be a vector of indices, got {devices.dtype} {devices.shape}.")
    if devices.size and (devices.min() < 0 or devices.max() >= num_devices):
        raise ValueError(f"Expected devices from 0 to {num_devices - 1}, got {devices.min()} to {devices.max()}.")


def worker_count(threads: int | None) -> int:
    """Return the number of threads: as asked, else the processors, shared with the processes torchrun started here."""
    if threads is not None:
        _validate.positive_integer(threads=threads)
        return threads
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, processors // max(1, int(processes))) if processes.isdecimal() else processors
