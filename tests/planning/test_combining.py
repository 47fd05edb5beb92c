"""Several antennas: the combiner that a plan chooses, whom privacy is claimed against, and what no combiner beats."""

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


def world(channel, *, peak_power=1.0, noise_std=0.1, learning=LEARNING, **rest):
    given = {"trust": "radio", "delta": 1e-5, "total_power": 100.0, "scope": "total"} | rest
    made = problems.make(channel=channel, power=peak_power, noise=noise_std, **given)
    return replace(made, learning=learning)


def random_world(rng, devices=None, trust=None):
    """A world of two antennas in which each limit binds in some."""
    number = int(rng.integers(2, 9)) if devices is None else devices
    learning = replace(
        LEARNING, dimension=int(rng.integers(2, 300)), strong_convexity=float(10 ** rng.uniform(-1, 0.9))
    )
    return world(
        draw(rng, number, 2) * 10 ** rng.uniform(-0.5, 0.5, (number, 1)),
        trust=trust or str(rng.choice(["radio", "combiner"])),
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
    combiner = np.stack((np.cos(angle) * np.ones_like(turn), np.sin(angle) * turn), axis=-1).reshape(-1, 2)
    square = np.abs(np.conj(combiner) @ channel.T) ** 2
    norm = np.sum(np.abs(channel) ** 2, axis=1)
    rounds = np.arange(1, learning.total_steps + 1)
    cap = problem.link.noise_std * limits.allowed_mu(problem.budget) / 2 * np.ones(rounds.shape)
    if problem.budget.scope == "total":
        cap = cap / np.sqrt(rounds)
    offset, scale = (each(learning, rounds) for each in (bounds.round_offsets, bounds.round_scales))
    best = np.inf
    for size in range(1, len(channel) + 1):
        for chosen in map(list, itertools.combinations(range(len(channel)), size)):
            heard = square[:, chosen]
            with np.errstate(divide="ignore"):
                seen = np.max(norm[chosen] / heard, axis=1) if problem.link.trust == "radio" else np.ones(len(heard))
                theta = np.minimum(cap**2 / seen[:, None], np.min(heard * power[chosen], axis=1)[:, None])
                watts = problem.budget.total_power / np.sum(1 / heard, axis=1)
                theta = np.minimum(theta, watts[:, None] / rounds)
                noise = 0.5 * learning.dimension * problem.link.noise_std**2 / (size**2 * theta)
            best = min(best, float(np.min(offset + scale * (4 * (1 - size / len(channel)) ** 2 + noise))))
    return best


def check_against_the_grid(cases, seed, fineness):
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        problem = random_world(rng)
        decision, best = plan(problem), least_on_a_grid(problem, fineness)
        assert decision.bound.total <= best * 1.01
        assert decision.lower_bound <= min(best, decision.bound.total) * (1 + 1e-9)
        assert decision.violations == ()


def test_no_combiner_of_a_dense_grid_is_better():
    check_against_the_grid(cases=6, seed=3, fineness=24)


@pytest.mark.slow
def test_no_combiner_of_a_dense_grid_is_better_on_many_worlds():
    check_against_the_grid(cases=30, seed=4, fineness=40)


@pytest.mark.parametrize("trust", ["radio", "combiner"])
def test_what_is_optimal_is_no_worse_than_any_other_way_to_combine(trust):
    rng = np.random.default_rng(5)
    for devices in (5, 20):
        problem = world(draw(rng, devices, 3), trust=trust)
        found = plan(problem)
        for way in ("strongest_eigenvector", "sum", "one"):
            other = plan(replace(problem, link=replace(problem.link, combining=way)))
            assert found.bound.total <= other.bound.total * (1 + 1e-12)
        for combiner in draw(rng, 20, 3):
            assert plan(problem.heard_by(combiner)).bound.total >= found.lower_bound


def test_ways_to_combine_are_what_they_are_called():
    channel = draw(np.random.default_rng(6), 10, 3)
    one = plan(world(channel, combining="one")).combiner
    assert sorted(np.abs(one).tolist()) == [0.0, 0.0, 1.0]
    assert plan(world(channel, combining="sum")).combiner == pytest.approx(np.full(3, 3**-0.5))
    vector = plan(world(channel, combining="strongest_eigenvector")).combiner
    matrix = channel.T @ channel.conj()
    assert matrix @ vector == pytest.approx(np.linalg.eigvalsh(matrix)[-1] * vector)


def test_a_plan_is_the_same_each_time():
    problem = world(draw(np.random.default_rng(7), 14, 2))
    assert plan(problem).to_dict() == plan(problem).to_dict()


def test_handed_the_combined_signal_it_is_a_plan_about_its_gains():
    problem = world(draw(np.random.default_rng(8), 5, 3), trust="combiner")
    decision = plan(problem)
    gain = np.abs(problem.fleet.channel @ decision.combiner.conj())
    alone = plan(replace(problem, fleet=Fleet(gain=gain, peak_power=1.0)))
    assert decision.scheduled.tolist() == alone.scheduled.tolist()
    assert decision.alignment == pytest.approx(alone.alignment, rel=1e-12)
    assert decision.epsilon_total == pytest.approx(alone.epsilon_total, rel=1e-9)


@pytest.mark.parametrize("scope", ["round", "total"])
def test_a_server_that_keeps_every_antenna_sees_each_device_by_its_matched_filter(scope):
    problem = world(draw(np.random.default_rng(9), 5, 3), scope=scope)
    decision = plan(problem)
    chosen = problem.fleet.channel[decision.scheduled]
    heard = np.abs(chosen @ decision.combiner.conj())
    mu = 2 * decision.alignment * np.max(np.linalg.norm(chosen, axis=1) / heard) / problem.link.noise_std
    assert decision.mu_round == pytest.approx(mu, rel=1e-12)
    total = gaussian_epsilon(mu * math.sqrt(decision.rounds), 1e-5)
    assert decision.epsilon_total == pytest.approx(total, rel=1e-9)
    assert (decision.epsilon_total if scope == "total" else decision.epsilon_round) <= problem.budget.epsilon
    assert decision.against("combiner").epsilon_total < decision.epsilon_total
    assert decision.against("radio").epsilon_total == decision.epsilon_total


def test_one_antenna_is_todays_plan_to_the_bit():
    channel = draw(np.random.default_rng(10), 9, 1)
    several = plan(world(channel))
    alone = plan(replace(world(channel), fleet=Fleet(gain=np.abs(channel[:, 0]), peak_power=1.0)))
    assert several.to_dict() == alone.to_dict()
    assert several.combiner.tolist() == [1.0]


def test_phases_of_devices_and_turns_of_the_antennas_change_nothing():
    rng = np.random.default_rng(11)
    channel = draw(rng, 15, 3)
    turned, _ = np.linalg.qr(draw(rng, 3, 3))
    phases = np.exp(2j * np.pi * rng.random((15, 1)))
    found = [plan(world(each, combining="strongest_eigenvector")) for each in (channel, phases * channel @ turned)]
    assert found[0].bound.total == pytest.approx(found[1].bound.total, rel=1e-9)
    assert found[0].scheduled.tolist() == found[1].scheduled.tolist()


def test_a_forged_combiner_or_trust_does_not_follow():
    problem = world(draw(np.random.default_rng(13), 4, 3))
    recorded = plan(problem).to_dict()
    forged = recorded | {"combiner": [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]}
    with pytest.raises(ValueError, match="which follows"):
        Plan.from_dict(problem, forged)
    claimed = plan(replace(problem, link=replace(problem.link, trust="combiner"))).to_dict()
    with pytest.raises(ValueError, match="as in the problem"):
        Plan.from_dict(problem, claimed)


def test_measured_plans_choose_a_combiner_too():
    from airfed.scenario import load

    response = load("examples/paper.toml").response
    learning = replace(LEARNING, dimension=21840, total_steps=200, strong_convexity=0.1)
    problem = world(draw(np.random.default_rng(14), 60, 2), learning=learning, epsilon=20.0, total_power=1000.0)
    decision = plan(problem, objective=response)
    worst = plan(replace(problem, link=replace(problem.link, combining="sum")), objective=response)
    assert decision.predicted_accuracy >= worst.predicted_accuracy
    assert decision.epsilon_total <= 20.0


@pytest.mark.parametrize("policy", ["optimal", "clairvoyant", "myopic", "full", "paper", "threshold_power"])
@pytest.mark.parametrize("trust", ["radio", "combiner"])
@pytest.mark.parametrize("known", [True, False])
def test_where_channels_change_limits_hold_and_nothing_looks_ahead(policy, trust, known):
    rng = np.random.default_rng(15)
    channel, samples = draw(rng, 4, 3, 2), None if known else draw(rng, 4, 4, 3, 2)
    learning = replace(LEARNING, total_steps=4)
    problem = world(channel, trust=trust, learning=learning, epsilon=20.0)
    if policy == "threshold_power" and trust == "radio":
        with pytest.raises(InfeasibleError, match="every antenna is seen"):
            plan(problem, policy=policy, samples=samples)
        return
    decision = plan(problem, policy=policy, samples=samples)
    assert decision.violations == ()
    assert decision.combiner.shape == (4, 2)
    assert decision.lower_bound <= decision.bound.total * (1 + 1e-9)
    recorded = json.loads(json.dumps(decision.to_dict()))
    assert Plan.from_dict(problem, recorded, METHODS).to_dict() == decision.to_dict()
    exposed = np.zeros(3)
    for index, entry in enumerate(decision.sequence):
        vectors = channel[index, entry.scheduled]
        heard = np.abs(vectors @ decision.combiner[index].conj())
        seen = np.linalg.norm(vectors, axis=1) / heard if trust == "radio" else np.ones(heard.shape)
        exposed[entry.scheduled] += np.square(2 * entry.alignment * seen / problem.link.noise_std)
    assert (
        gaussian_epsilon(float(np.sqrt(exposed.max())), 1e-5)
        <= decision.epsilon_total * (1 + 1e-9)
        <= 20.0 * (1 + 1e-8)
    )
    if known:
        return
    last = channel.copy()
    last[-1] = draw(rng, 3, 2)  # what the last round brings
    other = plan(replace(problem, fleet=Fleet(channel=last, peak_power=1.0)), policy=policy, samples=samples)
    if policy != "clairvoyant":
        before = min(decision.rounds, 3)
        assert other.rounds == decision.rounds
        assert np.array_equal(other.amplitude[:before], decision.amplitude[:before])


def test_batteries_have_one_combiner():
    problem = world(draw(np.random.default_rng(16), 3, 2), device_power=2.0, epsilon=20.0)
    decision = plan(problem)
    assert decision.combiner.shape == (2,)
    assert decision.violations == ()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"channel": [[1.0, 2.0]], "gain": [1.0]}, "either gain or channel"),
        ({}, "either gain or channel"),
        ({"channel": [1.0, 2.0]}, "2 or 3 dimensions"),
        ({"channel": [[1.0, math.nan]]}, "finite"),
        ({"channel": [["a", "b"]]}, "array of complex numbers"),
        ({"channel": [[1e200, 0.0]]}, "between"),
        ({"channel": [[1.0, 2.0]], "combiner": [0.0, 0.0]}, "other than 0"),
        ({"channel": [[1.0, 2.0]], "combiner": [1.0, 0.0, 0.0]}, "shape"),
        ({"gain": [1.0], "combiner": [1.0]}, "only with channel"),
    ],
)
def test_bad_channels_and_combiners_are_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Fleet(peak_power=1.0, **arguments)


