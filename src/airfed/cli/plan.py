"""airfed plan, compare, new and explore: no training, and torch only for a model of the user's own."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import ArgumentCollection, Group, Parameter, Token

from airfed import policies, scenario
from airfed.planning import Plan
from airfed.planning.limits import amplified
from airfed.planning.policy import Sensitivities, sensitivities
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError, presets, template
from airfed.text import output, tables

ScenarioFile = Annotated[Path, Parameter(help="The scenario, a TOML file (airfed new writes one).")]


def flag(text: str, **options: Any) -> Parameter:
    """Return the parameter of an option that takes no value."""
    return Parameter(help=text, negative="", show_default=False, **options)


def _one_kind(given: ArgumentCollection) -> None:
    """Raise if both --json and --format are given."""
    if len(given.filter_by(value_set=True)) > 1:
        raise ValueError("--json and --format exclude each other.")


OUTPUT: Final = Group("Output", validator=_one_kind)
Json = Annotated[bool, flag("Print JSON instead of text.", group=OUTPUT)]
_FORMAT_HELP: Final = "Print only the tables, in this format; messages go to stderr."
TableFormat = Annotated[output.Format | None, Parameter(help=_FORMAT_HELP, group=OUTPUT)]


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Return an argument as a whole number; refuse "3.5" and overlong texts."""
    text = tokens[0].value
    if re.fullmatch(r"[-+]?[0-9]{1,999}", text) is None:
        shown = repr(text) if len(text) <= 1000 else f"{len(text)} characters"
        raise ValueError(f"must be a whole number, got {shown}.")
    return int(text)


def whole(text: str) -> Parameter:
    """Return the parameter of an option that takes a whole number."""
    return Parameter(help=text, converter=whole_number)


SeedOption = Annotated[int | None, whole("Use this seed instead of the scenario's.")]
_MOST_LISTED: Final = 1_000_000  # devices, summed over the rounds, that JSON lists
_MOST_UNEQUAL: Final = 1000  # devices of different limits, whose plans take longer to find
PolicyOption = Annotated[
    str | None, Parameter(help=f"Policy: {', '.join(policies.EVERY)}, or your own as module:callable.")
]
RoundsOption = Annotated[int | None, whole("Fix the number of aggregation rounds.")]


def read(file: Path, *, policy: str | None = None, rounds: int | None = None, seed: int | None = None) -> Scenario:
    """Return the scenario of a file with the options of the command line applied."""
    given = {key: value for key, value in {"policy.rounds": rounds, "seed": seed}.items() if value is not None}
    loaded = scenario.load(file)
    loaded = loaded.override(given) if given else loaded
    return loaded if policy is None else loaded.vary({"policy.name": policy})


def check_new(out: Path) -> None:
    """Raise if a file exists or cannot be written, before any work is done."""
    if out.exists():
        raise ScenarioError(f"{out} exists and is not overwritten. Choose another file.")
    if not out.parent.is_dir():
        raise ScenarioError(f"Cannot write {out}: the folder {out.parent} does not exist.")


def plan(
    file: ScenarioFile,
    /,
    *,
    policy: PolicyOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the plan to this file (png, pdf, svg).")] = None,
) -> int:
    loaded = read(file, policy=policy, rounds=rounds, seed=seed)
    found = loaded.plan()
    if plot is not None:
        from airfed.plotting import figure

        figure.save(figure.plan_figure(found, surrogate=loaded.surrogate), plot)
    if json:
        output.print_json({"scenario": loaded.name, **_values(found)})
        return 0
    console = output.make_console(format)
    tables.print_plan(console, loaded.name, found)
    if missing := _no_accuracy(loaded, [found], file):
        console.print(f"\n{missing}", markup=False)
    if found.constant:
        console.print("")
        tables.print_sensitivities(console, found, _sensitivities(loaded, found))
    if plot is not None:
        console.print(f"\ndrawn: {plot}", markup=False)
    return 0


def compare(
    file: ScenarioFile,
    /,
    *,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the policies' bounds to this file (png, pdf, svg).")] = None,
    baselines: Annotated[bool, flag("Include baselines: methods of other papers (docs/baselines.md).")] = False,
    total: Annotated[
        float | None, Parameter(help="Total ε of the second table (default: the total ε of full participation).")
    ] = None,
) -> int:
    loaded = read(file, rounds=rounds, seed=seed)
    if total is not None and not 0 < total < math.inf:
        raise ValueError(f"--total must be a number > 0, got {total:g}.")
    plans, failures = loaded.compare(baselines=baselines)
    if "optimal" not in plans:
        raise InfeasibleError(failures["optimal"])
    equal = _equal_total(loaded, plans, total, baselines=baselines)
    if plot is not None:
        from airfed.plotting import figure

        figure.save(figure.comparison_figure(plans), plot)
    if json:
        same_total = None if equal is None else {"epsilon": equal[0], **_rows(*equal[1:])}
        output.print_json({"scenario": loaded.name, **_rows(plans, failures), "equal_total": same_total})
        return 0
    console = output.make_console(format)
    tables.print_comparison(console, loaded.name, plans, failures)
    if missing := _no_accuracy(loaded, plans.values(), file):
        console.print(missing, markup=False)
    if equal is not None:
        default = f"the total of policy {_reference(plans)} above (--total sets another)"
        source = default if total is None else "from --total"
        tables.print_equal_total(console, *equal, source=source)
    return 0


