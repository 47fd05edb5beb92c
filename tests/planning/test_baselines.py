"""Baselines: their limits, their privacy, and the statements of their papers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, optimize

import airfed
import oracle
from airfed import Fleet, InfeasibleError, Link, Plan
from airfed.baselines import Digital, FedAvg, SecureAggregation, TruncatedInversion
from airfed.baselines.threshold_power import _denoising_factor
from airfed.planning import limits
from airfed.planning.method import OVER_THE_AIR
from airfed.policies import METHODS
from airfed.privacy import gaussian_epsilon
from problems import gains, make


@pytest.mark.parametrize("policy", ["truncated_inversion", "threshold_power", "liu_simeone", "full"])
@pytest.mark.parametrize("air_time", [None, 0.3])
def test_rounds_of_time_varying_channels_share_the_csi_failure_probability(policy, air_time):
    """The union bound covers all rounds with gains, both in the claim of a plan and in its planning."""
    samples = gains(9, 4, 8, 6)
    problem = make(gains(5, 8, 6), bandwidth=1000.0, scope="total", epsilon=8.0, air_time=air_time)
    problem = replace(problem, link=replace(problem.link, csi_error=0.01))
    plan = airfed.plan(problem, policy=policy, samples=samples, rounds=6)
    factors = limits.amplifications(problem)
    for index, entry in enumerate(plan.sequence):
        mu = problem.budget.sensitivity * entry.alignment * factors[index, entry.scheduled].max() / 0.3
        assert entry.mu == pytest.approx(mu, rel=1e-9)
    assert not plan.violations
    assert plan.mu_total <= limits.allowed_mu(problem.budget) * (1 + 1e-12)
    later = np.array(problem.fleet.gain)
    later[3:] *= np.linspace(0.1, 2.0, 6)  # no result evaluations ahead
    there = replace(problem, fleet=Fleet(gain=later, peak_power=1.0))
    other = airfed.plan(there, policy=policy, samples=samples, rounds=6)
    assert plan.amplitudes.level[:3].tolist() == other.amplitudes.level[:3].tolist()


@pytest.mark.parametrize("changes", [False, True])
def test_adaptive_power_against_the_combined_signal_uses_effective_gains(changes):
    rng = np.random.default_rng(4)
    channel = rng.normal(size=(8, 6, 4)) + 1j * rng.normal(size=(8, 6, 4))
    problem = make(scope="total", epsilon=2.0, total_power=1e3)
    fleet = Fleet(channel=channel if changes else channel[0], peak_power=1.0)
    problem = replace(problem, fleet=fleet, link=Link(noise_std=0.3, adversary="combined"))
    plan = airfed.plan(problem, policy="liu_simeone")
    effective = replace(problem, fleet=Fleet(gain=plan.problem.fleet.gain, peak_power=1.0))
    alone = airfed.plan(effective, policy="liu_simeone", rounds=plan.rounds)
    np.testing.assert_allclose(plan.amplitudes.level, alone.amplitudes.level, rtol=1e-12)


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_baselines_of_full_participation_have_the_beamformer_of_full(adversary):
    """Two methods have equal amplitudes, and a third has at least those."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        channel = rng.normal(size=(20, 4)) + 1j * rng.normal(size=(20, 4))
        problem = replace(
            make(), fleet=Fleet(channel=channel, peak_power=1.0), link=Link(noise_std=0.3, adversary=adversary)
        )
        full = airfed.plan(problem, policy="full").bound.total
        for policy, options in (("liu_simeone", {}), ("cotaf", {"clipped": True}), ("threshold_power", {})):
            bound = airfed.plan(problem, policy=policy, options=options).bound.total
            assert bound <= full * (1 + 1e-3), policy


# the trusted server, and digital uploads


def test_a_trusted_server_adds_the_noise_of_the_gaussian_mechanism():
    plan = airfed.plan(make(scope="total", epsilon=3.0), policy="dp_fedavg")
    mu = limits.allowed_mu(plan.problem.budget) / math.sqrt(plan.rounds)
    assert plan.noise_share == pytest.approx(2 / (plan.problem.fleet.num_devices * mu), rel=1e-9)
    assert plan.power_total == 0.0
    assert plan.channel_uses == 0.0
    strong = make(gain=np.full(8, 50.0), total_power=1e9, scope="total", epsilon=3.0)  # power does not bind
    full = airfed.plan(strong, policy="full", rounds=plan.rounds)
    assert full.noise_share == pytest.approx(plan.noise_share, rel=1e-9)


