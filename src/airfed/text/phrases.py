"""Names and numbers as a person reads them, the same in terminal, figures, report and page."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from airfed.planning import Plan
from airfed.planning.method import OVER_THE_AIR

FLEET_LIMITS: Final = {"privacy": "privacy", "peak_power": "peak power", "total_power": "total power"}
LIMITS: Final = {**FLEET_LIMITS, "device_power": "a battery"}
TERMS: Final = {  # of Theorem 1
    "initial_gap": "initial gap",
    "participation": "devices left out",
    "local_drift": "local drift",
    "noise": "receiver noise",
}
VALIDITY: Final = {  # of Lemma 1
    "proved": "proved (ε < 1)",
    "unproven": "unproven (ε ≥ 1)",
    "unsafe": "UNSAFE: below the truth",
}
ADJACENCY: Final = {"replace": "replace-one adjacency", "add_remove": "add/remove adjacency"}
ADVERSARIES: Final = {  # by what a server keeps of several antennas
    "radio": "a server that keeps every antenna's signal",
    "combiner": "a server that receives the combined signal only",
}
COMBINING: Final = {
    "optimal": "the best beamformer found",
    "strongest_eigenvector": "the dominant eigenvector as beamformer",
    "sum": "equal-gain combining",
    "one": "antenna selection",
}
SCOPES: Final = {"round": "each round", "total": "the whole training"}
METRICS: Final = {  # columns of a run's record
    "accuracy": "test accuracy",
    "loss": "training loss",
    "epsilon_total": "exact ε of everything sent so far",
    "power_transmitted_total": "power transmitted so far [W]",
    "power_planned_total": "power planned so far [W]",
}
BOUND: Final = "bound on the optimality gap (Theorem 1)"
_AVERAGES: Final = {"tail": ", the average of the second half", "exponential": ", an exponential average"}


def expectation(plan: Plan) -> str:
    """Return the accuracy that a surrogate expects of a plan, and what else it chose; "" without a surrogate."""
    if (found := plan.prediction) is None:
        return ""
    basis = f"; by {found.basis}" if found.basis else ""
    chosen = f", with ϖ = {plan.clip_norm:.4g}{_AVERAGES.get(plan.average, '')}" if plan.objective == "measured" else ""
    return (
        f"Expected test accuracy{chosen}: {found.accuracy:.1%} "
        f"({found.low:.0%} to {found.high:.0%} in nine of ten trainings{basis})."
    )


def decision_sentence(plan: Plan) -> str:
    """Return the schedule in one sentence."""
    limit = f"{LIMITS[plan.binding]} is the limit" if plan.private or plan.method.radio else "nothing is a limit"
    each = "" if plan.constant else " per round"
    steps = span(plan.local_steps, "-")
    return (
        f"Schedule {devices_text(plan)} of {plan.problem.fleet.num_devices} devices{each}, "
        f"{count(plan.rounds, 'round')} of {steps} {'step' if steps == '1' else 'steps'}; {limit}."
    )


def method_sentence(plan: Plan) -> str:
    """Return how a baseline's updates reach the receiver; "" for airfed's own over-the-air aggregation."""
    return "" if plan.method == OVER_THE_AIR else plan.method.title


def air_sentence(plan: Plan) -> str:
    """Return how long the plan is on the air, in a sentence; "" where it is not."""
    if not plan.channel_uses:
        return ""
    seconds = "" if plan.air_time is None else f", {compact(plan.air_time, 4)} s"
    each = compact(plan.channel_uses / plan.rounds, 4)
    limit = plan.problem.budget.air_time
    allowed = "" if limit is None else f" of {limit:g} s"
    return f"On the air: {compact(plan.channel_uses, 4)} symbols{seconds}{allowed} ({each} symbols a round)."


def devices_text(plan: Plan, to: str = " to ") -> str:
    """Return how many devices are scheduled in a round: "40", or "35 to 49" where rounds differ."""
    return span(plan.sizes, to)


def antennas_sentence(plan: Plan) -> str:
    """Return the receive beamforming and the adversary of several antennas, in a sentence; "" with one antenna."""
    fleet, link = plan.problem.fleet, plan.problem.link
    if fleet.antennas == 1:
        return ""
    return f"{fleet.antennas} antennas, {COMBINING[link.combining]}; privacy against {ADVERSARIES[link.trust]}."


def gap_sentence(plan: Plan) -> str:
    """Return how far a plan may be from the best one, in a sentence; "" where nothing is known about that."""
    if not 0 < plan.lower_bound <= plan.bound.total:  # a plan that breaks a limit may be below
        return ""
    knowing = " with any beamformer" if plan.problem.fleet.antennas > 1 else ""
    knowing += " that knows all gains" if plan.problem.fleet.changes else ""
    step = 1e-5 if plan.gap < 1e-3 else 1e-3
    above = max(math.ceil(plan.gap / step), 1) * step  # never less than it is
    distance = f"{number(100 * above, 4)}%" if above < 10 else f"{compact(above, 3)} times"
    return f"At most {distance} above the best plan{knowing}: no bound is below {plan.lower_bound:.5g}."


def exposure_sentence(plan: Plan) -> str:
    """Return the most exposed device and how many are never scheduled; "" where all rounds are alike."""
    if plan.constant:
        return ""
    sent = plan.amplitudes.sends(plan.most_exposed).size
    rounds = "the only round" if plan.rounds == 1 else f"{sent} of {plan.rounds} rounds"
    left_out = plan.problem.fleet.num_devices - plan.num_scheduled
    never = f" {count(left_out, 'device')} {'is' if left_out == 1 else 'are'} never scheduled." if left_out else ""
    return f"Most exposed is device {plan.most_exposed}, scheduled in {rounds}.{never}"


def drowned_sentence(plan: Plan) -> str:
    """Return a warning where the noise on the mean update of a round has over 100 times the clipping norm; else "".

    Noise of 29 to 43 times it left the trainings of docs/rivals.md at chance level.
    """
    ratio = math.sqrt(plan.problem.learning.dimension) * plan.noise_share
    if ratio <= 100 or plan.sequence.signal(0).guard != 1:
        return ""
    return (
        f"The noise on the mean update of a round is {number(ratio, 2)} times the clipping norm: do not expect to "
        f"learn. The limit is {LIMITS[plan.binding]}."
    )


def privacy_basis(plan: Plan) -> str:
    """Return what every ε of a plan refers to."""
    budget = plan.problem.budget
    return f"at {privacy_terms(budget.delta, budget.relation)}{against(plan)}"


def against(plan: Plan) -> str:
    """Return the adversary of several antennas, to continue a sentence; "" with one antenna."""
    several = plan.problem.fleet.antennas > 1 and plan.method.radio
    return f", against {ADVERSARIES[plan.problem.link.trust]}" if several else ""


def privacy_terms(delta: float, relation: str) -> str:
    """Return δ, the unit of privacy and the adjacency.

    >>> privacy_terms(1e-3, "replace")
    'δ = 0.001, device-level, replace-one adjacency'
    """
    return f"δ = {delta:g}, device-level, {ADJACENCY.get(relation, relation)}"


def change_text(of: str, now: float, then: float) -> str:
    """Return how a bound or an expected accuracy changes.

    >>> change_text("bound", 200.0, 190.0), change_text("accuracy", 0.8852, 0.8913)
    ('bound -5.0%', 'expected accuracy 88.5% → 89.1%')
    >>> change_text("bound", 2.0, 2.0), change_text("accuracy", 0.88521, 0.88522)
    ('bound unchanged', 'expected accuracy unchanged (88.5%)')
    """
    if of == "accuracy":
        before, after = f"{now:.1%}", "outside the surrogate's range" if math.isnan(then) else f"{then:.1%}"
        return f"expected accuracy {f'unchanged ({before})' if before == after else f'{before} → {after}'}"
    change = then / now - 1
    if abs(change) < 1e-9:
        return "bound unchanged"
    return f"bound {f'{change:+.1%}' if abs(change) >= 0.001 else f'{100 * change:+.1g}%'}"


def span(values: ArrayLike, to: str = " to ") -> str:
    """Return the range of whole numbers: "40", or "35 to 49".

    >>> span([49, 35]), span([3, 3]), span([35, 49], to="-")
    ('35 to 49', '3', '35-49')
    """
    few, many = int(np.min(values)), int(np.max(values))
    return f"{few}" if few == many else f"{few}{to}{many}"


def count(number_of: int, noun: str) -> str:
    """Return "1 round" or "40 rounds"."""
    return f"{number_of} {noun}" if number_of == 1 else f"{number_of} {noun}s"


def number(value: float, digits: int = 3) -> str:
    """Return a short figure.

    >>> number(1200.0), number(0.25), number(123456.0), number(0.00003), number(2.5e7)
    ('1200', '0.25', '123000', '3e-5', '2.5e7')
    """
    if value == math.inf:
        return "∞"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    if 1e-4 <= abs(value) < 1e6:
        return f"{float(text):g}" if abs(value) < 1 else f"{float(text):.0f}"
    return _exponent(text)


def compact(value: float, digits: int) -> str:
    """Return a figure in the fewest characters, for a column of a table: 1.23e5 rather than 123456.

    >>> compact(123.456, 4), compact(123456.0, 4)
    ('123.5', '1.23e5')
    """
    text = f"{value:.{digits}g}"
    return _exponent(f"{value:.2e}") if "e" in text else text


def above(ratio: float) -> str:
    """Return how far a bound is above the optimum's; below it is only a plan that knows more or breaks a limit.

    >>> above(-0.02), above(0.0), above(0.123), above(41.0)
    ('-2.0%', '0%', '12.3%', '42×')
    """
    if abs(ratio) < 0.0005 and ratio <= 0.0:
        return "0%"
    return f"{ratio:.1%}" if ratio < 9.995 else f"{compact(1 + ratio, 3)}×"


def _exponent(text: str) -> str:
    mantissa, exponent = text.split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
