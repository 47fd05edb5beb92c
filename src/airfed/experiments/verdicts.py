"""Every claim of Section V, tested on the records.

A claim is a difference that should be positive. It passes where the 95% interval of that difference, paired by seed
(Student's t over the seeds' differences), lies above zero; otherwise it has failed, and says whether the opposite
was found or the seeds do not tell. A claim about a size (`at_most`) passes where the mean is within it.

Fig. 4 and Fig. 5 show the same runs, once over I and once over E = T/I. A comparison of the same values is told under
both, and counted once (`count`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from airfed.experiments.results import Results
from airfed.experiments.statistics import Estimate, best_by_others, estimate, paired


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One comparison behind a claim.

    Args:
        claim: what the paper says, as a sentence.
        figure: on whose records it is tested.
        comparison: what is compared with what.
        effect: the difference, positive where the claim is right.
        unit: of the effect.
        at_most: the largest mean effect with which the claim passes, where it is about a size and not about a sign.
        remark: what a reader must know; the reason of a failure where it is known.
        evidence: the values that were compared, where another figure may have compared them, too.
        repeats: the figure that has this very comparison already; empty where it is new.
    """

    claim: str
    figure: str
    comparison: str
    effect: Estimate
    unit: str
    at_most: float | None = None
    remark: str = ""
    evidence: tuple[float, ...] = ()
    repeats: str = ""

    @property
    def passed(self) -> bool:
        """Whether the whole interval lies above zero; where there is a largest effect, whether the mean is within."""
        if self.at_most is not None:
            return self.effect.mean <= self.at_most
        return self.effect.low > 0

    @property
    def reason(self) -> str:
        """Why it failed; empty where it passed."""
        if self.passed:
            return ""
        if self.at_most is not None:
            return f"above {self.at_most:g}"
        if self.effect.high < 0:
            return "the opposite was found"
        return f"{self.effect.count} seeds do not separate it from zero"

    @property
    def notes(self) -> str:
        """The reason of a failure, the remark, and whether it is counted, for the reader."""
        counted = f"the same runs as in {self.repeats}: not counted again" if self.repeats else ""
        return "; ".join(part for part in (self.reason, self.remark, counted) if part)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        finite = np.isfinite(self.effect.low)
        return {
            "claim": self.claim,
            "figure": self.figure,
            "comparison": self.comparison,
            "effect": self.effect.mean,
            "low": self.effect.low if finite else None,
            "high": self.effect.high if finite else None,
            "unit": self.unit,
            "at_most": self.at_most,
            "seeds": self.effect.count,
            "passed": self.passed,
            "reason": self.reason,
            "remark": self.remark,
            "repeats": self.repeats or None,
        }


@dataclass(frozen=True)
class Count:
    """How many different comparisons there are, and how many of them pass."""

    passed: int
    distinct: int
    repeated: int

    def sentence(self) -> str:
        """Return the count in words."""
        text = f"{self.passed} of {self.distinct} comparisons pass"
        if self.repeated:
            text += f" ({self.repeated} more repeat one of them on the same runs and are not counted)"
        return text


def count(tested: Sequence[Verdict]) -> Count:
    """Return how many different comparisons there are; one that two figures tell is one."""
    distinct = [verdict for verdict in tested if not verdict.repeats]
    return Count(sum(verdict.passed for verdict in distinct), len(distinct), len(tested) - len(distinct))


def check(results: Results) -> list[Verdict]:
    """Return the verdicts on every claim whose experiments are among the results."""
    present = set(results.values("experiment"))
    found: list[Verdict] = []
    for experiment, test in TESTS.items():
        if experiment not in present:
            continue
        for verdict in test(results.of_experiment(experiment)):
            same = (old.figure for old in found if verdict.evidence and _compared(old) == _compared(verdict))
            found.append(replace(verdict, repeats=next(same, "")))
    return found


