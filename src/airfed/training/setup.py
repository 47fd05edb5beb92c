"""Everything that a training needs, from its scenario: learning task, plan, channels of all rounds, and noise."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

import airfed
from airfed import channel, seeds
from airfed.aircomp import Airs
from airfed.keys import ScenarioError
from airfed.learning import data
from airfed.learning.data import partition
from airfed.learning.engine import Engine, make_engine
from airfed.learning.fused import FusedEngine
from airfed.learning.quadratic import KnownTask, QuadraticEngine, QuadraticTask, RidgeTask
from airfed.network import Network
from airfed.planning import Plan
from airfed.problem import Fleet
from airfed.scenario import Scenario
from airfed.scenario.learning_section import RIDGE, Built, RidgeSection, data_source, network, own_model, user_code
from airfed.training.directory import sha256
from airfed.training.noise import NoiseSource, SecureNoise, SeededNoise, noise_key

if TYPE_CHECKING:
    from airfed.learning.models import Model

Parameters = NDArray[np.float32]

PROBE_ROUND: Final = 2**31 - 1  # no plan has it: the update of the probe is never transmitted
MOST_TRAINING_IMAGES: Final = 5000  # over which the training loss is taken: enough for three digits, and quick
_PACKAGES: Final = ("numpy", "scipy", "torch", "numba", "safetensors")


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTask:
    """Image classification: data on devices, a model, and an engine that trains it."""

    engine: Engine
    dataset: data.Dataset
    shards: NDArray[np.intp]  # (N, D) indices of the training images that each device holds
    initial_parameters: Parameters
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each tensor, in the order of the flat vector
    model: Model
    code_digest: str = ""  # SHA-256 of the sources of the user's own model

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
        """SHA-256 of the data and of their partition."""
        return sha256(self.dataset.sha256.encode() + np.ascontiguousarray(self.shards, dtype=np.int64).tobytes())

    @property
    def trained_by(self) -> str:
        """The engine, and what it takes the user's own model for."""
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
        """Return the flat vector as named tensors, to be saved."""
        ends = np.cumsum([math.prod(shape) for _, shape in self.shapes])
        parts = np.split(parameters, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticLearning:
    """A task whose optimum is known; its loss is reported as the gap to it."""

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
        """Return the one tensor there is."""
        return {"parameters": parameters}


Task = ImageTask | QuadraticLearning


def build_task(scenario: Scenario) -> Task:
    """Return the learning task of a scenario: data loaded and partitioned, engine ready.

    Raises DataError for data that are missing or damaged, ScenarioError for parts that do not fit together.
    """
    learning, run = scenario.learning, scenario.run
    if learning.synthetic:
        return _known(scenario)
    dataset = data.load(data_source(scenario))
    shards = _shards(scenario, dataset.train_labels)
    if user_code(learning.model) is None:
        built_in = network(scenario, dataset.image_shape, dataset.classes)
        initial = built_in.initial_parameters(seeds.stream(scenario.seed, "init"))
        built = Built(built_in, initial, tuple((tensor.name, tensor.shape) for tensor in built_in.tensors), "")
    else:
        built = own_model(scenario, dataset.image_shape, dataset.classes)
    if learning.dimension is not None and learning.dimension != built.initial.size:
        raise ScenarioError(
            f"Expected learning.dimension={built.initial.size}, the size of model {learning.model_title!r}; got "
            f"{learning.dimension}."
        )
    engine = make_engine(
        run.engine,
        built.model,
        dataset,
        shards,
        learning_rate=learning.learning_rate,
        batch_size=learning.batch_size,
        seed=scenario.seed,
        threads=run.threads,
        chunk=run.chunk,
        device=run.device,
    )
    return ImageTask(
        engine=engine,
        dataset=dataset,
        shards=shards,
        initial_parameters=built.initial,
        shapes=built.shapes,
        model=built.model,
        code_digest=built.digest,
    )


def _shards(scenario: Scenario, labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """The images of each device, as indices into all of them; where only some are used, the seed draws them."""
    learning, rng = scenario.learning, seeds.stream(scenario.seed, "data")
    used = np.arange(len(labels))
    if learning.images is not None:
        if learning.images > len(labels):
            raise ScenarioError(
                f"Expected learning.images to be at most {len(labels)}, the training images in {learning.dataset}; got "
                f"{learning.images}."
            )
        used = rng.permutation(used)[: learning.images]
    dealt = partition(
        labels[used],
        scenario.num_devices,
        scheme=learning.partition,
        alpha=learning.alpha,
        shards_per_device=learning.shards_per_device,
        rng=rng,
    )
    return np.asarray(used[dealt], dtype=np.intp)


def _known(scenario: Scenario) -> QuadraticLearning:
    learning, run = scenario.learning, scenario.run
    if learning.batch_size is not None or run.engine != "auto" or run.device not in ("auto", "cpu"):
        raise ScenarioError(
            f"Expected no learning.batch_size, run.engine = 'auto' and run.device = 'auto': the {learning.model} model "
            "has an engine of its own."
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
    """Return the ridge regression of a scenario, its data not drawn yet; raises ScenarioError where there is none."""
    described = scenario.learning.ridge or RidgeSection()
    try:
        return RidgeTask(
            dimension=scenario.dimension,
            num_devices=scenario.num_devices,
            samples=described.samples,
            l2=described.l2,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise ScenarioError(str(error)) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """Everything that a training needs, and that its scenario determines; `signal` is `signal_digests`."""

    scenario: Scenario
    plan: Plan
    airs: Airs
    task: Task
    noise: NoiseSource
    signal: Mapping[str, str]


def prepare(scenario: Scenario, *, spent: float | None = None) -> Setup:
    """Return the plan, the channels, the learning task and the noise of a scenario.

    Two policies on one seed get the same channels, data and initial model. `spent` is μ that the scenario's account had
    spent when this training was planned; None reads the account. Raises ScenarioError, DataError or InfeasibleError.
    """
    task = build_task(scenario)
    problem = scenario.problem(dimension=task.dimension, spent=spent)
    plan = scenario.plan(problem)
    signal = signal_digests(scenario, problem.fleet, task)
    airs, noise = airs_of(scenario, plan), noise_source(scenario, signal)
    return Setup(scenario=scenario, plan=plan, airs=airs, task=task, noise=noise, signal=signal)


def airs_of(scenario: Scenario, plan: Plan) -> Airs:
    """Return how the signals of each round arrive: phases and the true channel are drawn from the seed.

    Channels of several antennas have phases of their own, and are known exactly.
    """
    fleet, nmse = plan.problem.fleet, scenario.channel.estimation_error
    if fleet.antennas > 1:
        return Airs(plan=plan)
    phase = seeds.stream(scenario.seed, "phase").uniform(-np.pi, np.pi, fleet.num_devices)
    rng = seeds.stream(scenario.seed, "channel", 1)
    gains = np.atleast_2d(fleet.gain)[: plan.rounds]  # where they change, errors are drawn anew in each round
    true = np.array([channel.true_channel(gain, phase, nmse=nmse, rng=rng) for gain in gains])
    return Airs(plan=plan, channel=true, phase=phase)


def signal_digests(scenario: Scenario, fleet: Fleet, task: Task | None = None) -> dict[str, str]:
    """Return what shapes the signal, each part as a digest under the name that a message gives it.

    The scenario (less its policy, its name and how to compute), the channels, and of the task (an audit of a scenario
    has none): the data and their partition, the model's code, its initial parameters, the engine and the versions it
    rests on, and one device's update after one step, to the bit: anything else that changes training shows there.
    The beamformer is left out: like K and θ it is the policy's choice, within what the scenario says.
    """
    shape = f"{fleet.drawn.dtype} {fleet.drawn.shape}\n".encode()
    found = {"scenario": scenario.digest(), "channels": sha256(shape + fleet.drawn.tobytes())}
    if task is None:
        return found
    ((_, probe),) = task.engine.updates(task.initial_parameters, np.array([0]), steps=1, round_index=PROBE_ROUND)
    return found | {
        "data": task.data_digest,
        "model's code": task.code_digest,
        "initial model": sha256(task.initial_parameters.tobytes()),
        "engine": task.engine.name,
        "versions": json.dumps({name: version for name, version in versions().items() if name != "safetensors"}),
        "probe update": sha256(np.ascontiguousarray(probe).tobytes()),
    }


def noise_source(scenario: Scenario, signal: Mapping[str, str]) -> NoiseSource:
    """Return the receiver's noise: keyed by all that shapes the signal, or fresh from the operating system."""
    return SecureNoise() if scenario.link.noise_source == "secure" else SeededNoise(noise_key(signal))


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of airfed, Python and the packages that a training rests on."""
    found: dict[str, str | None] = {"airfed": airfed.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
