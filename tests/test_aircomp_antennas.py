"""AirComp with several antennas: complex vectors add up exactly, and the beamformer recovers the mean."""

import hashlib
import math
import tracemalloc

import numpy as np
import pytest

import problems
from airfed import antennas
from airfed.aircomp import CLIP_MARGIN, AirComp, AirCompRound, clip
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.plan import Plan
from airfed.policies import plan
from airfed.training.noise import SecureNoise, SeededNoise

CLIP, SIGMA = 2.0, 0.5


def vectors(rng, *shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def problem_of(channel, *, dimension=8, peak_power=1.0, **changes):
    given = {"noise": SIGMA, "steps": 20, "clip": CLIP, "convexity": 0.1, "epsilon": 20.0, "total_power": 500.0}
    return problems.make(channel=channel, power=peak_power, dimension=dimension, **given | changes)


def made(rng, *, devices=9, number=4, dimension=8, alignment=0.2, beamformer=None, scheduled=None):
    """A plan of given devices and beamformer, without a search."""
    problem = problem_of(vectors(rng, devices, number), dimension=dimension, peak_power=50.0)
    problem = problem.with_beamformer(vectors(rng, number) if beamformer is None else beamformer)
    who = np.arange(devices) if scheduled is None else np.asarray(scheduled)
    table = Amplitudes.aligned(who, num_devices=devices, level=alignment, rounds=4)
    return Plan(problem=problem, policy="mine", amplitudes=table)


def transmit(aircomp, updates, noise, *, devices=None, chunk=3):
    superposition = aircomp.open_round(updates.shape[1])
    chosen = aircomp.scheduled if devices is None else np.asarray(devices)
    for start in range(0, len(chosen), chunk):
        superposition.add(chosen[start : start + chunk], updates[start : start + chunk])
    return superposition.receive(noise)


def test_aircomp_is_the_complex_baseband_model_of_every_antenna():
    """Term by term: x_k, Y = Σ h_k x_k + Z, Re(fᴴY)/(|K|ν), and both parts of its error."""
    rng = np.random.default_rng(1)
    for number in (2, 3, 8):
        planned = made(rng, number=number, scheduled=[0, 2, 3, 5, 8])
        fleet, who, theta = planned.problem.fleet, planned.scheduled, planned.alignment
        updates = (5 * rng.normal(size=(5, 8))).astype(np.float32)
        noise = rng.normal(0, SIGMA, 2 * number * 8)
        got = transmit(AirCompRound.from_plan(planned), updates, noise)
        f, noises = fleet.beamformer, noise.reshape(number, 2, 8)
        assert np.linalg.norm(f) == pytest.approx(1.0, abs=1e-15)
        signal = np.zeros((number, 8), complex)
        clipped, energy = [], []
        for k, update in zip(who, updates.astype(float), strict=True):
            g = update * min(1.0, CLIP * (1 - CLIP_MARGIN) / np.linalg.norm(update))
            arrived = np.vdot(f, fleet.channel[k])
            x = np.exp(-1j * np.angle(arrived)) * theta / (CLIP * abs(arrived)) * g
            signal += np.outer(fleet.channel[k], x)
            clipped.append(g)
            energy.append(np.sum(np.abs(x) ** 2))
        drawn = noises[:, 0] + 1j * noises[:, 1]
        scale = 5 * theta / CLIP
        np.testing.assert_allclose(got.antennas, signal + drawn, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got.received, (np.conj(f) @ (signal + drawn)).real, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got.estimate, got.received / scale, rtol=1e-15)
        np.testing.assert_allclose(got.energy, energy, rtol=1e-12)
        combined = (np.conj(f) @ drawn).real
        np.testing.assert_allclose(got.estimate, np.mean(clipped, axis=0) + combined / scale, rtol=0, atol=1e-12)
        assert got.noise_error == pytest.approx(np.linalg.norm(combined) / scale, rel=1e-12)
        clean = (np.conj(f) @ signal).real
        assert got.signal_to_noise == pytest.approx(np.sum(clean**2) / np.sum(combined**2), rel=1e-12)
        assert got.fading_error == 0.0


def test_imperfect_csi_is_a_fading_error():
    rng = np.random.default_rng(2)
    planned = made(rng)
    fleet = planned.problem.fleet
    true = fleet.channel + 0.1 * vectors(rng, 9, 4)
    updates = rng.normal(size=(9, 8)).astype(np.float32)
    got = transmit(AirCompRound.from_plan(planned, channel=true), updates, np.zeros(64))
    arrived, believed = antennas.effective(true, fleet.beamformer), antennas.effective(fleet.channel, fleet.beamformer)
    weights = (arrived * np.exp(-1j * np.angle(believed)) / np.abs(believed)).real - 1.0
    wrong = weights @ clip(updates, CLIP)[0] / 9
    assert got.fading_error == pytest.approx(np.linalg.norm(wrong), rel=1e-9)


@pytest.mark.parametrize("imperfect", [False, True])
def test_the_sum_has_the_same_bits_for_every_order_chunk_and_split(imperfect):
    rng = np.random.default_rng(3)
    planned = made(rng, devices=40, number=3, dimension=37)
    true = planned.problem.fleet.channel * (1 + 0.1 * imperfect * rng.normal(size=(40, 1)))
    aircomp = AirCompRound.from_plan(planned, channel=true)
    updates = (rng.normal(size=(40, 37)) * 10.0 ** rng.uniform(-8, 4, (40, 1))).astype(np.float32)
    updates[7, 3], updates[30, 0] = np.nan, np.inf
    noise = rng.normal(size=6 * 37)
    first = transmit(aircomp, updates, noise, chunk=40)
    assert first.refused.tolist() == [7, 30]
    for chunk in (1, 7, 39):
        order = rng.permutation(40)
        same(first, transmit(aircomp, updates[order], noise, devices=order, chunk=chunk))
    halves = [aircomp.open_round(37) for _ in range(2)]  # as two processes would
    for half, who in zip(halves, np.array_split(rng.permutation(40), 2), strict=True):
        half.add(who, updates[who])
    whole, other = halves
    whole.integers = whole.integers + other.integers
    whole.norm_max = max(whole.norm_max, other.norm_max)
    assert whole.integers.size == 6 * 37 + 5 + 37 * imperfect
    same(first, whole.receive(noise))


def same(one, other):
    for name in ("received", "estimate", "antennas"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in ("fading_error", "noise_error", "signal_to_noise", "power", "clipped", "norm_mean", "norm_max"):
        assert getattr(one, name) == getattr(other, name), name


def test_no_update_moves_a_unit_detector_by_more_than_the_amplitude_of_its_device():
    rng = np.random.default_rng(4)
    planned = made(rng, devices=5, number=4, dimension=6)
    aircomp, fleet = AirCompRound.from_plan(planned), planned.problem.fleet
    seen = planned.alignment * antennas.norms(fleet.channel) / fleet.gain
    detectors = vectors(rng, 200, 4 * 6).reshape(200, 4, 6)
    detectors /= np.linalg.norm(detectors, axis=(1, 2))[:, None, None]
    for device in range(5):
        for update in (np.full(6, 1e9), np.r_[1e300, np.zeros(5)], rng.normal(size=6) * 100):
            arrived = transmit(aircomp, update[None], np.zeros(48), devices=[device]).antennas
            assert np.linalg.norm(arrived) <= seen[device] * (1 + 1e-12)
            assert np.all(np.abs(np.einsum("nad,ad->n", detectors.conj(), arrived)) <= seen[device])
            own = fleet.channel[device] / np.linalg.norm(fleet.channel[device])
            best = np.linalg.norm((np.exp(-1j * aircomp.transmit_phase[device]) * np.conj(own) @ arrived).real)
            assert best == pytest.approx(seen[device], rel=1e-5)  # the matched filter sees all of it
            assert np.linalg.norm(np.conj(fleet.beamformer) @ arrived) <= planned.alignment * (1 + 1e-12)


@pytest.mark.parametrize("source", [SeededNoise(b"key"), SecureNoise()], ids=["seeded", "secure"])
def test_each_antennas_real_and_imaginary_noise_has_the_variance_that_is_claimed(source):
    # 10^6 values a part: the empirical variance has a relative standard deviation of 0.14%, so 0.5% is 3.5 of them.
    aircomp = AirCompRound.from_plan(made(np.random.default_rng(5), number=3))
    superposition = aircomp.open_round(1_000_000)
    drawn = superposition.receive(source.draw(0, superposition.noise_size, SIGMA)).antennas
    parts = np.concatenate((drawn.real, drawn.imag))
    np.testing.assert_allclose(np.var(parts, axis=1), SIGMA**2, rtol=5e-3)
    assert np.abs(np.corrcoef(parts) - np.eye(6)).max() < 6e-3
    combined = np.conj(aircomp.beamformer) @ drawn
    np.testing.assert_allclose([np.var(combined.real), np.var(combined.imag)], SIGMA**2, rtol=5e-3)


def test_memory_grows_with_antennas_and_entries_and_not_with_devices_times_antennas():
    rng = np.random.default_rng(6)
    number, dimension, chunk = 16, 2000, 50
    planned = made(rng, devices=400, number=number, dimension=dimension)
    aircomp = AirCompRound.from_plan(planned)
    updates = rng.normal(size=(chunk, dimension)).astype(np.float32)
    tracemalloc.start()
    superposition = aircomp.open_round(dimension)
    for start in range(0, 400, chunk):
        superposition.add(aircomp.scheduled[start : start + chunk], updates)
    superposition.receive(np.zeros(superposition.noise_size))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * (2 * number * dimension * 4 + chunk * dimension * 5)  # a few copies of Y, a few of a chunk


def test_each_round_has_its_own_channels_and_beamformer():
    rng = np.random.default_rng(7)
    problem = problem_of(vectors(rng, 3, 5, 2), peak_power=50.0).with_beamformer(vectors(rng, 3, 2))
    table = Amplitudes(level=np.array([0.1, 0.3, 0.2]), share=np.ones((1, 5), bool))
    found = Plan(problem=problem, policy="mine", amplitudes=table)
    aircomp, fleet = AirComp(plan=found), problem.fleet
    updates = rng.normal(size=(5, 8)).astype(np.float32)
    for index in range(3):
        current = aircomp.at(index)
        np.testing.assert_array_equal(current.beamformer, fleet.beamformer[index])
        arrival = (
            fleet.channel[index] * (np.exp(1j * current.transmit_phase) * current.transmit_amplitude / CLIP)[:, None]
        )
        np.testing.assert_allclose(current.arrival, arrival, rtol=1e-14)
        np.testing.assert_allclose(
            transmit(current, updates, np.zeros(32)).estimate, clip(updates, CLIP)[0].mean(0), atol=1e-12
        )


def test_full_power_and_weaker_arrivals_stay_below_the_claim():
    """Where devices saturate, μ of the largest level and the largest exposure is never below what is seen of them."""
    rng = np.random.default_rng(8)
    for _ in range(4):
        problem = problem_of(vectors(rng, 12, 3), peak_power=10 ** rng.uniform(-4, 0, 12)).with_beamformer(
            vectors(rng, 3)
        )
        planned = plan(problem, policy="threshold_power", rounds=4)
        aircomp = AirCompRound.from_plan(planned)
        seen = antennas.norms(aircomp.arrival) * CLIP
        assert 2 * seen.max() / SIGMA <= planned.mu_round * (1 + 1e-12)
        assert np.unique(np.abs(aircomp.coefficient).round(9)).size > 1  # some do arrive weaker


def test_artificial_noise_is_refused_where_every_antenna_is_seen():
    rng = np.random.default_rng(9)
    with pytest.raises(ValueError, match="arrives from the directions of its devices"):
        plan(problem_of(vectors(rng, 5, 2)), policy="artificial_noise", rounds=4)


def test_one_antenna_keeps_its_bits():
    """Golden values of the sums (recorded before antennas were supported), of reception and of noise."""
    rng = np.random.default_rng(10)
    gain = rng.uniform(0.2, 1.0, 7)
    problem = problem_of(gain[:, None].astype(complex), dimension=11)
    assert (problem.fleet.antennas, problem.fleet.beamformer.tolist()) == (1, [1.0])
    table = Amplitudes.aligned(np.arange(7), num_devices=7, level=0.1, rounds=4)
    planned = Plan(problem=problem, policy="mine", amplitudes=table)
    true = gain * np.exp(0.1j * np.arange(7))
    superposition = AirCompRound.from_plan(planned, channel=true, phase=0.09 * np.arange(7)).open_round(11)
    superposition.add(np.arange(7), rng.normal(size=(7, 11)).astype(np.float32))
    got = superposition.receive(SeededNoise(b"key").draw(3, superposition.noise_size, SIGMA, transmission="again"))
    np.testing.assert_array_equal(got.antennas, got.received[None])
    assert (
        hashlib.sha256(superposition.integers.tobytes()).hexdigest()
        == "97674378241f141c497fcb3fa6d1117f186f33b76409176337c9f91f6ed419af"
    )
    assert (
        hashlib.sha256(got.estimate.tobytes()).hexdigest()
        == "208102b3591a08893bb481f6ad3ad8f39107259a9e26ed4a307b7f91baeb52b8"
    )
    assert math.isclose(got.fading_error, 0.0008915419112849768, rel_tol=1e-13)
