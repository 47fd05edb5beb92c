"""Lemma 2, Theorem 1, Corollary 1 and Theorem 2: the formulas, their limits, and that they hold in simulation."""

from itertools import permutations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import Learning
from airfed.bounds import (
    convex_gap,
    descent_bound,
    local_steps,
    mean_squared_gradient,
    noise_error,
    noise_free_gap,
    participation_error,
    round_offsets,
    round_scales,
)


def learning(**changes):
    given = {
        "dimension": 50,
        "total_steps": 24,
        "clip_norm": 1.7,
        "learning_rate": 0.1,
        "smoothness": 10.0,
        "strong_convexity": 0.4,
        "initial_gap": 3.0,
    }
    return Learning(**{**given, **changes})


def errors(num_scheduled=3, num_devices=5, alignment=0.3, noise_std=0.2):
    """The shortfall and the noise share of aligned devices."""
    return {"shortfall": 1 - num_scheduled / num_devices, "noise_share": noise_std / (num_scheduled * alignment)}


def gap(task, rounds, **changes):
    return convex_gap(task, rounds=rounds, **errors(**changes))


def recursion(task, steps, *, num_scheduled=3, num_devices=5, alignment=0.3, noise_std=0.2):
    """gap_{i+1} = η·gap_i + (ϖ²/ζ)[4(1−|K|/N)² + (E_i−1)² + dσ²/(2|K|²θ²)], round by round."""
    eta = 1 - task.strong_convexity / task.smoothness
    value = task.initial_gap
    for step in steps:
        error = 4 * (1 - num_scheduled / num_devices) ** 2
        error += (step - 1) ** 2
        error += task.dimension * noise_std**2 / (2 * num_scheduled**2 * alignment**2)
        value = eta * value + task.clip_norm**2 / task.smoothness * error
    return value


# Local steps


@given(total=st.integers(1, 500), data=st.data())
def test_local_steps_sum_to_the_total_the_longer_first(total, data):
    rounds = data.draw(st.integers(1, total))
    steps = local_steps(total, rounds)
    assert len(steps) == rounds
    assert sum(steps) == total
    assert min(steps) >= 1
    assert max(steps) - min(steps) <= 1
    assert list(steps) == sorted(steps, reverse=True)
    if total % rounds == 0:
        assert set(steps) == {total // rounds}


@pytest.mark.parametrize(("total", "rounds"), [(5, 0), (5, 6), (5, -1), (5, 2.0), (5, True), (0, 1), (5, None)])
def test_local_steps_out_of_range(total, rounds):
    with pytest.raises(ValueError, match=r"rounds|total_steps"):
        local_steps(total, rounds)


def test_the_longer_rounds_belong_first():
    task = learning(total_steps=11, strong_convexity=3.0)
    for rounds in range(2, 7):
        steps = local_steps(11, rounds)
        best = min(recursion(task, order) for order in set(permutations(steps)))
        assert gap(task, rounds).total == pytest.approx(best, rel=1e-13)


# Theorem 1


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 6, 8, 12, 24])
def test_theorem_1_is_the_printed_form_where_rounds_divide_the_steps(rounds):
    task = learning()
    eta, steps = 1 - 0.04, 24 // rounds
    weight = task.clip_norm**2 / task.strong_convexity * (1 - eta**rounds)
    bound = gap(task, rounds)
    assert bound.initial_gap == pytest.approx(eta**rounds * 3.0, rel=1e-13)
    assert bound.participation == pytest.approx(weight * 4 * (1 - 3 / 5) ** 2, rel=1e-12)
    assert bound.local_drift == pytest.approx(weight * (steps - 1) ** 2, rel=1e-12)
    assert bound.noise == pytest.approx(weight * 50 * 0.2**2 / (2 * 3**2 * 0.3**2), rel=1e-12)
    assert bound.total == sum(bound.terms.values())


@given(
    total=st.integers(1, 80),
    condition=st.floats(1.0, 1e6),
    clip=st.floats(1e-3, 1e3),
    start=st.floats(1e-3, 1e3),
    data=st.data(),
)
def test_theorem_1_is_the_recursion(total, condition, clip, start, data):
    rounds = data.draw(st.integers(1, total))
    task = learning(total_steps=total, clip_norm=clip, initial_gap=start, strong_convexity=10.0 / condition)
    assert gap(task, rounds).total == pytest.approx(recursion(task, local_steps(total, rounds)), rel=1e-11)


