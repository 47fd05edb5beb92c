"""airfed plan, compare and new: no training, and no torch unless the model is your own."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import ArgumentCollection, Group, Parameter, Token

from airfed import policies, scenario
from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.policy import Sensitivities, sensitivities
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError, template, worlds
from airfed.text import output, tables

ScenarioFile = Annotated[Path, Parameter(help="The scenario, a TOML file (airfed new writes one).")]


def _one_kind(given: ArgumentCollection) -> None:
    """Raise where JSON and a format of tables are asked for at once."""
    if len(given.filter_by(value_set=True)) > 1:
        raise ValueError("Expected --json or --format, not both.")


OUTPUT: Final = Group("Output", validator=_one_kind)
Json = Annotated[bool, Parameter(help="Print JSON instead of text.", negative="", group=OUTPUT)]
TableFormat = Annotated[
    output.Format | None, Parameter(help="Print the tables alone, so written; the text goes to stderr.", group=OUTPUT)
]


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Return an argument as a whole number: no "3.5", and nothing endless."""
    text = tokens[0].value
    if re.fullmatch(r"[-+]?[0-9]+", text) is None or len(text) > _MOST_DIGITS:
        shown = repr(text) if len(text) <= _MOST_DIGITS else f"{len(text)} characters"
        raise ValueError(f"expected a whole number, got {shown}.")
    return int(text)


_MOST_DIGITS: Final = 1000
Seed = Annotated[int | None, Parameter(help="Use this seed instead of the scenario's.", converter=whole_number)]
_MOST_LISTED: Final = 1_000_000  # devices of all rounds together that are listed in JSON
_MOST_UNEQUAL: Final = 1000  # devices of different limits: their plans take longer to find
Policy = Annotated[
    str | None, Parameter(help=f"The policy: {', '.join(policies.EVERY)}, or your own as module:callable.")
]
Rounds = Annotated[int | None, Parameter(help="Fix the number of aggregation rounds.", converter=whole_number)]


def read(file: Path, **changes: Any) -> Scenario:
    """Return the scenario of a file with the command line's changes applied (those that were given)."""
    given = {key.replace("__", "."): value for key, value in changes.items() if value is not None}
    loaded = scenario.load(file)
    return loaded.override(given) if given else loaded


def check_new(out: Path) -> None:
    """Raise where a file exists already, or cannot be written, before the work that it takes."""
    if out.exists():
        raise ScenarioError(f"Expected {out} not to exist; it is left as it is.")
    if not out.parent.is_dir():
        raise ScenarioError(f"Cannot write {out}: there is no folder {out.parent}.")


def plan(
    file: ScenarioFile,
    /,
    *,
    policy: Policy = None,
    rounds: Rounds = None,
    seed: Seed = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the decision (png, pdf, svg).")] = None,
) -> int:
    world = with_policy(read(file, policy__rounds=rounds, seed=seed), policy)
    found = world.plan()
    if plot is not None:
        from airfed.plotting import figure

        figure.save(figure.plan_figure(found, response=world.response), plot)
    if json:
        output.print_json({"scenario": world.name, **_values(found)})
        return 0
    console = output.make_console(format)
    tables.print_plan(console, world.name, found)
    if found.constant:
        console.print("")
        tables.print_sensitivities(console, found, _sensitivities(world, found))
    if plot is not None:
        console.print(f"\ndrawn: {plot}", markup=False)
    return 0


def compare(
    file: ScenarioFile,
    /,
    *,
    rounds: Rounds = None,
    seed: Seed = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the policies' bounds (png, pdf, svg).")] = None,
    rivals: Annotated[
        bool, Parameter(help="Show the methods of other papers, too (docs/rivals.md).", negative="")
    ] = False,
    total: Annotated[
        float | None, Parameter(help="ε in total of the second table (default: what full participation spends).")
    ] = None,
) -> int:
    world = read(file, policy__rounds=rounds, seed=seed)
    if total is not None and not 0 < total < math.inf:
        raise ValueError(f"Expected --total={total:g} to be a number > 0.")
    plans, failures = world.compare(baselines=rivals)
    if "optimal" not in plans:
        raise InfeasibleError(failures["optimal"])
    equal = _equal_total(world, plans, total, baselines=rivals)
    if plot is not None:
        from airfed.plotting import figure

        figure.save(figure.comparison_figure(plans), plot)
    if json:
        found = {"scenario": world.name, "policies": _rows(plans), "infeasible": failures, "equal_total": None}
        if equal is not None:
            epsilon, plans, failures = equal
            found["equal_total"] = {"epsilon": epsilon, "policies": _rows(plans), "infeasible": failures}
        output.print_json(found)
        return 0
    console = output.make_console(format)
    tables.print_comparison(console, world.name, plans, failures)
    if equal is not None:
        tables.print_equal_total(console, *equal)
    return 0


def _values(found: Plan) -> dict[str, Any]:
    """The plan as plain values; where rounds differ, each lists its devices (unless too many) and its ε."""
    values = found.to_dict()
    if "sequence" not in values:
        return values
    listed = int(found.sizes.sum()) <= _MOST_LISTED
    for values_of, entry in zip(values["sequence"], found.sequence, strict=True):
        values_of["epsilon"] = entry.epsilon
        if listed:
            values_of["scheduled"] = entry.scheduled.tolist()
    return values | {"scheduled_listed": listed}


def _rows(plans: Mapping[str, Plan]) -> dict[str, Any]:
    best = plans["optimal"].bound.total
    return {name: {**each.to_dict(), "excess": each.bound.total / best - 1} for name, each in plans.items()}


def _equal_total(
    world: Scenario, plans: Mapping[str, Plan], epsilon: float | None, *, baselines: bool
) -> tuple[float, dict[str, Plan], dict[str, str]] | None:
    """The policies planned for one ε in total; None where the budget is a total already."""
    if epsilon is None:
        epsilon = plans.get("full", plans["optimal"]).epsilon_total * (1 + 1e-9)  # so that this very plan still fits
        if world.budget.scope == "total" or not 0 < epsilon < math.inf:  # no budget could say so
            return None
    budget = {"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": epsilon}
    found, failures = world.override(budget).compare(baselines=baselines)
    if "optimal" not in found:
        raise InfeasibleError(failures["optimal"])
    return epsilon, found, failures


def new(
    file: Annotated[Path, Parameter(help="Where to write it; an existing file is never overwritten.")],
    /,
    *,
    like: Annotated[str | None, Parameter(help=f"A known paper's world: {', '.join(worlds.NAMES)}.")] = None,
    json: Json = False,
) -> int:
    text = template.SCENARIO if like is None else worlds.world(like)
    check_new(file)
    with file.open("x", encoding="utf-8") as stream:
        stream.write(text)
    if json:
        output.print_json({"written": str(file)})
    else:
        output.say(f"written: {file}")
        output.say(f"next: airfed plan {shlex.quote(str(file))}")
    return 0


def _sensitivities(world: Scenario, found: Plan) -> Sensitivities | None:
    """What more budget buys under the scenario's policy; None where four more plans take too long, or there is none."""
    problem = found.problem
    if problem.fleet.num_devices > _MOST_UNEQUAL and (not problem.fleet.equal_peak_power or amplified(problem)):
        return None
    try:
        return sensitivities(problem, world.plan)
    except ValueError:  # twice the budget is out of range, or a policy has no plan there
        return None


def with_policy(world: Scenario, name: str | None) -> Scenario:
    """The scenario under another policy, if one is named."""
    return world if name is None else world.vary({"policy.name": name})
