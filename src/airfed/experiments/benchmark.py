"""The benchmark: every method that applies to a scenario, trained with the same seeds within the same budgets.

It is a sweep over the policy and the seed. `DIR/benchmark.toml` is the scenario of the directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from airfed import _extras, _validate
from airfed._disk import write_atomic
from airfed.experiments import points, results, sweep
from airfed.experiments.benchmark_table import Benchmark, MethodResult, spent
from airfed.experiments.points import Experiment, Point, Variant, content_key
from airfed.experiments.results import Record
from airfed.policies import EVERY, find
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario, ScenarioError, load
from airfed.text.phrases import ADVERSARIES, compact
from airfed.training.directory import RunError

COMPARED: Final[tuple[str, ...]] = (
    *("fedavg", "dp_fedavg", "weighted", "optimal", "clairvoyant", "myopic", "paper", "full", "uniform", "top_k"),
    *("threshold", "truncated_inversion", "threshold_power", "liu_simeone", "artificial_noise", "cotaf"),
    *("secure_aggregation", "digital"),
)
"""All methods, in the order in which methods of equal accuracy are listed."""
_MOST_SEEDS: Final = 10_000
_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of the devices, for methods with a fixed number of them
_BITS: Final = {"digital": (2, 4, 6, 8, 12, 16), "secure_aggregation": (12, 14, 16, 18, 20, 24)}
_EQUAL: Final = 1e-3  # expected accuracies, and bounds in relation, that differ less count as equal
_ONLY_VARYING: Final = "The same as optimal unless channels are time-varying or devices have batteries."


def run(
    scenario: Scenario,
    out: Path,
    *,
    seeds: int = 5,
    policies: Sequence[str] | None = None,
    jobs: int = 1,
    console: Console | None = None,
    given: Scenario | None = None,
) -> Benchmark:
    """Train the methods that are not trained yet, write tables and figures, and return the benchmark."""
    runs = BenchmarkRuns.of(scenario, seeds=seeds, policies=policies, given=given)
    sweep.check_backend("loky")  # before anything is written
    claim(scenario, out)
    records = sweep.run(runs.points, out, jobs=jobs, console=console, title="benchmark")
    table = runs.table(records)
    write(table, records, out)
    return table


def one_total(scenario: Scenario, total: float | None = None) -> Scenario:
    """Return the scenario with a budget in total, because methods with more rounds would otherwise spend more."""
    if total is not None:
        _validate.positive(total=total)
    elif scenario.budget.scope == "total":
        return scenario
    else:
        problem = scenario.problem()
        try:
            plan = scenario.plan(problem, policy="full")
        except InfeasibleError:
            plan = scenario.plan(problem, policy="optimal")
        total = float(f"{plan.epsilon_total:.4g}")  # a readable budget
        if not total > 0:
            raise InfeasibleError(
                "The total of full participation cannot be the budget of this scenario: its received amplitude is too "
                "small to spend any ε. Give a total (--total), or keep the budget per round (--per-round)."
            )
    return scenario.override({"budget.scope": "total", "budget.formula": "exact", "budget.epsilon": total})


@dataclass(frozen=True, kw_only=True)
class BenchmarkRuns:
    """The methods of a benchmark and their points. `BenchmarkRuns.of` makes one."""

    scenario: Scenario  # with the budget of every method
    seeds: tuple[int, ...]  # of every method
    points: tuple[Point, ...]  # one run each, method by method
    absent: Mapping[str, str]  # reason why a method is left out, by its name
    given: Scenario | None = None  # with the budget that the user wrote

    @classmethod
    def of(
        cls, scenario: Scenario, *, seeds: int, policies: Sequence[str] | None = None, given: Scenario | None = None
    ) -> BenchmarkRuns:
        """Return the methods and points of a benchmark, all with the network that the scenario's plan takes."""
        _validate.positive_integer(seeds=seeds)
        if seeds > _MOST_SEEDS:
            raise ValueError(f"seeds must be at most {_MOST_SEEDS}, got {seeds}.")
        scenario = scenario.chosen()
        if scenario.shared_ledger_path is not None:
            raise ScenarioError(
                "A benchmark must have no budget.shared_ledger: each run would spend the budget of the next one."
            )
        if policies is None:  # "threshold" only where the scenario has one
            policies = [name for name in COMPARED if name != "threshold" or scenario.policy.threshold is not None]
            policies += [scenario.policy.name] if scenario.policy.name not in EVERY else []
        names = list(dict.fromkeys(policies))
        if not names:
            raise ValueError("policies must name at least one policy.")
        time_varying = scenario.problem(dimension=1).time_varying
        known = {name: find(name, scenario.folder) for name in names}  # raises for an unknown policy
        absent = {name: _ONLY_VARYING for name, policy in known.items() if policy.time_varying and not time_varying}
        if len(absent) == len(names):
            raise ValueError(f"No policy applies to the scenario. {names[0]}: {absent[names[0]]}")
        every = tuple(range(scenario.seed, scenario.seed + seeds))
        variants = tuple(Variant(label=name, changes={"policy.name": name}) for name in names if name not in absent)
        experiment = Experiment(name=scenario.name, title="", base=scenario, axes={"seed": every}, variants=variants)
        runs = tuple(_tuned(point) for point in points.expand(experiment))
        return cls(scenario=scenario, seeds=every, points=runs, absent=absent, given=given)

    def table(self, records: Sequence[Record]) -> Benchmark:
        """Return the benchmark from the records of the points."""
        by_method: dict[str, list[Record]] = {}
        for record in records:
            by_method.setdefault(record.point.label, []).append(record)
        methods = [_method_result(policy, own) for policy, own in by_method.items()]
        methods += [
            MethodResult(policy=policy, runs={}, reasons=dict.fromkeys(self.seeds, reason), applies=False)
            for policy, reason in self.absent.items()
        ]
        budget = self.scenario.budget
        scope = "in total" if budget.scope == "total" else "per round"
        power = f"{compact(budget.total_power, 4)} W summed over devices and rounds"
        allowed = f"ε = {budget.epsilon:g} {scope} at δ = {budget.delta:g}, {power}"
        if self.scenario.link.antennas > 1:
            allowed += f"; privacy against {ADVERSARIES[self.scenario.link.adversary]}"
        replaced = ""
        if self.given is not None and self.given.budget.scope != budget.scope:
            replaced = (
                f"The scenario's budget of ε = {self.given.budget.epsilon:g} per round is replaced by ε = "
                f"{budget.epsilon:g} in total for every method (default: the total of full participation). "
                "Methods with more rounds would otherwise spend more in total; --per-round keeps the budget."
            )
        return Benchmark.of(self.scenario.name, allowed, self.seeds, methods, replaced=replaced)


