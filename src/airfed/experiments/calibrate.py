"""The constants of the bounds, estimated from the data: ζ, ϱ, G, and the norms that ϖ has to do with.

They are measured along a noise-free training of all devices (the path that the bound speaks of, without the air): at
its start and after each of a few rounds that together make T local steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from airfed import seeds
from airfed.experiments.steps import Steps, Tell, counted
from airfed.keys import ScenarioError
from airfed.network import Network
from airfed.scenario import Scenario
from airfed.training.setup import ImageTask, QuadraticLearning, build_task

if TYPE_CHECKING:
    from airfed.learning import curvature

_PLACES: Final = 3  # rounds of the noise-free training
_LOCAL_STEPS: Final = (1, 2, 5, 10, 20)
_MOST_DEVICES: Final = 50  # whose norms are measured
_PRODUCTS: Final = 15  # Hessian-vector products that a place takes, usually
_MOST_IMAGES: Final = 500  # that the Hessian is taken over
# The time that each step takes of the whole, with a CNN.
_SHARES: Final = {"training without noise": 0.4, "curvature": 0.42, "loss and gradient": 0.03, "norms": 0.15}
Parameters = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Norms:
    """‖g_k‖ of updates of `steps` local steps, over devices: mean, 95% quantile and largest."""

    steps: int
    mean: float
    upper: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was estimated, and how.

    Args:
        smoothness: ζ.
        strong_convexity: ϱ.
        initial_gap: G.
        optimum: L*, or the lower bound that stands for it.
        how: for each of the three, how it was obtained, as a sentence.
        norms: of the updates over E, the larger of start and middle of the training.
    """

    smoothness: float
    strong_convexity: float
    initial_gap: float
    optimum: float
    how: dict[str, str]
    norms: tuple[Norms, ...]

    def apply(self, world: Scenario) -> Scenario:
        """Return the scenario with the three constants set."""
        return world.override({f"learning.{name}": getattr(self, name) for name in _CONSTANTS})

    def to_toml(self, world: Scenario) -> str:
        """Return the scenario with the constants set and a comment that says how each was obtained."""
        lines = []
        for line in self.apply(world).to_toml().splitlines():
            key = line.split(" = ", 1)[0]
            if key in self.how:
                lines.append(f"# {self.how[key]}")
            if key == "clip_norm":
                lines += [f"# {text}" for text in self.norm_lines()]
            lines.append(line)
        return "\n".join(lines) + "\n"

    def norm_lines(self) -> list[str]:
        """Return the norms over E as lines of text."""
        head = "Norms of the updates over devices, at the start or the middle of noise-free training (the larger):"
        return [head] + [
            f"E = {norm.steps}: mean {norm.mean:.3g}, 95% below {norm.upper:.3g}, largest {norm.largest:.3g}"
            for norm in self.norms
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **{name: getattr(self, name) for name in _CONSTANTS},
            "optimum": self.optimum,
            "how": self.how,
            "update_norms": [
                {"local_steps": n.steps, "mean": n.mean, "quantile_95": n.upper, "largest": n.largest}
                for n in self.norms
            ],
        }


_CONSTANTS: Final = ("smoothness", "strong_convexity", "initial_gap")


def calibrate(world: Scenario, on_step: Tell = lambda step, share: None) -> Calibration:
    """Return ζ, ϱ, G and the norms of updates over E for a scenario's model on its data.

    - ζ: the largest ‖∇²L‖₂ met on the path, by power iteration on Hessian-vector products.
    - ϱ: λ for a linear model with the regulariser (λ/2)‖w‖² (cross-entropy is convex, so λ is a lower bound that holds
      everywhere). For any other model there is no such constant; what the proof of Theorem 1 uses of it is
      ‖∇L‖² ≥ 2ϱ(L − L*), and ϱ is the largest for which that held on the path.
    - G = L(m⁰) − L*. For a linear model L* is found by L-BFGS; otherwise 0, which no cross-entropy is below.

    Args:
        world: the scenario.
        on_step: told what is being done, and which share of the whole is done (by the time it took elsewhere).

    Raises:
        ScenarioError, DataError: the scenario or its data is wrong.
    """
    task = build_task(world)
    try:
        if isinstance(task, QuadraticLearning):
            return _known(task)
        assert isinstance(task, ImageTask)
        return _images(world, task, Steps(_SHARES, on_step))
    finally:
        task.engine.close()


def mean_gradient(task: ImageTask, parameters: Parameters) -> NDArray[np.float64]:
    """Return ∇L(w), the mean over all devices, which hold equally many images each."""
    total = np.zeros(task.dimension)
    everybody = np.arange(len(task.shards))
    for _, updates in task.engine.updates(parameters, everybody, steps=1, round_index=0):
        total += updates.sum(axis=0, dtype=np.float64)
    return total / everybody.size


def training_loss(task: ImageTask, parameters: Parameters) -> float:
    """Return L(w) over every image that a device holds."""
    held = np.sort(task.shards, axis=None)
    return task.engine.evaluate(parameters, task.dataset.train_images[held], task.dataset.train_labels[held])[0]