def test_local_noise_has_as_many_times_the_variance_as_there_are_devices():
    problem = make(gains(1, 30), scope="total", epsilon=3.0)
    central = airfed.plan(problem, policy="dp_fedavg", rounds=4)
    fine = airfed.plan(problem, policy="digital", rounds=4, options={"bits": 40})
    assert fine.mu_total == pytest.approx(central.mu_total, rel=1e-12)
    assert fine.noise_share**2 == pytest.approx(30 * central.noise_share**2, rel=1e-9)
    coarse = airfed.plan(problem, policy="digital", rounds=4, options={"bits": 2})
    step = 2 * (1 + 6 * 0.3 / coarse.alignment) / 3  # Δ/ϖ, in 2² − 1 steps
    assert coarse.noise_share**2 == pytest.approx(fine.noise_share**2 + step**2 / 12 / 30, rel=1e-9)
    assert coarse.mu_total == fine.mu_total


def test_secure_aggregation_has_the_noise_of_a_trusted_server():
    problem = make(gains(1, 30), scope="total", epsilon=3.0)
    central = airfed.plan(problem, policy="dp_fedavg", rounds=4)
    fine = airfed.plan(problem, policy="secure_aggregation", rounds=4, options={"bits": 48})
    assert fine.noise_share == pytest.approx(central.noise_share, rel=1e-9)
    coarse = airfed.plan(problem, policy="secure_aggregation", rounds=4, options={"bits": 10})
    assert coarse.noise_share > 1.01 * fine.noise_share
    for plan in (fine, coarse):
        assert plan.epsilon_total <= 3.0
        assert plan.mu_total == pytest.approx(central.mu_total, rel=1e-9)
    with pytest.raises(InfeasibleError, match="more bits"):
        airfed.plan(problem, policy="secure_aggregation", rounds=4, options={"bits": 4})
    with pytest.raises(ValueError, match="bits must be at most 64"):
        airfed.plan(problem, policy="secure_aggregation", options={"bits": 65})


@pytest.mark.parametrize("bits", [12, 16, 20])
def test_the_noise_of_one_device_is_at_least_two_steps_at_the_planned_amplitude(bits):
    # Otherwise discrete Gaussian noise is almost always 0, and no ε holds. The step grows with θ.
    problem = make(np.ones(1000), noise=1.0, dimension=100, epsilon=50.0, total_power=1e3)
    plan = airfed.plan(problem, policy="secure_aggregation", rounds=1, options={"bits": bits})
    step = 12 * math.hypot(1000 * plan.alignment / math.sqrt(100), 1.0) / 2**bits
    assert 1 / math.sqrt(1000) >= 2 * step * (1 - 1e-12)
    assert (plan.epsilon_total == pytest.approx(50.0, rel=1e-2)) == (bits == 20)


def test_rounding_at_random_stays_within_the_norm_that_is_counted():
    rng, dimension, share = np.random.default_rng(5), 400, 0.3
    problem = make(gains(2, 12), dimension=dimension, noise=share * math.sqrt(12), epsilon=50.0)
    plan = airfed.plan(problem, policy="secure_aggregation", rounds=2, options={"bits": 8})
    step = 12 * math.hypot(12 * plan.alignment / math.sqrt(dimension), problem.link.noise_std) / 2**8
    seen = plan.alignment * problem.link.noise_std / plan.sequence.signal(0).privacy_noise_std
    norms, errors = [], []
    for _ in range(2000):
        update = rng.normal(size=dimension)
        update *= plan.alignment / np.linalg.norm(update)
        rounded = step * (np.floor(update / step) + (rng.random(dimension) < update / step % 1))
        norms.append(np.linalg.norm(rounded))
        errors.append(np.mean(np.square(rounded - update)))
    kept = np.array(norms) <= seen  # a device repeats the others
    assert np.mean(kept) >= 1 - math.exp(-0.5)
    most = step**2 / (4 * (1 - math.exp(-0.5)))
    assert np.mean(np.array(errors)[kept]) <= most
    added = plan.sequence.signal(0).noise_std ** 2 - problem.link.noise_std**2
    assert added == pytest.approx(12 * most, rel=1e-9)


