"""AirComp against an explicit complex baseband simulation, exact sums, and clipping that never overshoots."""

import itertools
import math
import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import problems
from airfed.aircomp import CLIP_MARGIN, AirCompRound, clip
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.plan import Plan
from airfed.training.noise import SecureNoise, SeededNoise

CLIP = 2.0


def make_plan(gain, *, scheduled=None, alignment=0.1, peak_power=1.0, noise_std=0.05, dimension=8, clip_norm=CLIP):
    """Return an arbitrary plan, without optimisation.

    Args:
        alignment: θ, or a_k of every device, (N,).
    """
    given = {"noise": noise_std, "dimension": dimension, "steps": 10, "clip": clip_norm, "convexity": 0.1}
    problem = problems.make(gain, power=peak_power, **given, epsilon=2.0, total_power=1e6)
    chosen = np.arange(len(gain)) if scheduled is None else np.asarray(scheduled)
    row = np.zeros(len(gain))
    row[chosen] = alignment if np.ndim(alignment) == 0 else np.asarray(alignment)[chosen]
    return Plan(problem=problem, policy="test", amplitudes=Amplitudes.of_table(row, rounds=5))


def random_updates(rng, count, dimension, *, scale=3.0):
    """Float32 updates, some longer and some shorter than the clip."""
    length = scale * rng.uniform(0.05, 1.0, (count, 1)) / math.sqrt(dimension)
    return (rng.normal(size=(count, dimension)) * length).astype(np.float32)


def exact_norm(row):
    return math.sqrt(math.fsum(float(value) ** 2 for value in row))


# -- clipping


def test_clipped_norms_never_exceed_the_clip_even_after_rounding_to_float32():
    rng = np.random.default_rng(1)
    for dimension, count in ((1, 1000), (2, 1000), (3, 1000), (17, 6000), (400, 1000)):  # 10⁴ vectors
        scale = 10.0 ** rng.uniform(-30, 30, (count, 1))
        updates = (rng.normal(size=(count, dimension)) * scale).astype(np.float32)
        for clip_norm in (1.0, 0.1, 7.3e-9, 3e12):
            clipped, _ = clip(updates, clip_norm)
            assert clipped.dtype == np.float64
            exact = np.sqrt(np.sum(np.square(clipped.astype(np.longdouble)), axis=1))
            assert np.all(exact <= clip_norm)
            rounded = clipped.astype(np.float32).astype(np.longdouble)
            assert np.all(np.sqrt(np.sum(np.square(rounded), axis=1)) <= clip_norm)


def test_clipping_keeps_the_direction_and_reaches_the_clip():
    rng = np.random.default_rng(2)
    updates = random_updates(rng, 500, 40, scale=10.0)
    clipped, norms = clip(updates, CLIP)
    exact = np.array([exact_norm(row) for row in updates])
    np.testing.assert_allclose(norms, exact, rtol=1e-14)
    long = exact > CLIP
    assert 0 < np.count_nonzero(long) < 500
    np.testing.assert_array_equal(clipped[~long], updates[~long])  # not touched at all
    expected = updates[long] * (CLIP * (1 - CLIP_MARGIN) / exact[long])[:, None]
    np.testing.assert_allclose(clipped[long], expected, rtol=1e-13)


def test_the_norm_is_that_of_the_whole_update_in_float64():
    dimension = 4_000_000  # a float32 running sum would stop growing at 2²⁴ ones
    updates = np.ones((1, dimension), np.float32)
    clipped, norms = clip(updates, 1.0)
    assert norms[0] == 2000.0
    assert clipped[0, 0] == pytest.approx((1 - CLIP_MARGIN) / 2000.0, rel=1e-12)


BAD = [math.nan, math.inf, -math.inf]
ODD = [0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1e300, -1.7e308, 5e-324, 1e-160]


@pytest.mark.parametrize("dimension", [1, 2, 50])
@pytest.mark.parametrize("place", ["first", "last", "all"])
@pytest.mark.parametrize("value", BAD + ODD)
def test_unusual_updates_stay_within_the_clip_and_bad_ones_become_zero(value, place, dimension):
    row = np.full(dimension, 0.25)
    row[{"first": slice(0, 1), "last": slice(-1, None), "all": slice(None)}[place]] = value
    good = np.full(dimension, 0.125)
    clipped, norms = clip([row, good], 1.0)
    assert np.isfinite(clipped).all()
    assert exact_norm(clipped[0]) <= 1.0
    np.testing.assert_array_equal(clipped[1], good)  # its neighbour is not touched
    if value in BAD or math.isnan(value):
        assert math.isnan(norms[0])
        assert not clipped[0].any()
    else:
        largest = float(np.max(np.abs(row)))
        expected = min(largest * exact_norm(row / largest), sys.float_info.max) if largest else 0.0
        assert norms[0] == pytest.approx(expected, rel=1e-14, abs=0.0)


