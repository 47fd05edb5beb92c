"""[learning] of a scenario: data set, model and constants; the dimension d, and the accuracy surrogate that fits."""

from __future__ import annotations

import dataclasses
import difflib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from airfed import seeds
from airfed._extras import explained
from airfed._files import DataError, shown
from airfed._usercode import UserCode, named
from airfed.clipping import AdaptiveClipping
from airfed.keys import Control, Count, Fraction, Key, NonNegative, Positive, ScenarioError, Section
from airfed.network import Network, builtin, describe
from airfed.planning import Surrogate
from airfed.planning.surrogate import INTERVALS, load_surrogate, load_surrogates
from airfed.problem import Learning

if TYPE_CHECKING:
    from airfed.learning.models import Model
    from airfed.scenario.scenario import Scenario

NETWORK: Final = "network"
"""Value of `learning.model` when [learning.network] lists the layers."""
CANDIDATES: Final = "candidates"
"""Value of `learning.model` when learning.candidates lists the models to choose from."""
RIDGE: Final = "ridge"
"""Ridge regression, with the keys of [learning.ridge]."""
SYNTHETIC: Final = ("quadratic", RIDGE)
"""Models on data drawn from the seed: no images, no accuracy, a known optimum."""
_NAMED: Final = ("cnn", "mlp", "logistic")  # built-in networks
MODELS: Final = (*_NAMED, *SYNTHETIC, NETWORK)
"""Built-in models."""
DATASET_SHAPES: Final[dict[str, tuple[tuple[int, int, int], int]]] = {
    **{name: ((1, 28, 28), 10) for name in ("mnist-5k", "mnist", "fashion-mnist")},
    "cifar-10": ((3, 32, 32), 10),
}
"""((channels, height, width) of the images, number of classes) of each named data set."""
MOST_DATA: Final = 1.5
"""Largest factor between the images per device of a scenario and of a surrogate's pilot runs."""
_TRAINING_IMAGES: Final = {"mnist-5k": 4_000, "mnist": 60_000, "fashion-mnist": 60_000, "cifar-10": 50_000}
_PILOT_DATA: Final = ("mnist-5k", "mnist", "fashion-mnist")  # of the package's surrogates and of their coverage
SHIPPED: Final = Path(__file__).parent.parent / "surrogates"
"""Folder of the surrogates in the package."""

_RIDGE_DIMENSION: Final = 10  # by default
_PARTITION_KEYS: Final = {"dirichlet": ("alpha",), "shards": ("shards_per_device",)}


def user_code(model: str) -> UserCode | None:
    """Return the user code that a `learning.model` names; None for a built-in model. Raise ValueError otherwise."""
    return None if model == CANDIDATES else named(model, builtin=MODELS, key="learning.model")


class NetworkSection(Section):
    """[learning.network]: layers of a custom network, instead of learning.model.

    Convolutions without padding, each followed by 2×2 max-pooling and a ReLU; hidden dense layers, each followed by a
    ReLU; and a dense layer with one output per class. Without layers this is softmax regression.
    """

    convolutions: Annotated[
        list[list[Count]], Key("[channels, kernel size] of each convolution: [[32, 5], [64, 5]]")
    ] = Field(default=[])
    hidden: Annotated[list[Count], Key("width of each hidden dense layer: [512]")] = Field(default=[])
    l2: Annotated[NonNegative, Key("weight of the regulariser (λ/2)‖w‖² over all parameters", "λ")] = 0.0

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for index, pair in enumerate(self.convolutions):
            if len(pair) != 2:
                raise ValueError(
                    f"learning.network.convolutions[{index}] must be [channels, kernel size], got {pair!r:.60}."
                )
        return self

    def __str__(self) -> str:
        """Return a short name of the layers, such as "network 32c5-64c3-512"."""
        return describe(self.convolutions, self.hidden, self.l2)

    def build(self, *, input_shape: tuple[int, int, int], classes: int) -> Network:
        """Return the network for images of the given shape; raise ValueError if they are too small."""
        convolutions = tuple((outputs, kernel) for outputs, kernel in self.convolutions)
        return Network(
            input_shape=input_shape, convolutions=convolutions, hidden=tuple(self.hidden), classes=classes, l2=self.l2
        )


