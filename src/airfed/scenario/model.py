"""The data set and the model that [learning] names, and the number of parameters d that follows from them."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airfed._extras import explained
from airfed.network import Network
from airfed.scenario.errors import ScenarioError
from airfed.scenario.usercode import RIDGE, user_code

if TYPE_CHECKING:
    from airfed.learning.models import Model
    from airfed.scenario.scenario import Scenario

DATASET_SHAPES: Final[dict[str, tuple[tuple[int, int, int], int]]] = {
    **{name: ((1, 28, 28), 10) for name in ("mnist-5k", "mnist", "fashion-mnist")},
    "cifar-10": ((3, 32, 32), 10),
}
"""(channels, height, width) of the images of each named data set, and its classes."""

_RIDGE_DIMENSION: Final = 10  # by default


class Built(NamedTuple):
    """A model, its initial parameters, the names and shapes of its tensors, and the digest of its code."""

    model: Model
    initial: NDArray[np.float32]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    digest: str


def dimension_of(scenario: Scenario) -> int:
    """Return d: the scenario's key, or the size of its model on its data.

    Only the user's own model needs torch: it is made, and tried on images of the data's shape. Where d is a key of the
    scenario, neither the model nor the data is looked at.

    Raises:
        MissingExtra: the user's own model needs airfed[sim].
        ValueError: the model or the data is wrong (ScenarioError, DataError, or of the user's own model).
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
    """Return the data set's name, or the path to it; relative paths start at the scenario.

    Raises:
        ScenarioError: it is no name of a data set, and there is no such file.
    """
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
    """Return the built-in model, or the layers of [learning.network], for images of a shape.

    Raises:
        ScenarioError: the images are too small for it.
    """
    try:
        return scenario.learning.build_network(input_shape=input_shape, classes=classes)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def own_model(scenario: Scenario, input_shape: tuple[int, int, int], classes: int) -> Built:
    """Return the user's own model, tried on random images: a plan and a run report the same errors.

    Raises:
        MissingExtra: it needs airfed[sim].
        ValueError: the code cannot be imported, or makes no model that can be trained on these images.
    """
    with explained():
        from airfed.learning import models  # here: nothing else in a scenario needs torch

    name = scenario.learning.model
    own = models.make_user_model(name, folder=scenario.folder, seed=scenario.seed)
    models.check_forward(own.module.train(), *models.probe_images(input_shape), classes, name=name)
    shapes = tuple((key, tuple(p.shape)) for key, p in own.module.named_parameters() if p.requires_grad)
    return Built(own.module, models.flatten(own.module), shapes, own.digest)