def linear_optimum(task: ImageTask, loss: curvature.Loss) -> float:
    """Return L* of a convex loss by L-BFGS."""
    found = optimize.minimize(
        loss.value_and_gradient,
        task.initial_parameters.astype(np.float64),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-13, "gtol": 1e-7},
    )
    return float(found.fun)


def _images(world: Scenario, task: ImageTask, steps: Steps) -> Calibration:
    from airfed.learning import curvature  # here: a known task needs no torch

    held = np.sort(task.shards, axis=None)
    images, labels = task.dataset.train_images[held], task.dataset.train_labels[held]
    model = task.model
    linear = isinstance(model, Network) and not model.hidden and not model.convolutions and model.l2 > 0
    rng = seeds.stream(world.seed, "init", 1)
    some = rng.permutation(len(labels))[:_MOST_IMAGES]  # at random: a user's file may be sorted by class
    sample = curvature.Loss(model, images[some], labels[some], seed=world.seed, dtype=curvature.SINGLE)
    steps.begin("training without noise")
    path = _noise_free_path(world, task, steps)
    steps.begin("loss and gradient")
    losses = [training_loss(task, parameters) for parameters in path]
    if not np.all(np.isfinite(losses)):
        raise ScenarioError(
            f"Expected learning.learning_rate={world.learning.learning_rate:g} to be small enough for a noise-free "
            "training: its loss is no longer a finite number."
        )
    steps.begin("curvature")
    smoothness, products = _smoothness(sample, path, rng, steps)
    if linear:
        assert isinstance(model, Network)
        optimum = linear_optimum(task, curvature.Loss(model, images, labels))
        convexity = model.l2
        how_convexity = f"ϱ: the regulariser's λ = {convexity:g}; the cross-entropy of a linear model is convex"
        how_gap = f"G: loss {losses[0]:.4f} at the start less the optimum {optimum:.4f} found by L-BFGS"
    else:
        optimum = 0.0
        squares = [float(np.sum(np.square(mean_gradient(task, parameters)))) for parameters in path]
        ratios = [square / (2 * loss) for square, loss in zip(squares, losses, strict=True) if loss > 0]
        convexity = min([smoothness, *ratios])
        how_convexity = (
            "ϱ: not strongly convex; the smallest ‖∇L‖²/(2L) along a noise-free training, which is what the proof uses"
        )
        how_gap = f"G: loss {losses[0]:.4f} at the start; no cross-entropy is below 0"
    steps.begin("norms")
    norms = _norms(task, (path[0], path[len(path) // 2]), steps)
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
        norms=norms,
    )


def _smoothness(
    loss: curvature.Loss, path: list[Parameters], rng: np.random.Generator, steps: Steps
) -> tuple[float, int]:
    """The largest Hessian norm on a path and the number of Hessian-vector products that it took."""
    from airfed.learning.curvature import spectral_norm

    largest, products = 0.0, 0
    direction: NDArray[np.float64] | None = None
    for place, parameters in enumerate(path):
        point = parameters.astype(np.float64)
        tell = functools.partial(_tell_product, steps, place, len(path))
        product = counted(functools.partial(loss.hessian_product, point), tell)
        value, direction, count = spectral_norm(product, point.size, rng, start=direction)
        largest, products = max(largest, value), products + count
    return largest, products


def _tell_product(steps: Steps, place: int, places: int, number: int) -> None:
    steps.part((place + min(number / _PRODUCTS, 1.0)) / places)


def _noise_free_path(world: Scenario, task: ImageTask, told: Steps) -> list[Parameters]:
    """The models at the start and after each of a few rounds of plain federated averaging over all devices."""
    path = [task.initial_parameters]
    everybody = np.arange(len(task.shards))
    rounds = min(_PLACES, world.learning.total_steps)
    for index in range(rounds):
        total = np.zeros(task.dimension)
        steps = max(1, world.learning.total_steps // rounds)
        seen = 0
        for devices, updates in task.engine.updates(path[-1], everybody, steps=steps, round_index=index):
            total += updates.sum(axis=0, dtype=np.float64)
            seen += devices.size
            told.part((index + seen / everybody.size) / rounds)
        moved = path[-1] - world.learning.learning_rate * total / everybody.size
        with np.errstate(over="ignore"):  # a training that diverges shows in its loss
            path.append(moved.astype(np.float32))
    return path


def _norms(task: ImageTask, models: tuple[Parameters, ...], told: Steps) -> tuple[Norms, ...]:
    devices = np.arange(min(len(task.shards), _MOST_DEVICES))
    found = []
    for steps in _LOCAL_STEPS:
        samples = [
            np.concatenate(
                [
                    np.linalg.norm(updates.astype(np.float64), axis=1)
                    for _, updates in task.engine.updates(model, devices, steps=steps, round_index=0)
                ]
            )
            for model in models
        ]
        largest = max(samples, key=lambda sample: float(sample.mean()))
        upper = float(np.quantile(largest, 0.95))
        told.part(sum(done for done in _LOCAL_STEPS if done <= steps) / sum(_LOCAL_STEPS))
        found.append(Norms(steps=steps, mean=float(largest.mean()), upper=upper, largest=float(largest.max())))
    return tuple(found)


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
            "initial_gap": "G: exact, the task knows its optimum",
        },
        norms=(),
    )