class RidgeSection(Section):
    """[learning.ridge]: ridge regression on data drawn from the seed.

    Features x ~ N(0, I) of learning.dimension d >= 5 and labels y = x₂ + 3x₅ + 0.2·N(0, 1). Device k has the loss
    (1/D_k) Σ ½(xᵀm − y)² + λ‖m‖²/2 over its D_k samples; all devices have equally many. Runs record L − L*, and
    airfed calibrate prints the exact ζ, ϱ and G.
    """

    samples: Annotated[Count, Key("number of samples over all devices", "n")] = 10_000
    l2: Annotated[Positive, Key("weight of the regulariser (λ/2)‖m‖²", "λ")] = 1e-4

    def __str__(self) -> str:
        """Return a short name of the task, such as "ridge n500-l2:0.0001"."""
        return f"ridge n{self.samples}-l2:{self.l2:g}"


class AdaptiveClippingSection(Section):
    """[learning.adaptive_clipping]: a clipping norm ϖ that follows a quantile of the updates' norms.

    Each device sends one more entry, which tells in noise whether its update was clipped. With the fraction b̃ that the
    receiver estimates, ϖ is multiplied by exp(−rate·(b̃ − quantile)) after each round; learning.clip_norm is the first
    ϖ. An empty table uses the defaults. The plan is by the bound at the first ϖ, without an expected accuracy.
    """

    quantile: Annotated[Fraction, Key("wanted fraction of updates that are not clipped")] = AdaptiveClipping.quantile
    rate: Annotated[Positive, Key("step of ln ϖ")] = AdaptiveClipping.rate
    share: Annotated[Fraction, Key("share of an upload's privacy loss μ² and power for the indicator")] = (
        AdaptiveClipping.share
    )

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        try:
            self.build()
        except ValueError as error:
            raise ValueError(f"[learning.adaptive_clipping]: {error}") from None
        return self

    def build(self) -> AdaptiveClipping:
        """Return the rule."""
        return AdaptiveClipping(**self.model_dump())


