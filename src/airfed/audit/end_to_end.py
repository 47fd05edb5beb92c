"""The attack on trained models: devices hold canary data, engines train, and an adversary guesses from the models.

Copies of the most exposed device train a logistic model with two classes. Device k holds one large image that is dark
except for pixel k, labelled 0 or 1 by its sign: its update is longer than ϖ, in the direction ±u_k of the two weights
of that pixel. The engine, clipping, superposition, noise and model update are those of a run. The adversary has only
the models m¹, …, m^I. Along u_k the step m^i − m^{i+1}, in units of its noise, is a score as in
`airfed.audit.canaries`. A small learning rate keeps the model close to zero, where every gradient is large; privacy
does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.audit.canaries import Scores, Target
from airfed.audit.subject import DeviceCopies, Subject
from airfed.learning.data import Dataset
from airfed.learning.engine import Engine, make_engine
from airfed.network import Network

_SIDE: Final = 16
_COPIES: Final = _SIDE**2  # devices, one per pixel
_BRIGHT: Final = 100.0  # a pixel's value, times max(1, ϖ): its update is some 70 ϖ long, the bias a 100th of it
_LARGEST_LOGIT: Final = 0.01


def attack(subject: Subject, rng: np.random.Generator, *, trials: int) -> Scores:
    """Return the scores of at least `trials` canaries per sign, from the models of trainings; raises NoiseFault."""
    target, run = Target.of(subject), subject.scenario.run
    slow, image = _slow(subject)
    images = (image * np.eye(_COPIES)).reshape(_COPIES, 1, _SIDE, _SIDE).astype(np.float32)
    batch = subject.scenario.learning.batch_size
    shards = np.repeat(np.arange(_COPIES)[:, None], batch or 1, axis=1)
    network = Network(input_shape=(1, _SIDE, _SIDE), classes=2)
    copies = DeviceCopies(subject=slow, device=subject.target_device, count=_COPIES)
    rate = slow.plan.problem.learning.learning_rate
    divisors = np.array([_COPIES * copies.at(index).alignment_coefficient for index in target.rounds])
    scale = np.sign(target.filters[:, 0]) * divisors / (rate * target.noise_std)
    per_round, in_total = [], []
    for repetition in range(math.ceil(2 * trials / _COPIES)):
        signs = rng.choice((-1.0, 1.0), _COPIES)
        labels = np.where(signs > 0, 0, 1)
        arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
        engine = make_engine(
            run.engine,
            network,
            Dataset(name="canaries", **arrays, classes=2, sha256=""),
            shards,
            learning_rate=rate,
            batch_size=batch,
            threads=run.threads,
            chunk=run.chunk,
            device=run.device,
        )
        present = np.flatnonzero(signs > 0) if subject.sensitivity == 1 else np.arange(_COPIES)
        with closing(engine):
            training = slow.train(_Present(engine, present), subject.noise(repetition), target.rounds, copies)
            models = np.stack([np.zeros(engine.dimension), *(done.parameters.astype(np.float64) for done in training)])
        steps = (models[:-1] - models[1:]) * scale[:, None]
        along = (steps[:, _COPIES : 2 * _COPIES] - steps[:, :_COPIES]) / math.sqrt(2)  # label 0 lowers the other weight
        scores = (along - target.middle[:, None]) * signs
        per_round.append(scores[target.exposed].ravel())
        in_total.append(target.in_total(scores))
    return Scores(per_round=np.concatenate(per_round), in_total=np.concatenate(in_total), claimed=target.claimed)


def _slow(subject: Subject) -> tuple[Subject, float]:
    """Return the subject with a learning rate that keeps all logits small, and the value of a bright pixel."""
    plan = subject.plan
    sequence, clip = plan.sequence, max(1.0, plan.clip_norm)
    value = _BRIGHT * clip
    local = max(entry.local_steps for entry in sequence) * value
    released = plan.rounds * clip * (1 + 1 / float(sequence.mus.min()))  # the sum of updates and its noise, at most
    rate = _LARGEST_LOGIT / (value * (local + released))
    problem = plan.problem
    learning = replace(problem.learning, learning_rate=rate)
    return replace(subject, plan=replace(plan, problem=replace(problem, learning=learning))), value


class _Present:
    """An engine that trains the given devices in every round; the others are missing."""

    def __init__(self, engine: Engine, devices: NDArray[np.intp]) -> None:
        self._engine, self._devices = engine, devices
        self.name, self.dimension, self.evaluate, self.close = (
            engine.name,
            engine.dimension,
            engine.evaluate,
            engine.close,
        )

    def updates(
        self, parameters: NDArray[np.float32], devices: NDArray[np.intp], *, steps: int, round_index: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """Yield the updates of the devices that are present."""
        return self._engine.updates(parameters, self._devices, steps=steps, round_index=round_index)
