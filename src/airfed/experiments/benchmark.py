"""The benchmark: every method that applies to a scenario, trained with the same seeds within the same budgets.

It is a sweep over the policy and the seed, with the sweep's directory: runs that ended are not repeated, interrupted
ones are resumed. `DIR/league.toml` is the scenario that the directory belongs to; the table is in `league.csv`,
`league.tex` and `league.json`, and drawn in `league-privacy`, `league-power` and `league-air` (.png and .pdf).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from airfed import _extras, _validate
from airfed._disk import write_new, write_whole
from airfed.experiments import points, results, sweep
from airfed.experiments.benchmark_table import Entry, League, spent
from airfed.experiments.points import Experiment, Point, Variant
from airfed.experiments.results import Record
from airfed.policies import EVERY, find
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError, load
from airfed.text.phrases import ADVERSARIES, compact
from airfed.training.directory import RunError

SCHEMES: Final[tuple[str, ...]] = (
    *("noise_free", "central", "optimal", "clairvoyant", "myopic", "paper", "full", "uniform", "top_k", "threshold"),
    *("truncated", "threshold_power", "liu_simeone", "seif", "cotaf", "digital"),
)
"""All methods, in the order in which equal ones are listed."""
_ONLY_VARYING: Final = "Differs from optimal only where gains change or devices have batteries."


def run(
    world: Scenario,
    out: Path,
    *,
    seeds: int = 5,
    policies: Sequence[str] | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> League:
    """Train the methods that are not trained yet, write tables and pictures, and return the benchmark."""
    field = Field.of(world, seeds=seeds, policies=policies)
    sweep.check_backend("loky")  # before anything is written
    claim(world, out)
    records = sweep.run(field.points, out, jobs=jobs, console=console, title="benchmark")
    league = field.league(records)
    write(league, records, out)
    return league


def one_total(world: Scenario, total: float | None = None) -> Scenario:
    """Return the scenario with a budget for the whole training: methods with more rounds would otherwise spend more."""
    if total is not None:
        _validate.positive(total=total)
    elif world.budget.scope == "total":
        return world
    else:
        problem = world.problem()
        try:
            plan = world.plan(problem, policy="full")
        except InfeasibleError:
            plan = world.plan(problem, policy="optimal")
        total = float(f"{plan.epsilon_total:.4g}")  # a readable budget
        if not total > 0:
            raise InfeasibleError(
                "No budget for the whole training can be taken from this scenario: full participation arrives too "
                "weak to spend any ε. Give one (--total), or keep the budget of each round (--per-round)."
            )
    return world.override({"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": total})


@dataclass(frozen=True, kw_only=True)
class Field:
    """The methods of a benchmark and their points. `Field.of` makes one."""

    world: Scenario  # the scenario
    seeds: tuple[int, ...]  # of every method
    points: tuple[Point, ...]  # one run each, method by method
    absent: Mapping[str, str]  # why a method is left out, by its name

    @classmethod
    def of(cls, world: Scenario, *, seeds: int, policies: Sequence[str] | None = None) -> Field:
        """Return the methods and points of a benchmark."""
        if seeds < 1:
            raise ValueError(f"Expected seeds={seeds} >= 1.")
        if world.account_path is not None:
            raise ScenarioError(
                "Expected no budget.account in a league: each of its trainings would spend what the next may not."
            )
        if policies is None:  # "threshold" only where the scenario has one
            policies = [name for name in SCHEMES if name != "threshold" or world.policy.threshold is not None]
            policies += [world.policy.name] if world.policy.name not in EVERY else []
        names = list(dict.fromkeys(policies))
        if not names:
            raise ValueError("Expected at least one policy.")
        varies = world.problem(dimension=1).varies
        found = {name: find(name, world.folder) for name in names}  # raises where there is no such policy
        absent = {name: _ONLY_VARYING for name, policy in found.items() if policy.time_varying and not varies}
        if len(absent) == len(names):
            raise ValueError(f"Expected a policy that applies to the scenario. {names[0]}: {absent[names[0]]}")
        every = tuple(range(world.seed, world.seed + seeds))
        variants = tuple(Variant(label=name, changes={"policy.name": name}) for name in names if name not in absent)
        experiment = Experiment(name=world.name, title="", base=world, axes={"seed": every}, variants=variants)
        return cls(world=world, seeds=every, points=tuple(points.expand(experiment)), absent=absent)

    def league(self, records: Sequence[Record]) -> League:
        """Return the benchmark that the records of the points make."""
        own: dict[str, list[Record]] = {}
        for record in records:
            own.setdefault(record.point.label, []).append(record)
        entries = [_entry(policy, found) for policy, found in own.items()]
        entries += [
            Entry(policy=policy, runs={}, reasons=dict.fromkeys(self.seeds, reason), applies=False)
            for policy, reason in self.absent.items()
        ]
        budget = self.world.budget
        scope = "for the whole training" if budget.scope == "total" else "in each round"
        allowed = f"ε = {budget.epsilon:g} at δ = {budget.delta:g} {scope}, {compact(budget.total_power, 4)} W in all"
        if self.world.link.antennas > 1:
            allowed += f"; privacy against {ADVERSARIES[self.world.link.trust]}"
        return League.of(self.world.name, allowed, self.seeds, entries)


def claim(world: Scenario, out: Path) -> None:
    """Make the directory this scenario's, or check that it is."""
    file = out / "league.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_new(file, world.anchored().to_toml().encode())
            return
    except OSError as error:
        if not file.exists():  # else another process was quicker
            raise RunError(f"Cannot write to {out}: {error.strerror}. Give another --out.") from None
    contents = [each.content() for each in (load(file), world)]
    first, second = ({**each, "policy": {**each["policy"], "name": None}} for each in contents)  # any policy will do
    if first != second:
        raise RunError(
            f"Expected the scenario that {out} is the league of ({file}); this is another. Give another --out."
        )


def write(league: League, records: Sequence[Record], out: Path) -> list[Path]:
    """Write the table, the sweep's own tables and, where matplotlib is installed, the pictures; return the files."""
    content = {
        "league.csv": league.to_csv().encode(),
        "league.tex": league.to_latex().encode(),
        "league.json": league.to_json().encode(),
    }
    try:
        if _extras.has("matplotlib"):
            from airfed.plotting.figure import encoded

            pictures = league.plot().items()
            content |= {f"{name}.{end}": encoded(drawn, end) for name, drawn in pictures for end in ("png", "pdf")}
        for name, whole in content.items():
            write_whole(out / name, whole)
    except OSError as error:
        raise RunError(f"Cannot write the league to {out}: {error.strerror or error}. The runs are kept.") from None
    return [*(out / name for name in content), *results.write_tables(out, records)]


def _entry(policy: str, found: Sequence[Record]) -> Entry:
    runs, reasons, failed = {}, {}, False
    for record in found:
        seed = int(record.point.values["seed"])
        if record.ended and record.run is not None and record.rounds:
            runs[seed] = spent(record)
        else:
            reasons[seed] = record.message or "It ended before its first round."
            failed = failed or _has_plan(record.point)
    return Entry(policy=policy, runs=runs, reasons=reasons, failed=failed)


def _has_plan(point: Point) -> bool:
    """Whether a point without a run could have had one: its policy finds a plan."""
    if point.scenario is None:
        return False
    try:
        problem = point.scenario.problem()
    except ValueError:
        return True  # the data or the model are missing, which is not the policy's fault
    try:
        point.scenario.plan(problem)
    except ValueError:
        return False
    return True
