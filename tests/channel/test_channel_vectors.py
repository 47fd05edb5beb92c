"""Channels of several antennas: moments, covariances, evolution over rounds, and their files."""

import itertools

import numpy as np
import pytest

from airfed import antennas, seeds
from airfed.channel import MODELS, Cell, ChannelModel, Fixed, FromFile, PathLoss, Rayleigh, Rician, Uniform, arrays

DEVICES = 4000
SIGMAS = 5.0
IN_A_CELL = {"radius": 300.0, "reference_distance": 50.0, "shadowing_db": 4.0}
OUTDOORS = {"path_loss_model": "uma_nlos", "frequency": 3.5e9, "radius": 800.0, "shadowing_db": 6.0, "k_factor": 2.0}
CHANGING = [
    Rayleigh(coherence_rounds=1),
    Rayleigh(scale=2.0, coherence_rounds=3, correlation=0.7, minimum=0.3, pin_minimum=True),
    Rician(k_factor=3.0, coherence_rounds=2, correlation=0.5, common_shadowing_db=3.0, angle_spread=10.0),
    Uniform(low=0.1, high=2.0, coherence_rounds=2, common_shadowing_db=3.0, shadowing_coherence_rounds=5),
    Cell(
        **IN_A_CELL,
        coherence_rounds=2,
        correlation=0.9,
        common_shadowing_db=8.0,
        shadowing_coherence_rounds=3,
        angle_spread=5.0,
    ),
    Cell(**IN_A_CELL, shadowing_coherence_rounds=4),
    PathLoss(**OUTDOORS, coherence_rounds=2, correlation=0.6, common_shadowing_db=3.0, shadowing_coherence_rounds=3),
    Fixed(gains=[0.5, 0.1, 0.9, 1.2, 2.0], common_shadowing_db=6.0, shadowing_coherence_rounds=2, minimum=0.2),
]


@pytest.fixture(params=CHANGING, ids=lambda model: f"{model.model}-{CHANGING.index(model)}")
def model(request):
    return request.param


def vectors_of(model, *, rounds=12, num_devices=5, number=3, seed=3):
    return model.with_antennas(number).trace(rounds=rounds, num_devices=num_devices, seed=seed)


def sampler_of(model, *, rounds=12, num_devices=5, number=3, seed=3):
    """Return the samples as a conditional sampler."""
    sampler = model.with_antennas(number).samples(rounds=rounds, num_devices=num_devices, seed=seed)
    return sampler if callable(sampler) else lambda seen: sampler[:, len(seen) :]


def still(model):
    return model.model_copy(update={"coherence_rounds": None, "correlation": 0.0, "shadowing_coherence_rounds": None})


def free(model):
    return model.model_copy(update={"minimum": 0.0, "pin_minimum": False})


# Every model


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS.values() if not kind.file_keys()], ids=lambda kind: kind.__name__
)
def test_every_model_has_vectors(kind):
    model = kind(**kind.initial_values())
    count = 50 if model.num_gains is None else model.num_gains
    found = vectors_of(model, num_devices=count, number=4)
    assert found.shape == (count, 4)
    assert found.dtype == np.complex128
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, vectors_of(model, num_devices=count, number=4))
    assert not np.array_equal(found, vectors_of(model, num_devices=count, number=4, seed=4))
    least = float(antennas.norms(found).min()) / 8
    pinned = kind(**kind.initial_values(), minimum=least, pin_minimum=True)
    strength = antennas.norms(vectors_of(pinned, num_devices=count, number=4)) / 2
    assert strength.min() == pytest.approx(least)
    assert np.argmin(strength) == np.argmin(antennas.norms(found))
    assert vectors_of(model, num_devices=count, number=1).dtype == np.float64


def test_one_antenna_gives_the_scalar_gains(model):
    for rounds in (1, 7):
        same = {"rounds": rounds, "num_devices": 5, "seed": 3}
        np.testing.assert_array_equal(model.with_antennas(1).trace(**same), model.trace(**same))
    one, plain = (each.samples(rounds=7, num_devices=5, seed=3) for each in (model.with_antennas(1), model))
    for done in (0, 4) if callable(plain) else ():
        one_draw, plain_draw = one(np.empty((done, 5))), plain(np.empty((done, 5)))
        np.testing.assert_array_equal(one_draw, plain_draw)


