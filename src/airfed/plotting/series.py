"""The numbers behind charts of plans, of plans round by round, of runs, and of frontiers. Needs no matplotlib."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from airfed import bounds, policies
from airfed.planning import Plan, Surrogate, converse, limits
from airfed.planning.exact import CandidateSpace
from airfed.planning.plan import FEASIBILITY_RTOL
from airfed.plotting import colours
from airfed.problem import InfeasibleError
from airfed.scenario import Scenario
from airfed.text.phrases import METRICS, TERMS
from airfed.training.run import Run

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS: Final = 40  # points on the curve over I
FEWER_ROUNDS: Final = 16  # where limits differ by device, and a schedule takes longer to find
MOST_POINTS: Final = 240  # points of a line over the rounds
EPSILON: Final = "budget.epsilon"
POWER: Final = "budget.total_power"
EPSILONS: Final = tuple(float(f"{0.5 * 2 ** (step / 2):.4g}") for step in range(11))  # 0.5 to 16
FACTORS: Final = tuple(2.0**step for step in range(-4, 5))  # on the scenario's total power


class Series(NamedTuple):
    """A line of a chart, in its legend if `listed`: the mean over `seeds`; `spread` is half of its 95% band."""

    name: str
    colour: str
    x: Floats
    y: Floats
    dash: str = "solid"
    seeds: int = 1
    spread: Floats | None = None
    listed: bool = True


class Curve(NamedTuple):
    """The best bound for each number of rounds I (ascending), term by term of Theorem 1."""

    rounds: Integers
    terms: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """The bound."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))

    def top(self, chosen: float) -> float:
        """Return the upper end of the axis if the chosen bound is to be on it."""
        return max(3.2 * min(float(self.total.min()), chosen), 1.15 * chosen)


class Expectation(NamedTuple):
    """The expected accuracy of the best plan for each number of rounds, with its interval, as in `Prediction`."""

    rounds: Integers
    accuracy: Floats
    low: Floats
    high: Floats


def half_width(sample: Floats, *, axis: int = 0, error: float = 0.05) -> Floats:
    """Return half the length of the interval (Student's t) of the mean of two or more values along an axis.

    The mean lies outside with probability `error`.

    >>> float(half_width(np.array([1.0, 2.0, 3.0])))
    2.484...
    """
    size = sample.shape[axis]
    return np.asarray(stdtrit(size - 1, 1 - error / 2) * np.std(sample, axis=axis, ddof=1) / np.sqrt(size))


def thin(size: int, *, most: int) -> NDArray[np.intp]:
    """Return at most `most` indices of a long line, including both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def positive_range(values: ArrayLike, below: float, above: float) -> tuple[float, float]:
    """Return the finite positive range of values, widened by factors."""
    values = np.asarray(values, dtype=np.float64)
    finite = values[np.isfinite(values) & (values > 0)]
    low, high = (float(finite.min()) / below, float(finite.max()) * above) if finite.size else (0.1, 1.0)
    return (low, high) if high > low else (low / 2, high * 2)


def over_rounds(plan: Plan, surrogate: Surrogate | None) -> Curve | Expectation:
    """Return the objective of the best plans, weighted if the plan's policy is, at several numbers of rounds.

    The plan's own number of rounds is among them. Raises InfeasibleError if there is no plan at all.
    """
    problem, policy = plan.problem, "weighted" if plan.policy == "weighted" else "optimal"
    objective = surrogate if plan.objective == "accuracy" else None
    fast = problem.fleet.equal_peak_power and not limits.amplified(problem) and objective is None
    found, reason, steps = [], "", problem.learning.total_steps
    spread = np.geomspace(1, steps, min(steps, MOST_ROUNDS if fast else FEWER_ROUNDS)).round().astype(np.int64)
    for rounds in np.unique(np.append(spread, plan.rounds)).tolist():
        try:
            found.append(policies.plan(problem, rounds=rounds, policy=policy, objective=objective))
        except InfeasibleError as error:
            reason = str(error)
    expected = [(each.rounds, each.prediction) for each in found if each.prediction is not None]
    if not (found if objective is None else expected):
        raise InfeasibleError("The surrogate covers no number of rounds." if found else reason)
    if objective is not None:
        ends = np.array([(each.accuracy, each.low, each.high) for _, each in expected]).T
        return Expectation(np.array([rounds for rounds, _ in expected]), *ends)
    terms = {name: np.array([each.bound.terms[name] for each in found]) for name in TERMS}
    return Curve(np.array([each.rounds for each in found]), terms)


def limit_curves(plan: Plan, space: CandidateSpace) -> dict[str, Floats]:
    """Return the largest θ that privacy, peak power and total power each allow, over the number of devices."""
    fleet = plan.problem.fleet
    privacy, peak = space.privacy_limit, space.peak_limit
    if limits.amplified(plan.problem):  # the space merges both limits of a device into its peak
        reachable = fleet.gain > 0
        count = int(np.count_nonzero(reachable))
        privacy, peak = np.zeros((2, fleet.gain.size))
        # m devices: σμ/(2f), where f is the m-th smallest amplification
        privacy[:count] = space.privacy_limit[:count] / np.sort(limits.amplifications(plan.problem)[reachable])
        peak[:count] = -np.sort(-fleet.gain[reachable] * np.sqrt(fleet.peak_power[reachable]))
    curves = {"privacy": privacy, "peak_power": peak, "total_power": space.total_limit}
    return {name: np.broadcast_to(curve, space.size.shape) for name, curve in curves.items()}


def own_objective(plan: Plan) -> float:
    """Return Ψ of the plan's own amplitudes, which may not be optimal for their number of devices."""
    noise = bounds.noise_error(plan.problem.learning, plan.noise_share)
    return float(bounds.participation_error(float(np.mean(plan.sequence.totals.shortfall))) + noise)