def _compared(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.unit, verdict.evidence


def _scheduling(results: Results) -> list[Verdict]:
    claim = "The proposed scheduling is better than uniform and full scheduling"
    others = [label for label in results.values("label") if label not in ("proposed", "full, no weak device")]
    return differences(results, [("proposed", other) for other in others], claim=claim, figure="fig3")


def _gain(results: Results) -> list[Verdict]:
    minima = sorted(results.values("channel.minimum"))
    gains = {minimum: _by_difference(results, "proposed", "full", channel__minimum=minimum) for minimum in minima}
    return [
        Verdict(
            claim="The gain over full scheduling grows as h_min falls",
            figure="fig3",
            comparison=f"gain at h_min = {weak:g} − gain at {strong:g}",
            effect=_paired(gains[weak], gains[strong]),
            unit="points",
            remark=f"gains {_mean(gains[weak]):.1f} and {_mean(gains[strong]):.1f}",
        )
        for weak, strong in itertools.pairwise(minima)
    ]


def _rounds(results: Results) -> list[Verdict]:
    curves = {
        rounds: {seed: 100 * value for seed, value in results.by_seed("accuracy", rounds=rounds).items()}
        for rounds in sorted(results.values("rounds"))
    }
    return _interior(curves, claim="Accuracy over I first rises, then falls", figure="fig4", symbol="I", unit="points")


def _local_steps(results: Results) -> list[Verdict]:
    steps = max(results.values("rounds"))  # I = T is among them: E = 1
    verdicts = []
    for column, unit, sign in (("accuracy", "points", 100.0), ("loss", "nats", -1.0)):
        curves = {
            steps // rounds: {seed: sign * value for seed, value in results.by_seed(column, rounds=rounds).items()}
            for rounds in sorted(results.values("rounds"), reverse=True)
        }
        claim = f"There is an interior best E (by {column})"
        verdicts += _interior(curves, claim=claim, figure="fig5", symbol="E", unit=unit)
    return verdicts


def _overall(results: Results) -> list[Verdict]:
    claim = "The overall design beats each fixed design"
    return differences(
        results, [("proposed", other) for other in others(results, "proposed")], claim=claim, figure="fig6"
    )


def _interior(
    curves: Mapping[int, Mapping[int, float]], *, claim: str, figure: str, symbol: str, unit: str
) -> list[Verdict]:
    """The best place against both ends. It is chosen by the other seeds, so that choosing it flatters nobody."""
    places = sorted(curves)
    seeds = sorted(curves[places[0]])
    best = best_by_others(curves)
    chosen = sorted(set(best.values()))
    remark = f"best {symbol} = {' or '.join(f'{place}' for place in chosen)}, chosen by the other seeds"
    return [
        Verdict(
            claim=claim,
            figure=figure,
            comparison=f"best {symbol} − {symbol} = {end}",
            effect=estimate([curves[best[seed]][seed] - curves[end][seed] for seed in seeds]),
            unit=unit,
            remark=remark,
            evidence=tuple(value for seed in seeds for value in (curves[best[seed]][seed], curves[end][seed])),
        )
        for end in (places[0], places[-1])
    ]


def others(results: Results, label: str) -> list[str]:
    """Return the labels other than one."""
    return [other for other in results.values("label") if other != label]


def differences(
    results: Results, pairs: Sequence[tuple[str, str]], *, claim: str, figure: str, remark: str = ""
) -> list[Verdict]:
    """Return the accuracy of one label against that of another, for each pair of them."""
    return [
        Verdict(
            claim=claim,
            figure=figure,
            comparison=f"{first} − {second}",
            effect=estimate(list(_by_difference(results, first, second).values())),
            unit="points",
            remark=remark,
        )
        for first, second in pairs
    ]


def _by_difference(results: Results, first: str, second: str, **where: Any) -> dict[int, float]:
    """Accuracy of one label minus that of another, in percentage points, by seed."""
    left = results.by_seed("accuracy", label=first, **where)
    right = results.by_seed("accuracy", label=second, **where)
    return {seed: 100 * (left[seed] - right[seed]) for seed in left if seed in right}


def _paired(left: Mapping[int, float], right: Mapping[int, float]) -> Estimate:
    seeds = [seed for seed in left if seed in right]
    return paired([left[seed] for seed in seeds], [right[seed] for seed in seeds])


def _mean(values: Mapping[int, float]) -> float:
    return float(np.mean(list(values.values())))


TESTS: Final[dict[str, Callable[[Results], list[Verdict]]]] = {
    "fig3": _scheduling,
    "fig3-gain": _gain,
    "fig4": _rounds,
    "fig5": _local_steps,
    "fig6": _overall,
}
