"""Names, numbers and sentences about plans, the same in terminal, figures, report and explorer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from airfed.planning import Plan
from airfed.planning.method import OVER_THE_AIR
from airfed.privacy.gaussian import epsilon_range

LIMITS: Final = dict(privacy="privacy", peak_power="peak power", total_power="total power", device_power="a battery")
TERMS: Final = {  # of Theorem 1
    "initial_gap": "initial gap",
    "participation": "devices left out",
    "local_drift": "local drift",
    "noise": "receiver noise",
}
VALIDITY: Final = {  # of Lemma 1
    "proved": "proved (ε < 1)",
    "unproven": "unproven (ε ≥ 1)",
    "unsafe": "UNSAFE: below the exact ε",
}
ADJACENCY: Final = {"replace_one": "replace-one adjacency", "add_remove": "add-remove adjacency"}
ADVERSARIES: Final = {  # by the signals of several antennas that a server keeps
    "all_antennas": "a server that keeps every antenna's signal",
    "combined": "a server that receives the combined signal only",
}
BEAMFORMING: Final = {
    "optimal": "the best beamformer found",
    "dominant_eigenvector": "the dominant eigenvector as beamformer",
    "equal_gain": "equal-gain combining",
    "antenna_selection": "antenna selection",
}
SCOPES: Final = {"round": "each round", "total": "the whole training"}
METRICS: Final = {  # columns of a run's record
    "accuracy": "test accuracy",
    "loss": "training loss",
    "epsilon_total": "exact ε in total so far",
    "power_transmitted_total": "power transmitted so far [W]",
    "power_planned_total": "power planned so far [W]",
    "clip_norm": "adaptive clipping norm ϖ",
}
BOUND: Final = "bound on the optimality gap (Theorem 1)"
_AVERAGES: Final = {"tail": " and the mean of second-half models", "exponential": " and an exponential model average"}


def expected_accuracy(plan: Plan) -> str:
    """Return the accuracy that a surrogate expects of a plan, with its interval, in a sentence; "" without one."""
    if (found := plan.prediction) is None:
        return ""
    basis = f" Coverage: {found.basis}." if found.basis else ""
    chosen = f", with clipping norm ϖ = {plan.clip_norm:.4g}{_AVERAGES.get(plan.average, '')}"
    return (
        f"Expected test accuracy{chosen if plan.objective == 'accuracy' else ''}: {found.accuracy:.1%}, "
        f"interval {found.low:.0%} to {found.high:.0%} (nominal 90%).{basis}"
    )


def network_sentence(plan: Plan) -> str:
    """Return the chosen network and the expected accuracy of every candidate, in a sentence; "" without candidates."""

    def text(name: str, dimension: int, accuracy: float | None) -> str:
        expected = "no plan that the surrogate covers" if accuracy is None else f"{accuracy:.1%}"
        return f"{name.removeprefix('network ')} (d = {dimension:,}): {expected}"

    if not plan.networks:
        return ""
    chosen, *others = (text(*each) for each in plan.networks)
    return f"Network chosen: {'; '.join([f'{chosen} expected', *others])}."


def schedule_sentence(plan: Plan) -> str:
    """Return the schedule in one sentence."""
    limit = binding_text(plan) if plan.private or plan.method.analog else "no limit binds"
    each = "" if plan.constant else " per round"
    steps = span(plan.local_steps, "-")
    return (
        f"Schedule {span(plan.sizes)} of {plan.problem.fleet.num_devices} devices{each}, "
        f"{count(plan.rounds, 'round')} of {steps} local {'step' if steps == '1' else 'steps'}; {limit}."
    )


def binding(plan: Plan) -> tuple[str, ...]:
    """Return every limit that binds: a weighted plan may use up its privacy and its power at once."""
    smallest = plan.limits[plan.binding]
    return tuple(limit for limit, value in plan.limits.items() if value <= smallest * (1 + 1e-9))


def binding_text(plan: Plan) -> str:
    """Return which limits bind: "privacy is the limit", or "privacy and total power are the limits"."""
    *others, last = (LIMITS[limit] for limit in binding(plan))
    return f"{', '.join(others)} and {last} are the limits" if others else f"{last} is the limit"


def terms(plan: Plan) -> dict[str, str]:
    """Return the names of the bound's terms: weights differ from 1/N where devices are not aligned."""
    return TERMS if plan.amplitudes.equal else TERMS | {"participation": "weights other than 1/N"}


