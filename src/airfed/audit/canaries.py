"""The attack: devices send ±ϖu on orthogonal directions u, and an adversary guesses the signs from what is received.

The score of a canary, what its device's matched filter makes of the round, is N(±μ_i/2, 1), whatever the dimension, so
that m devices with orthogonal canaries are m independent trials a round. Signs stay the same for a whole training, so
that the sum of a canary's I scores, weighted by the rounds' μ_i/μ_total, is one trial against the whole trajectory,
N(±μ_total/2, 1). Where neighbours add or remove a device, a canary is sent or not sent at all, and half of the measured
μ_i is taken off the scores. All canaries are sent by copies of the most exposed device, in the rounds in which it
transmits; those in which most is seen of it are trials against the claim of one round.

Amplitude and matched filter are measured (`Subject.responses`); the claims are the μ that the plan prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from airfed.audit.engines import ScriptedEngine
from airfed.audit.statistics import Vector, guessing_bound, parametric_bounds
from airfed.audit.subject import Crowd, Subject

FAIL_LEVEL: Final = 1e-6  # of a bound that refutes a claim
REPORT_LEVEL: Final = 0.01  # of the bounds that are shown
_CROWD: Final = 256  # devices scheduled
_CANARIES: Final = 192  # of them send or are counted; the others fail to answer, as devices do
_FEWEST_TRAJECTORIES: Final = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Scores times the sign that was sent: N(μ/2, 1) if the claim is true and tight.

    Args:
        single: one per canary and round in which most is seen.
        whole: one per canary and training.
        claimed: the μ of the rounds of `single`.
    """

    single: Vector
    whole: Vector
    claimed: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the scores prove about a μ.

    Args:
        claimed: the μ of the plan.
        lower: parametric lower bound at `REPORT_LEVEL`.
        guessing: Clopper-Pearson lower bound at `REPORT_LEVEL`.
        strict, strict_guessing: the same at `FAIL_LEVEL`: above the claim, it is refuted.
        upper: parametric upper bound at `FAIL_LEVEL`: far below the claim, it is loose.
        trials: scores on both sides together.
    """

    claimed: float
    lower: float
    guessing: float
    strict: float
    strict_guessing: float
    upper: float
    trials: int

    @property
    def refuted(self) -> bool:
        """Whether the claim is too low, at level 1e-6."""
        return max(self.strict, self.strict_guessing) > self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        return {
            "claimed": self.claimed,
            "lower": self.lower,
            "lower_clopper_pearson": self.guessing,
            "lower_strict": self.strict,
            "lower_strict_clopper_pearson": self.strict_guessing,
            "upper_strict": self.upper,
            "trials": self.trials,
        }


def evidence(scores: Vector, claimed: float) -> Evidence:
    """Return what scores prove about a claimed μ."""
    lower, _ = parametric_bounds(scores, REPORT_LEVEL)
    strict, upper = parametric_bounds(scores, FAIL_LEVEL / 2)
    return Evidence(
        claimed=claimed,
        lower=lower,
        guessing=guessing_bound(scores, REPORT_LEVEL),
        strict=strict,
        strict_guessing=guessing_bound(scores, FAIL_LEVEL / 2),
        upper=upper,
        trials=scores.size,
    )


def attack(subject: Subject, rng: np.random.Generator, *, trials: int) -> Scores:
    """Return the scores of at least `trials` canaries a side, sent through the real round loop.

    Raises:
        NoiseFault: the loop itself finds the noise wanting.
    """
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
        engine = ScriptedEngine(devices[sent], canaries[sent])
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
