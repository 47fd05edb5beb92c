"""[learning] of a scenario: data set, model and constants; d, which follows from them, and the surrogate that fits."""

from __future__ import annotations

import dataclasses
import difflib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from airfed._extras import explained
from airfed._files import DataError, shown
from airfed._usercode import UserCode, named
from airfed.keys import Control, Count, Key, NonNegative, Positive, ScenarioError, Section
from airfed.network import Network, builtin, describe
from airfed.planning import Response, load_response
from airfed.problem import Learning

if TYPE_CHECKING:
    from airfed.learning.models import Model
    from airfed.scenario.scenario import Scenario

NETWORK: Final = "network"
"""What `learning.model` reads where [learning.network] writes the layers down."""
RIDGE: Final = "ridge"
"""Ridge regression, which [learning.ridge] describes."""
SYNTHETIC: Final = ("quadratic", RIDGE)
"""The models whose data are drawn from the seed: no images, no accuracy, and a known optimum."""
MODELS: Final = ("cnn", "mlp", "logistic", *SYNTHETIC, NETWORK)
"""The models that are built in."""
DATASET_SHAPES: Final[dict[str, tuple[tuple[int, int, int], int]]] = {
    **{name: ((1, 28, 28), 10) for name in ("mnist-5k", "mnist", "fashion-mnist")},
    "cifar-10": ((3, 32, 32), 10),
}
"""(channels, height, width) of the images of each named data set, and its classes."""
SHIPPED: Final = Path(__file__).parent.parent / "responses"
"""The responses that airfed comes with."""

_RIDGE_DIMENSION: Final = 10  # by default
_OF_PARTITION: Final = {"dirichlet": ("alpha",), "shards": ("shards_per_device",)}


def user_code(model: str) -> UserCode | None:
    """Return the code of a `learning.model`; None for a built-in model, and a ValueError for another text."""
    return named(model, builtin=MODELS, key="learning.model")


class NetworkSection(Section):
    """[learning.network]: layers of one's own, instead of learning.model.

    Convolutions without padding, each followed by a 2×2 max-pool and a ReLU; dense layers, each followed by a ReLU; one
    more with as many outputs as the data have classes. Without any layer this is softmax regression.
    """

    convolutions: Annotated[list[list[Count]], Key("[channels, kernel size] of each: [[32, 5], [64, 5]]")] = Field(
        default=[]
    )
    hidden: Annotated[list[Count], Key("width of each hidden dense layer: [512]")] = Field(default=[])
    l2: Annotated[NonNegative, Key("of the regulariser (λ/2)‖w‖² over all parameters", "λ")] = 0.0

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for index, pair in enumerate(self.convolutions):
            if len(pair) != 2:
                raise ValueError(
                    f"Expected learning.network.convolutions[{index}] to be [channels, kernel size], got {pair!r:.60}."
                )
        return self

    def __str__(self) -> str:
        """Return the layers in a few words, as "network 32c5-64c3-512"."""
        return describe(self.convolutions, self.hidden, self.l2)

    def build(self, *, input_shape: tuple[int, int, int], classes: int) -> Network:
        """Return the network for images of the given shape; ValueError where they are too small for it."""
        convolutions = tuple((outputs, kernel) for outputs, kernel in self.convolutions)
        return Network(
            input_shape=input_shape, convolutions=convolutions, hidden=tuple(self.hidden), classes=classes, l2=self.l2
        )


class RidgeSection(Section):
    """[learning.ridge]: least squares with a regulariser, on data drawn from the seed.

    Features x ~ N(0, I) of learning.dimension d >= 5, and labels y = x₂ + 3x₅ + 0.2·N(0, 1). Device k has the loss
    (1/D_k) Σ ½(xᵀm − y)² + λ‖m‖²/2 over its D_k samples, as many as every other device has. Runs record L − L*;
    airfed calibrate tells ζ, ϱ and G, which are known exactly.
    """

    samples: Annotated[Count, Key("samples, of all devices together", "n")] = 10_000
    l2: Annotated[Positive, Key("of the regulariser (λ/2)‖m‖²", "λ")] = 1e-4

    def __str__(self) -> str:
        """Return the task in a few words, as "ridge n500-l2:0.0001"."""
        return f"ridge n{self.samples}-l2:{self.l2:g}"


