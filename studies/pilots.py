"""Accuracy surrogates of the studies: `python -m studies.pilots [NAME ...]` makes those that studies/surrogates lacks.

These have proxy data of Fashion-MNIST, for scenarios of MNIST. `studies.cifar` has those of CIFAR-10.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import airfed
from airfed._disk import write_atomic
from airfed.experiments import points, sweep
from airfed.experiments.pilots import design, run_pilots
from airfed.scenario import Scenario

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "surrogates"
_LOGISTIC: Final = {"rounds": (10, 20, 40, 100, 200), "clip_norms": (0.5, 1.0, 2.0, 5.0)}
_CNN: Final = {"rounds": (10, 20, 40, 100), "clip_norms": (2.0, 5.0, 10.0), "noise": (0.01, 0.03, 0.1, 0.3)}


def _regret(name: str) -> Scenario:
    return points.load(HERE / "experiments" / f"regret-{name}.toml").base


def _private(rate: float) -> Scenario:
    return airfed.load(HERE.parent / "examples" / "private.toml").override({"learning.learning_rate": rate})


SURROGATES: Final[dict[str, tuple[Callable[[], Scenario], dict[str, Any]]]] = {
    "fashion-mnist-logistic-4": (
        lambda: _regret("little-power"),
        {"devices": 300, "noise": (0.01, 0.03, 0.1, 0.3), **_LOGISTIC},
    ),
    "fashion-mnist-logistic-dirichlet-0.3-40": (
        lambda: _regret("unlike"),
        {"devices": 100, "noise": (0.01, 0.03, 0.1), **_LOGISTIC},
    ),
    "fashion-mnist-cnn-4-rate-0.05": (lambda: _private(0.05), {"devices": 300, **_CNN}),
    "fashion-mnist-cnn-4-rate-0.2": (lambda: _private(0.2), {"devices": 300, **_CNN}),
}
"""The scenario and the grid of each surrogate."""


def file(name: str) -> Path:
    """Return the file of a surrogate."""
    return FOLDER / f"{name}.json"


def fit(name: str, scenario: Scenario, out: Path, *, jobs: int = 2, **grid: Any) -> None:
    """Train the pilot runs of a surrogate in the folder `out` and write its file, unless it is there."""
    if not file(name).exists():
        pilots = design(scenario, **grid)
        surrogate = run_pilots(pilots, lambda title, wanted: sweep.run(wanted, out / name, jobs=jobs, title=title))
        write_atomic(file(name), surrogate.to_json().encode(), new=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or SURROGATES:
        scenario_of, axes = SURROGATES[each]
        fit(each, scenario_of(), Path("out/pilots"), dataset="fashion-mnist", **axes)