@pytest.mark.parametrize(("devices", "steps", "delta"), [(1, 3, 1e-5), (1, 5, 1e-3), (2, 2, 1e-5), (3, 1, 1e-5)])
def test_the_epsilon_of_secure_aggregation_holds_for_noise_on_a_lattice(devices, steps, delta):
    """δ of the discrete Gaussian by its sum: two updates of one entry that are 2·`steps` multiples of γ apart."""
    problem = make(np.ones(devices), noise=1.0, dimension=1)

    def step(theta):
        return 12 * math.hypot(devices * theta, 1.0) / 2**6

    def longest(theta):  # the largest norm of a rounded update, in multiples of γ
        return math.sqrt((theta / step(theta)) ** 2 + theta / step(theta) + 0.75)

    theta = optimize.brentq(lambda theta: longest(theta) - steps, 1e-9, 1e3)
    assert 2 * step(theta) <= 1 / math.sqrt(devices)  # as in a plan
    row = np.full(devices, theta)
    signal = SecureAggregation(bits=6).signal(problem, gain=row, peak_power=row, amplitude=row, rounds=1)
    epsilon = gaussian_epsilon(2 * theta / signal.privacy_noise_std, delta)
    points = np.arange(-2000, 2000)
    here, there = (np.exp(-0.5 * np.square((points - shift) * step(theta))) for shift in (0, 2 * steps))
    assert 0.9 * delta < np.sum(np.maximum(there - math.exp(epsilon) * here, 0)) / here.sum() <= delta


def test_dithered_quantisation_has_the_error_that_is_counted():
    rng = np.random.default_rng(3)
    values, step = rng.normal(size=200_000), 0.7
    dither = rng.uniform(-step / 2, step / 2, values.size)
    error = np.rint((values + dither) / step) * step - dither - values
    assert np.var(error) == pytest.approx(step**2 / 12, rel=0.02)
    assert abs(np.corrcoef(error, values)[0, 1]) < 0.01


@pytest.mark.parametrize("access", ["tdma", "ofdma"])
def test_digital_latency_is_shannons(access):
    problem = make(gain=[0.5, 1.0, 2.0], bandwidth=1000.0, total_power=6.0)
    plan = airfed.plan(problem, policy="digital", rounds=4, options={"bits": 6, "access": access})
    power = 6.0 / 4 / 3
    snr = power * np.square([0.5, 1.0, 2.0]) / (50 * 2 * 0.3**2)  # in a symbol of the whole band, both its dimensions
    if access == "tdma":
        seconds = np.sum(6 * 50 / (1000 * np.log2(1 + snr)))
    else:
        seconds = np.max(6 * 50 / (1000 / 3 * np.log2(1 + 3 * snr)))
    assert plan.air_time == pytest.approx(4 * seconds, rel=1e-12)
    np.testing.assert_allclose(plan.power, power, rtol=1e-12)


# threshold power control


def mean_squared_error(root_eta, level, problem):
    sent = np.minimum(root_eta, level)
    return np.sum((sent / root_eta - 1) ** 2) / problem.learning.dimension + (problem.link.noise_std / root_eta) ** 2