class LearningSection(Section):
    """[learning]: the task, and the constants of its bound."""

    dataset: Annotated[
        str,
        Key(
            "data: mnist-5k (built in), mnist, fashion-mnist, cifar-10, a folder of IDX or CIFAR-10 files, an .npz file"
        ),
    ] = "mnist-5k"
    images: Annotated[
        Count | None, Key("training images that are used, of all devices together; all unless written down")
    ] = None
    partition: Annotated[
        Literal["iid", "dirichlet", "shards"],
        Key(
            "how data are dealt to devices", choices={"iid": "iid", "dirichlet": "alpha", "shards": "shards_per_device"}
        ),
    ] = "iid"
    alpha: Annotated[Positive, Key("of a dirichlet partition: the smaller, the fewer classes a device has")] = 0.5
    shards_per_device: Annotated[
        Count, Key("of a partition into shards: pieces of one or two classes that a device gets")
    ] = 2
    model: Annotated[
        str,
        Key(
            'your own "module:callable" that returns a torch module (it may lie beside the scenario), quadratic, '
            "ridge (which [learning.ridge] describes), network (which [learning.network] writes down), or built in",
            choices={"cnn": "CNN", "mlp": "MLP", "logistic": "logistic"},
        ),
        Control("Model"),
    ] = "cnn"
    network: Annotated[
        NetworkSection | None, Key("layers of your own, of which the fused engine trains any, instead of a model")
    ] = None
    ridge: Annotated[
        RidgeSection | None, Key("ridge regression on data drawn from the seed, instead of a model; may be left out")
    ] = None
    dimension: Annotated[
        Count | None,
        Key("number of the model's parameters; quadratic needs it, ridge has 10 unless written down, others tell", "d"),
    ] = None
    total_steps: Annotated[
        Count,
        Key("local steps per device over the whole training", "T"),
        Control("Local steps in all", 1, 2000, "count"),
    ]
    learning_rate: Annotated[
        Positive, Key("step size; the bound is proved for τ = 1/ζ", "τ"), Control("Learning rate", 1e-3, 1.0)
    ]
    batch_size: Annotated[Count | None, Key("images per local step; all that a device has unless written down")] = None
    clip_norm: Annotated[Positive, Key("norm that every upload is clipped to", "ϖ"), Control("Clip norm", 0.01, 10.0)]
    smoothness: Annotated[
        Positive, Key("smoothness of the loss (for the bound)", "ζ"), Control("Smoothness", 0.1, 100.0)
    ]
    strong_convexity: Annotated[
        Positive, Key("strong convexity of the loss (for the bound)", "ϱ"), Control("Strong convexity", 1e-3, 10.0)
    ]
    initial_gap: Annotated[
        Positive,
        Key("loss before training above the smallest (for the bound)", "G"),
        Control("Initial gap", 0.01, 100.0),
    ]

    @model_validator(mode="before")
    @classmethod
    def _name_model(cls, table: Any) -> Any:
        """A table of layers, or of ridge regression, is a model by itself."""
        if not isinstance(table, dict) or "model" in table:
            return table
        written = [name for name in (NETWORK, RIDGE) if table.get(name) is not None]
        return {**table, "model": written[0]} if written else table

    @model_validator(mode="after")
    def _check_constants(self) -> Self:
        user_code(self.model)
        if self.network is None and self.model == NETWORK:
            raise ValueError(
                'Expected [learning.network] with learning.model = "network": its layers are not written down.'
            )
        for name, written in ((NETWORK, self.network), (RIDGE, self.ridge)):
            if written is not None and self.model != name:
                raise ValueError(
                    f"Expected learning.model or [learning.{name}], not both; got model {self.model!r} and a {written}."
                )
        self.build(self.dimension or 1)
        return self

    def build(self, dimension: int) -> Learning:
        """Return the constants for a model of the given dimension."""
        constants = {field.name for field in dataclasses.fields(Learning)} - {"dimension"}
        return Learning(dimension=dimension, **self.model_dump(include=constants))

    def build_network(self, *, input_shape: tuple[int, int, int], classes: int) -> Network:
        """Return the network for images of the given shape: as written down, or the built-in one."""
        if self.network is None:
            return builtin(self.model, input_shape=input_shape, classes=classes)
        return self.network.build(input_shape=input_shape, classes=classes)

    @property
    def synthetic(self) -> bool:
        """Whether data are drawn from the seed: then there are no images, no accuracy, and a known optimum."""
        return self.model in SYNTHETIC

    @property
    def model_title(self) -> str:
        """What tables and notes call the model."""
        return self.model if self.network is None else str(self.network)


class Built(NamedTuple):
    """A model, its initial parameters, the names and shapes of its tensors, and the digest of its code."""

    model: Model
    initial: NDArray[np.float32]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    digest: str


