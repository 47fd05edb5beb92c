"""The attack: devices send ±ϖu on orthogonal directions u, and an adversary guesses the signs from what is received.

The score of a canary, what its device's matched filter makes of the round, is N(±μ_i/2, 1), whatever the dimension: m
devices with orthogonal canaries are m independent trials a round. Signs stay the same for a whole training: the sum of
a canary's I scores, weighted by μ_i/μ_total, is one trial against the trajectory, N(±μ_total/2, 1). With add/remove
adjacency a canary is sent or not, and half of the measured μ_i is taken off the scores. All canaries are sent by copies
of the most exposed device; the rounds in which most is seen of it are trials against the claim of one round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, log_ndtr, ndtri

from airfed.audit.subject import Crowd, ScriptedEngine, Subject

Vector = NDArray[np.float64]

FAIL_LEVEL: Final = 1e-6  # of a bound that refutes a claim
REPORT_LEVEL: Final = 0.01  # of the bounds that are shown
_CROWD: Final = 256  # devices scheduled
_CANARIES: Final = 192  # of them send or are counted; the others fail to answer, as devices do
_FEWEST_TRAJECTORIES: Final = 1000
_FEWEST: Final = 50  # scores below which no bound is given


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Scores times the sign that was sent: N(μ/2, 1) if the claim is true and tight."""

    single: Vector  # one per canary and round in which most is seen
    whole: Vector  # one per canary and training
    claimed: float  # the μ of the rounds of `single`


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the scores prove about a μ."""

    claimed: float  # by the plan
    lower: float  # parametric lower bound at `REPORT_LEVEL`
    lower_clopper_pearson: float
    lower_strict: float  # at `FAIL_LEVEL`: above the claim, it is refuted
    lower_strict_clopper_pearson: float
    upper_strict: float  # far below the claim, it is loose
    trials: int  # scores on both sides together

    @property
    def proved(self) -> float:
        """The larger of the lower bounds at `FAIL_LEVEL`."""
        return max(self.lower_strict, self.lower_strict_clopper_pearson)


def evidence(scores: Vector, claimed: float) -> Evidence:
    """Return what scores prove about a claimed μ."""
    lower, _ = parametric_bounds(scores, REPORT_LEVEL)
    strict, upper = parametric_bounds(scores, FAIL_LEVEL / 2)
    return Evidence(
        claimed=claimed,
        lower=lower,
        lower_clopper_pearson=guessing_bound(scores, REPORT_LEVEL),
        lower_strict=strict,
        lower_strict_clopper_pearson=guessing_bound(scores, FAIL_LEVEL / 2),
        upper_strict=upper,
        trials=scores.size,
    )


def attack(subject: Subject, rng: np.random.Generator, *, trials: int) -> Scores:
    """Return the scores of at least `trials` canaries a side, sent through the real round loop; raises NoiseFault."""
    rounds = subject.sends
    mus, std = subject.plan.sequence.mus[rounds], np.array([subject.noise_std_in(index) for index in rounds])
    one = Crowd(subject=subject, device=subject.victim, count=1)
    filters = np.concatenate([subject.responses(one.at(index)) for index in rounds])  # (I, parts)
    amplitude = np.linalg.norm(filters, axis=1)
    seen = subject.sensitivity * amplitude / std
    filters /= (amplitude * std)[:, None]
    middle = seen / 2 if subject.sensitivity == 1 else np.zeros(seen.size)
    exposed = np.flatnonzero(seen >= seen.max() * (1 - 1e-9))
    trajectories = math.ceil(_FEWEST_TRAJECTORIES / _CANARIES)
    trainings = max(trajectories, math.ceil(2 * trials / (_CANARIES * exposed.size)))
    directions, _ = np.linalg.qr(rng.normal(size=(_CROWD, _CANARIES)))
    crowd = replace(one, count=_CROWD)
    single, whole = [], []
    for repetition in range(trainings):
        # Beyond the trajectories that are needed, only the rounds in which most is seen are trained.
        places = np.arange(rounds.size) if repetition < trajectories else exposed
        devices = np.sort(rng.permutation(_CROWD)[:_CANARIES])
        signs = rng.choice((-1.0, 1.0), _CANARIES)
        canaries = (2 * subject.plan.clip_norm * signs[:, None] * directions.T).astype(np.float32)
        sent = signs > 0 if subject.sensitivity == 1 else np.full(_CANARIES, True)
        engine = ScriptedEngine.of(devices[sent], canaries[sent])
        training = subject.train(engine, subject.noise(repetition), rounds[places], crowd)
        received = [
            filters[place] @ subject.seen(done.reception) @ directions
            for place, done in zip(places, training, strict=True)
        ]
        scores = (np.stack(received) - middle[places, None]) * signs  # (I, m)
        single.append(scores[np.isin(places, exposed)].ravel())
        if places.size == rounds.size:
            whole.append(seen @ scores / math.sqrt(float(seen @ seen)))
    return Scores(single=np.concatenate(single), whole=np.concatenate(whole), claimed=float(mus[exposed].min()))


def roc(scores: Vector, points: int = 101) -> tuple[Vector, Vector]:
    """Return (false positives, true positives) over thresholds; the other side's scores are −s."""
    thresholds = np.quantile(np.concatenate([scores, -scores]), np.linspace(0, 1, points))
    ordered = np.sort(scores)
    true = 1 - np.searchsorted(ordered, thresholds, side="left") / scores.size
    false = np.searchsorted(ordered, -thresholds, side="right") / scores.size
    return false, true


def parametric_bounds(scores: Vector, level: float) -> tuple[float, float]:
    """Return (lower, upper) bounds on μ, each wrong with probability `level`, for scores that are N(μ/2·s, s²).

    μ̂ = 2·mean/std has the standard error √((4 + μ²/2)/n); neither the amplitude nor the noise is taken for known.

    >>> low, high = parametric_bounds(np.random.default_rng(0).normal(0.25, 1.0, 200_000), 0.01)
    >>> 0.48 < low < 0.5 < high < 0.52
    True
    """
    count = scores.size
    if count < _FEWEST:
        return 0.0, math.inf
    spread = float(np.std(scores, ddof=1))
    if spread == 0.0:
        return math.inf, math.inf
    estimate = 2.0 * float(np.mean(scores)) / spread
    error = math.sqrt((4.0 + estimate**2 / 2.0) / count)
    reach = -float(ndtri(level)) * error
    return max(0.0, estimate - reach), max(0.0, estimate + reach)


def guessing_bound(scores: Vector, level: float) -> float:
    """Return a lower bound on μ, wrong with probability `level`, whatever the distribution of the scores.

    No test of μ-Gaussian-DP guesses signs right more often than Φ(μ/2): p of Clopper-Pearson gives μ ≥ 2Φ⁻¹(p).
    """
    if scores.size < _FEWEST:
        return 0.0
    right = int(np.count_nonzero(scores > 0))
    share = betaincinv(right, scores.size - right + 1, level) if right else 0.0
    return max(0.0, 2.0 * float(ndtri(share)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the ε of μ-Gaussian-DP at δ to ten digits, by another road than `airfed.privacy`.

    >>> round(epsilon_of(0.5, 1e-5), 6)
    1.993091
    """
    if mu <= 0.0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def excess(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        if second >= first:
            return -math.inf if epsilon > 0 else math.log1p(-1e-300) - math.log(delta)
        return first + math.log(-math.expm1(second - first)) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    high = mu * mu / 2 + mu * 40.0 + 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(brentq(lambda x: max(excess(x), -1e3), 0.0, high, xtol=1e-12, rtol=1e-13))
