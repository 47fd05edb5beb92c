"""Engines: local training of the scheduled devices from the global model, as a stream of updates.

All engines compute the same updates up to rounding. The results of one engine are bit-identical for every chunk size
and number of threads.
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

_log = logging.getLogger(__name__)

ENGINES: Final = ("auto", "fused", "torch", "reference")
"""Names of the engines for images."""

Parameters = NDArray[np.float32]  # (d,)
Images = NDArray[np.float32]  # (n, channels, height, width)
Labels = NDArray[np.int64]  # (n,)
Devices = NDArray[np.intp]
Updates = Iterator[tuple[Devices, NDArray[np.float32]]]


class Engine(Protocol):
    """Local training of federated averaging (FedAvg)."""

    name: str
    dimension: int  # d, the length of the parameter vector

    def updates(self, parameters: Parameters, devices: Devices, *, steps: int, round_index: int) -> Updates:
        """Yield (devices of the chunk, their updates (m, d) float32, owned by the caller), in the order of `devices`.

        The update of device k is g_k = Σ_e ∇L_k(w_k^e) = (w⁰ − w_k^E)/τ over its E local steps w_k^{e+1} = w_k^e −
        τ ∇L_k(w_k^e) from the global w⁰ (`parameters`, float32 (d,)). It is not clipped. `round_index` keys the
        mini-batches.

        Implements [Yan23, (3)-(5)].

        Deviations: the sign of (5); optional mini-batches.
        """

    def evaluate(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        """Return the mean loss, including the regulariser (λ/2)‖w‖², and the accuracy."""

    def close(self) -> None:
        """Release threads and memory; the engine cannot be used afterwards."""


def make_engine(
    name: str,
    model: Model,
    data: Dataset,
    shards: NDArray[np.intp],
    *,
    threads: int | None = None,
    device: str = "auto",
    **options: Any,
) -> Engine:
    """Return the engine; raise ValueError if it does not support the model. `options` are those of `ImageEngine`.

    "auto" is "fused" if it supports the model (a built-in network, or an equivalent torch module, on a CPU), else
    "torch". `threads` None is one per processor.
    """
    _validate.one_of(ENGINES, engine=name)
    network, reason = _network(model, data, device, options.get("seed", 0)) if name in ("auto", "fused") else (None, "")
    if name == "fused" and network is None:
        raise ValueError(f"The fused engine cannot be used: {reason}. Use engine = 'auto' or 'torch'.")
    if name == "auto" and network is None:
        _log.info("Using the torch engine: %s.", reason)
    arrays = (data.train_images, data.train_labels, shards)
    if network is not None:
        from airfed.learning.fused import FusedEngine

        return FusedEngine(network, *arrays, threads=threads, **options)
    if name == "reference":
        from airfed.learning.reference import ReferenceEngine

        return ReferenceEngine(model, *arrays, **options)
    from airfed.learning.torch_engine import TorchEngine

    return TorchEngine(model, *arrays, threads=threads, device=device, **options)


def _network(model: Model, data: Dataset, device: str, seed: int) -> tuple[Network | None, str]:
    """Return the network that the fused engine trains for the model; None and the reason if it cannot."""
    from airfed.learning.fused import available

    if device not in ("auto", "cpu"):
        return None, f"it runs on CPUs, not on {device!r}"
    if not available():
        return None, "numba is not installed"
    if isinstance(model, Network):
        return model, ""
    from airfed.learning import models, recognition  # a user's model needs torch

    try:
        return recognition.recognise(models.as_module(model, seed=seed)[0], data.image_shape), ""
    except recognition.NotRecognised as reason:
        return None, str(reason)


class ImageEngine:
    """What the engines for images share; raises ValueError if the arguments are inconsistent.

    Images and labels of all devices are float32 (n, c, h, w) and int64 (n,); `shards` are the image indices of each
    device, (N, D). `batch_size` None is the full batch, `seed` that of the mini-batches and of the initial values of a
    user's model, and `chunk` the devices per yielded chunk, which bounds the memory.
    """

    dimension: int
    _l2: float

    def __init__(
        self,
        images: Images,
        labels: Labels,
        shards: NDArray[np.intp],
        *,
        learning_rate: float,
        batch_size: int | None = None,
        seed: int = 0,
        chunk: int = 32,
    ) -> None:
        _validate.positive(learning_rate=learning_rate)
        _validate.positive_integer(chunk=chunk)
        if images.ndim != 4 or images.dtype != np.float32:
            raise ValueError(f"images must be float32 (n, c, h, w), got {images.dtype} {images.shape}.")
        if labels.shape != images.shape[:1] or labels.dtype != np.int64 or labels.min(initial=0) < 0:
            raise ValueError(f"labels must be int64 ({len(images)},) from 0, got {labels.dtype} {labels.shape}.")
        if shards.ndim != 2 or shards.size == 0 or shards.dtype.kind not in "ui":
            raise ValueError(f"shards must be indices (N, D), got {shards.dtype} {shards.shape}.")
        if shards.min() < 0 or shards.max() >= len(images):
            raise ValueError(f"shards must index {len(images)} images, got {shards.min()} to {shards.max()}.")
        if batch_size is not None:
            _validate.positive_integer(batch_size=batch_size)
            if batch_size > (most := shards.shape[1]):
                raise ValueError(f"batch_size must be at most {most}, the images per device, got {batch_size}.")
        self._images, self._labels, self._shards = images, labels, shards
        self._learning_rate, self._batch_size, self._seed, self._chunk = learning_rate, batch_size, seed, chunk

    def _module_of(self, model: Model) -> tuple[Any, float]:
        """Return `models.as_module`, after `models.check_forward` on images of the first and the last device."""
        from airfed.learning import models

        module, l2 = models.as_module(model, seed=self._seed)
        first, last = (self._images[shard[: min(2, self._batch_size or 2)]] for shard in self._shards[[0, -1]])
        name = model if isinstance(model, str) else type(model).__name__
        models.check_forward(module, first, last, int(self._labels.max()) + 1, name=name)
        return module, l2

    def _picks(self, device: int, steps: int, round_index: int) -> NDArray[np.intp] | None:
        """Return the mini-batches of a device, (E, batch); None for full batches."""
        if self._batch_size is None:
            return None
        size = self._shards.shape[1]
        return batches(self._seed, round_index, device, steps=steps, size=size, batch_size=self._batch_size)


class ThreadedEngine(ImageEngine, ABC):
    """An engine that trains devices in parallel threads; the caller holds one chunk while two more are computed."""

    _pool: ThreadPoolExecutor
    _piece: int  # images per evaluation task; constant, so that the loss does not depend on the threads

    @abstractmethod
    def _train(self, start: Parameters, device: int, steps: int, round_index: int, row: Any) -> None:
        """Write g_k of a device into its row."""

    @abstractmethod
    def _measure(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        """Return the summed cross-entropy and the number of correct predictions."""

    def updates(self, parameters: Parameters, devices: Devices, *, steps: int, round_index: int) -> Updates:
        """Yield (devices, updates) chunk by chunk; see `Engine.updates`."""
        check_round(parameters, devices, dimension=self.dimension, num_devices=len(self._shards), steps=steps)
        return self._stream(parameters.copy(), devices.copy(), steps, round_index)

    def _stream(self, start: Parameters, devices: Devices, steps: int, round_index: int) -> Updates:
        first, ahead = 0, deque[tuple[Devices, NDArray[np.float32], list[Future[None]]]]()
        try:
            while first < len(devices) or ahead:
                while first < len(devices) and len(ahead) < 2:
                    part = devices[first : first + self._chunk]
                    first += self._chunk
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
        finally:  # also if the caller stops early
            wait([job for _, _, jobs in ahead for job in jobs if not job.cancel()])

    def evaluate(self, parameters: Parameters, images: Images, labels: Labels) -> tuple[float, float]:
        """Return (mean loss, accuracy); see `Engine.evaluate`."""
        check_round(parameters, np.arange(0), dimension=self.dimension, num_devices=0, steps=1)
        start = parameters.copy()
        parts = [slice(first, first + self._piece) for first in range(0, len(images), self._piece)]
        measured = list(self._pool.map(lambda part: self._measure(start, images[part], labels[part]), parts))
        loss, right = (sum(figures) / len(images) for figures in zip(*measured, strict=True))
        return loss + self._l2 / 2 * float(np.square(start, dtype=np.float64).sum()), right

    def close(self) -> None:
        """Stop the threads; the engine cannot be used afterwards."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def batches(seed: int, round_index: int, device: int, *, steps: int, size: int, batch_size: int) -> NDArray[np.intp]:
    """Return the positions (E, batch) of a device's mini-batches within its D images, the same in every engine."""
    rng = stream(seed, "batch", round_index, device)
    return np.stack([rng.choice(size, batch_size, replace=False) for _ in range(steps)])


def check_round(parameters: Parameters, devices: Devices, *, dimension: int, num_devices: int, steps: int) -> None:
    """Raise ValueError unless the arguments of `Engine.updates` are valid."""
    _validate.positive_integer(steps=steps)
    if parameters.shape != (dimension,) or parameters.dtype != np.float32:
        raise ValueError(f"parameters must be float32 ({dimension},), got {parameters.dtype} {parameters.shape}.")
    if devices.ndim != 1 or devices.dtype.kind not in "ui":
        raise ValueError(f"devices must be a vector of indices, got {devices.dtype} {devices.shape}.")
    if devices.size and (devices.min() < 0 or devices.max() >= num_devices):
        raise ValueError(f"devices must be between 0 and {num_devices - 1}, got {devices.min()} to {devices.max()}.")


def worker_count(threads: int | None) -> int:
    """Return `threads`, or else the processors divided by the torchrun processes on this machine."""
    if threads is not None:
        _validate.positive_integer(threads=threads)
        return threads
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, processors // max(1, int(processes))) if processes.isdecimal() else processors
