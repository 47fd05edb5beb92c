"""The setup of a training, from its scenario: learning task, plan, channels of all rounds, and noise."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed import channel, seeds
from airfed.aircomp import AirComp
from airfed.keys import ScenarioError
from airfed.learning import data
from airfed.learning.data import partition
from airfed.learning.engine import Engine, make_engine
from airfed.learning.fused import FusedEngine
from airfed.learning.quadratic import KnownTask, QuadraticEngine, QuadraticTask, RidgeTask
from airfed.network import Network
from airfed.planning import Plan
from airfed.planning.surrogate import NetworkAccuracy
from airfed.problem import Fleet
from airfed.scenario import Scenario, candidates
from airfed.scenario.learning_section import RIDGE, RidgeSection, build_model, data_source
from airfed.training.directory import sha256
from airfed.training.noise import NoiseSource, SecureNoise, SeededNoise, noise_key

if TYPE_CHECKING:
    from airfed.learning.models import Model

Parameters = NDArray[np.float32]

PROBE_ROUND: Final = 2**31 - 1  # no plan has this round: the probe update is never transmitted
MOST_TRAINING_IMAGES: Final = 5000  # for the training loss: enough for three digits
_PACKAGES: Final = ("numpy", "scipy", "torch", "numba", "safetensors")


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTask:
    """Image classification: partitioned data, a model, and an engine that trains it."""

    engine: Engine
    dataset: data.Dataset
    shards: NDArray[np.intp]  # (N, D) indices of the training images that each device holds
    initial_parameters: Parameters
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each tensor, in the order of the flat vector
    model: Model
    code_digest: str = ""  # SHA-256 of the sources of the user's own model
    partial: bool = False  # whether `learning.train` has frozen parameters of the model

    @property
    def dimension(self) -> int:
        """d."""
        return self.initial_parameters.size

    @property
    def classes(self) -> int:
        """Number of classes in the data."""
        return self.dataset.classes

    @property
    def data_digest(self) -> str:
        """SHA-256 of the data and their partition."""
        return sha256(self.dataset.sha256.encode() + np.ascontiguousarray(self.shards, dtype=np.int64).tobytes())

    @property
    def trained_by(self) -> str:
        """The engine, and the built-in model that it recognises in the user's model."""
        if isinstance(self.engine, FusedEngine) and not isinstance(self.model, Network):
            return f"{self.engine.name} (your model is a {self.engine.network})"
        return self.engine.name

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return the training loss (over at most 5,000 images), the test accuracy and the test loss."""
        held = np.sort(self.shards, axis=None)[:MOST_TRAINING_IMAGES]
        images, labels = self.dataset.train_images[held], self.dataset.train_labels[held]
        loss, _ = self.engine.evaluate(parameters, images, labels)
        test_loss, accuracy = self.engine.evaluate(parameters, self.dataset.test_images, self.dataset.test_labels)
        return {"loss": loss, "accuracy": accuracy, "test_loss": test_loss}

    def named_tensors(self, parameters: Parameters) -> dict[str, NDArray[np.float32]]:
        """Return the flat parameter vector as named tensors, with the frozen ones if `learning.train` names a part."""
        if self.partial:
            from airfed.learning import models  # lazy: built-in networks do not need torch here

            return models.complete(models.as_module(self.model)[0], parameters)
        ends = np.cumsum([math.prod(shape) for _, shape in self.shapes])
        parts = np.split(parameters, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticLearning:
    """A task with a known optimum; its loss is reported as the optimality gap."""

    task: KnownTask
    engine: QuadraticEngine
    code_digest: ClassVar[str] = ""
    classes: ClassVar[int | None] = None
    trained_by: ClassVar[str] = QuadraticEngine.name

    @property
    def dimension(self) -> int:
        """d."""
        return self.task.dimension

    @property
    def initial_parameters(self) -> Parameters:
        """m⁰ = 0."""
        return np.zeros(self.dimension, np.float32)

    @property
    def data_digest(self) -> str:
        """SHA-256 of the task's description, which determines every device's data."""
        return sha256(repr(self.task).encode())

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return the gap L − L*."""
        return {"loss": self.task.loss(parameters) - self.task.minimum}

    def named_tensors(self, parameters: Parameters) -> dict[str, NDArray[np.float32]]:
        """Return the parameter vector as the only tensor."""
        return {"parameters": parameters}


Task = ImageTask | QuadraticLearning


def build_task(scenario: Scenario) -> Task:
    """Return the learning task of a scenario: data loaded and partitioned, engine ready."""
    scenario = scenario.chosen()
    learning = scenario.learning
    if learning.synthetic:
        return _known(scenario)
    dataset = data.load(data_source(scenario))
    if learning.validation_images is not None:
        dataset = data.held_out(dataset, learning.validation_images, seeds.stream(scenario.seed, "data", 1))
    shards = _shards(scenario, dataset.train_labels)
    built = build_model(scenario, dataset.image_shape, dataset.classes)
    if learning.dimension is not None and learning.dimension != built.initial.size:
        raise ScenarioError(
            f"learning.dimension must be {built.initial.size}, the size of model {learning.model_title!r}, got "
            f"{learning.dimension}."
        )
    return ImageTask(
        engine=engine_of(scenario, built.model, dataset, shards, learning.learning_rate),
        dataset=dataset,
        shards=shards,
        initial_parameters=built.initial,
        shapes=built.shapes,
        model=built.model,
        code_digest=built.digest,
        partial=built.partial,
    )