@given(total=st.integers(1, 40), seed=st.integers(0, 99))
def test_rounds_that_differ_are_the_recursion_too(total, seed):
    rng = np.random.default_rng(seed)
    rounds = int(rng.integers(1, total + 1))
    task, missing, noise = learning(total_steps=total), rng.random(rounds), rng.random(rounds)
    value, square = task.initial_gap, []
    for steps, m, share in zip(local_steps(total, rounds), missing, noise, strict=True):
        error = 4 * m**2 + (steps - 1) ** 2 + 0.5 * task.dimension * share**2
        value = 0.96 * value + task.clip_norm**2 / task.smoothness * error
        square.append(2 * task.clip_norm**2 * error)
    given = {"rounds": rounds, "shortfall": missing, "noise_share": noise}
    assert convex_gap(task, **given).total == pytest.approx(value, rel=1e-12)
    start = 2 * task.initial_gap / (task.learning_rate * rounds)
    assert mean_squared_gradient(task, **given).total == pytest.approx(start + np.mean(square), rel=1e-12)
    alike = {"rounds": rounds, "shortfall": np.full(rounds, 0.4), "noise_share": np.full(rounds, 0.2 / 0.9)}
    assert convex_gap(task, **alike).total == pytest.approx(gap(task, rounds).total, rel=1e-12)


def test_offsets_and_scales_are_theorem_1_for_all_rounds_at_once():
    task = learning(total_steps=37)
    rounds = np.arange(1, 38)
    inner = participation_error(2 / 5) + noise_error(task, 0.2 / 0.9)
    together = round_offsets(task, rounds) + round_scales(task, rounds) * inner
    np.testing.assert_allclose(together, [gap(task, int(number)).total for number in rounds], rtol=1e-14)


def test_a_small_drift_beside_a_large_gap_keeps_its_digits():
    # The drift must not be the difference of two large numbers: ten rounds of which one has a second step.
    task = learning(total_steps=11, initial_gap=1e12, clip_norm=1e-3, strong_convexity=5.0)
    expected = 1e-6 / 10.0 * 0.5**9  # (ϖ²/ζ) η^{I−1} (2−1)²
    assert gap(task, 10).local_drift == pytest.approx(expected, rel=1e-13)
    late = learning(total_steps=201, strong_convexity=9.0)
    assert gap(late, 200).local_drift == pytest.approx(1.7**2 / 10 * 0.1**199, rel=1e-12)


@pytest.mark.parametrize("ratio", [1e-3, 1e-8, 1e-12, 1e-15, 3e-17])
@pytest.mark.parametrize(("total", "rounds"), [(10, 7), (1_000_000, 300_000)])
def test_precision_where_the_contraction_is_close_to_one(ratio, total, rounds):
    task = learning(total_steps=total, smoothness=1.0, strong_convexity=ratio)
    with mpmath.workdps(60):
        eta = 1 - mpmath.mpf(ratio)
        short, longer = divmod(total, rounds)
        late = (1 - eta ** (rounds - longer)) / ratio
        early = eta ** (rounds - longer) * (1 - eta**longer) / ratio
        drift = mpmath.mpf(task.clip_norm) ** 2 * (late * (short - 1) ** 2 + early * short**2)
        noise = mpmath.mpf(task.clip_norm) ** 2 * (1 - eta**rounds) / ratio * float(noise_error(task, 0.2 / 0.9))
        start = eta**rounds * 3
    bound = gap(task, rounds)
    assert bound.initial_gap == pytest.approx(float(start), rel=1e-13)
    assert bound.local_drift == pytest.approx(float(drift), rel=1e-13)
    assert bound.noise == pytest.approx(float(noise), rel=1e-13)


def test_a_perfectly_conditioned_loss_forgets_everything_but_the_last_round():
    task = learning(strong_convexity=10.0, total_steps=10)  # ϱ = ζ: η = 0
    assert gap(task, 4).initial_gap == 0.0
    assert gap(task, 4).total == pytest.approx(recursion(task, local_steps(10, 4)), rel=1e-14)
    assert gap(task, 1).local_drift == pytest.approx(1.7**2 / 10 * 81, rel=1e-14)


def test_corollary_1_is_the_noise_free_limit():
    task = learning()
    full = gap(task, 24, num_scheduled=5, noise_std=0.0)
    assert (full.participation, full.local_drift, full.noise) == (0.0, 0.0, 0.0)
    assert full.total == noise_free_gap(task) == pytest.approx(0.96**24 * 3.0, rel=1e-13)
    barely = gap(task, 24, num_scheduled=5, alignment=1e100)
    assert barely.total == pytest.approx(full.total, rel=1e-14)


