"""Which measured response belongs to a scenario: the file that it names, or one that airfed comes with."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, Final

from airfed._files import DataError, shown
from airfed.planning import Response, load_response
from airfed.scenario.errors import ScenarioError
from airfed.scenario.sections import LearningSection
from airfed.scenario.usercode import user_code

SHIPPED: Final = Path(__file__).parent.parent / "responses"
_OF_PARTITION: Final = {"dirichlet": ("alpha",), "shards": ("shards_per_device",)}


def traits(learning: LearningSection) -> dict[str, Any]:
    """Return what a response is good for: all that shapes a training, less the data, ϖ and the radio."""
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
    """Return the response in a file, or of one that airfed comes with, by its name ("mnist-5k-cnn-40").

    Args:
        name: of a response that airfed comes with, or the path of a file.
        folder: where a relative path starts.
        learning: what it is for.

    Raises:
        ScenarioError: it is no response, or was measured for another training.
    """
    path = SHIPPED / f"{name}.json" if is_shipped(name) else folder / name
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


def is_shipped(name: str) -> bool:
    """Return whether a response of this name comes with airfed."""
    return name in _shipped()


def shipped_response(learning: LearningSection, num_devices: int) -> Response | None:
    """Return the response that airfed comes with for this training on these data, if there is one.

    Of several that differ in how many images a device holds, the nearest.
    """
    wanted = {**traits(learning), "dataset": learning.dataset}
    found = [
        response
        for response in _shipped().values()
        if all(response.about.get(name) == value for name, value in wanted.items())
    ]
    return min(found, key=lambda response: _distance(response, learning, num_devices), default=None)


def _distance(response: Response, learning: LearningSection, num_devices: int) -> float:
    held = (learning.images or response.about["training_images"]) / num_devices
    return abs(math.log(held / response.about["images_per_device"]))


@cache
def _shipped() -> dict[str, Response]:
    return {file.stem: load_response(file) for file in sorted(SHIPPED.glob("*.json"))}