def method_sentence(plan: Plan) -> str:
    """Return how a baseline transmits and aggregates; "" for airfed's over-the-air aggregation."""
    return "" if plan.method == OVER_THE_AIR else plan.method.title


def air_sentence(plan: Plan) -> str:
    """Return the channel uses and the air time of a plan, in a sentence; "" if it transmits nothing."""
    if not plan.channel_uses:
        return ""
    seconds = "" if plan.air_time is None else f", {compact(plan.air_time, 4)} s"
    each = compact(plan.channel_uses / plan.rounds, 4)
    limit = plan.problem.budget.air_time
    allowed = "" if limit is None else f" of {limit:g} s"
    return f"Channel uses: {compact(plan.channel_uses, 4)} symbols{seconds}{allowed} ({each} symbols per round)."


def snr_sentence(plan: Plan) -> str:
    """Return the received SNR of a device, in a sentence; "" for a plan without AirComp."""
    if plan.snr_per_upload_db is None:
        return ""
    whose = "one device" if plan.amplitudes.equal and np.ptp(plan.amplitudes.level) == 0 else "the median device"
    return (
        f"Received SNR of {whose}: {plan.snr_per_symbol_db:.1f} dB per symbol, "
        f"{plan.snr_per_upload_db:.1f} dB per upload."
    )


def energy_sentence(plan: Plan) -> str:
    """Return the transmit energy in joules, in a sentence; "" without a bandwidth or AirComp."""
    if plan.energy is None or plan.energy_total is None or plan.problem.link.bandwidth is None:
        return ""
    device = plan.sequence.device_power(plan.rounds).max() / plan.problem.link.bandwidth
    most, device, total = (number(joules) for joules in (plan.energy.max(), device, plan.energy_total))
    return f"Energy: at most {most} J per device and round, {device} J per device; {total} J in all."


def antennas_sentence(plan: Plan) -> str:
    """Return the receive beamforming and the adversary, in a sentence; "" with one antenna."""
    fleet, link = plan.problem.fleet, plan.problem.link
    if fleet.antennas == 1:
        return ""
    return f"{fleet.antennas} antennas, {BEAMFORMING[link.beamforming]}; privacy against {ADVERSARIES[link.adversary]}."


def gap_sentence(plan: Plan) -> str:
    """Return the largest distance of a plan to the best of its kind, in a sentence; "" if no lower bound is known."""
    if not 0 < plan.lower_bound <= plan.bound.total:  # a plan that breaks a limit may be below
        return ""
    scope = " with any beamformer" if plan.problem.fleet.antennas > 1 else ""
    scope += " that knows all gains" if plan.problem.fleet.time_varying else ""
    step = 1e-5 if plan.gap < 1e-3 else 1e-3
    above = max(math.ceil(plan.gap / step), 1) * step  # never less than it is
    distance = f"{number(100 * above, 4)}%" if above < 10 else f"{compact(above, 3)} times"
    kind = "aligned plan" if plan.amplitudes.equal else "plan of any amplitudes"
    return f"At most {distance} above the best {kind}{scope}, whose bound is at least {plan.lower_bound:.5g}."


def converse_sentence(plan: Plan) -> str:
    """Return how far a plan's noise is above the least of any linear method; "" for a method that is not one."""
    if plan.noise_floor is None or plan.violations:
        return ""
    excess = max(plan.noise_share / plan.noise_floor - 1, 0.0)  # rounding
    return f"Noise: {excess:.1%} above the least of any linear method in {count(plan.rounds, 'round')}."


def exposure_sentence(plan: Plan) -> str:
    """Return the most exposed device, the range of ε over devices, and the number never scheduled; "" if alike."""
    spread = "" if plan.equal_mu else f"{epsilon_spread(epsilon_range(plan.device_mu, plan.problem.budget.delta))}."
    if plan.constant:
        return spread
    sent = plan.amplitudes.rounds_of(plan.most_exposed).size
    rounds = "the only round" if plan.rounds == 1 else f"{sent} of {plan.rounds} rounds"
    left_out = plan.problem.fleet.num_devices - plan.num_scheduled
    never = f" {count(left_out, 'device')} {'is' if left_out == 1 else 'are'} never scheduled." if left_out else ""
    return f"Most exposed is device {plan.most_exposed}, scheduled in {rounds}.{never} {spread}".strip()