class LearningSection(Section):
    """[learning]: the learning task and the constants of its convergence bound."""

    dataset: Annotated[
        str,
        Key(
            "data set: mnist-5k (embedded), mnist, fashion-mnist, cifar-10, a folder of IDX or CIFAR-10 files, or an "
            ".npz file"
        ),
    ] = "mnist-5k"
    images: Annotated[Count | None, Key("number of training images over all devices; default: all")] = None
    validation_images: Annotated[
        Count | None,
        Key("training images that no device holds; models are evaluated on them instead of the test images"),
    ] = None
    partition: Annotated[
        Literal["iid", "dirichlet", "shards"],
        Key(
            "partition of the training data over devices",
            choices={"iid": "iid", "dirichlet": "alpha", "shards": "shards_per_device"},
        ),
    ] = "iid"
    alpha: Annotated[
        Positive, Key("concentration of a Dirichlet partition; a smaller value gives each device fewer classes")
    ] = 0.5
    shards_per_device: Annotated[
        Count, Key("shards, each of one or two classes, per device in a partition into shards")
    ] = 2
    model: Annotated[
        str,
        Key(
            'model: "module:callable" that returns a torch module (the file may be next to the scenario), quadratic, '
            "ridge (see [learning.ridge]), network (see [learning.network]), a list (see candidates), or built in",
            choices={"cnn": "CNN", "mlp": "MLP", "logistic": "logistic"},
        ),
        Control("Model"),
    ] = "cnn"
    network: Annotated[
        NetworkSection | None, Key("layers of a custom network, instead of model; the fused engine trains it")
    ] = None
    ridge: Annotated[RidgeSection | None, Key("ridge regression on data drawn from the seed, instead of model")] = None
    candidates: Annotated[
        list[str | NetworkSection] | None,
        Key(
            "models of which the plan takes the one with the highest expected accuracy, also written as a list in "
            'model: ["cnn", "mine:net", {convolutions = [[6, 5], [12, 5]]}]'
        ),
    ] = None
    train: Annotated[
        list[str] | None,
        Key(
            'parts of the model that are trained: names of layers or parameters, and "lora:r" for adapters of rank r '
            "of the other linear and convolutional layers; default: all parameters"
        ),
    ] = None
    dimension: Annotated[
        Count | None,
        Key(
            "number of trained parameters; required for quadratic, default for ridge: 10, for other models: counted",
            "d",
        ),
    ] = None
    total_steps: Annotated[
        Count,
        Key("total number of local steps per device", "T"),
        Control("Total local steps", 1, 2000, "count"),
    ]
    learning_rate: Annotated[
        Positive, Key("step size; the bound is proved for τ = 1/ζ", "τ"), Control("Learning rate", 1e-3, 1.0)
    ]
    batch_size: Annotated[Count | None, Key("images per local step; default: all images of the device")] = None
    clip_norm: Annotated[Positive, Key("clipping norm of every model update", "ϖ"), Control("Clip norm", 0.01, 10.0)]
    adaptive_clipping: Annotated[
        AdaptiveClippingSection | None, Key("clipping norm that follows a quantile of the updates' norms")
    ] = None
    smoothness: Annotated[
        Positive, Key("smoothness of the loss (for the bound)", "ζ"), Control("Smoothness", 0.1, 100.0)
    ]
    strong_convexity: Annotated[
        Positive, Key("strong convexity of the loss (for the bound)", "ϱ"), Control("Strong convexity", 1e-3, 10.0)
    ]
    initial_gap: Annotated[
        Positive,
        Key("initial loss minus the minimum loss (for the bound)", "G"),
        Control("Initial gap", 0.01, 100.0),
    ]

    @model_validator(mode="before")
    @classmethod
    def _name_model(cls, table: Any) -> Any:
        """Set `model` if only [learning.network], [learning.ridge] or candidates are given; a list is of candidates."""
        if isinstance(table, dict) and isinstance(table.get("model"), list) and table.get(CANDIDATES) is None:
            table = {**table, "model": CANDIDATES, CANDIDATES: table["model"]}
        if not isinstance(table, dict) or "model" in table:
            return table
        written = [name for name in (NETWORK, RIDGE, CANDIDATES) if table.get(name) is not None]
        return {**table, "model": written[0]} if written else table

    @model_validator(mode="after")
    def _check_constants(self) -> Self:
        user_code(self.model)
        if self.network is None and self.model == NETWORK:
            raise ValueError(
                'The table [learning.network] is missing; learning.model = "network" takes its layers from there.'
            )
        for name, written in ((NETWORK, self.network), (RIDGE, self.ridge), (CANDIDATES, self.candidates)):
            if written is not None and self.model != name:
                got = ", ".join(map(str, written)) if isinstance(written, list) else written
                raise ValueError(
                    f"Set learning.model or [learning.{name}], not both; got model {self.model!r} and {got}."
                )
        self.build(self.dimension or 1)
        return self

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        if self.model != CANDIDATES:
            return self
        if not self.candidates:
            raise ValueError('learning.candidates must have at least one model, as in ["cnn", "logistic"], got none.')
        for index, each in enumerate(self.candidates):
            if isinstance(each, str):
                named(each, builtin=_NAMED, key=f"learning.candidates[{index}]")
        titles = [str(each) for each in self.candidates]
        if len(set(titles)) < len(titles):
            raise ValueError(f"learning.candidates must be different models, got {', '.join(titles)}.")
        if self.dimension is not None:
            raise ValueError("learning.dimension must not be set with learning.candidates: each has its own.")
        return self

    @model_validator(mode="after")
    def _check_train(self) -> Self:
        if self.train is None:
            return self
        if self.synthetic:
            raise ValueError(f"learning.train must not be set with the {self.model} model, which has one vector.")
        names, rank = self.trained
        if not self.train or len(set(names)) + (rank is not None) < len(self.train):
            raise ValueError(f'learning.train must be different names, as in ["head", "lora:4"], got {self.train}.')
        return self

    @property
    def trained(self) -> tuple[list[str], int | None]:
        """The names in `train`, and the rank of the adapters, if any."""
        names = [name for name in self.train or () if not name.startswith("lora:")]
        ranks = [name.removeprefix("lora:") for name in self.train or () if name.startswith("lora:")]
        if wrong := [rank for rank in ranks if re.fullmatch("[1-9][0-9]{0,5}", rank) is None]:
            raise ValueError(f"learning.train must have a rank from 1 to 999999, as in lora:4, got 'lora:{wrong[0]}'.")
        return names, int(ranks[0]) if ranks else None

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The changes of keys that select each candidate."""
        return [
            {"learning.candidates": None, "learning.model": each}
            if isinstance(each, str)
            else {"learning.candidates": None, "learning.model": NETWORK, "learning.network": each.model_dump()}
            for each in self.candidates or ()
        ]

    def build(self, dimension: int) -> Learning:
        """Return the constants for a model of the given dimension."""
        constants = {field.name for field in dataclasses.fields(Learning)} - {"dimension", "adaptive_clipping"}
        adaptive = None if self.adaptive_clipping is None else self.adaptive_clipping.build()
        return Learning(dimension=dimension, adaptive_clipping=adaptive, **self.model_dump(include=constants))

    @property
    def synthetic(self) -> bool:
        """Whether data are drawn from the seed: no images, no accuracy, a known optimum."""
        return self.model in SYNTHETIC

    @property
    def model_title(self) -> str:
        """Name of the model in tables."""
        if self.candidates is not None:
            return f"one of {', '.join(map(str, self.candidates))}"
        part = f" ({', '.join(self.train)})" if self.train else ""
        return (self.model if self.network is None else str(self.network)) + part


class Built(NamedTuple):
    """A model, its initial parameters, the names and shapes of its tensors, and the digest of its code."""

    model: Model
    initial: NDArray[np.float32]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    digest: str
    partial: bool = False  # whether `learning.train` has frozen parameters of the model


def dimension_of(scenario: Scenario) -> int:
    """Return d: learning.dimension if it is set, or else the number of parameters of the model on its data.

    Only a user's model and learning.train need torch: the model is built, and tried on images of the right shape.
    """
    learning = scenario.learning
    if learning.dimension is not None:
        return learning.dimension
    if learning.candidates is not None:
        return scenario.chosen().dimension
    if learning.model == RIDGE:
        return _RIDGE_DIMENSION
    if learning.synthetic:
        raise ScenarioError(
            "Missing key learning.dimension: expected a whole number >= 1 (required for the quadratic model)."
        )
    source = data_source(scenario)
    if isinstance(source, str):
        shape, classes = DATASET_SHAPES[source]
    else:
        from airfed.learning import data  # lazy: the named data sets have known shapes

        shape, classes = data.shape_of(source)
    if user_code(learning.model) is None and learning.train is None:
        return network(scenario, shape, classes).dimension
    return build_model(scenario, shape, classes).initial.size


def data_source(scenario: Scenario) -> str | Path:
    """Return the name of the data set, or its path."""
    name = scenario.learning.dataset
    if name in DATASET_SHAPES:
        return name
    path = scenario.folder / name
    if not name or not path.exists():
        close = difflib.get_close_matches(name.lower(), DATASET_SHAPES, n=1)
        where = "" if Path(name).is_absolute() else f" in {scenario.folder.resolve()}"
        raise ScenarioError(
            f"learning.dataset must be one of {', '.join(DATASET_SHAPES)}, a folder with IDX or CIFAR-10 files "
            f"or an .npz file; got {name!r}, and there is no such file{where}"
            + (f" (did you mean {close[0]!r}?)." if close else ".")
        )
    return path


def network(scenario: Scenario, input_shape: tuple[int, int, int], classes: int) -> Network:
    """Return the built-in network, or that of [learning.network], for images of a shape."""
    learning = scenario.learning
    try:
        if learning.network is None:
            return builtin(learning.model, input_shape=input_shape, classes=classes)
        return learning.network.build(input_shape=input_shape, classes=classes)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def build_model(scenario: Scenario, input_shape: tuple[int, int, int], classes: int) -> Built:
    """Return the model; a torch module is tried on random images, so that planning and training report the same errors.

    With `learning.train` a built-in network is a torch module too, of which only some parameters are trained.
    """
    learning, name, digest = scenario.learning, scenario.learning.model, ""
    own = user_code(name) is not None
    if not own:
        built_in = network(scenario, input_shape, classes)
        initial = built_in.initial_parameters(seeds.stream(scenario.seed, "init"))
        if learning.train is None:
            return Built(built_in, initial, tuple((tensor.name, tensor.shape) for tensor in built_in.tensors), "")
        if built_in.l2:
            raise ScenarioError(f"learning.train needs a network without l2, got {learning.model_title}.")
    with explained():
        from airfed.learning import models  # lazy: nothing else in a scenario needs torch

    if own:
        module, digest = models.make_user_model(name, folder=scenario.folder, seed=scenario.seed)
    else:
        module = models.build_module(built_in)
        models.unflatten(module, initial)
    if learning.train is not None:
        names, rank = learning.trained
        models.restrict(module, names, rank, rng=seeds.stream(scenario.seed, "init", 1))
        models.check_module(module, name=name)
    models.check_forward(module.train(), *models.probe_images(input_shape), classes, name=name)
    shapes = tuple((key, tuple(p.shape)) for key, p in module.named_parameters() if p.requires_grad)
    return Built(module, models.flatten(module), shapes, digest, partial=learning.train is not None)


def traits(learning: LearningSection) -> dict[str, Any]:
    """Return the keys that must match those of a surrogate: all that affect training except data, ϖ and link."""
    code = user_code(learning.model)
    return {
        "model": learning.model if code is None else code.name,
        **({} if learning.network is None else {"network": learning.network.model_dump(mode="json")}),
        **({} if learning.train is None else {"train": learning.train}),
        "total_steps": learning.total_steps,
        "learning_rate": learning.learning_rate,
        "batch_size": learning.batch_size,
        "partition": learning.partition,
        **{name: getattr(learning, name) for name in _PARTITION_KEYS.get(learning.partition, ())},
    }


def fitting_surrogate(scenario: Scenario) -> Surrogate | None:
    """Return the surrogate that [policy] names, or else one in the package that fits the training, if any.

    A surrogate fits up to a factor of `MOST_DATA` between its images per device and the scenario's. To choose settings,
    one of another data set is preferred: pilot runs on the devices' data are not covered by ε.

    Raises:
        ScenarioError: the named surrogate was fitted to another training.
    """
    learning, name = scenario.learning, scenario.policy.surrogate
    if name is not None:
        path = SHIPPED / f"{name}.json" if name in shipped() else scenario.folder / name
        try:
            held = load_surrogates(path)
        except DataError as error:
            raise ScenarioError(str(error)) from None
        wanted = traits(learning)
        surrogate = max(held, key=lambda one: sum(one.about.get(key) == value for key, value in wanted.items()))
        for trait, value in wanted.items():
            if surrogate.about.get(trait) != value:
                raise ScenarioError(
                    f"The surrogate must be fitted with {trait} = {value!r}, got {path} with "
                    f"{shown(repr(surrogate.about.get(trait)))}. Run airfed pilot to fit another one."
                )
        if not _fits_data(scenario, surrogate):
            each = _images(scenario) / scenario.num_devices
            raise ScenarioError(
                f"The surrogate must be fitted with {each / MOST_DATA:.3g} to {each * MOST_DATA:.3g} images per "
                f"device, got {path} with {surrogate.about['images_per_device']}. Run airfed pilot to fit another one."
            )
        return dataclasses.replace(surrogate, same_data=_same_data(scenario, surrogate))
    if learning.dataset not in _PILOT_DATA:
        return None
    wanted = traits(learning)
    found = [
        dataclasses.replace(one, same_data=_same_data(scenario, one))
        for one in shipped().values()
        if all(one.about.get(key) == value for key, value in wanted.items()) and _fits_data(scenario, one)
    ]
    by_bound = scenario.policy.objective == "bound"  # chooses no setting by the surrogate
    return min(found, key=lambda one: one.same_data != by_bound, default=None)


def _fits_data(scenario: Scenario, surrogate: Surrogate) -> bool:
    """Return whether the devices have about as many images each as those of the pilot runs."""
    pilots = surrogate.about.get("images_per_device")
    if pilots is None or scenario.learning.synthetic:
        return True
    ratio = _images(scenario) / scenario.num_devices / pilots
    return bool(max(ratio, 1 / ratio) <= MOST_DATA * (1 + 1e-9))


def _same_data(scenario: Scenario, surrogate: Surrogate) -> bool:
    """Return whether the pilot runs trained on images of the devices' data set; mnist-5k is a part of MNIST."""
    about, source = surrogate.about, scenario.learning.dataset
    name = about.get("dataset")
    if scenario.learning.synthetic or name is None:
        return False
    if name in DATASET_SHAPES and source in DATASET_SHAPES:
        return str(name).removesuffix("-5k") == source.removesuffix("-5k")
    try:
        own = data_source(scenario)
        if about.get("data_digest") == _loaded(own)[1]:
            return True
        images = _image_digests(own)
    except DataError:  # a published data set that was not fetched: a plan needs no data, and a run plans again
        return False
    try:
        of_pilots = about.get("image_digests") or (_image_digests(name) if name in DATASET_SHAPES else ())
    except DataError as error:
        raise ScenarioError(
            f"The devices' images must be compared with those of the surrogate's pilot runs on {name}, which are "
            f"missing: {error}"
        ) from None
    return isinstance(of_pilots, list | frozenset) and not images.isdisjoint(map(str, of_pilots))


def _images(scenario: Scenario) -> int:
    """Return the number of training images of all devices."""
    learning = scenario.learning
    if learning.images is not None:
        return learning.images
    every = _TRAINING_IMAGES.get(learning.dataset) or _loaded(data_source(scenario))[0]
    return max(1, every - (learning.validation_images or 0))


@cache
def _loaded(source: str | Path) -> tuple[int, str]:
    """Return the number of training images in a data set, and the digest of its content."""
    from airfed.learning import data  # lazy: the named data sets have known sizes

    found = data.load(source)
    return len(found.train_labels), found.sha256


@cache
def _image_digests(source: str | Path) -> frozenset[str]:
    """Return the digests of the training images in a data set."""
    from airfed.learning import data  # lazy, as above

    return data.image_digests(data.load(source))


@cache
def shipped() -> dict[str, Surrogate]:
    """Return the surrogates in the package by name."""
    return {file.stem: load_surrogate(file) for file in sorted(SHIPPED.glob("*.json")) if file != INTERVALS}
