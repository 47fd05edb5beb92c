"""Which measured response belongs to a scenario: the file that it names, or one that airfed comes with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from airfed._files import DataError
from airfed.planning import Response, load_response
from airfed.scenario.errors import ScenarioError
from airfed.scenario.sections import LearningSection, PolicySection
from airfed.scenario.usercode import user_code

SHIPPED: Final = Path(__file__).parent.parent / "responses"
_OF_PARTITION: Final = {"dirichlet": ("alpha",), "shards": ("shards_per_device",)}


def traits(learning: LearningSection, policy: PolicySection) -> dict[str, Any]:
    """Return what a response is good for: all that shapes a training, less the data, ϖ and the radio."""
    code = user_code(learning.model)
    return {
        "model": learning.model if code is None else code.name,
        "total_steps": learning.total_steps,
        "learning_rate": learning.learning_rate,
        "batch_size": learning.batch_size,
        "partition": learning.partition,
        **{name: getattr(learning, name) for name in _OF_PARTITION.get(learning.partition, ())},
        "average": policy.average,
    }


def named_response(path: Path, learning: LearningSection, policy: PolicySection) -> Response:
    """Return the response in a file.

    Raises:
        ScenarioError: it is no response, or was measured for another training.
    """
    try:
        found = load_response(path)
    except DataError as error:
        raise ScenarioError(str(error)) from None
    for name, value in traits(learning, policy).items():
        if found.about.get(name) != value:
            raise ScenarioError(
                f"Expected a response that was measured with {name} = {value!r}; {path} was with "
                f"{found.about.get(name)!r} (airfed measure makes another)."
            )
    return found


def shipped_response(learning: LearningSection, policy: PolicySection) -> Response | None:
    """Return the response that airfed comes with for this training on these data, if there is one."""
    wanted = {**traits(learning, policy), "dataset": learning.dataset}
    for found in _shipped():
        if all(found.about.get(name) == value for name, value in wanted.items()):
            return found
    return None


@cache
def _shipped() -> tuple[Response, ...]:
    return tuple(load_response(file) for file in sorted(SHIPPED.glob("*.json")))