def dimension_of(scenario: Scenario) -> int:
    """Return d: the scenario's key, without a look at model and data, or the size of its model on its data.

    Only the user's own model needs torch: it is made, and tried on images of the data's shape.
    """
    learning = scenario.learning
    if learning.dimension is not None:
        return learning.dimension
    if learning.model == RIDGE:
        return _RIDGE_DIMENSION
    if learning.synthetic:
        raise ScenarioError(
            "Missing key learning.dimension: expected a whole number >= 1 (the quadratic model has any size)."
        )
    source = data_source(scenario)
    if isinstance(source, str):
        shape, classes = DATASET_SHAPES[source]
    else:
        from airfed.learning import data  # here: the built-in data sets have known shapes

        shape, classes = data.shape_of(source)
    if user_code(learning.model) is None:
        return network(scenario, shape, classes).dimension
    return own_model(scenario, shape, classes).initial.size


def data_source(scenario: Scenario) -> str | Path:
    """Return the data set's name, or the path to it, which starts at the scenario."""
    name = scenario.learning.dataset
    if name in DATASET_SHAPES:
        return name
    path = scenario.folder / name
    if not name or not path.exists():
        close = difflib.get_close_matches(name.lower(), DATASET_SHAPES, n=1)
        where = "" if Path(name).is_absolute() else f" in {scenario.folder.resolve()}"
        raise ScenarioError(
            f"Expected learning.dataset to be one of {', '.join(DATASET_SHAPES)}, a folder with IDX or CIFAR-10 files "
            f"or an .npz file; got {name!r}, and there is no such file{where}"
            + (f" (did you mean {close[0]!r}?)." if close else ".")
        )
    return path


def network(scenario: Scenario, input_shape: tuple[int, int, int], classes: int) -> Network:
    """Return the built-in model, or the layers of [learning.network], for images of a shape."""
    try:
        return scenario.learning.build_network(input_shape=input_shape, classes=classes)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def own_model(scenario: Scenario, input_shape: tuple[int, int, int], classes: int) -> Built:
    """Return the user's own model, tried on random images: a plan and a run report the same errors."""
    with explained():
        from airfed.learning import models  # here: nothing else in a scenario needs torch

    name = scenario.learning.model
    own = models.make_user_model(name, folder=scenario.folder, seed=scenario.seed)
    models.check_forward(own.module.train(), *models.probe_images(input_shape), classes, name=name)
    shapes = tuple((key, tuple(p.shape)) for key, p in own.module.named_parameters() if p.requires_grad)
    return Built(own.module, models.flatten(own.module), shapes, own.digest)


def traits(learning: LearningSection) -> dict[str, Any]:
    """Return what a response is good for: all that shapes a training, less the data, ϖ and the link."""
    code = user_code(learning.model)
    return {
        "model": learning.model if code is None else code.name,
        **({} if learning.network is None else {"network": learning.network.model_dump(mode="json")}),
        "total_steps": learning.total_steps,
        "learning_rate": learning.learning_rate,
        "batch_size": learning.batch_size,
        "partition": learning.partition,
        **{name: getattr(learning, name) for name in _OF_PARTITION.get(learning.partition, ())},
    }


def named_response(name: str, folder: Path, learning: LearningSection) -> Response:
    """Return the response in a file, or of that name; ScenarioError where it was measured for another training."""
    path = SHIPPED / f"{name}.json" if name in shipped() else folder / name
    try:
        found = load_response(path)
    except DataError as error:
        raise ScenarioError(str(error)) from None
    for trait, value in traits(learning).items():
        if found.about.get(trait) != value:
            raise ScenarioError(
                f"Expected a response that was measured with {trait} = {value!r}; {path} was with "
                f"{shown(repr(found.about.get(trait)))} (airfed measure makes another)."
            )
    return found


def shipped_response(learning: LearningSection, num_devices: int) -> Response | None:
    """Return the response that airfed comes with for this training, that of the nearest number of images a device."""
    wanted = {**traits(learning), "dataset": learning.dataset}

    def distance(response: Response) -> float:
        held = (learning.images or response.about["training_images"]) / num_devices
        return abs(math.log(held / response.about["images_per_device"]))

    fitting = [one for one in shipped().values() if all(one.about.get(key) == value for key, value in wanted.items())]
    return min(fitting, key=distance, default=None)


@cache
def shipped() -> dict[str, Response]:
    """Return the responses that airfed comes with, by their names."""
    return {file.stem: load_response(file) for file in sorted(SHIPPED.glob("*.json"))}
