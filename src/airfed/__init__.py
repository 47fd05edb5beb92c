"""airfed: plan, train, account and audit over-the-air federated averaging under power and privacy budgets.

[Yan23] in this package is: N. Yan, K. Wang, C. Pan, K. K. Chai, F. Shu, J. Wang, "Over-the-Air Federated Averaging with
Limited Power and Privacy Budgets", 2023. `docs/equations.md` lists the function of each equation.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # not from typing: few imports here let Ctrl-C work early
if TYPE_CHECKING:
    from typing import Any

    from airfed.notebook import benchmark, compare, run
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
    "benchmark",
    "compare",
    "load",
    "plan",
    "run",
]
_MODULES = {
    "planning": ("Plan",),
    "policies": ("plan",),
    "training.run": ("Run",),
    "scenario": ("Scenario", "load"),
    "notebook": ("compare", "benchmark", "run"),
}


def __getattr__(name: str) -> Any:
    """Return a public name or a subpackage by a lazy import, so that the command line starts without NumPy."""
    if name == "__version__":  # stated in pyproject.toml only
        return importlib.import_module("importlib.metadata").version("airfed")
    if name in __all__:
        home = next((home for home, names in _MODULES.items() if name in names), "problem")
        return getattr(importlib.import_module(f"airfed.{home}"), name)
    try:
        return importlib.import_module(f"airfed.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"airfed.{name}":
            raise
        raise AttributeError(f"module 'airfed' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