@pytest.mark.parametrize(
    ("name", "better", "worse"), [("num_scheduled", 4, 3), ("alignment", 0.4, 0.3), ("noise_std", 0.1, 0.2)]
)
def test_direction(name, better, worse):
    task = learning()
    for bound in (gap, lambda t, rounds, **c: gradient(t, rounds, **c)):
        assert bound(task, 7, **{name: better}).total < bound(task, 7, **{name: worse}).total


@pytest.mark.parametrize("rounds", [0, 25, 2.5])
def test_bad_rounds_are_named(rounds):
    for bound in (gap, gradient):
        with pytest.raises(ValueError, match="rounds"):
            bound(learning(), rounds)


# Theorem 2


def gradient(task, rounds, **changes):
    return mean_squared_gradient(task, rounds=rounds, **errors(**changes))


@pytest.mark.parametrize("rounds", [1, 5, 6, 24])
def test_theorem_2(rounds):
    task = learning()
    steps = np.array(local_steps(24, rounds))
    bound = gradient(task, rounds)
    assert bound.initial_gap == pytest.approx(2 * 3.0 / (0.1 * rounds), rel=1e-14)
    assert bound.participation == pytest.approx(1.7**2 * 8 * (1 - 3 / 5) ** 2, rel=1e-14)
    assert bound.local_drift == pytest.approx(1.7**2 * 2 * np.mean((steps - 1) ** 2), rel=1e-14)
    assert bound.noise == pytest.approx(1.7**2 * 50 * 0.2**2 / (9 * 0.3**2), rel=1e-14)
    assert bound.total == sum(bound.terms.values())


# Lemma 2


def test_lemma_2_terms():
    task = learning()
    terms = descent_bound(task, **errors(), steps=4, squared_gradient=2.0)
    nu = 0.3 / 1.7
    assert terms["descent"] == pytest.approx(-0.1, rel=1e-14)
    assert terms["participation"] == pytest.approx(4 * 0.1 * 1.7**2 * (1 - 3 / 5) ** 2, rel=1e-13)
    assert terms["local_drift"] == pytest.approx(0.1 * 1.7**2 * 9, rel=1e-14)
    assert terms["noise"] == pytest.approx(10.0 * 0.1**2 / 2 * 50 * 0.2**2 / (9 * nu**2), rel=1e-13)


def test_lemma_2_and_the_polyak_inequality_give_theorem_1():
    task = learning()
    before = 1.3
    terms = descent_bound(task, **errors(), steps=4, squared_gradient=2 * task.strong_convexity * before)
    after = recursion(learning(initial_gap=before), (4,))
    assert before + sum(terms.values()) == pytest.approx(after, rel=1e-13)


def test_lemma_2_needs_a_small_learning_rate():
    with pytest.raises(ValueError, match="learning_rate"):
        descent_bound(learning(learning_rate=0.11), **errors(), steps=1, squared_gradient=1.0)


# Validity: noisy FedAvg on strongly convex quadratics, L_k(w) = ½ (w − b_k)ᵀ A (w − b_k), known ζ, ϱ, G and τ = 1/ζ.
# ϖ is taken from the simulation itself: the largest gradient of a local step, or accumulated upload of a round, that
# any device had in any of the runs. With it the clip never acts and the assumption holds along every trajectory.

SEEDS = 400
NUM_DEVICES, DIMENSION, TOTAL_STEPS = 6, 8, 12