def epsilon_spread(found: Mapping[str, float]) -> str:
    """Return how the ε of scheduled devices differ, from `epsilon_range`.

    >>> epsilon_spread({"minimum": 0.41, "median": 1.3, "maximum": 2.0})
    'ε in total = 2 for the most exposed device, median 1.3 (range 0.41 to 2)'
    """
    least, median, most = (number(found[name], 4) for name in ("minimum", "median", "maximum"))
    return f"ε in total = {most} for the most exposed device, median {median} (range {least} to {most})"


def step_size_sentence(plan: Plan) -> str:
    """Return that the bound is not proved for the plan's step size, in a sentence; "" if it is."""
    learning = plan.problem.learning
    if abs(learning.learning_rate * learning.smoothness - 1) <= 1e-9:
        return ""
    rates = f"τ = {learning.learning_rate:g} and 1/ζ = {1 / learning.smoothness:.3g}"
    return f"The bound is proved for τ = 1/ζ; here {rates}."


def noise_warning(plan: Plan) -> str:
    """Return a warning if the noise on a round's mean update exceeds 100 clipping norms (a rule of thumb), or ""."""
    ratio = math.sqrt(plan.problem.learning.dimension) * plan.noise_share
    if ratio <= 100 or plan.sequence.signal(0).clip_factor != 1:
        return ""
    return (
        f"The noise on the mean update of a round is {number(ratio, 2)} times the clipping norm, so training will "
        f"probably not learn. The binding limit is {LIMITS[plan.binding]}."
    )


def privacy_basis(plan: Plan) -> str:
    """Return δ, adjacency and adversary of a plan's ε."""
    budget = plan.problem.budget
    return f"at {privacy_terms(budget.delta, budget.adjacency)}{against(plan)}"


def against(plan: Plan) -> str:
    """Return the adversary of several antennas, to continue a sentence; "" with one antenna."""
    several = plan.problem.fleet.antennas > 1 and plan.method.analog
    return f", against {ADVERSARIES[plan.problem.link.adversary]}" if several else ""


def privacy_terms(delta: float, adjacency: str) -> str:
    """Return δ, the unit of privacy and the adjacency.

    >>> privacy_terms(1e-3, "replace_one")
    'δ = 0.001, device-level, replace-one adjacency'
    """
    return f"δ = {number(delta, 6)}, device-level, {ADJACENCY.get(adjacency, adjacency)}"


def measured_noise(link: Mapping[str, Any]) -> str:
    """Return which σ an ε counts with if σ is measured.

    >>> measured_noise({"noise_std_lower": 0.9, "noise_failure": 1e-6})
    'measured noise: ε counts with σ ≥ 0.9 and holds except with probability 1e-06, which adds to δ'
    """
    return (
        f"measured noise: ε counts with σ ≥ {link['noise_std_lower']:.4g} and holds except with probability "
        f"{link['noise_failure']:g}, which adds to δ"
    )


SHARED_NOISE: Final = "antennas share noise: ε counts with noise_covariance; the beamformer applies after whitening"


def change_text(of: str, now: float, then: float) -> str:
    """Return the change of a bound or of an expected accuracy.

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
    """Return a number with few digits.

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
    """Return a number in few characters, for a column of a table: 1.23e5 instead of 123456.

    >>> compact(123.456, 4), compact(123456.0, 4), compact(0.00012345, 4)
    ('123.5', '1.23e5', '1.23e-4')
    """
    text = f"{value:.{digits}g}"
    return _exponent(f"{value:.2e}") if "e" in text or 0 < abs(value) < 1e-3 else text


