"""Receive beamforming: the beamformer of a plan, the two adversaries, and the lower bound over all beamformers."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import problems
from airfed import Fleet, InfeasibleError, Plan, antennas, bounds, plan
from airfed.planning import beamforming, limits
from airfed.policies import METHODS
from airfed.privacy import gaussian_epsilon

LEARNING = problems.make(dimension=200, steps=12, clip=1.0, convexity=2.0).learning


def draw(rng, *shape):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / math.sqrt(2)


def make_problem(channel, *, peak_power=1.0, noise_std=0.1, learning=LEARNING, **rest):
    given = {"adversary": "all_antennas", "delta": 1e-5, "total_power": 100.0, "scope": "total"} | rest
    made = problems.make(channel=channel, power=peak_power, noise=noise_std, **given)
    return replace(made, learning=learning)


def random_scenario(rng, devices=None, adversary=None):
    """A scenario of two antennas in which each limit binds in some."""
    number = int(rng.integers(2, 9)) if devices is None else devices
    learning = replace(
        LEARNING, dimension=int(rng.integers(2, 300)), strong_convexity=float(10 ** rng.uniform(-1, 0.9))
    )
    return make_problem(
        draw(rng, number, 2) * 10 ** rng.uniform(-0.5, 0.5, (number, 1)),
        adversary=adversary or str(rng.choice(["all_antennas", "combined"])),
        peak_power=10 ** rng.uniform(-1, 1, number),
        noise_std=float(10 ** rng.uniform(-2, 0)),
        learning=learning,
        epsilon=float(10 ** rng.uniform(-0.5, 1.5)),
        total_power=float(10 ** rng.uniform(-0.5, 2.5)),
        scope=str(rng.choice(["round", "total"])),
    )


def least_on_a_grid(problem, fineness):
    """The smallest bound over a grid of f, all sets of devices and all I, straight from the formulas."""
    channel, learning, power = problem.fleet.channel, problem.learning, problem.fleet.peak_power
    angle = np.linspace(0, np.pi / 2, fineness)[:, None]
    turn = np.exp(1j * np.linspace(0, 2 * np.pi, 2 * fineness, endpoint=False))
    beamformer = np.stack((np.cos(angle) * np.ones_like(turn), np.sin(angle) * turn), axis=-1).reshape(-1, 2)
    square = np.abs(np.conj(beamformer) @ channel.T) ** 2
    norm = np.sum(np.abs(channel) ** 2, axis=1)
    rounds = np.arange(1, learning.total_steps + 1)
    cap = problem.link.noise_std * limits.allowed_mu(problem.budget) / 2 * np.ones(rounds.shape)
    if problem.budget.scope == "total":
        cap = cap / np.sqrt(rounds)
    offset, scale = (each(learning, rounds) for each in (bounds.round_offsets, bounds.round_scales))
    best = np.inf
    for size in range(1, len(channel) + 1):
        for chosen in map(list, itertools.combinations(range(len(channel)), size)):
            effective = square[:, chosen]
            with np.errstate(divide="ignore"):
                seen = (
                    np.max(norm[chosen] / effective, axis=1)
                    if problem.link.adversary == "all_antennas"
                    else np.ones(len(effective))
                )
                theta = np.minimum(cap**2 / seen[:, None], np.min(effective * power[chosen], axis=1)[:, None])
                watts = problem.budget.total_power / np.sum(1 / effective, axis=1)
                theta = np.minimum(theta, watts[:, None] / rounds)
                noise = 0.5 * learning.dimension * problem.link.noise_std**2 / (size**2 * theta)
            best = min(best, float(np.min(offset + scale * (4 * (1 - size / len(channel)) ** 2 + noise))))
    return best


def check_against_the_grid(cases, seed, fineness):
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        problem = random_scenario(rng)
        result, best = plan(problem), least_on_a_grid(problem, fineness)
        assert result.bound.total <= best * 1.01
        assert result.lower_bound <= min(best, result.bound.total) * (1 + 1e-9)
        assert result.violations == ()


def test_no_beamformer_of_a_dense_grid_is_better():
    check_against_the_grid(cases=6, seed=3, fineness=24)


@pytest.mark.slow
def test_no_beamformer_of_a_dense_grid_is_better_on_many_scenarios():
    check_against_the_grid(cases=30, seed=4, fineness=40)


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_optimal_beamforming_is_no_worse_than_the_other_modes(adversary):
    rng = np.random.default_rng(5)
    for devices in (5, 20):
        problem = make_problem(draw(rng, devices, 3), adversary=adversary)
        found = plan(problem)
        for way in ("dominant_eigenvector", "equal_gain", "antenna_selection"):
            other = plan(replace(problem, link=replace(problem.link, beamforming=way)))
            assert found.bound.total <= other.bound.total * (1 + 1e-12)
        for beamformer in draw(rng, 20, 3):
            assert plan(problem.with_beamformer(beamformer)).bound.total >= found.lower_bound


def test_beamforming_modes_match_their_names():
    channel = draw(np.random.default_rng(6), 10, 3)
    one = plan(make_problem(channel, beamforming="antenna_selection")).beamformer
    assert sorted(np.abs(one).tolist()) == [0.0, 0.0, 1.0]
    assert plan(make_problem(channel, beamforming="equal_gain")).beamformer == pytest.approx(np.full(3, 3**-0.5))
    vector = plan(make_problem(channel, beamforming="dominant_eigenvector")).beamformer
    matrix = channel.T @ channel.conj()
    assert matrix @ vector == pytest.approx(np.linalg.eigvalsh(matrix)[-1] * vector)


def test_a_plan_is_the_same_each_time():
    problem = make_problem(draw(np.random.default_rng(7), 14, 2))
    assert plan(problem).to_dict() == plan(problem).to_dict()


def test_against_the_combined_signal_it_is_the_plan_of_the_effective_gains():
    problem = make_problem(draw(np.random.default_rng(8), 5, 3), adversary="combined")
    result = plan(problem)
    gain = np.abs(problem.fleet.channel @ result.beamformer.conj())
    alone = plan(replace(problem, fleet=Fleet(gain=gain, peak_power=1.0)))
    assert result.scheduled.tolist() == alone.scheduled.tolist()
    assert result.alignment == pytest.approx(alone.alignment, rel=1e-12)
    assert result.epsilon_total == pytest.approx(alone.epsilon_total, rel=1e-9)


@pytest.mark.parametrize("scope", ["round", "total"])
def test_a_server_that_keeps_every_antenna_sees_each_device_by_its_matched_filter(scope):
    problem = make_problem(draw(np.random.default_rng(9), 5, 3), scope=scope)
    result = plan(problem)
    chosen = problem.fleet.channel[result.scheduled]
    effective = np.abs(chosen @ result.beamformer.conj())
    mu = 2 * result.alignment * np.max(np.linalg.norm(chosen, axis=1) / effective) / problem.link.noise_std
    assert result.mu_round == pytest.approx(mu, rel=1e-12)
    total = gaussian_epsilon(mu * math.sqrt(result.rounds), 1e-5)
    assert result.epsilon_total == pytest.approx(total, rel=1e-9)
    assert (result.epsilon_total if scope == "total" else result.epsilon_round) <= problem.budget.epsilon
    assert result.against("combined").epsilon_total < result.epsilon_total
    assert result.against("all_antennas").epsilon_total == result.epsilon_total


def test_one_antenna_gives_the_scalar_plan_to_the_bit():
    channel = draw(np.random.default_rng(10), 9, 1)
    several = plan(make_problem(channel))
    alone = plan(replace(make_problem(channel), fleet=Fleet(gain=np.abs(channel[:, 0]), peak_power=1.0)))
    assert several.to_dict() == alone.to_dict()
    assert several.beamformer.tolist() == [1.0]


def test_phases_of_devices_and_turns_of_the_antennas_change_nothing():
    rng = np.random.default_rng(11)
    channel = draw(rng, 15, 3)
    rotation, _ = np.linalg.qr(draw(rng, 3, 3))
    phases = np.exp(2j * np.pi * rng.random((15, 1)))
    found = [
        plan(make_problem(each, beamforming="dominant_eigenvector")) for each in (channel, phases * channel @ rotation)
    ]
    assert found[0].bound.total == pytest.approx(found[1].bound.total, rel=1e-9)
    assert found[0].scheduled.tolist() == found[1].scheduled.tolist()


def test_a_forged_beamformer_or_adversary_is_refused():
    problem = make_problem(draw(np.random.default_rng(13), 4, 3))
    recorded = plan(problem).to_dict()
    forged = recorded | {"beamformer": [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]}
    with pytest.raises(ValueError, match="which the plan implies"):
        Plan.from_dict(problem, forged)
    claimed = plan(replace(problem, link=replace(problem.link, adversary="combined"))).to_dict()
    with pytest.raises(ValueError, match="as in the problem"):
        Plan.from_dict(problem, claimed)


def test_measured_plans_choose_a_beamformer_too():
    from airfed.scenario import load

    surrogate = load("examples/paper.toml").surrogate
    learning = replace(LEARNING, dimension=21840, total_steps=200, strong_convexity=0.1)
    problem = make_problem(draw(np.random.default_rng(14), 60, 2), learning=learning, epsilon=20.0, total_power=1000.0)
    result = plan(problem, objective=surrogate)
    worst = plan(replace(problem, link=replace(problem.link, beamforming="equal_gain")), objective=surrogate)
    assert result.predicted_accuracy >= worst.predicted_accuracy
    assert result.epsilon_total <= 20.0
    for found in (result, worst):  # by accuracy ϖ is chosen too: the lower bound at the ϖ of the problem is another one
        assert found.lower_bound == -math.inf


@pytest.mark.parametrize("policy", ["optimal", "clairvoyant", "myopic", "full", "paper", "threshold_power"])
@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
@pytest.mark.parametrize("known", [True, False])
def test_with_time_varying_channels_limits_hold_and_plans_are_causal(policy, adversary, known):
    rng = np.random.default_rng(15)
    channel, samples = draw(rng, 4, 3, 2), None if known else draw(rng, 4, 4, 3, 2)
    learning = replace(LEARNING, total_steps=4)
    problem = make_problem(channel, adversary=adversary, learning=learning, epsilon=20.0)
    if policy == "threshold_power" and adversary == "all_antennas":
        with pytest.raises(InfeasibleError, match="observes all antennas"):
            plan(problem, policy=policy, samples=samples)
        return
    result = plan(problem, policy=policy, samples=samples)
    assert result.violations == ()
    assert result.beamformer.shape == (4, 2)
    assert result.lower_bound <= result.bound.total * (1 + 1e-9)
    recorded = json.loads(json.dumps(result.to_dict()))
    assert Plan.from_dict(problem, recorded, METHODS).to_dict() == result.to_dict()
    exposed = np.zeros(3)
    for index, entry in enumerate(result.sequence):
        vectors = channel[index, entry.scheduled]
        effective = np.abs(vectors @ result.beamformer[index].conj())
        seen = np.linalg.norm(vectors, axis=1) / effective if adversary == "all_antennas" else np.ones(effective.shape)
        exposed[entry.scheduled] += np.square(2 * entry.alignment * seen / problem.link.noise_std)
    assert (
        gaussian_epsilon(float(np.sqrt(exposed.max())), 1e-5) <= result.epsilon_total * (1 + 1e-9) <= 20.0 * (1 + 1e-8)
    )
    if known:
        return
    last = channel.copy()
    last[-1] = draw(rng, 3, 2)  # what the last round brings
    other = plan(replace(problem, fleet=Fleet(channel=last, peak_power=1.0)), policy=policy, samples=samples)
    if policy != "clairvoyant":
        before = min(result.rounds, 3)
        assert other.rounds == result.rounds
        assert np.array_equal(other.amplitude[:before], result.amplitude[:before])


def test_batteries_have_one_beamformer():
    problem = make_problem(draw(np.random.default_rng(16), 3, 2), device_power=2.0, epsilon=20.0)
    result = plan(problem)
    assert result.beamformer.shape == (2,)
    assert result.violations == ()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"channel": [[1.0, 2.0]], "gain": [1.0]}, "either gain or channel"),
        ({}, "either gain or channel"),
        ({"channel": [1.0, 2.0]}, "2 or 3 dimensions"),
        ({"channel": [[1.0, math.nan]]}, "finite"),
        ({"channel": [["a", "b"]]}, "array of complex numbers"),
        ({"channel": [[1e200, 0.0]]}, "between"),
        ({"channel": [[1.0, 2.0]], "beamformer": [0.0, 0.0]}, "non-zero"),
        ({"channel": [[1.0, 2.0]], "beamformer": [1.0, 0.0, 0.0]}, "shape"),
        ({"gain": [1.0], "beamformer": [1.0]}, "needs channel"),
    ],
)
def test_bad_channels_and_beamformers_are_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Fleet(peak_power=1.0, **arguments)


def test_imperfect_csi_with_several_antennas_is_refused():
    problem = make_problem(draw(np.random.default_rng(17), 4, 2))
    with pytest.raises(ValueError, match="csi_error"):
        replace(problem, link=replace(problem.link, csi_error=0.01))


def test_unreachable_devices_are_left_out_and_without_others_it_is_infeasible():
    channel = draw(np.random.default_rng(18), 4, 2)
    channel[1] = 0
    assert 1 not in plan(make_problem(channel)).scheduled
    with pytest.raises(InfeasibleError):
        plan(make_problem(np.zeros((3, 2))))


def test_channel_samples_become_effective_gains_with_0_beyond_the_exposure_cap():
    draws = draw(np.random.default_rng(19), 2, 3, 6, 4)
    problem = make_problem(draws[0])
    gains = beamforming.effective_samples(problem, draws)
    best = antennas.eigenvectors(draws[1, 2])[0]
    assert gains[1, 2] == pytest.approx(np.abs(draws[1, 2] @ best.conj()))
    capped = beamforming.effective_samples(problem, lambda seen: draws, 2.0)(None)
    beyond = antennas.norms(draws) > 2.0 * gains
    assert np.array_equal(capped == 0, beyond)
    assert beyond.any()
    with pytest.raises(ValueError, match="samples must have shape"):
        beamforming.effective_samples(problem, gains)


def test_artificial_noise_makes_no_claim_against_all_antennas():
    rng = np.random.default_rng(3)
    problem = make_problem(draw(rng, 5, 3), adversary="combined", beamforming="equal_gain", peak_power=10.0)
    found = plan(problem, policy="artificial_noise")
    with pytest.raises(InfeasibleError, match="artificial noise"):
        found.against("all_antennas")
    recorded = json.loads(json.dumps(found.to_dict()))
    assert recorded["epsilon_total_against"] == {"all_antennas": None, "combined": found.epsilon_total}
    assert "no claim" in str(found)
    assert Plan.from_dict(problem, recorded, METHODS).to_dict() == recorded


@pytest.mark.parametrize("policy", ["fedavg", "dp_fedavg", "cotaf", "threshold_power"])
def test_the_bound_of_aligned_plans_does_not_bound_other_methods(policy):
    rng = np.random.default_rng(4)
    problem = make_problem(draw(rng, 5, 3), beamforming="antenna_selection", peak_power=1e-3, adversary="combined")
    found = plan(problem, policy=policy)
    assert found.lower_bound == -math.inf
    assert found.to_dict()["lower_bound"] is None


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_threshold_power_ignores_an_unreachable_device(adversary):
    rng = np.random.default_rng(5)
    channel = draw(rng, 5, 3)
    channel[2] = 0.0
    found = plan(make_problem(channel, adversary=adversary), policy="threshold_power")
    assert np.isfinite([found.against(seen).epsilon_total for seen in ("all_antennas", "combined")]).all()
    exposure = found.problem.fleet.exposure[[0, 1, 3, 4]]
    assert found.against("all_antennas").amplification == exposure.max()


def test_a_trusted_server_needs_no_channels():
    found = plan(make_problem(np.zeros((3, 2), dtype=complex)), policy="dp_fedavg")
    assert found.to_dict()["lower_bound"] is None


def test_eigenvectors_of_many_antennas_do_not_depend_on_threads():
    channel = draw(np.random.default_rng(6), 40, 128)
    with threadpool_limits(limits=1, user_api="blas"):
        alone = antennas.eigenvectors(channel)
    with threadpool_limits(limits=2, user_api="blas"):
        assert np.array_equal(antennas.eigenvectors(channel), alone)