def engine_of(
    scenario: Scenario, model: Model, dataset: data.Dataset, shards: NDArray[np.intp], learning_rate: float
) -> Engine:
    """Return the engine of a scenario for a model, the images of each device and a learning rate."""
    run = scenario.run
    return make_engine(
        run.engine,
        model,
        dataset,
        shards,
        learning_rate=learning_rate,
        batch_size=scenario.learning.batch_size,
        seed=scenario.seed,
        threads=run.threads,
        chunk=run.chunk,
        device=run.device,
    )


def _shards(scenario: Scenario, labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices of each device's images; if only some images are used, they are drawn with the seed."""
    learning, rng = scenario.learning, seeds.stream(scenario.seed, "data")
    used = np.arange(len(labels))
    if learning.images is not None:
        if learning.images > len(labels):
            raise ScenarioError(
                f"learning.images must be at most {len(labels)}, the number of training images in {learning.dataset}"
                f"{' without validation_images' if learning.validation_images else ''}, got {learning.images}."
            )
        used = rng.permutation(used)[: learning.images]
    shards = partition(
        labels[used],
        scenario.num_devices,
        scheme=learning.partition,
        alpha=learning.alpha,
        shards_per_device=learning.shards_per_device,
        rng=rng,
    )
    return np.asarray(used[shards], dtype=np.intp)


def _known(scenario: Scenario) -> QuadraticLearning:
    learning, run = scenario.learning, scenario.run
    if learning.batch_size is not None or run.engine != "auto" or run.device not in ("auto", "cpu"):
        raise ScenarioError(
            f"The {learning.model} model has its own engine. Remove learning.batch_size, and set run.engine and "
            "run.device to 'auto'."
        )
    task: KnownTask
    if learning.model == RIDGE:
        task = ridge_task(scenario)
    else:
        task = QuadraticTask(
            dimension=scenario.dimension,
            num_devices=scenario.num_devices,
            smoothness=learning.smoothness,
            strong_convexity=learning.strong_convexity,
            seed=scenario.seed,
        )
    return QuadraticLearning(task=task, engine=QuadraticEngine(task, learning_rate=learning.learning_rate))


def ridge_task(scenario: Scenario) -> RidgeTask:
    """Return the ridge regression task of a scenario, without its data; raises ScenarioError for bad values."""
    section = scenario.learning.ridge or RidgeSection()
    try:
        return RidgeTask(
            dimension=scenario.dimension,
            num_devices=scenario.num_devices,
            samples=section.samples,
            l2=section.l2,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise ScenarioError(str(error)) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """The inputs of a training, determined by its scenario; `signal` is from `signal_digests`."""

    scenario: Scenario
    plan: Plan
    aircomp: AirComp
    task: Task
    noise: NoiseSource
    signal: Mapping[str, str]


def prepare(scenario: Scenario, *, spent: float | None = None) -> Setup:
    """Return the plan, the channels, the learning task and the noise of a scenario, with the network that it takes.

    Two policies with one seed have the same channels, data and initial model. `spent` is the μ spent in the shared
    ledger when this training was planned; None reads it.
    """
    networks: tuple[NetworkAccuracy, ...] = ()
    if scenario.learning.candidates is not None:
        scenario, best = candidates.choose(scenario, spent=spent)
        networks = best.networks
    task = build_task(scenario)
    problem = scenario.problem(dimension=task.dimension, spent=spent)
    plan = replace(scenario.plan(problem), networks=networks)
    signal = signal_digests(scenario, problem.fleet, task)
    aircomp, noise = aircomp_of(scenario, plan), noise_source(scenario, signal)
    return Setup(scenario=scenario, plan=plan, aircomp=aircomp, task=task, noise=noise, signal=signal)


def aircomp_of(scenario: Scenario, plan: Plan) -> AirComp:
    """Return the over-the-air computation of a plan; with one antenna, phases and true channel are drawn."""
    fleet, nmse = plan.problem.fleet, scenario.channel.csi_error
    if fleet.antennas > 1:
        return AirComp(plan=plan)
    phase = seeds.stream(scenario.seed, "phase").uniform(-np.pi, np.pi, fleet.num_devices)
    rng = seeds.stream(scenario.seed, "channel", 1)
    gains = np.atleast_2d(fleet.gain)[: plan.rounds]  # if they vary in time, errors are independent in each round
    true = np.array([channel.true_channel(gain, phase, nmse=nmse, rng=rng) for gain in gains])
    return AirComp(plan=plan, channel=true, phase=phase)


def signal_digests(scenario: Scenario, fleet: Fleet, task: Task | None = None) -> dict[str, str]:
    """Return the digests of all inputs of the signal, by the names that messages use.

    The scenario is without policy, name and [run]; the probe update, one device's after one step, reveals any change of
    the training that the others do not. The policy's choices (K, θ, the beamformer) are not included.
    """
    shape = f"{fleet.drawn.dtype} {fleet.drawn.shape}\n".encode()
    digests = {"scenario": scenario.digest(), "channels": sha256(shape + fleet.drawn.tobytes())}
    if task is None:
        return digests
    ((_, probe),) = task.engine.updates(task.initial_parameters, np.array([0]), steps=1, round_index=PROBE_ROUND)
    return digests | {
        "data": task.data_digest,
        "model's code": task.code_digest,
        "initial model": sha256(task.initial_parameters.tobytes()),
        "engine": task.engine.name,
        "versions": json.dumps({name: version for name, version in versions().items() if name != "safetensors"}),
        "probe update": sha256(np.ascontiguousarray(probe).tobytes()),
    }


def noise_source(scenario: Scenario, signal: Mapping[str, str]) -> NoiseSource:
    """Return the receiver's noise source: keyed by the digests, or secure."""
    return SecureNoise() if scenario.link.noise_source == "secure" else SeededNoise(noise_key(signal))


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of airfed, Python and the packages that a training depends on."""
    found: dict[str, str | None] = {"airfed": airfed.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