def test_more_antennas_begin_as_fewer_do(model):
    for spread in (model.angle_spread, 15.0):
        some = free(model).model_copy(update={"angle_spread": spread})
        np.testing.assert_allclose(vectors_of(some, number=6)[..., :3], vectors_of(some, number=3), rtol=1e-6)


def test_the_minimum_scales_the_vectors(model):
    plain = vectors_of(free(model))
    strength = antennas.norms(plain) / np.sqrt(3)
    least = float(np.median(strength))
    raised = vectors_of(free(model).model_copy(update={"minimum": least}))
    np.testing.assert_allclose(antennas.norms(raised) / np.sqrt(3), np.maximum(strength, least))
    np.testing.assert_array_equal(raised[strength >= least], plain[strength >= least])
    np.testing.assert_allclose(antennas.unit(raised), antennas.unit(plain))


def test_a_vector_of_zeros_is_raised_too():
    found = vectors_of(Fixed(gains=[0.0, 1.0], minimum=0.5), num_devices=2)
    np.testing.assert_allclose(antennas.norms(found), np.sqrt(3) * np.array([0.5, 1.0]))
    assert not vectors_of(Fixed(gains=[0.0, 1.0]), num_devices=2)[0].any()


# Moments


@pytest.mark.parametrize("spread", [None, 8.0])
@pytest.mark.parametrize("kind", [Rayleigh, Rician])
def test_every_antenna_has_the_power_of_the_scale(kind, spread):
    model = kind(scale=2.0, angle_spread=spread, coherence_rounds=1, correlation=0.5)
    for vectors in vectors_of(model, rounds=2, num_devices=DEVICES):
        power = np.mean(np.abs(vectors) ** 2, axis=0)
        assert np.all(np.abs(power - 4.0) < SIGMAS * 4.0 / np.sqrt(DEVICES))  # |h|² varies by scale² at most


def test_independent_antennas_are():
    vectors = vectors_of(Rayleigh(), num_devices=DEVICES)
    found = np.einsum("ka,kb->ab", vectors, np.conj(vectors)) / DEVICES
    np.testing.assert_allclose(found, np.eye(3), atol=SIGMAS / np.sqrt(DEVICES))
    pseudo = np.einsum("ka,kb->ab", vectors, vectors) / DEVICES  # circular: real and imaginary parts alike
    assert np.abs(pseudo).max() < SIGMAS * np.sqrt(2 / DEVICES)


def test_large_scale_parts_are_those_of_one_antenna():
    quiet = {"shadowing_db": 6.0, "radius": 300.0, "common_shadowing_db": 3.0}
    found = antennas.norms(vectors_of(Cell(**quiet), num_devices=20, number=4000)) / np.sqrt(4000)
    state = Cell(**quiet).process(20, 3).state
    np.testing.assert_allclose(found, state.path_gain * state.shadowing * state.common_shadowing, rtol=0.1)


@pytest.mark.parametrize("spread", [2.0, 10.0, 40.0])
def test_covariances_are_those_of_many_rays(spread):
    angle, number, spacing = np.radians([-50.0, 0.0, 35.0]), 5, 0.7
    found = arrays.covariance(angle, number=number, spacing=spacing, spread=np.radians(spread))
    rays = 40_000
    drawn = angle[:, None] + np.radians(spread) * np.random.default_rng(1).standard_normal(rays)
    waves = np.exp(2j * np.pi * spacing * np.arange(number) * np.sin(drawn)[..., None])
    brute = np.einsum("kra,krb->kab", waves, np.conj(waves)) / rays
    np.testing.assert_allclose(found, brute, atol=SIGMAS / np.sqrt(rays))
    fine = np.linspace(-9, 9, 20_001)
    weight = np.exp(-0.5 * fine**2)
    exact = (
        np.exp(2j * np.pi * spacing * 4 * np.sin(angle[:, None] + np.radians(spread) * fine)) @ weight / weight.sum()
    )
    np.testing.assert_allclose(found[:, 4, 0], exact, atol=1e-9)


