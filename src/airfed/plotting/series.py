"""What charts show, as numbers: of plans, of plans round by round, and of runs. Needs no matplotlib."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from airfed import bounds, policies
from airfed.planning import Plan, Response, limits
from airfed.planning.exact import CandidateSpace
from airfed.planning.plan import FEASIBILITY_RTOL
from airfed.plotting import colours
from airfed.problem import InfeasibleError, Problem
from airfed.text.phrases import METRICS, TERMS
from airfed.training.run import Run

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS: Final = 40  # points on the curve over I
FEWER_ROUNDS: Final = 16  # where limits differ by device, and a schedule takes longer to find
MOST_POINTS: Final = 240  # points of a line over the rounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A named line of a chart; `spread` is half the width of a band around it, `listed` whether the legend has it."""

    name: str
    colour: str
    x: Floats
    y: Floats
    dash: str = "solid"
    spread: Floats | None = None
    listed: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The best bound for each number of rounds I (ascending), term by term of Theorem 1."""

    rounds: Integers
    terms: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """The bound."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectation:
    """The accuracy that a surrogate expects of the best plan for each number of rounds, as in `Prediction`."""

    rounds: Integers
    accuracy: Floats
    low: Floats
    high: Floats


def half_width(sample: Floats, *, axis: int = 0) -> Floats:
    """Return half the length of the 95% interval (Student's t) of the mean of two or more values along an axis.

    >>> float(half_width(np.array([1.0, 2.0, 3.0])))
    2.484...
    """
    size = sample.shape[axis]
    return np.asarray(stdtrit(size - 1, 0.975) * np.std(sample, axis=axis, ddof=1) / np.sqrt(size))


def thin(size: int, *, most: int) -> NDArray[np.intp]:
    """Return at most `most` indices of a long line, ends included."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def shown_rounds(total_steps: int, chosen: int, most: int = MOST_ROUNDS) -> Integers:
    """Return at most `most` numbers of rounds, evenly spread on a logarithmic scale, and the chosen one."""
    spread = np.geomspace(1, total_steps, min(total_steps, most)).round().astype(np.int64)
    return np.unique(np.append(spread, chosen))


def bound_curve(problem: Problem, chosen: int) -> Curve:
    """Return the smallest bound at several numbers of rounds, the chosen one among them, term by term.

    Raises:
        InfeasibleError: there is no plan at any of them.
    """
    quick = problem.fleet.equal_peak_power and not limits.amplified(problem)
    plans = _plans(problem, chosen, MOST_ROUNDS if quick else FEWER_ROUNDS)
    terms = {name: np.array([plan.bound.terms[name] for plan in plans]) for name in TERMS}
    return Curve(rounds=np.array([plan.rounds for plan in plans]), terms=terms)


def accuracy_curve(problem: Problem, response: Response, chosen: int) -> Expectation:
    """Return the highest expected accuracy at several numbers of rounds, like `bound_curve`."""
    plans = [plan for plan in _plans(problem, chosen, FEWER_ROUNDS, objective=response) if plan.prediction]
    if not plans:
        raise InfeasibleError("The surrogate covers no number of rounds.")
    found = np.array([(p.prediction.accuracy, p.prediction.low, p.prediction.high) for p in plans if p.prediction]).T
    return Expectation(rounds=np.array([p.rounds for p in plans]), accuracy=found[0], low=found[1], high=found[2])


def _plans(problem: Problem, chosen: int, most: int, **options: Any) -> list[Plan]:
    found, reason = [], ""
    for rounds in shown_rounds(problem.learning.total_steps, chosen, most).tolist():
        try:
            found.append(policies.plan(problem, rounds=rounds, **options))
        except InfeasibleError as error:
            reason = str(error)
    if not found:
        raise InfeasibleError(reason)
    return found


def over_rounds(plan: Plan, surrogate: Response | None) -> Curve | Expectation:
    """Return what the plan was chosen by over the number of rounds: the expected accuracy, or the bound."""
    if plan.objective == "measured" and surrogate is not None:
        return accuracy_curve(plan.problem, surrogate, plan.rounds)
    return bound_curve(plan.problem, plan.rounds)


def limit_curves(plan: Plan, space: CandidateSpace) -> dict[str, Floats]:
    """Return the largest θ that privacy, peak power and total power each allow, over the number of devices."""
    fleet = plan.problem.fleet
    privacy, peak = space.privacy_limit, space.peak_limit
    if limits.amplified(plan.problem):  # both limit a device, and the space counts them together, as its peak
        reached = fleet.gain > 0
        count = int(np.count_nonzero(reached))
        privacy, peak = np.zeros((2, fleet.gain.size))
        # m devices: σμ/(2f), f being the m-th smallest of how much stronger than θ they may be received
        privacy[:count] = space.privacy_limit[:count] / np.sort(limits.amplifications(plan.problem)[reached])
        peak[:count] = -np.sort(-fleet.gain[reached] * np.sqrt(fleet.peak_power[reached]))
    curves = {"privacy": privacy, "peak_power": peak, "total_power": space.total_limit}
    return {name: np.broadcast_to(curve, space.size.shape) for name, curve in curves.items()}


def own_objective(plan: Plan) -> float:
    """Return Ψ of the plan's own amplitudes, which need not be the best for their number of devices."""
    noise = bounds.noise_error(plan.problem.learning, plan.noise_share)
    return float(bounds.participation_error(1.0 - plan.device_share) + noise)


