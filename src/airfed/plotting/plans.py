"""Charts of plans whose rounds are alike. Pure functions: a plan in, a chart out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import bounds, policies
from airfed.planning import Plan, Response
from airfed.planning.exact import CandidateSpace
from airfed.planning.limits import amplifications, amplified
from airfed.plotting.chart import Axis, Band, Chart, Columns, Floats, Level, Line, Mark, highest, padded
from airfed.problem import InfeasibleError, Problem
from airfed.text.phrases import LIMITS, TERMS

Integers = NDArray[np.int64]

MOST_ROUNDS: Final = 40  # points on the curve over I
FEWER_ROUNDS: Final = 16  # where limits differ by device, and a schedule takes longer to find
_MOST_COLUMNS: Final = 200  # devices drawn; more would be narrower than a pixel


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The best bound for each number of rounds, term by term.

    Args:
        rounds: I, ascending.
        terms: the four terms of Theorem 1, each as long as `rounds`.
    """

    rounds: Integers
    terms: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """The bound."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))


def shown_rounds(total_steps: int, chosen: int, most: int = MOST_ROUNDS) -> Integers:
    """Return at most `most` numbers of rounds, evenly spread on a logarithmic scale, and the chosen one."""
    spread = np.geomspace(1, total_steps, min(total_steps, most)).round().astype(np.int64)
    return np.unique(np.append(spread, chosen))


def bound_curve(problem: Problem, chosen: int) -> Curve:
    """Return the smallest bound at several numbers of rounds, the chosen one among them, term by term.

    Raises:
        InfeasibleError: there is no plan at any of them.
    """
    most = MOST_ROUNDS if problem.fleet.equal_peak_power and not amplified(problem) else FEWER_ROUNDS
    found, reason = {}, ""
    for rounds in shown_rounds(problem.learning.total_steps, chosen, most):
        try:
            found[rounds] = policies.plan(problem, rounds=int(rounds)).bound.terms
        except InfeasibleError as error:
            reason = str(error)
    if not found:
        raise InfeasibleError(reason)
    terms = {name: np.array([bound[name] for bound in found.values()]) for name in TERMS}
    return Curve(rounds=np.array(list(found)), terms=terms)


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectation:
    """The accuracy that a surrogate expects of the best plan for each number of rounds.

    Args:
        rounds: I, ascending.
        accuracy, low, high: in 0..1, as in `Prediction`.
    """

    rounds: Integers
    accuracy: Floats
    low: Floats
    high: Floats


def accuracy_curve(problem: Problem, response: Response, chosen: int) -> Expectation:
    """Return the highest expected accuracy at several measured numbers of rounds, the chosen one among them.

    Raises:
        InfeasibleError: there is no plan at any of them.
    """
    found, reason = {}, ""
    for rounds in shown_rounds(problem.learning.total_steps, chosen, FEWER_ROUNDS):
        try:
            found[int(rounds)] = policies.plan(problem, rounds=int(rounds), objective=response).prediction
        except InfeasibleError as error:
            reason = str(error)
    known = {rounds: prediction for rounds, prediction in found.items() if prediction is not None}
    if not known:
        raise InfeasibleError(reason)
    columns = np.array([(each.accuracy, each.low, each.high) for each in known.values()]).T
    return Expectation(rounds=np.array(list(known)), accuracy=columns[0], low=columns[1], high=columns[2])


def over_rounds(plan: Plan, surrogate: Response | None) -> Chart:
    """Return what the plan was chosen by over the number of rounds: the expected accuracy, or the bound.

    Raises:
        InfeasibleError: there is no plan at any of them.
    """
    if plan.objective == "measured" and surrogate is not None:
        return accuracy_chart(plan, accuracy_curve(plan.problem, surrogate, plan.rounds))
    return rounds_chart(plan, bound_curve(plan.problem, plan.rounds))


def accuracy_chart(plan: Plan, curve: Expectation) -> Chart:
    """Return the expected accuracy over the number of rounds, with what nine of ten trainings reach, and the chosen."""
    x = curve.rounds.astype(np.float64)
    parts: list[Band | Line | Level | Mark] = [
        Band(x=x, low=curve.low, high=curve.high, colour="lit", name="nine of ten trainings", opacity=0.18),
        Line(x=x, y=curve.accuracy, colour="ink", name="expected"),
        Level(at=plan.rounds, upright=True),
    ]
    if plan.predicted_accuracy is not None:
        parts.append(Mark(x=plan.rounds, y=plan.predicted_accuracy))
    return Chart(
        title=f"expected test accuracy; chosen: I = {plan.rounds}, ϖ = {plan.clip_norm:.3g}",
        x=Axis(label="aggregation rounds I", low=float(x[0]), high=max(x[-1], x[0] + 1), kind="log", whole=True),
        y=Axis(label="expected test accuracy", low=0.0, high=1.0),
        parts=tuple(parts),
    )


def alignment_chart(plan: Plan, space: CandidateSpace) -> Chart:
    """Return the candidate space (the paper's Fig. 2): the largest θ and its three limits over |K|."""
    low, high = padded(space.alignment, below=1.5, above=3.0)
    x = space.size.astype(np.float64)
    curves = {"privacy": space.privacy_limit, "peak_power": space.peak_limit, "total_power": space.total_limit}
    if amplified(plan.problem):
        curves |= _apart(plan.problem, space)
    limits = [
        Line(x=x, y=np.broadcast_to(curve, x.shape), colour=f"lim-{name}", name=LIMITS[name], dash="dash", weight=0.9)
        for name, curve in curves.items()
    ]
    theta = np.where(space.alignment > 0, space.alignment, np.nan)
    return Chart(
        title=f"candidates at I = {plan.rounds}; chosen: {plan.num_scheduled} of {plan.problem.fleet.num_devices}",
        x=_sizes(space),
        y=Axis(label="alignment θ", low=low, high=high, kind="log"),
        parts=(
            Band(x=x, low=np.full(x.size, low), high=theta, colour="lit", opacity=0.08),
            *limits,
            Line(x=x, y=theta, colour="ink", name="largest θ"),
            Mark(x=plan.num_scheduled, y=plan.alignment),
        ),
    )


def _apart(problem: Problem, space: CandidateSpace) -> dict[str, Floats]:
    """Privacy and peak power one by one, where both limit a device: the space counts them together, as its peak.

    Privacy alone allows m devices σμ/(2f), f being the m-th smallest of how much stronger than θ they may be seen.
    """
    gain, peak_power = problem.fleet.gain, problem.fleet.peak_power
    heard = gain > 0
    count = int(np.count_nonzero(heard))
    privacy, peak = np.zeros(gain.size), np.zeros(gain.size)
    privacy[:count] = space.privacy_limit[:count] / np.sort(amplifications(problem)[heard])
    peak[:count] = -np.sort(-gain[heard] * np.sqrt(peak_power[heard]))
    return {"privacy": privacy, "peak_power": peak}


def objective_chart(plan: Plan, space: CandidateSpace) -> Chart:
    """Return what is minimised over |K| at the plan's rounds (the lower half of the paper's Fig. 2)."""
    own = _objective(plan)
    low, high = padded(space.objective, below=1.3, above=1.0)
    high = min(high, max(30 * low, 1.5 * own))
    return Chart(
        title=f"objective at I = {plan.rounds}",
        x=_sizes(space),
        y=Axis(label=f"objective Ψ at I = {plan.rounds}", low=low, high=high, kind="log"),
        parts=(
            Line(x=space.size.astype(np.float64), y=space.objective, colour="ink", name="objective Ψ", listed=False),
            Mark(x=plan.num_scheduled, y=own),
        ),
    )


def rounds_chart(plan: Plan, curve: Curve) -> Chart:
    """Return the bound split into its terms over the number of rounds, with the chosen number."""
    x, floor = curve.rounds.astype(np.float64), np.zeros(curve.rounds.size)
    bands = []
    for name, label in TERMS.items():
        bands.append(Band(x=x, low=floor, high=floor + curve.terms[name], colour=f"term-{name}", name=label))
        floor = floor + curve.terms[name]
    best = min(float(curve.total.min()), plan.bound.total)
    return Chart(
        title=f"bound on the gap; chosen: I = {plan.rounds}",
        x=Axis(label="aggregation rounds I", low=1.0, high=max(x[-1], 2.0), kind="log", whole=True),
        y=Axis(label="bound on the gap (Theorem 1)", low=0.0, high=max(3.2 * best, 1.15 * plan.bound.total)),
        parts=(
            *bands,
            Line(x=x, y=curve.total, colour="ink", name="bound", weight=0.7, listed=False),
            Level(at=plan.rounds, upright=True),
            Mark(x=plan.rounds, y=plan.bound.total),
        ),
    )


def devices_chart(rows: Sequence[Mapping[str, float]]) -> Chart:
    """Return the power of each scheduled device over a run, strongest channel first.

    Args:
        rows: device, gain, power_planned, power_transmitted of each.
    """
    rows = sorted(rows, key=lambda row: -row["gain"])
    rows = rows[:: -(-len(rows) // _MOST_COLUMNS)]
    x = np.arange(1.0, len(rows) + 1)
    columns = {key: np.array([row[key] for row in rows]) for key in ("power_planned", "power_transmitted")}
    return Chart(
        title="power per device over the run",
        x=Axis(label="scheduled devices, strongest channel first", low=0.5, high=len(rows) + 0.5, whole=True),
        y=Axis(label="W", low=0.0, high=highest(list(columns.values()))),
        parts=(
            Columns(x=x, y=columns["power_planned"], colour="out", name="planned, worst case [W]"),
            Columns(x=x, y=columns["power_transmitted"], colour="lit", name="transmitted [W]"),
        ),
        notes={
            place: f"device {int(row['device'])}, gain {row['gain']:.3g}" for place, row in zip(x, rows, strict=True)
        },
    )


def _sizes(space: CandidateSpace) -> Axis:
    return Axis(label="scheduled devices |K|", low=1.0, high=max(float(space.size[-1]), 2.0), whole=True)


def _objective(plan: Plan) -> float:
    """Ψ of the plan's own amplitudes, which need not be the best for their number of devices."""
    noise = bounds.noise_error(plan.problem.learning, plan.noise_share)
    return float(bounds.participation_error(1.0 - plan.device_share) + noise)