def test_long_arrays_are_integrated_as_well():
    found = arrays.covariance(np.array([0.3]), number=64, spacing=2.0, spread=0.7)
    fine = np.linspace(-9, 9, 200_001)
    weight = np.exp(-0.5 * fine**2)
    exact = np.exp(2j * np.pi * 2.0 * 63 * np.sin(0.3 + 0.7 * fine)) @ weight / weight.sum()
    assert abs(found[0, 63, 0] - exact) < 1e-9


def test_scattered_vectors_have_that_covariance():
    model = Rayleigh(angle_spread=12.0, sector=0.0, antenna_spacing=0.8)  # all from broadside
    vectors = vectors_of(model, num_devices=DEVICES, number=4)
    expected = arrays.covariance(np.zeros(1), number=4, spacing=0.8, spread=np.radians(12.0))[0]
    found = np.einsum("ka,kb->ab", vectors, np.conj(vectors)) / DEVICES
    np.testing.assert_allclose(found, expected, atol=SIGMAS / np.sqrt(DEVICES))


@pytest.mark.parametrize("spread", [None, 3.0])
def test_a_direct_path_is_a_plane_wave_from_the_devices_angle(spread):
    model = Rician(k_factor=1e9, sector=60.0, angle_spread=spread)
    vectors = vectors_of(model, num_devices=500)
    np.testing.assert_allclose(np.abs(vectors), 1.0, atol=1e-3)
    step = np.angle(vectors[:, 1:] / vectors[:, :-1])
    np.testing.assert_allclose(step[:, 0], step[:, 1], atol=1e-3)
    angle = np.degrees(np.arcsin(step[:, 0] / np.pi))
    assert -30 < angle.min() < -28
    assert 28 < angle.max() < 30


def test_gains_without_amplitudes_have_that_modulus_at_every_antenna():
    gains = np.linspace(0.1, 2.0, 300)
    model = Fixed(gains=gains)
    apart = vectors_of(model, num_devices=300)
    np.testing.assert_allclose(np.abs(apart), np.repeat(gains[:, None], 3, axis=1))
    assert np.abs(np.mean(apart / gains[:, None], axis=0)).max() < SIGMAS / np.sqrt(300)
    assert np.abs(np.mean(apart[:, 1] / apart[:, 0])) < SIGMAS / np.sqrt(300)
    together = vectors_of(Fixed(gains=gains, angle_spread=1.0), num_devices=300)
    np.testing.assert_allclose(np.abs(together), np.repeat(gains[:, None], 3, axis=1))
    np.testing.assert_allclose(together[:, 2] * together[:, 0], together[:, 1] ** 2)  # a plane wave


# Rounds


def test_the_first_round_is_that_of_a_channel_that_stays(model):
    vectors = vectors_of(model)
    assert vectors.shape == (12, 5, 3)
    np.testing.assert_array_equal(vectors[0], vectors_of(still(model)))


def test_fewer_rounds_are_the_first_of_more(model):
    np.testing.assert_array_equal(vectors_of(model, rounds=7), vectors_of(model)[:7])


def test_vectors_change_where_a_block_begins_and_nowhere_else(model):
    vectors = vectors_of(free(model))
    for index in range(1, 12):
        begins = any(
            length and index % length == 0 for length in (model.coherence_rounds, model.shadowing_coherence_rounds)
        )
        assert np.all((vectors[index] != vectors[index - 1]) == begins)


@pytest.mark.parametrize("spread", [None, 20.0])
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_amplitudes_of_every_antenna_are_correlated_from_block_to_block(rho, spread):
    model = Rayleigh(coherence_rounds=2, correlation=rho, angle_spread=spread)
    blocks = vectors_of(model, rounds=6, num_devices=DEVICES)[::2]
    for lag in (1, 2):
        for first, later in zip(blocks, blocks[lag:], strict=False):
            found = np.mean(later * np.conj(first), axis=0)
            assert np.abs(found - rho**lag).max() < SIGMAS / np.sqrt(DEVICES)
    for block in blocks:
        assert np.abs(np.mean(np.abs(block) ** 2, axis=0) - 1).max() < SIGMAS / np.sqrt(DEVICES)


# Monte Carlo samples


