"""Estimates of ζ, ϱ and G along a noise-free training with full participation, and the norms of updates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from airfed import seeds
from airfed.keys import ScenarioError
from airfed.network import Network
from airfed.scenario import Scenario
from airfed.training.setup import ImageTask, QuadraticLearning, build_task

_CONSTANTS: Final = ("smoothness", "strong_convexity", "initial_gap")
_ROUNDS: Final = 3  # of the noise-free training
_LOCAL_STEPS: Final = (1, 2, 5, 10, 20)
_MOST_DEVICES: Final = 50  # whose norms are measured
_MOST_IMAGES: Final = 500  # in the Hessian
Floats = NDArray[np.float64]
Parameters = NDArray[np.float32]


class Norms(NamedTuple):
    """‖g_k‖ of updates of `local_steps`, over devices: mean, 95% quantile and largest."""

    local_steps: int
    mean: float
    quantile_95: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The estimates and their methods."""

    smoothness: float  # ζ, ϱ and G
    strong_convexity: float
    initial_gap: float
    optimum: float  # L*, or a lower bound of it
    how: dict[str, str]  # the method of each of the three constants
    norms: tuple[Norms, ...]  # of the updates over E, the larger of start and middle of the training

    def apply(self, scenario: Scenario) -> Scenario:
        """Return the scenario with the three constants set."""
        return scenario.override({f"learning.{name}": getattr(self, name) for name in _CONSTANTS})

    def to_toml(self, scenario: Scenario) -> str:
        """Return the scenario with the constants set, each with a comment on its method."""
        lines = []
        for line in self.apply(scenario).to_toml().splitlines():
            key = line.split(" = ", 1)[0]
            if key in self.how:
                lines.append(f"# {self.how[key]}")
            if key == "clip_norm":
                lines.append("# Norms of the updates over devices, at the start or the middle of noise-free training:")
                lines += [
                    f"# E = {steps}: mean {mean:.3g}, 95% below {upper:.3g}, largest {largest:.3g}"
                    for steps, mean, upper, largest in self.norms
                ]
            lines.append(line)
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **{name: getattr(self, name) for name in _CONSTANTS},
            "optimum": self.optimum,
            "how": self.how,
            "update_norms": [norm._asdict() for norm in self.norms],
        }


def calibrate(scenario: Scenario) -> Calibration:
    """Return ζ, ϱ, G and the norms of updates over E for a scenario's model on its data.

    - ζ: the largest ‖∇²L‖₂ met on the path, by power iteration on Hessian-vector products.
    - ϱ: λ for a linear model with the regulariser (λ/2)‖w‖². Other models have no such constant: ϱ is the largest value
      with ‖∇L‖² ≥ 2ϱ(L − L*) on the path, which is what the proof of Theorem 1 uses.
    - G = L(m⁰) − L*. For a linear model L* is found by L-BFGS; otherwise it is 0, the smallest possible cross-entropy.
    """
    task = build_task(scenario)
    try:
        return _known(task) if isinstance(task, QuadraticLearning) else _images(scenario, task)
    finally:
        task.engine.close()


def mean_update(
    task: ImageTask, parameters: Parameters, *, steps: int = 1, round_index: int = 0
) -> NDArray[np.float64]:
    """Return the mean update over all devices, which have equally many images; with one local step it is ∇L(w)."""
    total, devices = np.zeros(task.dimension), np.arange(len(task.shards))
    for _, updates in task.engine.updates(parameters, devices, steps=steps, round_index=round_index):
        total += updates.sum(axis=0, dtype=np.float64)
    return total / devices.size


def training_loss(task: ImageTask, parameters: Parameters) -> float:
    """Return L(w) over the images of all devices."""
    held = np.sort(task.shards, axis=None)
    return task.engine.evaluate(parameters, task.dataset.train_images[held], task.dataset.train_labels[held])[0]