class Quadratics:
    """Six devices with one curvature and centres of their own."""

    def __init__(self, heterogeneity, start=3.0):
        rng = np.random.default_rng(0)
        self.curvature = np.geomspace(0.5, 4.0, DIMENSION)  # ϱ and ζ are its ends
        self.centres = heterogeneity * rng.normal(size=(NUM_DEVICES, DIMENSION))
        self.start = start * np.ones(DIMENSION)

    def loss_gap(self, model):
        return 0.5 * np.sum(self.curvature * (model - self.centres.mean(axis=0)) ** 2, axis=-1)

    def gradient(self, model):
        return self.curvature * (model - self.centres.mean(axis=0))

    def run(self, *, scheduled, rounds, relative_noise, clip=None):
        """Train SEEDS models side by side; the noise on the mean upload has std `relative_noise` in each coordinate.

        Returns the gap and the squared gradient before each round and at the end, and the largest norm met.
        """
        tau = 1 / self.curvature.max()
        rng = np.random.default_rng(1)
        model = np.tile(self.start, (SEEDS, 1))
        gaps, squares, largest = [], [], 0.0
        for steps in local_steps(TOTAL_STEPS, rounds):
            gaps.append(self.loss_gap(model))
            squares.append(np.sum(self.gradient(model) ** 2, axis=-1))
            largest = max(largest, self._norm(self.curvature * (model[:, None] - self.centres)))
            local = np.repeat(model[:, None], len(scheduled), axis=1)
            upload = np.zeros_like(local)
            for _ in range(steps):
                step = self.curvature * (local - self.centres[scheduled])
                largest = max(largest, self._norm(step))
                upload += step
                local = local - tau * step
            largest = max(largest, self._norm(upload))
            if clip is not None:
                upload *= np.minimum(1.0, clip / np.linalg.norm(upload, axis=-1, keepdims=True))
            noise = relative_noise * rng.normal(size=model.shape)
            model = model - tau * (upload.mean(axis=1) + noise)
        gaps.append(self.loss_gap(model))
        return np.array(gaps), np.array(squares), largest

    @staticmethod
    def _norm(vectors):
        return float(np.linalg.norm(vectors, axis=-1).max())


@pytest.mark.parametrize("rounds", [1, 3, 5, 12])
@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("relative_noise", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.7])
def test_noisy_federated_averaging_stays_under_the_bounds(rounds, size, relative_noise, heterogeneity):
    task = Quadratics(heterogeneity)
    gaps, squares, largest = task.run(scheduled=np.arange(size), rounds=rounds, relative_noise=relative_noise)
    constants = Learning(
        dimension=DIMENSION,
        total_steps=TOTAL_STEPS,
        clip_norm=largest,
        learning_rate=1 / 4.0,
        smoothness=4.0,
        strong_convexity=0.5,
        initial_gap=float(task.loss_gap(task.start)),
    )
    # noise on the mean upload is σ/(|K|ν) = σϖ/(|K|θ)
    alignment = 0.3
    noise_std = relative_noise * size * alignment / largest
    result = errors(size, NUM_DEVICES, alignment, noise_std)
    five_sigma = 5 / np.sqrt(SEEDS)

    # Theorem 1, on the mean over 400 seeds (with five standard errors of that mean to spare)
    final = gaps[-1]
    bound = convex_gap(constants, rounds=rounds, **result)
    assert final.mean() + five_sigma * final.std() <= bound.total
    if heterogeneity == 0.0 and size == NUM_DEVICES and rounds == TOTAL_STEPS and relative_noise == 0.0:
        assert bound.total == pytest.approx(noise_free_gap(constants), rel=1e-12)

    # Theorem 2
    average = squares.mean(axis=0)
    assert (
        average.mean() + five_sigma * average.std() <= mean_squared_gradient(constants, rounds=rounds, **result).total
    )

    # Lemma 2, round by round
    for index, steps in enumerate(local_steps(TOTAL_STEPS, rounds)):
        change = gaps[index + 1] - gaps[index]
        terms = descent_bound(constants, steps=steps, squared_gradient=squares[index].mean(), **result)
        assert change.mean() <= sum(terms.values()) + five_sigma * change.std() + 1e-12


def test_the_simulation_would_notice_a_bound_without_its_noise_term():
    task = Quadratics(0.0, start=0.5)
    gaps, _, largest = task.run(scheduled=np.arange(6), rounds=12, relative_noise=1.0)
    constants = learning(
        dimension=DIMENSION,
        total_steps=TOTAL_STEPS,
        clip_norm=largest,
        smoothness=4.0,
        learning_rate=0.25,
        strong_convexity=0.5,
        initial_gap=float(task.loss_gap(task.start)),
    )
    assert gaps[-1].mean() > noise_free_gap(constants)


def test_a_clip_that_acts_only_lowers_the_upload():
    # With like devices and one step a round, clipping shortens the step and keeps its direction: the loss still falls
    # in every round, only more slowly. The bounds assume that the clip does not act.
    task = Quadratics(0.0)
    _, _, largest = task.run(scheduled=np.arange(6), rounds=12, relative_noise=0.0)
    gaps, _, _ = task.run(scheduled=np.arange(6), rounds=12, relative_noise=0.0, clip=0.5 * largest)
    assert np.all(np.diff(gaps.mean(axis=1)) < 0)
    unclipped, _, _ = task.run(scheduled=np.arange(6), rounds=12, relative_noise=0.0)
    assert gaps[-1].mean() > unclipped[-1].mean()