def test_samples_have_the_shape_of_the_later_rounds(model):
    sampler, vectors = sampler_of(model), vectors_of(model)
    for done in (0, 5, 1, 12, 3):  # in whatever order
        draws = sampler(vectors[:done])
        assert draws.shape == (24, 12 - done, 5, 3)
        np.testing.assert_array_equal(draws, sampler_of(model)(vectors[:done]))


def test_fewer_draws_are_made_for_more_antennas():
    many = sampler_of(Rayleigh(coherence_rounds=1), rounds=40, num_devices=300, number=20)(np.empty((0, 300, 20)))
    assert many.shape == (17, 40, 300, 20)


def test_samples_do_not_depend_on_later_rounds(model, monkeypatch, diverging):
    true = seeds.stream
    vectors = vectors_of(model)
    samples = [sampler_of(model)(vectors[:done]) for done in range(13)]
    diverged = 0
    for calls in (1, 2, 4):

        def stream(seed, name, *key, calls=calls):
            found = true(seed, name, *key)
            return diverging(found, calls) if name == "fading" or (name, *key[:1]) == ("array", 1) else found

        monkeypatch.setattr(seeds, "stream", stream)
        other = vectors_of(model)
        equal = int(np.argmin([*np.all(other == vectors, axis=(1, 2)), False]))
        assert equal >= 1
        diverged += equal < 12
        for done in range(equal + 1):
            np.testing.assert_array_equal(sampler_of(model)(other[:done]), samples[done])
    assert diverged >= 1


def test_samples_are_conditional_on_the_last_round():
    # h' = ρh + √(1−ρ²)w: given h its mean is ρh
    model = Rayleigh(coherence_rounds=2, correlation=0.9, angle_spread=15.0)
    vectors = vectors_of(model, num_devices=DEVICES)
    draws = sampler_of(model, num_devices=DEVICES)(vectors[:3])
    np.testing.assert_array_equal(draws[:, 0], np.broadcast_to(vectors[2], draws[:, 0].shape))  # the block's rest
    for place, stays in ((1, 0.9), (3, 0.81)):
        left = draws[:, place] - stays * vectors[2]
        power = np.mean(np.abs(left) ** 2, axis=(0, 1))
        assert np.abs(power - (1 - stays**2)).max() < SIGMAS / np.sqrt(DEVICES)
        assert np.abs(np.mean(left * np.conj(vectors[2]), axis=(0, 1))).max() < SIGMAS / np.sqrt(DEVICES)


def test_angles_last_the_whole_run_and_are_known_before_it():
    model = Rician(k_factor=1e8, coherence_rounds=1)
    draws, vectors = sampler_of(model)(np.empty((0, 5, 3))), vectors_of(model)
    np.testing.assert_allclose(draws, np.broadcast_to(vectors[0], draws.shape), atol=1e-2)


def test_too_many_are_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*27 complex gains, .* at 8 antennas\. "):
        vectors_of(Rayleigh(coherence_rounds=1), rounds=2**24, num_devices=2, number=8)
    with pytest.raises(ValueError, match=r"at most 2\*\*27 complex gains"):
        vectors_of(Rayleigh(angle_spread=1.0), num_devices=2**18, number=64)


# Files


@pytest.fixture
def saved(tmp_path):
    def save(array, **keys):
        np.save(tmp_path / "h.npy", array)
        return FromFile(path=tmp_path / "h.npy", **keys)

    return save


