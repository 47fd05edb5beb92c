"""airfed plan, compare and new: decide without training (no torch needed)."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from airfed import planning, scenario
from airfed.cli import output, tables
from airfed.learning.task import problem_of
from airfed.planning import Plan, prices
from airfed.planning.prices import Price
from airfed.planning.uncertain import matters
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, template
from airfed.scenario.errors import ScenarioError

ScenarioFile = Annotated[Path, Parameter(help="The scenario, a TOML file (airfed new writes one).")]
Json = Annotated[bool, Parameter(help="Print one JSON object instead of text.", negative="")]
Seed = Annotated[int | None, Parameter(help="Use this seed instead of the scenario's.")]
_MOST_PRICED: Final = 1000  # devices of different limits: their plans take longer to find
Rounds = Annotated[int | None, Parameter(help="Fix the number of aggregation rounds.")]


def read(file: Path, **changes: Any) -> Scenario:
    """Return the scenario of a file with the command line's changes applied (those that were given)."""
    given = {key.replace("__", "."): value for key, value in changes.items() if value is not None}
    loaded = scenario.load(file)
    return loaded.override(given) if given else loaded


def decide(world: Scenario) -> Plan:
    """Return the plan of the scenario's own policy."""
    return planning.from_policy(problem_of(world), world.policy, seed=world.seed)


def plan(
    file: ScenarioFile,
    /,
    *,
    policy: Annotated[str | None, Parameter(help=f"One of {', '.join(planning.POLICIES)}.")] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    json: Json = False,
    plot: Annotated[Path | None, Parameter(help="Draw the candidate space and the bound (png, pdf, svg).")] = None,
) -> int:
    """Decide which devices transmit, how strongly and in how many rounds; no training."""
    world = with_policy(read(file, policy__rounds=rounds, seed=seed), policy)
    decision = decide(world)
    if plot is not None:
        from airfed.showing import figure, files

        figure.save(files.plan_figure(decision), plot)
    if json:
        output.print_json({"scenario": world.name, **decision.to_dict()})
        return 0
    console = output.make_console()
    tables.print_plan(console, world.name, decision)
    console.print("")
    tables.print_prices(console, decision, _price(world, decision))
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
    plot: Annotated[Path | None, Parameter(help="Draw the policies' bounds (png, pdf, svg).")] = None,
) -> int:
    """Show the policies side by side on one channel draw, with the distance of each to the optimum."""
    world = read(file, policy__rounds=rounds, seed=seed)
    plans, failures = planning.compare(problem_of(world), world.policy, seed=world.seed)
    if "optimal" not in plans:
        raise InfeasibleError(failures["optimal"])
    if plot is not None:
        from airfed.showing import figure, files

        figure.save(files.comparison_figure(plans), plot)
    if json:
        best = plans["optimal"].bound.total
        rows = {
            name: {**decision.to_dict(), "excess": decision.bound.total / best - 1} for name, decision in plans.items()
        }
        output.print_json({"scenario": world.name, "policies": rows, "infeasible": failures})
        return 0
    tables.print_comparison(output.make_console(), world.name, plans, failures)
    return 0


def new(
    file: Annotated[Path, Parameter(help="Where to write it; an existing file is never overwritten.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Write a commented scenario to start from."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(template.SCENARIO)
    except FileExistsError:
        raise ScenarioError(f"Expected {file} not to exist; it is left as it is.") from None
    except OSError as error:
        raise ScenarioError(f"Cannot write {file}: {error.strerror}.") from None
    if json:
        output.print_json({"written": str(file)})
    else:
        output.say(f"written: {file}")
        output.say(f"next: airfed plan {shlex.quote(str(file))}")
    return 0


def _price(world: Scenario, decision: Plan) -> Price | None:
    """What more budget buys under the scenario's policy; None where four more plans take too long, or there is none."""
    problem = decision.problem
    if problem.fleet.num_devices > _MOST_PRICED and (not problem.fleet.equal_peak_power or matters(problem)):
        return None
    try:
        return prices.price(problem, partial(planning.from_policy, settings=world.policy, seed=world.seed))
    except ValueError:  # twice the budget is out of range, or a policy has no plan there
        return None


def with_policy(world: Scenario, name: str | None) -> Scenario:
    """The scenario under another policy; settings that only the old policy understands are dropped."""
    if name is None or name == world.policy.name:
        return world
    changes: dict[str, Any] = {"policy.name": name}
    if name not in ("uniform", "top_k"):
        changes["policy.size"] = None
    if name != "threshold":
        changes["policy.threshold"] = None
    return world.override(changes)
