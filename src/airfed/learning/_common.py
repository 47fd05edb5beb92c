"""What engines have in common: the draw of mini-batches, the checks of arguments, the number of workers."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.seeds import stream


def batches(seed: int, round_index: int, device: int, *, steps: int, size: int, batch_size: int) -> NDArray[np.intp]:
    """Return the positions (E, batch) of a device's mini-batches within its D images, without replacement.

    Every engine that learns from images draws exactly so: from the stream "batch" keyed by round and device, one
    `choice` per step in order.
    """
    rng = stream(seed, "batch", round_index, device)
    return np.stack([rng.choice(size, batch_size, replace=False) for _ in range(steps)])


def check_shards(
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    shards: NDArray[np.intp],
    *,
    learning_rate: float,
    batch_size: int | None,
    chunk: int,
) -> None:
    """Raise unless the arguments that every image engine shares fit together.

    Raises:
        ValueError: naming the argument.
    """
    _validate.positive(learning_rate=learning_rate)
    _validate.positive_integer(chunk=chunk)
    if images.ndim != 4 or images.dtype != np.float32:
        raise ValueError(f"Expected images float32 (n, c, h, w), got {images.dtype} {images.shape}.")
    if labels.shape != images.shape[:1] or labels.dtype != np.int64:
        raise ValueError(f"Expected labels int64 ({len(images)},), got {labels.dtype} {labels.shape}.")
    if labels.size and labels.min() < 0:
        raise ValueError(f"Expected labels of at least 0, got {labels.min()}.")
    if shards.ndim != 2 or shards.size == 0 or shards.dtype.kind not in "ui":
        raise ValueError(f"Expected shards to be indices (N, D), got {shards.dtype} {shards.shape}.")
    if shards.min() < 0 or shards.max() >= len(images):
        raise ValueError(f"Expected shards to index {len(images)} images, got {shards.min()} to {shards.max()}.")
    if batch_size is not None:
        _validate.positive_integer(batch_size=batch_size)
        if batch_size > shards.shape[1]:
            raise ValueError(
                f"Expected batch_size={batch_size} to be at most the images per device, {shards.shape[1]}."
            )


def check_round(
    parameters: NDArray[np.float32],
    devices: NDArray[np.intp],
    *,
    dimension: int,
    num_devices: int,
    steps: int,
) -> None:
    """Raise unless the arguments of `Engine.updates` fit the engine.

    Raises:
        ValueError: naming the argument.
    """
    _validate.positive_integer(steps=steps)
    if parameters.shape != (dimension,) or parameters.dtype != np.float32:
        raise ValueError(f"Expected parameters float32 ({dimension},), got {parameters.dtype} {parameters.shape}.")
    if devices.ndim != 1 or devices.dtype.kind not in "ui":
        raise ValueError(f"Expected devices to be a vector of indices, got {devices.dtype} {devices.shape}.")
    if devices.size and (devices.min() < 0 or devices.max() >= num_devices):
        raise ValueError(f"Expected devices from 0 to {num_devices - 1}, got {devices.min()} to {devices.max()}.")


def worker_count(threads: int | None) -> int:
    """Return the number of worker threads: as asked, else one per processor this process may use.

    Where torchrun has started several processes here, they share the processors.

    Raises:
        ValueError: threads is not a whole number of at least 1.
    """
    if threads is not None:
        _validate.positive_integer(threads=threads)
        return threads
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, processors // max(1, int(processes))) if processes.isdecimal() else processors