def some(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def test_a_file_of_vectors(saved):
    array = some(6, 4)
    model = saved(array).with_antennas(4)
    assert (model.num_gains, model.time_varying) == (6, False)
    np.testing.assert_array_equal(model.trace(rounds=9, num_devices=6, seed=0), array)
    assert model.samples(rounds=9, num_devices=6, seed=0) is None
    least = saved(array, minimum=1.5).with_antennas(4).trace(rounds=9, num_devices=6, seed=0)
    np.testing.assert_allclose(antennas.norms(least), np.maximum(antennas.norms(array), 3.0))
    reals = saved(array.real).with_antennas(4)
    np.testing.assert_array_equal(reals.trace(rounds=9, num_devices=6, seed=0), array.real.astype(complex))


def test_a_trace_of_vectors_is_known_up_to_the_present(saved):
    array = some(5, 3, 2)
    model = saved(array).with_antennas(2)
    assert (model.num_gains, model.time_varying) == (3, True)
    np.testing.assert_array_equal(model.trace(rounds=99, num_devices=3, seed=0), array)
    sampler = model.samples(rounds=5, num_devices=3, seed=0)
    for done in range(6):
        draws = sampler(array[:done])
        assert draws.shape == (24, 5 - done, 3, 2)
        places = {int(np.flatnonzero((array == row).all(axis=(1, 2)))[0]) for row in draws.reshape(-1, 3, 2)}
        assert places <= set(range(max(done, 1)))


def test_one_antenna_reads_vectors_of_one_entry(saved):
    array = some(5, 3, 1)
    np.testing.assert_array_equal(saved(array).trace(rounds=5, num_devices=3, seed=0), np.abs(array[..., 0]))
    np.testing.assert_array_equal(saved(array[..., 0]).trace(rounds=5, num_devices=3, seed=0), np.abs(array[..., 0]))
    assert saved(array[:, 0]).num_gains == 1  # a table is (rounds, devices), as before


def test_one_gain_per_device_is_the_modulus_at_every_antenna(saved, tmp_path):
    gains = np.array([0.5, 1.0, 2.0])
    (tmp_path / "h.csv").write_text("0.5\n1.0\n2.0\n")
    for model in (saved(gains), FromFile(path=tmp_path / "h.csv")):
        found = model.with_antennas(2).trace(rounds=5, num_devices=3, seed=0)
        np.testing.assert_allclose(np.abs(found), np.repeat(gains[:, None], 2, axis=1))
        np.testing.assert_array_equal(found, vectors_of(Fixed(gains=gains), num_devices=3, number=2, seed=0))


@pytest.mark.parametrize(
    ("array", "number", "named"),
    [
        (
            some(6, 4),
            3,
            r"must have shape \(devices, 3\) or \(rounds, devices, 3\) with link\.antennas=3, got \(6, 4\)",
        ),
        (some(2, 6, 4), 8, r"link\.antennas=8, got \(2, 6, 4\)"),
        (some(2, 6, 4), 1, r"\(rounds, devices\), got \(2, 6, 4\) \(set link\.antennas = 4 to read it\)"),
        (some(2, 2, 2, 2), 2, r"link\.antennas=2, got \(2, 2, 2, 2\)"),
        (np.full((2, 2), np.nan), 2, "gain must be finite in every entry"),
        (np.full((2, 2), 1j * np.inf), 2, "gain must be finite in every entry"),
        (np.ones((0, 2)), 2, r"a non-empty array of 2 or 3 dimensions, got shape \(0, 2\)"),
        (some(7, 4), 4, r"must have 6 gains \(fleet\.num_devices\), got 7"),
    ],
)
def test_bad_files_of_vectors(saved, array, number, named):
    with pytest.raises(ValueError, match=named) as caught:
        saved(array).with_antennas(number).trace(rounds=2, num_devices=6, seed=0)
    assert "\n" not in str(caught.value)


def test_settings_that_a_file_does_not_support(saved, tmp_path):
    with pytest.raises(
        ValueError, match=r"^channel\.angle_spread must not be set with .*: the file has the gain at every"
    ):
        saved(some(6, 4), angle_spread=5.0).with_antennas(4).trace(rounds=2, num_devices=6, seed=0)
    (tmp_path / "h.csv").write_text("1,2\n3,4\n")
    trace = FromFile(path=tmp_path / "h.csv")
    with pytest.raises(
        ValueError, match=r"a trace of one antenna\. With link\.antennas=2 a trace must be a \.npy of shape"
    ):
        trace.with_antennas(2).trace(rounds=2, num_devices=2, seed=0)


def test_a_custom_model_needs_only_magnitudes():
    class Halves(ChannelModel):
        def magnitudes(self, num_devices, rng):
            return np.full(num_devices, 0.5)

    np.testing.assert_allclose(np.abs(vectors_of(Halves(model="halves"))), 0.5)
    blocks = vectors_of(Halves(model="halves", coherence_rounds=1), rounds=3)
    assert all(not np.array_equal(first, later) for first, later in itertools.pairwise(blocks))