def _images(scenario: Scenario, task: ImageTask) -> Calibration:
    from airfed.learning import curvature  # lazy: a quadratic task needs no torch

    held = np.sort(task.shards, axis=None)
    images, labels = task.dataset.train_images[held], task.dataset.train_labels[held]
    model = task.model
    rng = seeds.stream(scenario.seed, "init", 1)
    some = rng.permutation(len(labels))[:_MOST_IMAGES]  # at random: a file may be sorted by class
    sample = curvature.Loss(model, images[some], labels[some], seed=scenario.seed, dtype=curvature.SINGLE)
    path = [task.initial_parameters]
    rounds = min(_ROUNDS, scenario.learning.total_steps)
    for index in range(rounds):
        mean = mean_update(task, path[-1], steps=scenario.learning.total_steps // rounds, round_index=index)
        with np.errstate(over="ignore"):  # the loss shows divergence
            path.append((path[-1] - scenario.learning.learning_rate * mean).astype(np.float32))
    losses = [training_loss(task, parameters) for parameters in path]
    if not np.all(np.isfinite(losses)):
        raise ScenarioError(
            f"learning.learning_rate = {scenario.learning.learning_rate:g} is too large: a noise-free training "
            "diverges. Choose a smaller one."
        )
    smoothness, products, direction = 0.0, 0, None
    for parameters in path:
        product = functools.partial(sample.hessian_product, parameters.astype(np.float64))
        value, direction, number = curvature.spectral_norm(product, parameters.size, rng, start=direction)
        smoothness, products = max(smoothness, value), products + number
    if isinstance(model, Network) and not model.hidden and not model.convolutions and model.l2 > 0:  # linear
        found = optimize.minimize(
            curvature.Loss(model, images, labels).value_and_gradient,
            task.initial_parameters.astype(np.float64),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-13, "gtol": 1e-7},
        )
        optimum = float(found.fun)
        convexity = model.l2
        how_convexity = f"ϱ: the regulariser's λ = {convexity:g}; the cross-entropy of a linear model is convex"
        how_gap = f"G: loss {losses[0]:.4f} at the start less the optimum {optimum:.4f} found by L-BFGS"
    else:
        optimum = 0.0
        squares = [float(np.sum(np.square(mean_update(task, parameters)))) for parameters in path]
        ratios = [square / (2 * loss) for square, loss in zip(squares, losses, strict=True) if loss > 0]
        convexity = min([smoothness, *ratios])
        how_convexity = "ϱ: not strongly convex; the smallest ‖∇L‖²/(2L) along a noise-free training, as the proof uses"
        how_gap = f"G: loss {losses[0]:.4f} at the start; the cross-entropy is at least 0"
    return Calibration(
        smoothness=smoothness,
        strong_convexity=convexity,
        initial_gap=losses[0] - optimum,
        optimum=optimum,
        how={
            "smoothness": (
                f"ζ: largest Hessian norm at {len(path)} points of a noise-free training, power iteration "
                f"({products} Hessian-vector products over {len(some)} images)"
            ),
            "strong_convexity": how_convexity,
            "initial_gap": how_gap,
        },
        norms=_norms(task, (path[0], path[len(path) // 2])),
    )


def _norms(task: ImageTask, models: tuple[Parameters, ...]) -> tuple[Norms, ...]:
    devices = np.arange(min(len(task.shards), _MOST_DEVICES))
    norms = []
    for steps in _LOCAL_STEPS:
        samples = []
        for model in models:
            updates = task.engine.updates(model, devices, steps=steps, round_index=0)
            samples.append(np.concatenate([np.linalg.norm(some.astype(np.float64), axis=1) for _, some in updates]))
        larger = max(samples, key=lambda sample: float(sample.mean()))
        norms.append(Norms(steps, float(larger.mean()), float(np.quantile(larger, 0.95)), float(larger.max())))
    return tuple(norms)


def _known(task: QuadraticLearning) -> Calibration:
    known = task.task
    strong_convexity, smoothness = known.curvature_range
    return Calibration(
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        initial_gap=known.initial_gap,
        optimum=known.minimum,
        how={
            "smoothness": "ζ: exact, the largest eigenvalue of ∇²L",
            "strong_convexity": "ϱ: exact, the smallest eigenvalue of ∇²L",
            "initial_gap": "G: exact, the optimum is known",
        },
        norms=(),
    )