@pytest.mark.parametrize("seed", range(8))
def test_the_closed_form_of_the_threshold_is_the_least_error(seed):
    rng = np.random.default_rng(seed)
    problem = make(noise=10.0 ** rng.uniform(-2, 0.5), dimension=int(rng.integers(1, 100)))
    level = rng.uniform(0.05, 2.0, rng.integers(1, 9))
    best = optimize.minimize_scalar(
        lambda log: mean_squared_error(math.exp(log), level, problem), bounds=(-6, 12), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    found = mean_squared_error(_denoising_factor(level, problem), level, problem)
    assert found <= best.fun * (1 + 1e-9)


def test_threshold_power_lets_the_weak_count_less():
    problem = make(gain=[0.1, 1.0, 1.1, 1.2], noise=0.05, dimension=10, epsilon=1e4, total_power=1e3)
    plan = airfed.plan(problem, policy="threshold_power", rounds=4)
    signal = plan.sequence.signal(0)
    assert signal.amplitude[0] == pytest.approx(0.1)  # at its peak power
    assert signal.transmit_amplitude[0] == pytest.approx(1.0)
    assert np.ptp(signal.amplitude[1:]) == 0.0  # the others invert
    assert signal.amplitude[1] == pytest.approx((10 * 0.05**2 + 0.1**2) / 0.1)  # by hand: j = 1 has the least error
    assert signal.divisor == pytest.approx(signal.amplitude.sum())
    full = airfed.plan(problem, policy="full", rounds=4)
    assert full.alignment == pytest.approx(0.1, rel=1e-9)  # all devices are aligned with the weakest


def test_equal_channels_leave_nothing_to_do_for_thresholds():
    problem = make(gain=np.full(5, 0.7), noise=0.05, dimension=10, epsilon=50.0)
    full, theirs = (airfed.plan(problem, policy=name, rounds=4) for name in ("full", "threshold_power"))
    assert theirs.alignment <= full.alignment * (1 + 1e-9)
    assert theirs.participation == pytest.approx(1.0)


def test_an_unreachable_device_has_no_influence():
    plan = airfed.plan(make(gain=[0.0, 0.5, 1.0]), policy="threshold_power")
    assert plan.amplitude[:, 0].max() == 0.0
    oracle.check(plan)
    with pytest.raises(InfeasibleError, match="every gain is 0"):
        airfed.plan(make(gain=[0.0, 0.0]), policy="threshold_power")
    for policy in ("digital", "artificial_noise", "cotaf", "liu_simeone"):
        with pytest.raises(InfeasibleError, match="gain 0"):
            airfed.plan(make(gain=[0.0, 0.5, 1.0], scope="total"), policy=policy)


# truncated inversion


def test_truncation_spends_the_average_power_of_rayleigh_fading():
    cutoff, mean, average = 0.3, 1.7, 0.02
    problem = make(gain=np.full(100, 10.0), total_power=average * 100 * 4, epsilon=1e6)
    method = TruncatedInversion(cutoff=cutoff, mean_square=mean)
    rho = method.limits(problem, np.arange(100), 4)["total_power"] ** 2
    spent, _ = integrate.quad(lambda square: rho / square * math.exp(-square / mean) / mean, cutoff * mean, math.inf)
    assert spent == pytest.approx(average, rel=1e-9)


def test_truncation_excludes_weak_devices_and_takes_the_best_cutoff():
    problem = make(gains(2, 40), steps=20)
    mean = np.mean(np.square(problem.fleet.gain))
    plan = airfed.plan(problem, policy="truncated_inversion", options={"cutoff": 0.5})
    assert plan.scheduled.tolist() == np.flatnonzero(np.square(problem.fleet.gain) >= 0.5 * mean).tolist()
    best = airfed.plan(problem, policy="truncated_inversion").bound.total
    for cutoff in (0.01, 0.1, 0.5, 1.0):
        assert best <= airfed.plan(problem, policy="truncated_inversion", options={"cutoff": cutoff}).bound.total * 1.05
    with pytest.raises(ValueError, match="cutoff"):
        airfed.plan(problem, policy="truncated_inversion", options={"cutoff": -1.0})


# Liu and Simeone


def test_adaptive_power_is_the_optimum_of_their_problem():
    rng = np.random.default_rng(4)
    for _ in range(5):
        problem = make(gains(rng.integers(99), 6, 3), steps=6, convexity=8.0, scope="total", epsilon=4.0)
        plan = airfed.plan(problem, policy="liu_simeone", rounds=6)
        ceiling = np.minimum(
            np.min(np.square(problem.fleet.gain), axis=1), 18.0 / 6 / np.sum(1 / np.square(problem.fleet.gain), axis=1)
        )
        budget = (0.3 * limits.allowed_mu(problem.budget) / 2) ** 2
        weights = problem.learning.contraction ** np.arange(5, -1, -1)
        start = np.minimum(ceiling, budget / 6) * 0.9
        found = optimize.minimize(
            lambda logs, w=weights: math.log(np.sum(w / np.exp(logs))),
            np.log(start),
            bounds=[(None, math.log(each)) for each in ceiling],
            constraints={"type": "ineq", "fun": lambda logs, b=budget: math.log(b) - math.log(np.exp(logs).sum())},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert math.log(np.sum(weights / np.square(plan.amplitudes.level))) == pytest.approx(found.fun, abs=1e-6)


def test_without_a_peak_the_power_grows_as_their_paper_has_it():
    problem = make(gain=np.full(4, 100.0), scope="total", epsilon=4.0, convexity=5.0)
    plan = airfed.plan(problem, policy="liu_simeone", rounds=8)
    growth = np.square(plan.amplitudes.level[1:] / plan.amplitudes.level[:-1])
    np.testing.assert_allclose(growth, problem.learning.contraction ** (-1 / 2), rtol=1e-9)
    static = airfed.plan(problem, policy="liu_simeone", rounds=8, options={"variant": "static"})
    assert static.constant
    assert static.alignment == airfed.plan(problem, policy="full", rounds=8).alignment
    # their gain: with ϱ/ζ = 0.907 adaptive power leaves some 16 times less noise than static
    weight_ratio = make(gain=np.full(4, 100.0), scope="total", epsilon=4.0, convexity=9.07, steps=30)
    noise = [
        airfed.plan(weight_ratio, policy="liu_simeone", rounds=30, options={"variant": name}).bound.noise
        for name in ("static", "adaptive")
    ]
    assert 14 < noise[0] / noise[1] < 18


def test_samples_of_the_true_gains_are_as_good_as_the_gains():
    problem = make(gains(5, 8, 6), scope="total", epsilon=8.0)
    known = airfed.plan(problem, policy="liu_simeone", rounds=8)
    sampled = airfed.plan(problem, policy="liu_simeone", rounds=8, samples=np.array(problem.fleet.gain)[None])
    np.testing.assert_allclose(sampled.amplitudes.level, known.amplitudes.level, rtol=1e-6)


def test_spending_depends_on_no_later_gain_to_the_last_digit():
    samples = gains(9, 4, 30, 6)
    problem = make(gains(5, 30, 6), power=100.0, steps=30, scope="total", epsilon=0.3, total_power=1e4)
    plan = airfed.plan(problem, policy="liu_simeone", rounds=20, samples=samples)
    assert plan.binding == "privacy"
    for factor in (0.3, 0.7, 1.7):
        later = np.array(problem.fleet.gain)
        later[6:] *= factor
        there = replace(problem, fleet=Fleet(gain=later, peak_power=100.0))
        other = airfed.plan(there, policy="liu_simeone", rounds=20, samples=samples)
        assert plan.amplitudes.level[:6].tolist() == other.amplitudes.level[:6].tolist()


# artificial noise, precoding


def test_artificial_noise_hides_and_is_paid_for():
    problem = make(gain=[0.9, 1.0, 1.2], noise=0.1, dimension=5, epsilon=0.3, total_power=12.0)
    plan = airfed.plan(problem, policy="artificial_noise", rounds=4)
    signal = plan.sequence.signal(0)
    assert signal.power.sum() == pytest.approx(3.0, rel=1e-9)
    received = 0.01 + np.sum(np.square([0.9, 1.0, 1.2]) * signal.constant_power) / 5
    assert signal.noise_std == signal.privacy_noise_std == pytest.approx(math.sqrt(received), rel=1e-12)
    assert plan.mu_round == pytest.approx(limits.allowed_mu(problem.budget), rel=1e-9)
    plain = airfed.plan(problem, policy="full", rounds=4)
    assert plan.alignment > 2 * plain.alignment  # more signal,
    assert plan.noise_share == pytest.approx(plain.noise_share, rel=1e-9)  # no better mean
    assert plan.power_total > 5 * plain.power_total


def test_artificial_noise_never_improves_the_mean():
    """docs/baselines.md: the noise of the mean is at least that of "full", and larger where peak power limits θ."""
    for power, epsilon in itertools.product((0.01, 0.3, 12.0), (0.3, 3.0, 30.0)):
        problem = make(gain=[0.9, 1.0, 1.2], noise=0.1, dimension=5, epsilon=epsilon, total_power=power)
        noisy, plain = (airfed.plan(problem, policy=name, rounds=4) for name in ("artificial_noise", "full"))
        limited = noisy.alignment == pytest.approx(0.9)  # of the weakest device
        assert limited == ((power, epsilon) == (12.0, 30.0))
        assert noisy.noise_share / plain.noise_share == pytest.approx(
            1.24 if limited else 1, rel=2e-3 if limited else 1e-9
        )


def test_a_device_that_omits_its_artificial_noise_weakens_the_others():
    """The numbers of docs/privacy.md."""
    powers = np.array([4.0, 0.5, 0.5])
    problem = make([2.0, 0.4, 0.3], power=powers, noise=0.1, dimension=5, epsilon=1.0, total_power=20.0)
    plan = airfed.plan(problem, policy="artificial_noise", rounds=4)
    square, omitted = (
        plan.sequence.signal(0).privacy_noise_std ** 2,
        plan.sequence.signal(0).constant_power[0] * 2.0**2 / 5,
    )
    assert (round(square, 2), round(omitted, 2)) == (3.21, 3.19)
    assert round(plan.mu_round, 2) == 0.24
    assert round(2 * plan.alignment / math.sqrt(square - omitted), 2) == 3.25


def test_precoding_by_the_largest_update_is_full_participation_once_clipped():
    problem = make()
    clipped = airfed.plan(problem, policy="cotaf", options={"clipped": True})
    full = airfed.plan(problem, policy="full")
    assert (clipped.alignment, clipped.rounds, clipped.method) == (full.alignment, full.rounds, OVER_THE_AIR)
    assert not airfed.plan(problem, policy="cotaf").private


# time


def test_time_on_the_air_is_a_budget():
    problem = make(bandwidth=50.0, iq=False, steps=8)
    every = {rounds: airfed.plan(problem, rounds=rounds) for rounds in range(1, 9)}
    assert every[3].channel_uses == 150.0
    assert every[3].air_time == 3.0
    best = min(every, key=lambda rounds: every[rounds].bound.total)
    assert best > 3
    for policy in (
        "optimal",
        "full",
        "paper",
        "top_k",
        "artificial_noise",
        "threshold_power",
        "truncated_inversion",
        "liu_simeone",
    ):
        for scope in ("round", "total"):
            limited = make(bandwidth=50.0, iq=False, steps=8, air_time=3.5, scope=scope)
            plan = airfed.plan(limited, policy=policy)
            assert plan.rounds <= 3
            free = [airfed.plan(limited, policy=policy, rounds=rounds).bound.total for rounds in (1, 2, 3)]
            if policy != "paper":
                assert plan.bound.total <= min(free) * (1 + 1e-9)
            with pytest.raises(InfeasibleError, match="air_time"):
                airfed.plan(limited, policy=policy, rounds=4)
    changing = make(gains(5, 8, 6), bandwidth=50.0, iq=False, air_time=3.5)
    for policy in ("optimal", "myopic", "full", "artificial_noise"):
        for samples in (None, gains(9, 4, 8, 6), lambda seen: gains(9, 4, 8, 6)[:, len(seen) :]):
            assert airfed.plan(changing, policy=policy, samples=samples).rounds <= 3
            with pytest.raises(InfeasibleError, match="air_time"):
                airfed.plan(changing, policy=policy, samples=samples, rounds=4)
    with pytest.raises(InfeasibleError, match="air_time"):
        airfed.plan(make(bandwidth=50.0, iq=False, air_time=0.5))
    with pytest.raises(InfeasibleError, match="air_time"):
        airfed.plan(make(bandwidth=50.0, iq=False, air_time=5.0), policy="digital")
    assert airfed.plan(make(bandwidth=50.0, iq=False, air_time=5.0), policy="dp_fedavg").rounds >= 1  # no air at all
    with pytest.raises(ValueError, match="bandwidth"):
        make(air_time=3.0)


# what is written down


@pytest.mark.parametrize(
    "record",
    [None, {}, "air", {"name": "smoke"}, {"name": "fedavg", "bits": 3}, {"name": "digital", "bits": 0}, {"bits": 3}],
)
def test_an_unknown_method_is_refused(record):
    plan = airfed.plan(make(), policy="digital", rounds=4)
    with pytest.raises(ValueError, match=r"(method|bits) must "):
        Plan.from_dict(plan.problem, plan.to_dict() | {"method": record}, METHODS)
    with pytest.raises(ValueError, match="method must be one of over_the_air; got"):
        Plan.from_dict(plan.problem, plan.to_dict())
    assert METHODS["digital"](bits=3, access="ofdma").to_dict() == {"name": "digital", "bits": 3, "access": "ofdma"}
    assert FedAvg() == FedAvg() != Digital()


def test_a_word_is_no_switch():
    with pytest.raises(ValueError, match="clipped must be true or false, got 'no'"):
        airfed.plan(make(), policy="cotaf", options={"clipped": "no"})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("policy", ["cotaf", "artificial_noise"])
def test_an_unreachable_device_is_named_also_with_little_air_time(policy):
    with pytest.raises(InfeasibleError, match="device 1 has gain 0"):
        airfed.plan(make([1.0, 0.0, 0.5], bandwidth=100.0, air_time=50.0), policy=policy)