def _no_accuracy(loaded: Scenario, plans: Iterable[Plan], file: Path) -> str:
    """Return why no plan has an expected accuracy, and the command that would give one; "" if one has it."""
    if loaded.learning.synthetic or any(plan.prediction or not plan.private for plan in plans):
        return ""
    why = "The plan is outside the range of the accuracy surrogate"
    if loaded.surrogate is None:
        why = "No accuracy surrogate fits this training and its images per device"
    return f"{why}, so the plan has no expected accuracy. {loaded.pilot_hint(shlex.quote(str(file)))}"


def _values(found: Plan) -> dict[str, Any]:
    """Return the plan as plain values; where rounds differ, with the ε and (unless too many) the devices of each."""
    values = found.to_dict()
    if "sequence" not in values:
        return values
    listed = int(found.sizes.sum()) <= _MOST_LISTED
    for values_of, entry in zip(values["sequence"], found.sequence, strict=True):
        values_of["epsilon"] = entry.epsilon
        if listed:
            values_of["scheduled"] = entry.scheduled.tolist()
    return values | {"scheduled_listed": listed}


def _rows(plans: Mapping[str, Plan], failures: Mapping[str, str]) -> dict[str, Any]:
    best = plans["optimal"].bound.total
    rows = {name: {**each.to_dict(), "excess": each.bound.total / best - 1} for name, each in plans.items()}
    return {"policies": rows, "infeasible": failures}


def _equal_total(
    loaded: Scenario, plans: Mapping[str, Plan], epsilon: float | None, *, baselines: bool
) -> tuple[float, dict[str, Plan], dict[str, str]] | None:
    """Return the policies planned for one ε in total; None where the budget is a total already."""
    if epsilon is None:
        epsilon = plans[_reference(plans)].epsilon_total * (1 + 1e-9)  # so that the same plan still fits
        if loaded.budget.scope == "total" or not 0 < epsilon < math.inf:  # not a valid budget
            return None
    budget = {"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": epsilon}
    found, failures = loaded.override(budget).compare(baselines=baselines)
    if "optimal" not in found:
        raise InfeasibleError(failures["optimal"])
    return epsilon, found, failures


def _reference(plans: Mapping[str, Plan]) -> str:
    """Return the policy whose ε in total all policies get."""
    return "full" if "full" in plans else "optimal"


def new(
    file: Annotated[Path, Parameter(help="The file to write; an existing file is never overwritten.")],
    /,
    *,
    preset: Annotated[str | None, Parameter(help=f"A published paper's scenario: {', '.join(presets.NAMES)}.")] = None,
    json: Json = False,
) -> int:
    text = template.SCENARIO if preset is None else presets.preset(preset)
    check_new(file)
    with file.open("x", encoding="utf-8") as stream:
        stream.write(text)
    if json:
        output.print_json({"written": str(file)})
    else:
        output.say(f"written: {file}")
        output.say(f"next: airfed plan {shlex.quote(str(file))}")
    return 0


def _sensitivities(loaded: Scenario, found: Plan) -> Sensitivities | None:
    """Return what more budget buys; None where four more plans take too long or do not exist."""
    problem = found.problem
    if problem.fleet.num_devices > _MOST_UNEQUAL and (not problem.fleet.equal_peak_power or amplified(problem)):
        return None
    try:
        return sensitivities(problem, loaded.plan)
    except ValueError:  # the doubled budget is out of range, or the policy has no plan for it
        return None


def explore(
    file: Annotated[Path | None, Parameter(help="The scenario to start from (default: that of airfed new).")] = None,
    /,
    *,
    port: Annotated[int, whole("The port to listen on; 0 takes a free one.")] = 8080,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    runs: Annotated[Path, Parameter(help="A folder of run directories to show.")] = Path("runs"),
    browser: Annotated[bool, Parameter(help="Open the page in the browser.")] = True,
) -> None:
    from airfed.explorer import design

    start = design.Design() if file is None else design.from_scenario(scenario.load(file))
    from airfed.explorer.server import serve

    serve(start, host=host, port=port, runs=runs, open_browser=browser)
