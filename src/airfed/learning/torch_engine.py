"""The engine for any torch model: a lean loop over devices, spread over threads, which share the images."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airfed.learning.engine import ThreadedEngine, check_shards, worker_count
from airfed.learning.models import Model, checked_module, fresh, parameters_of


class TorchEngine(ThreadedEngine):
    """Local training of any torch model; see `airfed.learning.engine.ThreadedEngine`.

    Each device is computed by one thread with torch's own threading switched off in it, by the same operations in the
    same order whoever computes it: the bits do not depend on `threads` (None is one per processor; on a GPU there is
    one) or `chunk`. The device "auto" is a GPU if there is one.
    """

    name = "torch"
    _piece = 500

    def __init__(
        self,
        model: Model,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        shards: NDArray[np.intp],
        *,
        threads: int | None = None,
        device: str = "auto",
        **options: Any,
    ) -> None:
        check_shards(images, labels, shards, **options)
        place = _find_device(device)
        probed = {"batch_size": options.get("batch_size"), "seed": options.get("seed", 0)}
        module, self._l2 = checked_module(model, images, labels, shards, **probed)
        self.dimension = sum(p.numel() for p in parameters_of(module))
        count = worker_count(threads) if place.type == "cpu" else 1
        self._workers: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(count):
            self._workers.put(_Worker(deepcopy(module), self._l2, place))
        super().__init__(_single_threaded_pool(count), images, labels, shards, **options)

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        worker = self._workers.get()
        try:
            yield worker
        finally:
            self._workers.put(worker)

    def _train(self, start: NDArray[np.float32], device: int, steps: int, round_index: int, row: Any) -> None:
        shard, picks = self._shards[device], self._picks(device, steps, round_index)
        with self._worker() as worker:
            images, labels = worker.place(self._images[shard], self._labels[shard])
            worker.train(start, images, labels, steps=steps, picks=picks, learning_rate=self._learning_rate)
            torch.from_numpy(row).copy_(worker.total)

    def _measure(
        self, parameters: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[float, float]:
        with self._worker() as worker:
            return worker.measure(parameters, *worker.place(images, labels))


class _Worker:
    """A copy of the model whose parameters and gradients are views into two flat vectors.

    So a local step costs three vector operations beside forward and backward, whatever the number of tensors. The copy
    itself is never called: each device trains on a fresh one, so that nothing of another device's data is in its state.
    """

    def __init__(self, module: nn.Module, l2: float, device: torch.device) -> None:
        self._module, self._l2, self._device = module.to(device), l2, device
        self._parameters = parameters_of(self._module)
        sizes = [p.numel() for p in self._parameters]
        self._weights, self._gradient, self.total = (torch.zeros(sum(sizes), device=device) for _ in range(3))
        parts = zip(
            self._parameters, *(torch.split(flat, sizes) for flat in (self._weights, self._gradient)), strict=True
        )
        for p, weights, gradient in parts:
            p.data, p.grad = weights.view(p.shape), gradient.view(p.shape)

    def place(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the arrays on the worker's device."""
        return torch.tensor(images, device=self._device), torch.tensor(labels, device=self._device)

    def train(
        self,
        start: NDArray[np.float32],
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        steps: int,
        picks: NDArray[np.intp] | None,
        learning_rate: float,
    ) -> None:
        """Run the local steps from `start` and leave the sum of their gradients in `total`."""
        module = self._started(start)
        self.total.zero_()
        order = None if picks is None else torch.tensor(picks, device=self._device)
        with _exact(self._device):
            for step in range(steps):
                inputs, targets = (images, labels) if order is None else (images[order[step]], labels[order[step]])
                self._gradient.zero_()  # backward adds to it, in place
                loss = nn.functional.cross_entropy(module(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if self._l2:
                    self._gradient.add_(self._weights, alpha=self._l2)
                self.total.add_(self._gradient)  # [Yan23, (5)], with the sign put right
                self._weights.sub_(self._gradient, alpha=learning_rate)  # [Yan23, (3)]

    def measure(self, parameters: NDArray[np.float32], images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        """Return the summed cross-entropy and the number of right answers."""
        module = self._started(parameters)
        with torch.no_grad(), _exact(self._device):
            logits = module(images)
            loss = nn.functional.cross_entropy(logits, labels, reduction="none")
            return float(loss.double().sum()), int((logits.argmax(dim=1) == labels).sum())

    def _started(self, parameters: NDArray[np.float32]) -> nn.Module:
        self._weights.copy_(torch.from_numpy(parameters))
        return fresh(self._module, self._parameters)


def _find_device(name: str) -> torch.device:
    """Return the torch device of that name; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with warnings.catch_warnings(action="ignore"):  # about names that are out of fashion
            device = torch.device(name)
            torch.ones(1, device=device).cpu()  # there and back: some devices only pretend
    except (RuntimeError, AssertionError, ImportError):
        found = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        found += [kind for kind in ("mps", "xpu") if getattr(torch, kind).is_available()]
        raise ValueError(
            f"Expected device={name!r} to be one that is here and that torch can use; there is {', '.join(found)}."
        ) from None
    return device


def _exact(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a GPU computes convolutions reproducibly and in full float32."""
    strict: Any = {"enabled": True, "benchmark": False, "deterministic": True, "allow_tf32": False}
    return torch.backends.cudnn.flags(**strict) if device.type == "cuda" else nullcontext()


def _single_threaded_pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads in each of which torch computes on that thread alone.

    New threads take over torch's default: the order here leaves the caller and all later threads as they were.
    """

    def alone() -> None:
        torch.get_num_threads()  # takes the default over now, lest it happen later and undo the next line
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="airfed-torch", initializer=alone)
    barrier = threading.Barrier(count)  # every worker has one job, so every thread has started
    list(pool.map(lambda _: barrier.wait(), range(count)))
    torch.set_num_threads(before)
    return pool