@pytest.mark.parametrize("clip_norm", [1e-290, 1e-200, 1e-10, 1.0, 1e200, 1e300])
@pytest.mark.parametrize("size", [1e-300, 1e-199, 1e-150, 1.0, 1e150, 1e199, 1e307])
def test_the_clip_holds_where_squares_overflow_or_underflow(size, clip_norm):
    row = np.array([3.0, -4.0]) / 5.0 * size
    clipped, norms = clip(row, clip_norm)
    assert norms[0] == pytest.approx(size, rel=1e-14)
    exact = sum(Fraction(value) ** 2 for value in clipped[0])
    assert exact <= Fraction(clip_norm) ** 2
    aim = min(size, clip_norm * (1 - CLIP_MARGIN))
    if aim / size > 1e-290:  # else it may vanish
        np.testing.assert_allclose(clipped[0], np.array([0.6, -0.8]) * aim, rtol=1e-13)


@pytest.mark.parametrize("value", [1e200, -1e200, 1.7e308])
@pytest.mark.parametrize("by_largest", [False, True])
def test_an_update_whose_squares_overflow_counts_as_usable_and_clipped(value, by_largest):
    aircomp = AirCompRound.from_plan(make_plan(np.ones(2)), channel=np.ones(2))
    aircomp = replace(aircomp, reference_norm=aircomp.clip_norm if by_largest else None)
    superposition = aircomp.open_round(8)
    superposition.add(np.arange(2), np.stack([np.full(8, value), np.full(8, 1e-3)]))
    received = superposition.receive(np.ones(8))
    assert (received.usable, received.clipped, received.refused.size) == (2, 1, 0)
    assert exact_norm(superposition.signal.ravel() * superposition._quantum) <= 2 * 0.1
    assert np.std(received.received) < 1e-12  # noise of 1 as it was given: the longest update decides its size
    assert abs(received.received[0]) > 0.9


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_that_is_not_positive_is_refused(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        clip([[1.0]], clip_norm)


# -- against complex baseband


def baseband(plan, updates, noise, *, channel, phase):
    """Every device's transmitted complex signal, its own channel, and the receiver, one at a time: eq. (6)-(13)."""
    learning, fleet = plan.problem.learning, plan.problem.fleet
    received = noise.astype(np.complex128) + 0.37j  # whatever is on the quadrature axis is not looked at
    energies, arrivals, clipped = [], [], []
    for k, update in zip(plan.scheduled, updates, strict=True):
        g = np.asarray(update, dtype=np.float64)
        g = g * min(1.0, learning.clip_norm * (1 - CLIP_MARGIN) / exact_norm(g))
        phi_p = (plan.amplitude[0, k] / fleet.gain[k]) ** 2
        x = np.exp(-1j * phase[k]) * math.sqrt(phi_p) / learning.clip_norm * g
        received += channel[k] * x
        energies.append(math.fsum(abs(value) ** 2 for value in x))
        arrivals.append(channel[k] * x)
        clipped.append(g)
    scale = math.fsum(plan.amplitude[0]) / learning.clip_norm
    ideal = np.sum(clipped, axis=0) / len(plan.scheduled)
    fading = np.sum(arrivals, axis=0).real / scale - ideal
    return {
        "estimate": received.real / scale,
        "energy": np.array(energies),
        "fading_error": np.linalg.norm(fading),
        "noise_error": np.linalg.norm(noise) / scale,
        "ideal": ideal,
    }


def transmit(aircomp, updates, noise, *, devices=None, chunk=3):
    superposition = aircomp.open_round(updates.shape[1])
    chosen = aircomp.scheduled if devices is None else np.asarray(devices)
    for start in range(0, len(chosen), chunk):
        superposition.add(chosen[start : start + chunk], updates[start : start + chunk])
    return superposition.receive(noise)


def fleet_of(rng, count):
    gain = rng.rayleigh(0.7, count) + 0.1
    phase = rng.uniform(-np.pi, np.pi, count)
    return gain, phase, gain * np.exp(1j * phase)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("nmse", [0.0, 0.01, 0.5])
def test_aircomp_is_the_complex_baseband_model(nmse, aligned):
    rng = np.random.default_rng(3)
    for _ in range(10):
        gain, phase, known = fleet_of(rng, 12)
        error = math.sqrt(nmse / 2) * (rng.normal(size=12) + 1j * rng.normal(size=12))
        true = known + error
        scheduled = np.sort(rng.choice(12, 9, replace=False))
        peak_power = rng.uniform(1.0, 2.0, 12)
        alignment = 0.09 if aligned else gain * np.sqrt(peak_power)
        plan = make_plan(gain, scheduled=scheduled, alignment=alignment, peak_power=peak_power)
        updates = random_updates(rng, 9, 8)
        noise = rng.normal(0, 0.05, 8)
        aircomp = AirCompRound.from_plan(plan, channel=true, phase=phase)
        got = transmit(aircomp, updates, noise)
        want = baseband(plan, updates, noise, channel=true, phase=phase)
        np.testing.assert_allclose(got.estimate, want["estimate"], rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.energy, want["energy"], rtol=1e-12)
        assert got.fading_error == pytest.approx(want["fading_error"], rel=1e-9, abs=1e-12)
        assert got.noise_error == pytest.approx(want["noise_error"], rel=1e-12)
        if aligned and not nmse:
            assert got.fading_error == 0.0
        else:
            assert got.fading_error > 1e-3
        # the two parts are all of the error (9)
        error = got.estimate - want["ideal"]
        assert np.linalg.norm(error) <= got.fading_error + got.noise_error + 1e-12


def test_without_phase_correction_half_the_devices_cancel():
    gain = np.array([0.5, 0.5])
    true = gain * np.exp(1j * np.array([0.0, np.pi]))
    plan = make_plan(gain)
    updates = np.ones((2, 8), np.float32) * 0.1
    blind = transmit(AirCompRound.from_plan(plan, channel=true), updates, np.zeros(8))
    np.testing.assert_allclose(blind.estimate, 0.0, atol=1e-15)
    corrected = transmit(AirCompRound.from_plan(plan, channel=true, phase=np.array([0.0, np.pi])), updates, np.zeros(8))
    np.testing.assert_allclose(corrected.estimate, 0.1, rtol=1e-7)


def test_signal_to_noise_is_the_ratio_of_the_received_powers():
    rng = np.random.default_rng(4)
    plan = make_plan([0.5, 0.7, 1.1])
    updates, noise = random_updates(rng, 3, 8), rng.normal(0, 0.05, 8)
    clean = transmit(AirCompRound.from_plan(plan), updates, np.zeros(8))
    noisy = transmit(AirCompRound.from_plan(plan), updates, noise)
    assert noisy.signal_to_noise == pytest.approx(np.sum(clean.received**2) / np.sum(noise**2), rel=1e-12)
    np.testing.assert_allclose(noisy.received - clean.received, noise, atol=1e-15)
    assert clean.signal_to_noise == math.inf


def test_error_norms_do_not_depend_on_the_blas():
    noise = np.random.default_rng(5).normal(size=300_001)
    plan = make_plan([1.0, 1.0])
    got = AirCompRound.from_plan(plan).open_round(noise.size).receive(noise)
    scale = 2 * plan.alignment_coefficient
    assert got.noise_error == math.sqrt(float(np.add.reduce(np.square(noise)))) / scale  # pairwise, by one thread


def test_equal_gains_and_no_noise_are_plain_averaging_to_rounding():
    rng = np.random.default_rng(6)
    for count, dimension in ((1, 5), (10, 100), (301, 33)):
        plan = make_plan(np.full(count, 0.8), dimension=dimension)
        updates = (rng.normal(size=(count, dimension)) * 0.9 * CLIP / math.sqrt(dimension) / 2).astype(np.float32)
        assert max(exact_norm(row) for row in updates) < CLIP
        got = transmit(AirCompRound.from_plan(plan), updates, np.zeros(dimension))
        mean = np.array([math.fsum(column) / count for column in updates.T.astype(np.float64)])
        np.testing.assert_allclose(got.estimate, mean, rtol=0, atol=4e-16 * CLIP)
        assert got.clipped == 0


# -- power


def test_transmitted_energy_never_exceeds_the_planned_energy():
    rng = np.random.default_rng(7)
    gain, phase, true = fleet_of(rng, 30)
    plan = make_plan(gain, alignment=0.09)
    updates = random_updates(rng, 30, 8, scale=50.0)  # most are clipped: the worst case
    got = transmit(AirCompRound.from_plan(plan, channel=true, phase=phase), updates, np.zeros(8))
    assert np.all(got.energy <= plan.power)
    full = got.norms > CLIP
    assert full.sum() > 15
    np.testing.assert_allclose(got.energy[full], plan.power[full], rtol=3 * CLIP_MARGIN)
    np.testing.assert_allclose(got.energy[~full], plan.power[~full] * (got.norms[~full] / CLIP) ** 2, rtol=1e-12)


def test_no_device_exceeds_its_peak_power_whatever_the_plan_says():
    gain = np.array([0.1, 0.5, 1.0])
    plan = make_plan(gain, alignment=0.3, peak_power=[1.0, 1.0, 0.04])  # devices 0 and 2 cannot
    assert "peak_power" in plan.violations
    updates = np.eye(3, 8, dtype=np.float32) * 5
    got = transmit(AirCompRound.from_plan(plan), updates, np.zeros(8))
    assert np.all(got.energy <= plan.problem.fleet.peak_power)
    arrived = got.received[:3] / (1 - CLIP_MARGIN)
    np.testing.assert_allclose(arrived, [0.1, 0.3, 0.2], rtol=1e-12)  # |h|√P where that is less than θ
    assert got.fading_error > 0


def test_unaligned_devices_use_their_peak_power():
    rng = np.random.default_rng(8)
    peak = rng.uniform(0.2, 2.0, 6)
    gain = rng.uniform(0.2, 1.0, 6)
    plan = make_plan(gain, peak_power=peak, alignment=gain * np.sqrt(peak))
    got = transmit(AirCompRound.from_plan(plan), np.full((6, 8), 9.0, np.float32), np.zeros(8))
    np.testing.assert_allclose(got.energy, peak, rtol=3 * CLIP_MARGIN)


# -- privacy: what one device can do


def contribution(aircomp, device, update, dimension):
    """The received signal of one device alone, exactly."""
    superposition = aircomp.open_round(dimension)
    superposition.add(np.array([device]), np.asarray(update)[None, :])
    quantum = Fraction(superposition._quantum)
    return [int(value) * quantum for value in superposition.signal.ravel()]


@pytest.mark.parametrize("value", [*BAD, *ODD, 1.0, -7.0])
def test_no_update_contributes_more_than_the_alignment(value):
    rng = np.random.default_rng(9)
    gain, phase, true = fleet_of(rng, 4)
    plan = make_plan(gain, alignment=0.07, dimension=6)
    aircomp = AirCompRound.from_plan(plan, channel=true, phase=phase)
    theta = Fraction(plan.alignment)
    for device in range(4):
        for update in (np.full(6, value), np.r_[value, rng.normal(size=5)], np.r_[np.zeros(5), value]):
            square = sum(part**2 for part in contribution(aircomp, device, update, 6))
            assert square <= theta**2


def test_replacing_one_device_moves_the_signal_by_two_thetas_and_no_more():
    rng = np.random.default_rng(10)
    gain, phase, true = fleet_of(rng, 5)
    plan = make_plan(gain, alignment=0.07, dimension=50)
    aircomp = AirCompRound.from_plan(plan, channel=true, phase=phase)
    others = random_updates(rng, 5, 50)
    direction = rng.normal(size=50)
    received = []
    for sign in (1, -1):
        updates = others.copy()
        updates[2] = sign * 100 * direction
        received.append(transmit(aircomp, updates, np.zeros(50)).received)
    moved = np.linalg.norm(received[0] - received[1])
    assert moved <= 2 * plan.alignment * (1 + 1e-12)
    assert moved == pytest.approx(2 * plan.alignment, rel=2 * CLIP_MARGIN)


def test_a_bad_update_counts_as_zero_and_is_named():
    plan = make_plan([0.5] * 5, scheduled=[0, 2, 3])
    updates = np.full((3, 8), 0.25, np.float32)
    updates[1, 4] = np.nan
    got = transmit(AirCompRound.from_plan(plan), updates, np.zeros(8))
    np.testing.assert_allclose(got.estimate, 0.25 * 2 / 3, rtol=1e-14)  # of all three
    assert got.refused.tolist() == [2]
    assert got.missing.size == 0
    assert got.energy[1] == 0.0
    assert np.isnan(got.norms[1])


def test_a_missing_device_changes_neither_divisor_nor_noise():
    rng = np.random.default_rng(11)
    plan = make_plan([0.5] * 6, scheduled=[1, 2, 4, 5])
    aircomp = AirCompRound.from_plan(plan)
    updates, noise = random_updates(rng, 4, 8), rng.normal(size=8)
    zeroed = updates.copy()
    zeroed[2] = 0.0
    dropped = transmit(aircomp, updates[[0, 1, 3]], noise, devices=[1, 2, 5])
    whole = transmit(aircomp, zeroed, noise)
    assert dropped.estimate.tobytes() == whole.estimate.tobytes()
    assert dropped.noise_error == whole.noise_error
    assert dropped.missing.tolist() == [4]
    assert dropped.refused.size == 0
    assert dropped.energy[2] == 0.0


# -- exact sums


@pytest.mark.parametrize("nmse", [0.0, 0.1])
def test_the_sum_has_the_same_bits_for_every_order_chunk_and_split(nmse):
    rng = np.random.default_rng(12)
    count, dimension = 60, 37
    gain, phase, true = fleet_of(rng, count)
    true = true + math.sqrt(nmse / 2) * (rng.normal(size=count) + 1j * rng.normal(size=count))
    plan = make_plan(gain, dimension=dimension)
    aircomp = AirCompRound.from_plan(plan, channel=true, phase=phase)
    updates = random_updates(rng, count, dimension) * (10.0 ** rng.uniform(-8, 4, (count, 1)).astype(np.float32))
    updates[7, 3], updates[50, 0] = np.nan, np.inf
    noise = rng.normal(size=dimension)
    first = transmit(aircomp, updates, noise, chunk=count)
    assert first.refused.tolist() == [7, 50]

    for chunk in (1, 2, 7, 32, 59):
        order = rng.permutation(count)
        same(first, transmit(aircomp, updates[order], noise, devices=order, chunk=chunk))
    for parts in (2, 3, 8):  # as separate processes would
        order = rng.permutation(count)
        partial = []
        for part in np.array_split(order, parts):
            superposition = aircomp.open_round(dimension)
            superposition.add(part, updates[part])
            partial.append(superposition)
        same(first, merged(partial).receive(noise))


def merged(partial):
    """Return the sum of superpositions with different devices: their integers add."""
    whole, *rest = partial
    for other in rest:
        whole.integers = whole.integers + other.integers
        whole.norm_max = max(whole.norm_max, other.norm_max)
        whole.norms[other.arrived] = other.norms[other.arrived]
        whole.energy[other.arrived] = other.energy[other.arrived]
        whole.arrived |= other.arrived
    return whole


def same(one, other):
    for name in ("received", "estimate", "norms", "energy", "refused", "missing"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in ("fading_error", "noise_error", "signal_to_noise", "power", "clipped", "norm_mean", "norm_max"):
        assert getattr(one, name) == getattr(other, name), name


def test_the_sum_is_exact_to_half_a_quantum_a_device():
    rng = np.random.default_rng(13)
    count, dimension = 200, 5
    gain, phase, true = fleet_of(rng, count)
    plan = make_plan(gain, dimension=dimension)
    aircomp = AirCompRound.from_plan(plan, channel=true, phase=phase)
    updates = (random_updates(rng, count, dimension) * 10.0 ** rng.uniform(-6, 0, (count, 1))).astype(np.float32)
    superposition = aircomp.open_round(dimension)
    superposition.add(aircomp.scheduled, updates)
    clipped, _ = clip(updates, CLIP)
    quantum = Fraction(superposition._quantum)
    assert quantum <= Fraction(2) ** -61 * count * Fraction(plan.alignment) * (1 + Fraction(1, 10**9))
    for j in range(dimension):
        products = [Fraction(float(c) * float(g)) for c, g in zip(aircomp.coefficient.real, clipped[:, j], strict=True)]
        error = int(superposition.signal[0, 0, j]) * quantum - sum(products)
        assert abs(error) <= count * quantum / 8  # each is rounded to the nearest, so they nearly cancel


def test_the_sum_cannot_overflow_when_all_arrive_at_full_strength():
    for count in (1, 2, 3, 4, 127, 128, 129, 1024):
        for alignment in (0.1, 0.125, 1e-9, 0.99999):
            plan = make_plan(np.ones(count), alignment=alignment, dimension=1)
            got = transmit(
                AirCompRound.from_plan(plan), np.full((count, 1), -1e6, np.float32), np.zeros(1), chunk=count
            )
            assert got.estimate[0] == pytest.approx(-CLIP * (1 - CLIP_MARGIN), rel=1e-13)


def test_a_million_devices_add_up_in_little_memory():
    count, dimension, chunk = 1_000_000, 4, 50_000
    rng = np.random.default_rng(14)
    plan = make_plan(rng.uniform(0.2, 1.0, count), dimension=dimension)
    aircomp = AirCompRound.from_plan(plan)
    updates = (rng.normal(size=(chunk, dimension)) * 0.3 + 0.1).astype(np.float32)  # the same for each chunk
    tracemalloc.start()
    superposition = aircomp.open_round(dimension)
    for start in range(0, count, chunk):
        superposition.add(aircomp.scheduled[start : start + chunk], updates)
    got = superposition.receive(np.zeros(dimension))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 17 * count + 300 * dimension * chunk  # bytes: three short columns per device, and a few chunks
    clipped, _ = clip(updates, CLIP)
    mean = np.array([math.fsum(column) / chunk for column in clipped.T])
    np.testing.assert_allclose(got.estimate, mean, rtol=1e-13)


@pytest.mark.parametrize(
    ("devices", "shape", "message"),
    [
        ([0], (1, 8), "scheduled"),
        ([9], (1, 8), "scheduled"),
        ([1, 1], (2, 8), "at most once"),
        ([3], (1, 8), "at most once"),
        ([1], (1, 7), "shape"),
        ([1], (2, 8), "shape"),
        ([1, 5], (1, 8), "shape"),
    ],
)
def test_wrong_uploads_are_refused_and_leave_the_sum_alone(devices, shape, message):
    aircomp = AirCompRound.from_plan(make_plan([0.5] * 7, scheduled=[1, 3, 5]))
    superposition = aircomp.open_round(8)
    superposition.add(np.array([3]), np.ones((1, 8)))
    before = superposition.signal.copy()
    with pytest.raises(ValueError, match=message):
        superposition.add(np.array(devices), np.ones(shape))
    np.testing.assert_array_equal(superposition.signal, before)
    assert superposition.receive(np.zeros(8)).missing.tolist() == [1, 5]


def test_noise_of_another_length_is_refused():
    with pytest.raises(ValueError, match="noise must have shape"):
        AirCompRound.from_plan(make_plan([0.5])).open_round(8).receive(np.zeros(7))


# -- the noise of the recovered mean


@pytest.mark.parametrize("source", [SeededNoise(b"key"), SecureNoise()], ids=["seeded", "secure"])
def test_the_noise_of_the_recovered_mean_has_the_variance_that_the_plan_claims(source):
    # 2.2 million samples: the empirical variance has a relative standard deviation of 0.1%, so 1% is ten of them.
    rounds, dimension, count = 100, 21840, 20
    rng = np.random.default_rng(15)
    plan = make_plan(rng.uniform(0.2, 1.0, count), dimension=dimension, noise_std=0.3)
    aircomp = AirCompRound.from_plan(plan)
    updates = random_updates(rng, count, dimension)
    clean = transmit(aircomp, updates, np.zeros(dimension)).estimate
    error = np.empty((rounds, dimension))
    for index in range(rounds):
        noise = source.draw(index, dimension, plan.problem.link.noise_std)
        error[index] = transmit(aircomp, updates, noise, chunk=count).estimate - clean
    learning = plan.problem.learning
    claimed = plan.problem.link.noise_std * learning.clip_norm / (count * plan.alignment)  # σ/(|K|ν) per real dimension
    assert error.var() == pytest.approx(claimed**2, rel=0.01)
    assert abs(error.mean()) < 5.5 * claimed / math.sqrt(error.size)
    # Theorem 1's term C is this noise: ½ E‖error‖²/ϖ² = dσ²/(2|K|²θ²)
    term = 0.5 * np.mean(np.sum(error**2, axis=1)) / learning.clip_norm**2
    assert term == pytest.approx(0.5 * dimension * (0.3 / (count * plan.alignment)) ** 2, rel=0.01)
    # every real dimension by itself: χ² with 100 degrees of freedom, 21840 of them
    assert np.max(np.mean(error**2, axis=0)) < 2.2 * claimed**2
    assert np.min(np.mean(error**2, axis=0)) > 0.4 * claimed**2
    # rounds are independent: 4,950 pairs, each correlation of standard deviation 1/√d
    correlation = error @ error.T / (dimension * claimed**2)
    pairs = [abs(correlation[i, j]) for i, j in itertools.combinations(range(rounds), 2)]
    assert max(pairs) < 5.5 / math.sqrt(dimension)
