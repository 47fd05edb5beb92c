"""A league: every scheme that applies to a scenario, trained with the same seeds within the same budgets.

It is a sweep over the policy and the seed, with the sweep's folder and its habits: what ended is not run again, and
what was interrupted goes on. `DIR/league.toml` says which scenario the folder belongs to; the table is in `league.csv`,
`league.tex` and `league.json`, and drawn in `league-privacy`, `league-power` and `league-air` (.png and .pdf).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airfed import _extras, _validate
from airfed._disk import write_new, write_whole
from airfed.experiments import points, records, sweep, workers
from airfed.experiments.points import Experiment, Point, Variant
from airfed.experiments.records import Record
from airfed.experiments.standings import Entry, League, spent
from airfed.experiments.watching import Progress
from airfed.policies import EVERY, find
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError, load
from airfed.text.phrases import ADVERSARIES, compact
from airfed.training.directory import RunError

SCHEMES: Final[tuple[str, ...]] = (
    "noise_free",
    "central",
    "optimal",
    "clairvoyant",
    "myopic",
    "paper",
    "full",
    "uniform",
    "top_k",
    "threshold",
    "truncated",
    "threshold_power",
    "liu_simeone",
    "seif",
    "cotaf",
    "digital",
)
"""Who plays, in the order in which equal ones are listed."""
_ONLY_VARYING: Final = "Differs from optimal only where gains change or devices have batteries."


def run(
    world: Scenario,
    out: Path,
    *,
    seeds: int = 5,
    policies: Sequence[str] | None = None,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> League:
    """Train what is not trained yet, write tables and pictures, and return the league.

    Args:
        world: the scenario; its own seed is the first.
        out: the folder of the league.
        seeds: how many, one after the other.
        policies: who plays; by default all of `SCHEMES` and the scenario's own policy.
        jobs: runs at a time.
        on_progress: told about the state about twice a second.

    Raises:
        RunError: the folder belongs to another scenario, is busy, or cannot be written.
        ValueError: `seeds` is below 1, a policy is unknown, none applies, or joblib is not installed.
    """
    field = Field.of(world, seeds=seeds, policies=policies)
    workers.check("loky", None)  # before anything is written
    claim(world, out)
    results = sweep.run(field.points, out, jobs=jobs, on_progress=on_progress)
    league = field.league(results)
    write(league, results, out)
    return league


def one_total(world: Scenario, total: float | None = None) -> Scenario:
    """Return the scenario with a budget for the whole training: schemes of more rounds would else spend more.

    Args:
        world: the scenario.
        total: ε of the whole training; None: what full participation spends where the budget is of each round (of the
            optimum, where not everybody can be heard), and the scenario's own where it is a total already.

    Raises:
        InfeasibleError: there is no plan to take it from, or it spends nothing.
        ValueError: `total` is not above 0.
    """
    if total is not None:
        _validate.positive(total=total)
    else:
        if world.budget.scope == "total":
            return world
        problem = world.problem()
        try:
            plan = world.plan(problem, policy="full")
        except InfeasibleError:
            plan = world.plan(problem, policy="optimal")
        total = float(f"{plan.epsilon_total:.4g}")  # a budget that a person can read
        if not total > 0:
            raise InfeasibleError(
                "No budget for the whole training can be taken from this scenario: full participation is heard too "
                "weakly to spend any ε. Give one (--total), or keep the budget of each round (--per-round)."
            )
    return world.override({"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": total})


@dataclass(frozen=True, kw_only=True)
class Field:
    """Who plays, and the points that have to be run for it. `Field.of` makes one.

    Args:
        world: the scenario.
        seeds: of every scheme.
        points: a run each, scheme by scheme.
        absent: why a scheme does not play, by its name.
    """

    world: Scenario
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    absent: Mapping[str, str]

    @classmethod
    def of(cls, world: Scenario, *, seeds: int, policies: Sequence[str] | None = None) -> Field:
        """Return the field of a league.

        Raises:
            ValueError: `seeds` is below 1, a policy is unknown, none applies, or trainings would be charged to an
                account.
        """
        if seeds < 1:
            raise ValueError(f"Expected seeds={seeds} >= 1.")
        if world.account_path is not None:
            raise ScenarioError(
                "Expected no budget.account in a league: each of its trainings would spend what the next may not."
            )
        names = list(dict.fromkeys(_all(world) if policies is None else policies))
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

    def league(self, results: Sequence[Record]) -> League:
        """Return the league that the records of the points make."""
        own: dict[str, list[Record]] = {}
        for record in results:
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
    """Make the folder of a league this scenario's, or see that it is.

    Raises:
        RunError: it is another one's, or cannot be written.
    """
    file = out / "league.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_new(file, world.anchored().to_toml().encode())
            return
    except OSError as error:
        if not file.exists():  # else another process was quicker
            raise RunError(f"Cannot write to {out}: {error.strerror}. Give another --out.") from None
    if _asked(load(file)) != _asked(world):
        raise RunError(
            f"Expected the scenario that {out} is the league of ({file}); this is another. Give another --out."
        )


def write(league: League, results: Sequence[Record], out: Path) -> list[Path]:
    """Write the table, the sweep's own tables and, where matplotlib is installed, the pictures; return the files.

    Raises:
        RunError: they cannot be written.
    """
    texts = {"league.csv": league.to_csv(), "league.tex": league.to_latex(), "league.json": league.to_json()}
    files = [out / name for name in texts]
    try:
        for file, text in zip(files, texts.values(), strict=True):
            write_whole(file, text.encode())
        if _extras.has("matplotlib"):
            from airfed.plotting.figure import encoded

            for name, picture in league.plot().items():
                for ending in ("png", "pdf"):
                    files.append(out / f"{name}.{ending}")
                    write_whole(files[-1], encoded(picture, ending))
    except OSError as error:
        raise RunError(f"Cannot write the league to {out}: {error.strerror or error}. The runs are kept.") from None
    return [*files, *records.write_tables(out, results)]


def _all(world: Scenario) -> list[str]:
    """Every scheme that there is, and the scenario's own policy; "threshold" only where the scenario has one."""
    needless = "threshold" if world.policy.threshold is None else ""
    names = [name for name in SCHEMES if name != needless]
    return [*names, world.policy.name] if world.policy.name not in EVERY else names


def _asked(world: Scenario) -> dict[str, object]:
    """All that shapes a league; which policy the scenario names does not."""
    content = world.content()
    return {**content, "policy": {**content["policy"], "name": None}}


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
        return True  # the data or the model are missing: no fault of the policy's
    try:
        point.scenario.plan(problem)
    except ValueError:
        return False
    return True