def test_rough_channels_of_several_antennas_are_refused():
    problem = world(draw(np.random.default_rng(17), 4, 2))
    with pytest.raises(ValueError, match="estimation_error"):
        replace(problem, link=replace(problem.link, estimation_error=0.01))


def test_whom_nobody_hears_is_left_out_and_nobody_at_all_is_said():
    channel = draw(np.random.default_rng(18), 4, 2)
    channel[1] = 0
    assert 1 not in plan(world(channel)).scheduled
    with pytest.raises(InfeasibleError):
        plan(world(np.zeros((3, 2))))


def test_a_law_of_channels_is_heard_by_its_eigenvectors_and_silent_beyond_the_ceiling():
    draws = draw(np.random.default_rng(19), 2, 3, 6, 4)
    gains = beamforming.combined_samples(draws)
    best = antennas.eigenvectors(draws[1, 2])[0]
    assert gains[1, 2] == pytest.approx(np.abs(draws[1, 2] @ best.conj()))
    silent = beamforming.combined_samples(lambda seen: draws, 2.0)(None)
    beyond = antennas.strengths(draws) > 2.0 * gains
    assert np.array_equal(silent == 0, beyond)
    assert beyond.any()
    with pytest.raises(ValueError, match="samples of channels"):
        beamforming.combined_samples(gains)