def round_by_round(plan: Plan) -> bool:
    """Return whether a plan is drawn round by round: its rounds differ, or batteries, which add up, limit it."""
    return plan.problem.varies or not plan.constant


def power_shares(plan: Plan, tall: int, wide: int) -> Floats:
    """Return the mean of power/peak power over `tall` devices and `wide` rounds, (rows, columns); NaN: all inactive.

    Rows are ordered by how often a device is scheduled, the most often first, then by its index.
    """
    peak = plan.problem.fleet.peak_power
    order = np.argsort(-np.count_nonzero(plan.amplitudes.share, axis=0), kind="stable")
    row = np.empty(order.size, dtype=np.intp)
    row[order] = np.arange(order.size) // tall
    rows, columns = -(-order.size // tall), -(-plan.rounds // wide)
    total, senders = np.zeros((2, rows, columns))
    for entry in plan.sequence:  # round by round: what is held does not grow with the rounds
        on, column = row[entry.scheduled], entry.index // wide
        total[:, column] += np.bincount(on, entry.power / peak[entry.scheduled], rows)
        senders[:, column] += np.bincount(on, minlength=rows)
    held = np.outer(np.bincount(row), np.bincount(np.arange(plan.rounds) // wide))
    return np.where(senders > 0, total / held, np.nan)


def budgets_left(plan: Plan, most: int = MOST_POINTS) -> tuple[Any, dict[str, Floats]]:
    """Return at most so many numbers of rounds, 0 and I among them, and which share of each budget is left after each.

    Privacy is Σμ_i² over the rounds in which a device is scheduled; it is included only if its budget covers the
    training, and batteries only if devices have them: that of the device with the least left, and the median of the
    devices that are ever scheduled. Shares are negative only where a plan breaks the limit.
    """
    budget, num_devices = plan.problem.budget, plan.problem.fleet.num_devices
    places = thin(plan.rounds + 1, most=most)
    spent = np.concatenate([[0.0], np.cumsum(plan.sequence.powers)])[places]
    found = {"total_power": 1.0 - spent / budget.total_power}
    owned: dict[str, Any] = {}
    if budget.scope == "total":
        owned["privacy"] = np.full(num_devices, limits.allowed_mu(budget) ** 2)
    if budget.device_power is not None:
        owned["device_power"] = np.broadcast_to(budget.device_power, num_devices)
    used = {name: np.zeros(num_devices) for name in owned}
    seen: dict[str, list[tuple[float, float]]] = {name: [(1.0, 1.0)] for name in owned}
    looked = set(places.tolist())
    for entry in plan.sequence if owned else ():
        for name, total in used.items():
            total[entry.scheduled] += entry.mu**2 if name == "privacy" else entry.power
            if entry.index + 1 in looked:
                left = 1.0 - (total / owned[name])[plan.scheduled]
                seen[name].append((float(left.min()), float(np.median(left))))
    for name, values in seen.items():
        found[name], found[f"{name}_median"] = np.array(values).T
    # without the rounding error by which a feasible plan may exceed a limit
    kept = {name: np.where(left > -10 * FEASIBILITY_RTOL, np.maximum(left, 0.0), left) for name, left in found.items()}
    return places, kept


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, each once: a copy of a run has its ledger, and is no second seed."""
    return list({run.ledger.head: run for run in reversed(runs)}.values())[::-1]


def tasks(runs: Sequence[Run]) -> int:
    """Return how many learning tasks the runs are of: losses and bounds of different ones do not compare."""
    return len({json.dumps(run.scenario.content()["learning"], sort_keys=True) for run in runs})


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by label; those that differ in their seed alone belong together."""
    found: dict[str, list[Run]] = {}
    for run in distinct(runs):
        found.setdefault(run.group, []).append(run)
    several, first = tasks(runs) > 1, [members[0] for members in found.values()]
    named: dict[str, list[Run]] = {}
    for run, members in zip(first, found.values(), strict=True):
        alike, label = [other.scenario.name for other in first if other.label == run.label], run.label
        if several or len(alike) > 1:  # the same policy in another scenario: none of them is just that policy
            label += f" · {run.scenario.name}"
        if alike.count(run.scenario.name) > 1:  # both are called alike: by the folder
            label += f" ({run.path.name})"
        while label in named:
            label += "′"
        named[label] = members
    return named


def metric_title(runs: Sequence[Run], metric: str) -> str:
    """Return what a chart of a metric shows: private records do not say what was transmitted."""
    if metric != "power_transmitted_total":
        return METRICS[metric]
    metered = any(run.last(metric) is not None for run in runs)
    return f"{METRICS[metric]} (dotted: planned)" if metered else METRICS["power_planned_total"]


def over_training(runs: Sequence[Run], metric: str) -> list[Series]:
    """Return a metric of each group of runs: accuracy and loss over the local steps, ε and power over the rounds.

    Accuracy and loss are the mean over seeds with its 95% band; ε and power those of the first seed, as the ledger has
    them, with the planned power as a dotted line. Groups without a value are left out.
    """
    grouped = groups(runs)
    looks = colours.told_apart({label: members[0].scenario.policy.name for label, members in grouped.items()})
    found = []
    for label, members in grouped.items():
        colour, dash = looks[label]
        line = Series(name=label, colour=colour, dash=dash, x=np.empty(0), y=np.empty(0))
        if metric in ("accuracy", "loss"):
            x, values = _common(members, metric)
            if x.size and len(members) > 1:
                line = replace(line, name=f"{label} ({len(members)} seeds)", spread=half_width(values))
            found += [replace(line, x=x, y=values.mean(axis=0))] * bool(x.size)
            continue
        if metric != "epsilon_total" or members[0].plan.private:
            x, y = members[0].series(metric)
            found.append(replace(line, x=x, y=y))
        if metric == "power_transmitted_total":
            x, y = members[0].series("power_planned_total")
            found.append(replace(line, name=f"{label}, planned", x=x, y=y, dash="dotted", listed=False))
    return [line for line in found if np.isfinite(line.y).any()]


def common_budget(runs: Sequence[Run], metric: str) -> float | None:
    """Return the budget that covers the training and that all runs share; None where there is no such budget."""
    budgets = [run.scenario.budget for run in runs]
    found: set[float | None] = {None}
    if metric == "power_transmitted_total":
        found = {budget.total_power for budget in budgets}
    elif metric == "epsilon_total":
        found = {budget.epsilon if budget.scope == "total" else None for budget in budgets}
    return found.pop() if len(found) == 1 else None


def _common(members: Sequence[Run], metric: str) -> tuple[Floats, Floats]:
    """The steps and the metric of every member, at the steps where all have it."""
    columns = [
        {step: record[metric] for step, record in zip(run.steps, run.rounds, strict=True) if record[metric] is not None}
        for run in members
    ]
    steps = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array(steps, dtype=np.float64), np.array([[column[step] for step in steps] for column in columns])
