"""The canary attack: devices send ±ϖu along orthogonal directions u, and an adversary guesses the signs.

docs/privacy-operators.md describes the attacks. The score of a canary is the output of its device's matched filter,
N(±μ_i/2, 1) for any dimension, so m devices with orthogonal canaries are m independent trials per round. Signs are
fixed for a whole training: the sum of a canary's scores, weighted by μ_i/μ_total, is one trial against the trajectory,
N(±μ_total/2, 1) for every time code if the noise is independent from round to round. With add/remove adjacency a canary
is sent or not, and half of the measured μ_i is subtracted from the scores.

With adaptive clipping many canaries share the entry of the clipping indicator, so they attack only the updates;
`attack_indicator` attacks both together. In `attack_models` the step m^i − m^{i+1} along u_k, the direction of the two
weights of pixel k, in units of its noise, is a score as above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, log_ndtr, ndtri

from airfed.audit.subject import DeviceCopies, Script, ScriptedEngine, Subject, flipping
from airfed.clipping import FARTHEST
from airfed.learning.data import Dataset
from airfed.learning.engine import Engine
from airfed.network import Network
from airfed.training.setup import engine_of

Vector = NDArray[np.float64]

FAIL_LEVEL: Final = 1e-6  # of a bound that refutes a claim
REPORT_LEVEL: Final = 0.01  # of the bounds that are reported
_COPIES: Final = 256  # devices scheduled
_CANARIES: Final = 192  # devices with a canary; the others do not answer
_MIN_TRAJECTORIES: Final = 1000
_MAX_LAG: Final = 5  # rounds over which the noise may be correlated
_MIN_SCORES: Final = 50  # with fewer scores no bound is given
_SIDE: Final = 16  # of the images in the attack on models
_PIXELS: Final = _SIDE**2  # devices, one per pixel
_BRIGHT: Final = 100.0  # a pixel's value, times max(1, ϖ): its update is some 70 ϖ long, the bias a 100th of it
_LARGEST_LOGIT: Final = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Scores times the sign that was sent: N(μ/2, 1) if the claim is true and tight."""

    per_round: Vector  # one per canary and most exposed round
    in_total: Vector  # one per canary and training
    claimed: float  # the μ of the rounds of `per_round`


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """The most exposed device, as it is attacked."""

    rounds: NDArray[np.intp]  # in which it transmits
    filters: Vector  # (I, parts): its matched filters, in units of the noise
    measured: Vector  # μ_i of each round
    noise_std: Vector
    middle: Vector  # of the scores of the two hypotheses
    exposed: NDArray[np.intp]  # positions of its most exposed rounds
    claimed: float  # the μ of those

    @classmethod
    def of(cls, subject: Subject) -> Target:
        """Return the target of a subject, measured through its AirComp."""
        rounds = subject.target_rounds
        std = np.array([subject.noise_std_in(index) for index in rounds])
        one = DeviceCopies(subject=subject, device=subject.target_device, count=1)
        filters = np.concatenate([subject.matched_filters(one.at(index)) for index in rounds])
        amplitude = np.linalg.norm(filters, axis=1)
        measured = subject.sensitivity * amplitude / std
        exposed = np.flatnonzero(measured >= measured.max() * (1 - 1e-9))
        return cls(
            rounds=rounds,
            filters=filters / (amplitude * std)[:, None],
            measured=measured,
            noise_std=std,
            middle=measured / 2 if subject.sensitivity == 1 else np.zeros(measured.size),
            exposed=exposed,
            claimed=min(subject.claimed(index, subject.target_device) for index in rounds[exposed]),
        )

    def in_total(self, scores: Vector) -> Vector:
        """Return the scores of trajectories from those of their rounds, (I, m)."""
        total: Vector = self.measured @ scores / math.sqrt(float(self.measured @ self.measured))
        return total


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Confidence bounds on μ."""

    claimed: float  # by the plan
    lower: float  # parametric lower bound at `REPORT_LEVEL`
    lower_clopper_pearson: float
    lower_strict: float  # at `FAIL_LEVEL`; a value above the claim refutes it
    lower_strict_clopper_pearson: float
    upper_strict: float  # far below the claim, the claim is loose
    trials: int  # scores of both signs

    @property
    def proved(self) -> float:
        """The larger of the lower bounds at `FAIL_LEVEL`."""
        return max(self.lower_strict, self.lower_strict_clopper_pearson)


def evidence(scores: Vector, claimed: float) -> Evidence:
    """Return the bounds on a claimed μ that follow from scores."""
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
    """Return the scores of at least `trials` canaries per sign, sent through the real round loop; raises NoiseFault."""
    target = Target.of(subject)
    rounds, exposed = target.rounds, target.exposed
    trajectories = math.ceil(_MIN_TRAJECTORIES / _CANARIES)
    pilots = math.ceil(trajectories / 2)
    trainings = max(pilots + trajectories, math.ceil(2 * trials / (_CANARIES * exposed.size)))
    directions, _ = np.linalg.qr(rng.normal(size=(_COPIES, _CANARIES)))
    copies = DeviceCopies(subject=subject, device=subject.target_device, count=_COPIES)
    longest = subject.plan.clip_norm * (1.0 if subject.plan.problem.learning.adaptive_clipping is None else FARTHEST)
    codes = np.ones((rounds.size, _CANARIES))
    per_round, in_total = [], []
    noise: list[Vector] = []
    for repetition in range(trainings):
        # After the required number of trajectories, only the most exposed rounds are trained.
        positions = np.arange(rounds.size) if repetition < pilots + trajectories else exposed
        if repetition < pilots:
            codes = rng.choice((-1.0, 1.0), codes.shape)
        elif repetition == pilots:
            codes = np.repeat(_quietest_code(np.stack(noise), target.measured)[:, None], _CANARIES, axis=1)
        devices = np.sort(rng.permutation(_COPIES)[:_CANARIES])
        signs = rng.choice((-1.0, 1.0), _CANARIES)
        sent = signs > 0 if subject.sensitivity == 1 else np.full(_CANARIES, True)
        canaries = (2 * longest * signs[:, None] * directions.T).astype(np.float32)
        coded = dict(zip(rounds[positions].tolist(), codes[positions][:, sent, None].astype(np.float32), strict=True))
        engine = ScriptedEngine(_COPIES, _script(devices[sent], canaries[sent], coded))
        training = subject.train(engine, subject.noise(repetition), rounds[positions], copies, adapt=True)
        received = [
            target.filters[position] @ subject.seen(done.aggregate)[:, :_COPIES] @ directions
            for position, done in zip(positions, training, strict=True)
        ]
        scores = (np.stack(received) * codes[positions] - target.middle[positions, None]) * signs  # (I, m)
        per_round.append(scores[np.isin(positions, exposed)].ravel())
        if repetition < pilots:
            noise.append((scores - scores.mean(axis=1, keepdims=True)) * signs * codes)
        elif positions.size == rounds.size:
            in_total.append(target.in_total(scores))
    return Scores(per_round=np.concatenate(per_round), in_total=np.concatenate(in_total), claimed=target.claimed)


def attack_indicator(subject: Subject, rng: np.random.Generator, *, trials: int) -> Scores:
    """Return the scores of canaries that change the update and the clipping indicator of one round together.

    One canary per round is ϖu, not clipped, against −2ϖu, clipped. A second device sends an update that the adversary
    knows, another one in each trial, so that the noise is fresh.
    """
    target = Target.of(subject)
    index, std = int(target.rounds[target.exposed[0]]), float(target.noise_std[target.exposed[0]])
    copies, both = DeviceCopies(subject=subject, device=subject.target_device, count=2), np.arange(2)
    aircomp, noise, scores = copies.at(index), subject.noise(), np.empty(trials)
    updates = np.zeros((2, 2))
    views = []
    for update in flipping(aircomp):
        updates[0, 0] = update.item()
        views.append(subject.quiet(aircomp, both, updates))
    if subject.sensitivity == 1:  # sent or missing; the sent one has the larger norm
        views[1] = subject.quiet(aircomp, both[1:], updates[1:])
    apart = views[0] - views[1]
    direction, middle = apart / np.linalg.norm(apart), (views[0] + views[1]) / 2
    for trial, sign in enumerate(rng.choice((1.0, -1.0), trials)):
        updates[0, 0] = flipping(aircomp)[int(sign < 0)].item()
        updates[1, 1] = rng.uniform(-0.5, 0.5) * aircomp.clip_norm
        sent = both if sign > 0 or subject.sensitivity == 2 else both[1:]
        (done,) = subject.train(ScriptedEngine.of(sent, updates[sent]), noise, [index], copies)
        scores[trial] = sign * np.sum(direction * (subject.seen(done.aggregate) - middle)) / std
    return Scores(per_round=scores, in_total=np.empty(0), claimed=target.claimed)


def attack_models(subject: Subject, rng: np.random.Generator, *, trials: int) -> Scores:
    """Return the scores of at least `trials` canaries per sign, from the models of trainings; raises NoiseFault."""
    target = Target.of(subject)
    slow, image = _slow(subject)
    images = (image * np.eye(_PIXELS)).reshape(_PIXELS, 1, _SIDE, _SIDE).astype(np.float32)
    shards = np.repeat(np.arange(_PIXELS)[:, None], subject.scenario.learning.batch_size or 1, axis=1)
    network = Network(input_shape=(1, _SIDE, _SIDE), classes=2)
    copies = DeviceCopies(subject=slow, device=subject.target_device, count=_PIXELS)
    rate = slow.plan.problem.learning.learning_rate
    divisors = np.array([_PIXELS * copies.at(index).alignment_coefficient for index in target.rounds])
    scale = np.sign(target.filters[:, 0]) * divisors / (rate * target.noise_std)
    per_round, in_total = [], []
    for repetition in range(math.ceil(2 * trials / _PIXELS)):
        signs = rng.choice((-1.0, 1.0), _PIXELS)
        labels = np.where(signs > 0, 0, 1)
        arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
        dataset = Dataset(name="canaries", **arrays, classes=2, sha256="")
        engine = engine_of(subject.scenario, network, dataset, shards, rate)
        present = np.flatnonzero(signs > 0) if subject.sensitivity == 1 else np.arange(_PIXELS)
        scripted = ScriptedEngine(engine.dimension, partial(_updates, engine, present))
        with closing(engine):
            training = slow.train(scripted, subject.noise(repetition), target.rounds, copies)
            models = np.stack([np.zeros(engine.dimension), *(done.parameters.astype(np.float64) for done in training)])
        steps = (models[:-1] - models[1:]) * scale[:, None]
        along = (steps[:, _PIXELS : 2 * _PIXELS] - steps[:, :_PIXELS]) / math.sqrt(2)  # label 0 lowers the other weight
        scores = (along - target.middle[:, None]) * signs
        per_round.append(scores[target.exposed].ravel())
        in_total.append(target.in_total(scores))
    return Scores(per_round=np.concatenate(per_round), in_total=np.concatenate(in_total), claimed=target.claimed)


def _slow(subject: Subject) -> tuple[Subject, float]:
    """Return the subject with a learning rate that keeps all logits small, and the value of a bright pixel."""
    plan = subject.plan
    sequence, clip = plan.sequence, max(1.0, plan.clip_norm)
    value = _BRIGHT * clip
    local = max(entry.local_steps for entry in sequence) * value
    released = plan.rounds * clip * (1 + 1 / float(sequence.mus.min()))  # the sum of updates and its noise, at most
    rate = _LARGEST_LOGIT / (value * (local + released))
    problem = plan.problem
    learning = replace(problem.learning, learning_rate=rate)
    return replace(subject, plan=replace(plan, problem=replace(problem, learning=learning))), value


def _updates(
    engine: Engine, present: NDArray[np.intp], parameters: NDArray[np.float32], steps: int, index: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
    """Return the updates of the devices that are present; the others are missing."""
    return engine.updates(parameters, present, steps=steps, round_index=index)


def _script(devices: NDArray[np.intp], canaries: NDArray[np.float32], codes: dict[int, NDArray[np.float32]]) -> Script:
    """Return the script of canaries, (m, d), each multiplied by its code in the round, (m, 1)."""
    return lambda parameters, steps, index: iter([(devices, codes[index] * canaries)])


def _quietest_code(noise: NDArray[np.float64], weights: Vector) -> Vector:
    """Return signs c_i that make the variance of Σ c_i w_i z_i small, one after the other, from noise z (n, I, m)."""
    code = np.ones(weights.size)
    lags = range(1, min(_MAX_LAG, weights.size - 1) + 1)
    covariance = [float(np.mean(noise[:, lag:] * noise[:, :-lag])) for lag in lags]
    for index in range(1, weights.size):
        before = (code * weights)[max(0, index - len(lags)) : index][::-1]
        code[index] = -1.0 if float(before @ covariance[: before.size]) > 0 else 1.0
    return code


def roc(scores: Vector, points: int = 101) -> tuple[Vector, Vector]:
    """Return (false positives, true positives) over thresholds; the scores of the other sign are −s."""
    thresholds = np.quantile(np.concatenate([scores, -scores]), np.linspace(0, 1, points))
    ordered = np.sort(scores)
    true = 1 - np.searchsorted(ordered, thresholds, side="left") / scores.size
    false = np.searchsorted(ordered, -thresholds, side="right") / scores.size
    return false, true


def parametric_bounds(scores: Vector, level: float) -> tuple[float, float]:
    """Return (lower, upper) bounds on μ, each wrong with probability `level`, for scores that are N(μ/2·s, s²).

    μ̂ = 2·mean/std has the standard error √((4 + μ²/2)/n); neither the amplitude nor the noise is assumed to be known.

    >>> low, high = parametric_bounds(np.random.default_rng(0).normal(0.25, 1.0, 200_000), 0.01)
    >>> 0.48 < low < 0.5 < high < 0.52
    True
    """
    count = scores.size
    if count < _MIN_SCORES:
        return 0.0, math.inf
    spread = float(np.std(scores, ddof=1))
    if spread == 0.0:
        return math.inf, math.inf
    estimate = 2.0 * float(np.mean(scores)) / spread
    error = math.sqrt((4.0 + estimate**2 / 2.0) / count)
    margin = -float(ndtri(level)) * error
    return max(0.0, estimate - margin), max(0.0, estimate + margin)


def guessing_bound(scores: Vector, level: float) -> float:
    """Return a lower bound on μ, wrong with probability `level`, for any distribution of the scores.

    Under μ-Gaussian-DP a sign is guessed correctly with probability at most Φ(μ/2): the Clopper-Pearson bound p gives
    μ ≥ 2Φ⁻¹(p).
    """
    if scores.size < _MIN_SCORES:
        return 0.0
    correct = int(np.count_nonzero(scores > 0))
    rate = betaincinv(correct, scores.size - correct + 1, level) if correct else 0.0
    return max(0.0, 2.0 * float(ndtri(rate)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the ε of μ-Gaussian-DP at δ to ten digits, independently of `airfed.privacy`.

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
