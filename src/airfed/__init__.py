"""airfed: plan, train, account and audit over-the-air federated averaging under power and privacy budgets.

[Yan23] in this package is: N. Yan, K. Wang, C. Pan, K. K. Chai, F. Shu, J. Wang, "Over-the-Air Federated Averaging with
Limited Power and Privacy Budgets", 2023. `docs/equations.md` says which function implements which equation.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # not from typing: the less is imported here, the sooner a Ctrl-C is heeded
if TYPE_CHECKING:
    from typing import Any

    from airfed.notebook import compare, league, run
    from airfed.planning.plan import Plan
    from airfed.policies import plan
    from airfed.problem import Budget, Fleet, InfeasibleError, Learning, Link, Problem
    from airfed.scenario.scenario import Scenario, load
    from airfed.training.run import Run

    __version__: str

__all__ = [
    "Budget",
    "Fleet",
    "InfeasibleError",
    "Learning",
    "Link",
    "Plan",
    "Problem",
    "Run",
    "Scenario",
    "compare",
    "league",
    "load",
    "plan",
    "run",
]
_HOMES = {
    "planning": ("Plan",),
    "policies": ("plan",),
    "training.run": ("Run",),
    "scenario": ("Scenario", "load"),
    "notebook": ("compare", "league", "run"),
}


def __getattr__(name: str) -> Any:
    """Return a public name, or a room, imported when it is first asked for: the command line starts before NumPy."""
    if name == "__version__":  # written down in pyproject.toml, and nowhere else
        return importlib.import_module("importlib.metadata").version("airfed")
    if name in __all__:
        home = next((home for home, names in _HOMES.items() if name in names), "problem")
        return getattr(importlib.import_module(f"airfed.{home}"), name)
    try:
        return importlib.import_module(f"airfed.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"airfed.{name}":
            raise
        raise AttributeError(f"module 'airfed' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