def with_best_settings(scenario: Scenario) -> Scenario:
    """Return the scenario with the settings of its method that give the best plan, unless it sets them itself.

    These are |K| of "top_k" and "uniform", and the bits of "digital" and "secure_aggregation". The best plan has the
    highest expected accuracy, or the smallest bound if there is none. Among equal ones the cheapest counts.
    """
    policy, changes = scenario.policy, list[dict[str, Any]]()
    if policy.name in ("top_k", "uniform") and policy.size is None:
        sizes = dict.fromkeys(math.ceil(share * scenario.num_devices) for share in _SHARES)
        changes = [{"policy.size": size} for size in sizes]
    elif policy.name in _BITS and "bits" not in (policy.options or {}):
        changes = [{"policy.options": {**(policy.options or {}), "bits": bits}} for bits in _BITS[policy.name]]
    found = []
    for each in map(scenario.override, changes):
        with suppress(ValueError):
            plan = each.plan()
            accuracy = plan.predicted_accuracy if plan.objective == "accuracy" else None
            cost = math.log(plan.bound.total) if accuracy is None else -accuracy
            found.append((accuracy is None, cost, each))
    if not found:
        return scenario  # nothing to choose, or no plan, for a reason that its run reports
    by_bound, best = min((by_bound, cost) for by_bound, cost, _ in found)
    return next(each for kind, cost, each in found if kind == by_bound and cost <= best + _EQUAL)


def _tuned(point: Point) -> Point:
    if point.scenario is None:
        return point
    scenario = with_best_settings(point.scenario)
    return point if scenario is point.scenario else replace(point, scenario=scenario, key=content_key(scenario))


def claim(scenario: Scenario, out: Path) -> None:
    """Assign the directory to this scenario, or raise if it belongs to another."""
    file = out / "benchmark.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_atomic(file, scenario.anchored().to_toml().encode(), new=True)
            return
    except OSError as error:
        if not file.exists():  # otherwise another process was faster
            raise RunError(f"Cannot write to {out}: {error.strerror}. Choose another --out.") from None
    contents = [each.content() for each in (load(file), scenario)]
    first, second = ({**each, "policy": {**each["policy"], "name": None}} for each in contents)  # of any policy
    if first != second:
        raise RunError(f"{out} is the benchmark of another scenario ({file}). Choose another --out.")


def write(benchmark: Benchmark, records: Sequence[Record], out: Path) -> list[Path]:
    """Write `benchmark.*`, the sweep's tables and, if matplotlib is installed, figures; return the files."""
    return [*results.write_files("the benchmark", _files(benchmark), out), *results.write_tables(out, records)]


def _files(benchmark: Benchmark) -> Iterator[tuple[str, bytes]]:
    yield "benchmark.csv", benchmark.to_csv().encode()
    yield "benchmark.tex", benchmark.to_latex().encode()
    yield "benchmark.json", benchmark.to_json().encode()
    if _extras.has("matplotlib"):
        from airfed.plotting.figure import pictures

        for name, drawn in benchmark.plot().items():
            yield from pictures(name, drawn).items()


def _method_result(policy: str, records: Sequence[Record]) -> MethodResult:
    by_seed = {int(record.point.values["seed"]): record for record in records}
    runs = {seed: spent(record) for seed, record in by_seed.items() if record.ended and record.rounds}
    missing = {seed: record for seed, record in by_seed.items() if seed not in runs}
    reasons = {seed: record.message or "It stopped before its first round." for seed, record in missing.items()}
    failed = any(_has_plan(record.point) for record in missing.values())
    return MethodResult(policy=policy, runs=runs, reasons=reasons, failed=failed)


def _has_plan(point: Point) -> bool:
    """Return whether the policy of a point finds a plan, so that its run could have been trained."""
    if point.scenario is None:
        return False
    with suppress(ValueError):
        problem = point.scenario.problem()
        try:
            point.scenario.plan(problem)
        except ValueError:
            return False
    return True  # also if data or model are missing