def objective_range(plan: Plan, space: CandidateSpace) -> tuple[float, float]:
    """Return the drawn range of Ψ; a plan that is not aligned may be below every aligned plan."""
    own = own_objective(plan)
    low, high = positive_range(np.append(space.objective, own), 1.3, 1.0)
    return low, min(high, max(30 * low, 1.5 * own))


def round_by_round(plan: Plan) -> bool:
    """Return whether a plan is drawn round by round: its channels or its rounds differ."""
    return plan.problem.time_varying or not plan.constant


def power_shares(plan: Plan) -> tuple[Floats, int, int]:
    """Return power/peak power by devices, most often scheduled first, and rounds (NaN: none), and a cell's extent.

    A cell is the mean over so many devices and rounds that there are at most 60 × 100 cells.
    """
    peak = plan.problem.fleet.peak_power
    tall, wide = -(-peak.size // 60), -(-plan.rounds // 100)
    order = np.argsort(-np.count_nonzero(plan.amplitudes.share, axis=0), kind="stable")
    row = np.empty(order.size, dtype=np.intp)
    row[order] = np.arange(order.size) // tall
    rows, columns = -(-order.size // tall), -(-plan.rounds // wide)
    total, transmissions = np.zeros((2, rows, columns))
    for entry in plan.sequence:  # one at a time: memory does not grow with the rounds
        on, column = row[entry.scheduled], entry.index // wide
        total[:, column] += np.bincount(on, entry.power / peak[entry.scheduled], rows)
        transmissions[:, column] += np.bincount(on, minlength=rows)
    cells = np.outer(np.bincount(row), np.bincount(np.arange(plan.rounds) // wide))
    return np.where(transmissions > 0, total / cells, np.nan), tall, wide


def budgets_left(plan: Plan) -> tuple[Floats, dict[str, Floats]]:
    """Return at most `MOST_POINTS` numbers of rounds, from 0 to I, and the remaining share of each budget after each.

    Privacy (Σμ_i²) is included only if its budget covers the training, and batteries only if devices have them: the
    smallest remaining share and the median over the devices that are ever scheduled.
    """
    budget, num_devices = plan.problem.budget, plan.problem.fleet.num_devices
    rounds = thin(plan.rounds + 1, most=MOST_POINTS)
    spent = np.concatenate([[0.0], np.cumsum(plan.sequence.powers)])[rounds]
    remaining = {"total_power": 1.0 - spent / budget.total_power}
    budgets: dict[str, Any] = {}
    if budget.scope == "total":
        budgets["privacy"] = np.full(num_devices, limits.allowed_mu(budget) ** 2)
    if budget.device_power is not None:
        budgets["device_power"] = np.broadcast_to(budget.device_power, num_devices)
    used = {name: np.zeros(num_devices) for name in budgets}
    shares: dict[str, list[tuple[float, float]]] = {name: [(1.0, 1.0)] for name in budgets}
    returned = set(rounds.tolist())
    for entry in plan.sequence if budgets else ():
        for name, total in used.items():
            total[entry.scheduled] += entry.mu**2 if name == "privacy" else entry.power
            if entry.index + 1 in returned:
                left = 1.0 - (total / budgets[name])[plan.scheduled]
                shares[name].append((float(left.min()), float(np.median(left))))
    for name, values in shares.items():
        remaining[name], remaining[f"{name}_median"] = np.array(values).T
    for name, left in remaining.items():  # remove the rounding error by which a feasible plan may exceed a limit
        remaining[name] = np.where(left > -10 * FEASIBILITY_RTOL, np.maximum(left, 0.0), left)
    return rounds.astype(np.float64), remaining


def level_lines(plan: Plan, most: int = MOST_POINTS) -> list[Series]:
    """Return θ over the rounds, with the largest that privacy and the peak powers of each round's devices allow."""
    at, alone = thin(plan.rounds, most=most), ", if this were the only round" * (plan.problem.budget.scope == "total")
    lines = (
        (f"privacy{alone}", "lim-privacy", "dashed", plan.round_limits["privacy"]),
        ("peak power", "lim-peak_power", "dashed", plan.round_limits["peak_power"]),
        ("θ", "ink", "solid", plan.amplitudes.level),
    )
    return [Series(name, colour, at.astype(np.float64) + 1, y[at], dash) for name, colour, dash, y in lines]


def budget_lines(plan: Plan) -> list[Series]:
    """Return what is left of each budget that covers the training, as shares, after every round."""
    names = {
        "total_power": "total power",
        "privacy": "privacy (Σμ²), most exposed device",
        "privacy_median": "privacy, median device",
        "device_power": "battery, emptiest",
        "device_power_median": "battery, median device",
    }
    places, left = budgets_left(plan)
    looks = {key: (f"lim-{key.removesuffix('_median')}", "dotted" if "_median" in key else "solid") for key in names}
    return [Series(names[key], looks[key][0], places, share, looks[key][1]) for key, share in left.items()]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without copies: a copy has the same ledger and is not a second seed."""
    return list({run.ledger.head: run for run in reversed(runs)}.values())[::-1]


def tasks(runs: Sequence[Run]) -> int:
    """Return the number of different learning tasks: their losses and bounds are not comparable."""
    return len({json.dumps(run.scenario.content()["learning"], sort_keys=True) for run in runs})


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by label; runs that differ only in their seed form one group."""
    by_content: dict[str, list[Run]] = {}
    for run in distinct(runs):
        by_content.setdefault(run.seed_group, []).append(run)
    several, first = tasks(runs) > 1, [group[0] for group in by_content.values()]
    labelled: dict[str, list[Run]] = {}
    for run, group in zip(first, by_content.values(), strict=True):
        alike, label = [other.scenario.name for other in first if other.label == run.label], run.label
        if several or len(alike) > 1:  # the same policy in another scenario
            label += f" · {run.scenario.name}"
        if alike.count(run.scenario.name) > 1:  # scenarios of the same name
            label += f" ({run.path.name})"
        while label in labelled:
            label += "′"
        labelled[label] = group
    return labelled


def metric_title(runs: Sequence[Run], metric: str) -> str:
    """Return the title of a metric's chart; private records do not contain the transmitted power."""
    planned = metric == "power_transmitted_total" and all(run.last(metric) is None for run in runs)
    return METRICS["power_planned_total" if planned else metric]


def over_training(runs: Sequence[Run], metric: str) -> list[Series]:
    """Return a metric of each group of runs: accuracy and loss over the local steps, ε and power over the rounds.

    Accuracy and loss are means over the seeds with 95% intervals; ε and power are those of the first seed's ledger.
    """
    grouped = groups(runs)
    styles = colours.line_styles({label: group[0].scenario.policy.name for label, group in grouped.items()})
    lines = []
    for label, group in grouped.items():
        colour, dash = styles[label]
        if metric in ("accuracy", "loss"):
            x, values = _common(group, metric)
            if x.size:
                spread = half_width(values) if len(group) > 1 else None
                lines.append(Series(label, colour, x, values.mean(axis=0), dash, len(group), spread))
            continue
        if metric != "epsilon_total" or group[0].plan.private:
            lines.append(Series(label, colour, *group[0].series(metric), dash))
        if metric == "power_transmitted_total":
            planned = group[0].series("power_planned_total")
            lines.append(Series(f"{label}, planned", colour, *planned, "dotted", listed=False))
    return [line for line in lines if np.isfinite(line.y).any()]


def common_budget(runs: Sequence[Run], metric: str) -> float | None:
    """Return the budget of the whole training if it is the same for all runs, else None."""
    budgets = [run.scenario.budget for run in runs]
    of_metric: dict[str, set[float | None]] = {
        "power_transmitted_total": {budget.total_power for budget in budgets},
        "epsilon_total": {budget.epsilon if budget.scope == "total" else None for budget in budgets},
    }
    values = of_metric.get(metric, {None})
    return values.pop() if len(values) == 1 else None


def failed(scores: Floats) -> NDArray[np.bool_]:
    """Return which scores (the larger the better) are below a quarter of the best: such methods are outside the axis.

    >>> failed(np.array([0.9, 0.1, 0.7])).tolist()
    [False, True, False]
    """
    return np.asarray(scores < 0.25 * np.nanmax(scores))


def _common(runs: Sequence[Run], metric: str) -> tuple[Floats, Floats]:
    """Return the steps at which all runs have the metric, and its values, (runs, steps)."""
    columns = [
        {step: record[metric] for step, record in zip(run.steps, run.rounds, strict=True) if record[metric] is not None}
        for run in runs
    ]
    steps = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array(steps, dtype=np.float64), np.array([[column[step] for step in steps] for column in columns])


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """The scenario with another value of one budget; None where there is no plan or no expected accuracy."""

    budget: str  # the changed key, EPSILON or POWER
    value: float  # ε, or P_tot [W]
    num_scheduled: int | None = None
    rounds: int | None = None
    noise_share: float | None = None
    noise_floor: float | None = None  # that no linear method can beat in as many rounds
    accuracy: float | None = None  # expected of the plan
    low: float | None = None  # [low, high] is a nominal 90% interval for a single training
    high: float | None = None
    highest: float | None = None  # the expected accuracy that no linear method can exceed
    trained: float | None = None  # the accuracy of a training at this point
    reason: str = ""  # why there is no plan


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The points of a scenario over ε and over the total power."""

    scenario: Scenario
    points: tuple[FrontierPoint, ...]

    @property
    def by_accuracy(self) -> bool:
        """Whether a surrogate fits, so that points have expected accuracies."""
        return any(point.highest is not None for point in self.points)

    def along(self, budget: str) -> list[FrontierPoint]:
        """Return the points that change a budget, in ascending order."""
        return [point for point in self.points if point.budget == budget]

    def column(self, budget: str, name: str) -> Floats:
        """Return a field of the points that change a budget; NaN for None."""
        return np.array([getattr(point, name) for point in self.along(budget)], dtype=np.float64)

    def axis(self, budget: str) -> tuple[str, float]:
        """Return the label of a budget's axis, and the factor from values to its unit: J where a bandwidth is known."""
        if budget == EPSILON:
            return f"privacy budget ε, {'per round' if self.scenario.budget.scope == 'round' else 'in total'}", 1.0
        bandwidth = self.scenario.link.bandwidth
        return ("total power [W]", 1.0) if bandwidth is None else ("total energy [J]", 1.0 / bandwidth)

    def own(self, budget: str) -> float:
        """Return the scenario's value of a budget."""
        return float(getattr(self.scenario.budget, budget.partition(".")[2]))

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as plain values."""
        return [asdict(point) for point in self.points]


def frontier(scenario: Scenario) -> Frontier:
    """Return what a scenario's plan reaches over ε from 0.5 to 16 and over 1/16 to 16 times its total power.

    Each point is the plan of the scenario with that one budget changed, on the same channel realisation.
    InfeasibleError if none of them has a plan or an expected accuracy.

    >>> import airfed
    >>> points = frontier(airfed.load("examples/private.toml")).along(EPSILON)
    >>> all(point.accuracy <= point.highest + 1e-12 for point in points if point.accuracy)
    True
    """
    points = tuple(_frontier_points(scenario))
    if all(point.rounds is None and point.highest is None for point in points):
        raise InfeasibleError(points[0].reason)
    return Frontier(scenario=scenario, points=points)


def _frontier_points(scenario: Scenario) -> Iterator[FrontierPoint]:
    powers = [float(f"{scenario.budget.total_power * factor:.6g}") for factor in FACTORS]
    dimension, surrogate = scenario.dimension, scenario.surrogate
    for budget, values in ((EPSILON, EPSILONS), (POWER, powers)):
        for value in values:
            found: dict[str, Any] = {}
            try:
                changed = scenario.override({budget: value})
                problem = changed.problem(dimension=dimension)
                if surrogate is not None:
                    found["highest"] = converse.highest_accuracy(problem, surrogate)
                plan = changed.plan(problem)
                found |= {"num_scheduled": int(np.max(plan.sizes)), "rounds": plan.rounds}
                found["noise_share"] = plan.noise_share
                found["noise_floor"] = converse.least_noise(plan.problem, plan.rounds)
                if (expected := plan.prediction) is not None:
                    found |= {"accuracy": expected.accuracy, "low": expected.low, "high": expected.high}
            except InfeasibleError as error:
                found["reason"] = str(error)
            yield FrontierPoint(budget=budget, value=value, **found)