def above(ratio: float) -> str:
    """Return how far a bound is above that of "optimal"; only plans that are not aligned, know more or break a limit
    are below it.

    >>> above(-0.02), above(0.0), above(0.123), above(41.0)
    ('-2.0%', '0%', '12.3%', '42×')
    """
    if abs(ratio) < 0.0005 and ratio <= 0.0:
        return "0%"
    return f"{ratio:.1%}" if ratio < 9.995 else f"{compact(1 + ratio, 3)}×"


def _exponent(text: str) -> str:
    mantissa, exponent = text.split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


MOST_HINTS: Final = 3

_HARDLY: Final = 0.8  # final over initial loss
_CHANCE: Final = 1.5  # accuracy over chance level
_ABSENT: Final = 0.1  # mean fraction of missing devices
_MOSTLY_CLIPPED: Final = 0.9  # fraction of clipped updates in the median round
_SMALL_UPDATE: Final = 0.5  # largest update over clip norm in the median round
_LOW_SNR: Final = -10.0  # dB, in the median round

_EASED: Final = {
    "privacy": "budget.epsilon",
    "total_power": "budget.total_power",
    "peak_power": "fleet.peak_power or peak_power_per_symbol",
    "device_power": "budget.device_power or device_energy",
}


def hints(plan: Plan, rounds: Sequence[Mapping[str, Any]], *, classes: int | None = None) -> list[str]:
    """Return up to three hints, the most important first, from the records of rounds; none after a good training."""

    def values(name: str) -> list[float]:
        return [record[name] for record in rounds if record.get(name) is not None]

    found = []
    if bad := sum(map(bool, values("refused"))):
        found.append(
            f"Updates with NaN or Inf arrived in {bad} of {len(rounds)} rounds and were counted as zero: try a smaller "
            "learning_rate."
        )
    absent = fmean(values("missing") or [0.0])
    if rounds and absent >= _ABSENT * plan.num_scheduled:
        found.append(
            f"{absent:.3g} of {plan.num_scheduled} devices were missing in the average round: they were charged, but "
            "their updates did not arrive."
        )
    losses, accuracy = values("loss") or values("test_loss"), values("accuracy")
    rose = len(losses) > 1 and losses[-1] > losses[0]
    if rose:
        found.append(f"The loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: try a smaller learning_rate.")
    elif accuracy and classes and accuracy[-1] <= _CHANCE / classes:
        found.append(f"The accuracy, {accuracy[-1]:.1%}, is at chance level for {classes} classes.")
    elif losses and classes and losses[-1] > math.log(classes):
        chance = f"{math.log(classes):.3g}, the chance level for {classes} classes"
        found.append(f"The loss, {losses[-1]:.3g}, is above {chance}.")
    elif len(losses) > 1 and losses[-1] > _HARDLY * losses[0]:
        found.append(f"The loss hardly fell, from {losses[0]:.3g} to {losses[-1]:.3g}: more total_steps may help.")
    else:
        return found[:MOST_HINTS]
    fixed = plan.problem.learning.adaptive_clipping is None
    clip_norm = plan.problem.learning.clip_norm if fixed else 0.0
    clipped, means = values("clipped_share"), values("update_norm_mean")
    if fixed and clipped and means and median(clipped) >= _MOSTLY_CLIPPED:
        every = "Every" if min(clipped) == 1 else "Nearly every"
        advice = "." if rose else ": raise it, or plan more rounds with fewer local steps."  # if the loss rose: neither
        found.append(
            f"{every} update was clipped, from a norm of {median(means):.3g} to clip_norm = {clip_norm:g}{advice}"
        )
    largest, ratio = values("update_norm_max"), values("signal_to_noise_db")
    if ratio and median(ratio) <= _LOW_SNR:
        snr = f"The received aggregate was {-median(ratio):.0f} dB below the noise"
        if largest and 0 < median(largest) < _SMALL_UPDATE * clip_norm:
            unit = 10.0 ** (math.floor(math.log10(median(largest))) - 1)
            found.append(
                f"{snr}: the largest update had a norm of {median(largest):.2g}, but clip_norm is {clip_norm:g}; a "
                f"clip_norm of {math.ceil(median(largest) / unit) * unit:g} raises the SNR at equal power and privacy."
            )
        else:
            found.append(f"{snr}: a larger {_EASED[plan.binding]}, the binding limit, or a smaller model would help.")
    return found[:MOST_HINTS]
