"""Dealing the training images out to devices: equal sizes, no image twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _files, _validate

SCHEMES = ("iid", "dirichlet", "shards")
"""The ways to deal."""


def partition(
    labels: ArrayLike,
    num_devices: int,
    *,
    scheme: str = "iid",
    alpha: float = 0.5,
    shards_per_device: int = 2,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Return the indices of each device's images, (N, D) with D = ⌊n/N⌋; n − ND images stay out at random.

    - "iid": a random permutation, cut.
    - "dirichlet": device k wants class proportions p_k ~ Dir(α, …, α) and counts ~ Multinomial(D, p_k). Where
      all together want more of a class than there is, devices are served in random order until it is used up,
      and what a device lacks is drawn again from p_k over the classes still open (if p_k is zero there, from
      one class, picked by the images left); this ends after at most one pass per class. Small α gives devices
      of one class, α → ∞ equal shares.
    - "shards": the images sorted by label are cut into S·N pieces of ⌊D/S⌋ or ⌈D/S⌉, and every device gets S
      of them at random.

    Args:
        labels: class of each image, n whole numbers from 0.
        num_devices: N.
        scheme: one of `SCHEMES`.
        alpha: α of "dirichlet".
        shards_per_device: S of "shards".
        rng: source of the randomness; airfed uses the stream "data".

    Raises:
        ValueError: there are more devices than images, or an argument is out of its range.

    >>> partition([0, 1, 0, 1, 0], 2, rng=np.random.default_rng(0)).shape
    (2, 2)
    """
    _validate.positive_integer(num_devices=num_devices, shards_per_device=shards_per_device)
    _validate.positive(alpha=alpha)
    _validate.one_of(SCHEMES, scheme=scheme)
    classes_of = np.asarray(labels)
    if classes_of.ndim != 1 or classes_of.dtype.kind not in "ui" or classes_of.min(initial=0) < 0:
        raise ValueError(f"Expected labels to be a vector of whole numbers from 0, got {classes_of.dtype}.")
    size = len(classes_of) // num_devices
    if size == 0:
        raise ValueError(
            f"Expected num_devices={num_devices} to be at most the number of images, {len(classes_of)}: "
            "every device needs one."
        )
    if scheme == "dirichlet":
        return _dirichlet(classes_of, num_devices, size, alpha, rng)
    order = rng.permutation(len(classes_of))[: num_devices * size]
    if scheme == "shards":
        return _shards(order[np.argsort(classes_of[order], kind="stable")], num_devices, size, shards_per_device, rng)
    return order.reshape(num_devices, size)


def _shards(
    order: NDArray[np.intp], num_devices: int, size: int, per_device: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return (N, D): the pieces (device, slot) laid in random order along the sorted images."""
    if per_device > size:
        raise ValueError(f"Expected shards_per_device={per_device} to be at most the images per device, {size}.")
    pieces = rng.permutation(num_devices * per_device)
    lengths = np.where(pieces % per_device < size % per_device, size // per_device + 1, size // per_device)
    return _group(np.repeat(pieces // per_device, lengths), order, num_devices)


def _dirichlet(
    labels: NDArray[np.integer], num_devices: int, size: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return (N, D) by the construction in `partition`; O(n · classes)."""
    supply = np.bincount(labels)
    _files.check_memory(3 * 8 * num_devices * len(supply), f"a table of {num_devices} devices × {len(supply)} classes")
    wishes = _proportions(num_devices, len(supply), alpha, rng)
    counts = rng.multinomial(size, wishes)
    open_classes = np.ones(len(supply), bool)
    while (surplus := counts.sum(axis=0) - supply).max() > 0:
        open_classes &= surplus < 0
        for label in np.flatnonzero(surplus > 0).tolist():
            turn = rng.permutation(num_devices)
            served = np.minimum(np.cumsum(counts[turn, label]), supply[label])
            counts[turn, label] = np.diff(served, prepend=0)
        short = np.flatnonzero(counts.sum(axis=1) < size)
        chances = np.where(open_classes, wishes[short], 0.0)
        void = np.flatnonzero(chances.sum(axis=1) == 0)
        left = np.where(open_classes, supply - counts.sum(axis=0), 0)
        chances[void] = np.eye(len(supply))[rng.choice(len(supply), len(void), p=left / left.sum())]
        chances /= chances.sum(axis=1, keepdims=True)
        counts[short] += rng.multinomial(size - counts[short].sum(axis=1), chances)
    owners, images = [], []
    for label in range(len(supply)):
        owner = np.repeat(np.arange(num_devices), counts[:, label])
        owners.append(owner)
        images.append(rng.permutation(np.flatnonzero(labels == label))[: len(owner)])
    return _group(np.concatenate(owners), np.concatenate(images), num_devices)


def _proportions(num_devices: int, classes: int, alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return N draws of Dir(α, …, α); below α = 1e-3, where the law underflows, its limit: one class each."""
    if alpha < 1e-3:
        return np.eye(classes)[rng.integers(classes, size=num_devices)]
    return rng.dirichlet(np.full(classes, alpha), num_devices)


def _group(owners: NDArray[np.intp], images: NDArray[np.intp], num_devices: int) -> NDArray[np.intp]:
    """Return the images of each owner as rows; every owner has equally many."""
    return images[np.argsort(owners, kind="stable")].reshape(num_devices, -1)
