"""What a scenario's [learning] asks for: data on devices, a model, an engine that trains it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed import seeds
from airfed.learning import data
from airfed.learning.data import partition
from airfed.learning.engine import Engine, make_engine
from airfed.learning.fused import FusedEngine
from airfed.learning.quadratic import KnownTask, QuadraticEngine, QuadraticTask, RidgeTask
from airfed.network import Network
from airfed.scenario import Scenario, ScenarioError
from airfed.scenario.learning_section import RIDGE, Built, RidgeSection, data_source, network, own_model, user_code

if TYPE_CHECKING:
    from airfed.learning.models import Model

Parameters = NDArray[np.float32]

# The training loss is taken over at most this many training images: enough for three digits, and quick.
MOST_TRAINING_IMAGES: Final = 5000


class Task(Protocol):
    """A learning task, ready to train."""

    @property
    def engine(self) -> Engine:
        """Trains the devices."""

    @property
    def dimension(self) -> int:
        """d."""

    @property
    def initial_parameters(self) -> Parameters:
        """m⁰, from the seed's stream "init"."""

    @property
    def data_digest(self) -> str:
        """SHA-256 of the data and of how it lies on the devices."""

    @property
    def classes(self) -> int | None:
        """Number of classes in the data; None where there are none."""

    @property
    def code_digest(self) -> str:
        """SHA-256 of the sources of the user's own model; "" for a built-in one."""

    @property
    def trained_by(self) -> str:
        """The engine, and what it takes the user's own model for."""

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return loss (training), accuracy and test_loss, as far as the task has them."""

    def named_tensors(self, parameters: Parameters) -> dict[str, NDArray[np.float32]]:
        """Return the flat vector as named tensors, to be saved."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTask:
    """Image classification.

    Args:
        engine: trains the devices.
        dataset: the images.
        shards: (N, D) indices of the training images that each device holds.
        initial_parameters: m⁰.
        shapes: name and shape of each parameter tensor, in the order of the flat vector.
        model: what the engine trains; the user's own as the torch module that was made of it.
        code_digest: SHA-256 of the sources of the user's own model; "" for a built-in one.
    """

    engine: Engine
    dataset: data.Dataset
    shards: NDArray[np.intp]
    initial_parameters: Parameters
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    model: Model
    code_digest: str = ""

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
        """SHA-256 of the data and of how it lies on the devices."""
        content = self.dataset.sha256.encode() + np.ascontiguousarray(self.shards, dtype=np.int64).tobytes()
        return hashlib.sha256(content).hexdigest()

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
        """Return the flat vector as named tensors."""
        ends = np.cumsum([math.prod(shape) for _, shape in self.shapes])
        parts = np.split(parameters, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticLearning:
    """A task of which everything is known; its loss is reported as the gap to the optimum."""

    task: KnownTask
    engine: QuadraticEngine
    code_digest: ClassVar[str] = ""
    classes: ClassVar[None] = None

    @property
    def dimension(self) -> int:
        """d."""
        return self.task.dimension

    @property
    def initial_parameters(self) -> Parameters:
        """m⁰ = 0."""
        return self.task.initial_parameters

    @property
    def data_digest(self) -> str:
        """SHA-256 of the task's description, which determines every device's data."""
        return hashlib.sha256(repr(self.task).encode()).hexdigest()

    @property
    def trained_by(self) -> str:
        """The engine."""
        return self.engine.name

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return the gap L − L*."""
        return {"loss": self.task.loss(parameters) - self.task.minimum}

    def named_tensors(self, parameters: Parameters) -> dict[str, NDArray[np.float32]]:
        """Return the one tensor there is."""
        return {"parameters": parameters}


def build_task(scenario: Scenario) -> Task:
    """Return the learning task of a scenario: data loaded and dealt to the devices, engine ready.

    Raises:
        DataError: the data set is missing or damaged.
        ScenarioError: there are more devices than images, the model does not fit the images, or the dimension that is
            written down is not the model's.
    """
    learning, run = scenario.learning, scenario.run
    if learning.synthetic:
        return _known(scenario)
    dataset = data.load(data_source(scenario))
    shards = _shards(scenario, dataset.train_labels)
    built = _build(scenario, dataset)
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
    """The images of each device, as indices into all of them.

    Where only some are used, they are drawn from the seed, like what lies on which device: seeds then differ in their
    images as well, and an interval over seeds speaks of so many images, not of those that one draw has hit.
    """
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


def _build(scenario: Scenario, dataset: data.Dataset) -> Built:
    if user_code(scenario.learning.model) is None:
        built = network(scenario, dataset.image_shape, dataset.classes)
        initial = built.initial_parameters(seeds.stream(scenario.seed, "init"))
        return Built(built, initial, tuple((tensor.name, tensor.shape) for tensor in built.tensors), "")
    return own_model(scenario, dataset.image_shape, dataset.classes)


def _known(scenario: Scenario) -> QuadraticLearning:
    learning, run = scenario.learning, scenario.run
    if learning.batch_size is not None or run.engine != "auto" or run.device not in ("auto", "cpu"):
        raise ScenarioError(
            f"Expected no learning.batch_size, run.engine = 'auto' and run.device = 'auto': the {learning.model} model "
            "has an engine of its own."
        )
    task = ridge_task(scenario) if learning.model == RIDGE else _quadratic(scenario)
    return QuadraticLearning(task=task, engine=QuadraticEngine(task, learning_rate=learning.learning_rate))


def _quadratic(scenario: Scenario) -> QuadraticTask:
    return QuadraticTask(
        dimension=scenario.dimension,
        num_devices=scenario.num_devices,
        smoothness=scenario.learning.smoothness,
        strong_convexity=scenario.learning.strong_convexity,
        seed=scenario.seed,
    )


def ridge_task(scenario: Scenario) -> RidgeTask:
    """Return the ridge regression of a scenario, its data not drawn yet.

    Raises:
        ScenarioError: there are fewer features than labels need, or fewer samples than devices.
    """
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