def test_artificial_noise_claims_nothing_where_every_antenna_is_seen():
    rng = np.random.default_rng(3)
    problem = world(draw(rng, 5, 3), trust="combiner", combining="sum", peak_power=10.0)
    found = plan(problem, policy="seif")
    with pytest.raises(InfeasibleError, match="artificial noise"):
        found.against("radio")
    recorded = json.loads(json.dumps(found.to_dict()))
    assert recorded["epsilon_total_against"] == {"radio": None, "combiner": found.epsilon_total}
    assert "nothing is claimed" in str(found)
    assert Plan.from_dict(problem, recorded, METHODS).to_dict() == recorded


@pytest.mark.parametrize("policy", ["noise_free", "central", "cotaf", "threshold_power"])
def test_what_aligned_plans_cannot_beat_is_no_bound_on_other_schemes(policy):
    rng = np.random.default_rng(4)
    problem = world(draw(rng, 5, 3), combining="one", peak_power=1e-3, trust="combiner")
    found = plan(problem, policy=policy)
    assert found.lower_bound == -math.inf
    assert found.to_dict()["lower_bound"] is None


@pytest.mark.parametrize("trust", ["radio", "combiner"])
def test_threshold_power_takes_no_heed_of_a_device_that_nobody_hears(trust):
    rng = np.random.default_rng(5)
    channel = draw(rng, 5, 3)
    channel[2] = 0.0
    found = plan(world(channel, trust=trust), policy="threshold_power")
    assert np.isfinite([found.against(seen).epsilon_total for seen in ("radio", "combiner")]).all()
    exposure = found.problem.fleet.exposure[[0, 1, 3, 4]]
    assert found.against("radio").amplification == exposure.max()


def test_a_trusted_server_needs_no_channels():
    found = plan(world(np.zeros((3, 2), dtype=complex)), policy="central")
    assert found.to_dict()["lower_bound"] is None


def test_eigenvectors_of_many_antennas_do_not_depend_on_threads():
    channel = draw(np.random.default_rng(6), 40, 128)
    with threadpool_limits(limits=1, user_api="blas"):
        alone = antennas.eigenvectors(channel)
    with threadpool_limits(limits=2, user_api="blas"):
        assert np.array_equal(antennas.eigenvectors(channel), alone)
