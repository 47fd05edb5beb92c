"""Engines: given the global model, who is scheduled and how many local steps, stream back the updates.

What is computed is the same for every engine; threads, chunk and device say how fast, and never change a
result beyond rounding. One engine's own results are bit-identical for every chunk size and number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed import _validate
from airfed.learning.data import Dataset
from airfed.learning.quadratic import KnownTask, QuadraticEngine
from airfed.network import Network

if TYPE_CHECKING:
    from airfed.learning.models import Model

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
        """Yield (devices of the chunk, their updates (m, d) float32), in the order of `devices`.

        The update of device k is g_k = Σ_e ∇L_k(w_k^e) = (w⁰ − w_k^E)/τ over its E local steps w_k^{e+1} =
        w_k^e − τ ∇L_k(w_k^e) from the global w⁰. It is not clipped: that is the air's business. A yielded
        array is the caller's.

        Args:
            parameters: w⁰, float32 (d,); not changed.
            devices: the scheduled devices, in any order.
            steps: E ≥ 1.
            round_index: i, which keys the mini-batches.

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
    """Return the engine; its `.name` says which one runs.

    Args:
        name: "auto" takes "fused" where it applies (a network of the family, or a torch module that is one, on a
            CPU), else "torch".
        model: a `Network`, a torch module, "module:callable", or a `KnownTask` (which brings its own
            engine).
        data: the training part is used; None for a `KnownTask`.
        shards: images of each device, (N, D), as `partition` gives; None for a `KnownTask`.
        learning_rate: τ.
        batch_size: images per local step; None is the full batch.
        seed: of the run; keys the mini-batches and a user model's initial values.
        threads: worker threads; None is one per processor.
        chunk: devices per yielded chunk; bounds the memory.
        device: "auto", "cpu" or a torch device such as "cuda".

    Raises:
        ValueError: no such engine, or it does not apply to the model; the message says why.
    """
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
    common: dict[str, Any] = {
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
        "threads": threads,
        "chunk": chunk,
    }
    arrays = (data.train_images, data.train_labels, shards)
    if network is not None:
        from airfed.learning.fused import FusedEngine

        return FusedEngine(network, *arrays, **common)
    if name == "reference":
        from airfed.learning.reference import ReferenceEngine

        return ReferenceEngine(model, *arrays, **common)
    from airfed.learning.torch_engine import TorchEngine

    return TorchEngine(model, *arrays, **common, device=device)


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
