"""Fading processes: block fading over rounds, and its conditional samplers (with stated sample sizes)."""

import itertools

import numpy as np
import pytest
from scipy import stats

from airfed import seeds
from airfed.channel import Cell, Fixed, FromFile, PathLoss, Rayleigh, Rician, Uniform, arrays

DEVICES = 20_000
SIGMAS = 5.0
SCALE = 2.0
IN_A_CELL = {"radius": 300.0, "reference_distance": 50.0, "shadowing_db": 4.0}
OUTDOORS = {"path_loss_model": "uma_nlos", "frequency": 3.5e9, "radius": 800.0, "shadowing_db": 6.0, "k_factor": 2.0}
CHANGING = [
    Rayleigh(coherence_rounds=1),
    Rayleigh(scale=SCALE, coherence_rounds=3, correlation=0.7, minimum=0.1, pin_minimum=True),
    Rician(k_factor=3.0, coherence_rounds=2, correlation=0.5, common_shadowing_db=3.0),
    Uniform(low=0.1, high=2.0, coherence_rounds=2, common_shadowing_db=3.0, shadowing_coherence_rounds=5),
    Cell(**IN_A_CELL, coherence_rounds=2, correlation=0.9, common_shadowing_db=8.0, shadowing_coherence_rounds=3),
    Cell(**IN_A_CELL, shadowing_coherence_rounds=4),
    PathLoss(**OUTDOORS, coherence_rounds=2, correlation=0.6, common_shadowing_db=3.0, shadowing_coherence_rounds=3),
    Fixed(gains=[0.5, 0.1, 0.9, 1.2, 2.0], common_shadowing_db=6.0, shadowing_coherence_rounds=2, minimum=0.2),
]
FADING = [
    Rayleigh(scale=SCALE, coherence_rounds=1),
    Rayleigh(scale=SCALE, coherence_rounds=1, correlation=0.8),
    Rician(scale=SCALE, k_factor=2.0, coherence_rounds=1, correlation=0.6),
]


@pytest.fixture(params=CHANGING, ids=lambda model: f"{model.model}-{CHANGING.index(model)}")
def model(request):
    return request.param


def gains_of(model, rounds=12, num_devices=5, seed=3):
    return model.trace(rounds=rounds, num_devices=num_devices, seed=seed)


def near(values, mean, spread):
    """Return whether the mean of independent values agrees with that of their distribution."""
    assert abs(np.mean(values) - mean) < SIGMAS * spread / np.sqrt(np.size(values))


# The gains


def test_the_first_round_is_the_draw_of_a_channel_that_stays(model):
    still = model.model_copy(update={"coherence_rounds": None, "correlation": 0.0, "shadowing_coherence_rounds": None})
    gains = gains_of(model)
    assert gains.shape == (12, 5)
    np.testing.assert_array_equal(gains[0], still.draw(5, seeds.stream(3, "channel")))
    np.testing.assert_array_equal(gains[0], gains_of(still))
    np.testing.assert_array_equal(gains[0], model.draw(5, seeds.stream(3, "channel")))


def test_fewer_rounds_are_the_first_of_more(model):
    np.testing.assert_array_equal(gains_of(model, rounds=7), gains_of(model, rounds=12)[:7])
    assert not np.array_equal(gains_of(model, seed=4), gains_of(model))


def test_gains_change_where_a_block_begins_and_nowhere_else(model):
    gains = gains_of(model.model_copy(update={"minimum": 0.0, "pin_minimum": False}))
    for index in range(1, 12):
        begins = any(
            length and index % length == 0 for length in (model.coherence_rounds, model.shadowing_coherence_rounds)
        )
        assert np.all((gains[index] != gains[index - 1]) == begins)


def test_every_round_keeps_the_minimum(model):
    least = float(np.median(gains_of(model)))
    low = model.model_copy(update={"minimum": 0.0, "pin_minimum": False})
    free = gains_of(low)
    np.testing.assert_array_equal(gains_of(low.model_copy(update={"minimum": least})), np.maximum(free, least))
    pinned = low.model_copy(update={"minimum": 1e-9, "pin_minimum": True})
    np.testing.assert_array_equal(np.argmin(gains_of(pinned), axis=1), np.argmin(free, axis=1))
    for kept in (gains_of(pinned), pinned.samples(rounds=12, num_devices=5, seed=3)):
        kept = kept(np.empty((0, 5))) if callable(kept) else kept
        assert np.all(np.min(kept, axis=-1) == 1e-9)
        assert np.all(np.count_nonzero(kept == 1e-9, axis=-1) == 1)


@pytest.mark.parametrize("model", FADING)
def test_every_block_has_the_distribution_of_the_first(model):
    k_factor = getattr(model, "k_factor", 0.0)
    distribution = stats.rice(b=np.sqrt(2 * k_factor), scale=SCALE * np.sqrt(0.5 / (k_factor + 1)))
    for gains in gains_of(model, rounds=4, num_devices=DEVICES):
        assert stats.kstest(gains, distribution.cdf).pvalue > 1e-4


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("kind", [Rayleigh, Cell])
def test_the_power_of_rayleigh_fading_is_correlated_by_the_square(kind, correlation):
    # h' = ρh + √(1−ρ²)w: the correlation of |h|² from block to block is ρ², and ρ^2n over n blocks
    keys = {"radius": 9.0, "path_loss_exponent": 1e-9} if kind is Cell else {}
    power = gains_of(kind(coherence_rounds=2, correlation=correlation, **keys), rounds=8, num_devices=DEVICES)[::2] ** 2
    for lag in (1, 2, 3):
        for first, later in zip(power, power[lag:], strict=False):
            found = np.corrcoef(first, later)[0, 1]
            assert abs(found - correlation ** (2 * lag)) < 15 / np.sqrt(DEVICES)  # its deviation: at most 3/√DEVICES


def test_the_scattered_paths_of_rician_fading_are_correlated():
    # of |d + s|² with E|s|² = s₀: covariance over a block 2d²ρs₀ + ρ²s₀², variance the same with ρ = 1
    direct, scattered, rho = 0.75, 0.25, 0.8
    power = gains_of(Rician(k_factor=3.0, coherence_rounds=1, correlation=rho), rounds=3, num_devices=DEVICES) ** 2
    expected = (2 * direct * rho + rho**2 * scattered) / (2 * direct + scattered)
    for first, later in itertools.pairwise(power):
        assert abs(np.corrcoef(first, later)[0, 1] - expected) < 10 / np.sqrt(DEVICES)


@pytest.mark.parametrize("kind", [Rayleigh, Uniform, Cell, Fixed])
def test_common_shadowing_is_the_same_for_all_devices_and_log_normal(kind):
    keys = {Uniform: {"low": 0.1, "high": 2.0}, Cell: IN_A_CELL | {"shadowing_db": 0.0}, Fixed: {"gains": [0.5, 1.0]}}
    plain = kind(**keys.get(kind, {}))
    gains = gains_of(kind(**keys.get(kind, {}), common_shadowing_db=8.0, shadowing_coherence_rounds=2), 4000, 2)
    ratio_db = 20 * np.log10(gains / gains_of(plain, num_devices=2))
    assert np.ptp(ratio_db, axis=1).max() < 1e-9
    drawn = ratio_db[::2, 0]
    np.testing.assert_allclose(ratio_db[1::2, 0], drawn)
    assert stats.kstest(drawn, stats.norm(0, 8.0).cdf).pvalue > 1e-4
    assert abs(stats.spearmanr(drawn[:-1], drawn[1:]).statistic) < SIGMAS / np.sqrt(drawn.size - 1)


def test_own_shadowing_is_drawn_anew_while_distances_stay():
    still = Cell(**IN_A_CELL | {"shadowing_db": 0.0}, coherence_rounds=3)
    model = Cell(**IN_A_CELL, coherence_rounds=3, shadowing_coherence_rounds=2)
    shadow_db = 20 * np.log10(gains_of(model, 4, DEVICES) / gains_of(still, 4, DEVICES))  # of the same fading
    np.testing.assert_allclose(shadow_db[0], shadow_db[1], atol=1e-9)
    for drawn in shadow_db[::2]:
        assert stats.kstest(drawn, stats.norm(0, 4.0).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(shadow_db[0], shadow_db[2])[0, 1]) < SIGMAS / np.sqrt(DEVICES)


def test_more_of_one_never_shifts_another():
    fading = gains_of(Cell(**IN_A_CELL, coherence_rounds=1))
    shadowed = gains_of(Cell(**IN_A_CELL, coherence_rounds=1, common_shadowing_db=5.0, shadowing_coherence_rounds=12))
    ratio = shadowed / fading
    np.testing.assert_allclose(ratio, ratio[0, 0])
    assert ratio[0, 0] != 1


def test_draws_are_those_of_earlier_releases():
    # Golden: the release before channels could change, seed 7, 50 devices. Powers and logarithms differ in their last
    # digit between processors.
    golden = {
        Rayleigh(scale=0.7): (29.0617411582686, 0.5187269693210002, 0.5347706619341223),
        Rician(scale=2.0, k_factor=3.0): (99.08272316514037, 2.9400988539785633, 2.899582463365228),
        Uniform(low=0.1, high=2.0): (45.78168071404626, 1.0131058108980424, 1.6362776728855448),
        Cell(radius=300.0, shadowing_db=4.0, reference_distance=50.0, scale=2.0): (
            *(21.890371941758254, 0.47418326915694337, 0.31114082330631554),
        ),
        Cell(radius=300.0, minimum=0.01, pin_minimum=True): (0.5, 0.01, 0.01),
    }
    for model, expected in golden.items():
        gains = gains_of(model, num_devices=50, seed=7)
        assert (gains.sum(), gains[0], gains[-1]) == pytest.approx(expected, rel=1e-13), model


def test_too_many_gains_are_refused():
    assert gains_of(Rayleigh(), rounds=2**40).shape == (5,)  # one draw for all
    with pytest.raises(ValueError, match=r"at most 2\*\*28 gains, .*\. Reduce"):
        gains_of(Rayleigh(coherence_rounds=1), rounds=2**28 // 5 + 1)


@pytest.mark.parametrize(
    ("kind", "keys", "named"),
    [
        (
            Fixed,
            {"gains": [1.0], "coherence_rounds": 1},
            'coherence_rounds must not be set with channel.model = "fixed": its gains are given',
        ),
        (Fixed, {"gains": [1.0], "correlation": 0.5}, 'correlation must not be set with channel.model = "fixed"'),
        (
            Uniform,
            {"low": 0.1, "high": 1.0, "coherence_rounds": 1, "correlation": 0.5},
            'correlation must not be set with channel.model = "uniform": its gains have no complex amplitudes',
        ),
        (
            FromFile,
            {"path": "x.csv", "coherence_rounds": 2},
            'coherence_rounds must not be set with channel.model = "file": the file determines how gains vary',
        ),
        (FromFile, {"path": "x.csv", "correlation": 0.5}, "channel.correlation must not be set with"),
        (FromFile, {"path": "x.csv", "common_shadowing_db": 0.5}, "channel.common_shadowing_db must not be set with"),
        (
            FromFile,
            {"path": "x.csv", "shadowing_coherence_rounds": 3},
            "channel.shadowing_coherence_rounds must not be set with",
        ),
    ],
)
def test_keys_that_make_no_sense_with_a_model(kind, keys, named):
    with pytest.raises(ValueError, match=r"^channel\.\w+ must not be set with [^\n]*\.$") as caught:
        kind(**keys)
    assert named in str(caught.value)


def test_correlation_needs_blocks():
    with pytest.raises(
        ValueError, match=r"^channel\.coherence_rounds must be set with channel\.correlation=0\.5: [^\n]*\.$"
    ):
        Rayleigh(correlation=0.5)
    with pytest.raises(ValueError, match=r"correlation must be .*, got 1\.0"):
        Rayleigh(coherence_rounds=1, correlation=1.0)


# Monte Carlo samples


def sampler_of(model, rounds, num_devices, seed=3):
    """Return the samples as a conditional sampler."""
    sampler = model.samples(rounds=rounds, num_devices=num_devices, seed=seed)
    return sampler if callable(sampler) else lambda seen: sampler[:, len(seen) :]


def test_samples_have_the_shape_of_the_later_rounds(model):
    sampler, gains = sampler_of(model, 12, 5), gains_of(model)
    for done in (0, 5, 1, 12, 3):  # in whatever order
        assert sampler(gains[:done]).shape == (24, 12 - done, 5)
        np.testing.assert_array_equal(sampler(gains[:done]), sampler_of(model, 12, 5)(gains[:done]))
    assert not np.array_equal(sampler_of(model, 12, 5, seed=4)(gains[:0]), sampler(gains[:0]))


def test_samples_do_not_depend_on_later_rounds(model, monkeypatch, diverging):
    true = arrays.generators
    gains = gains_of(model)
    samples = [sampler_of(model, 12, 5)(gains[:done]) for done in range(13)]
    diverged = 0
    for calls in range(5):

        def generators(number, seed, name, *key, calls=calls):
            found = true(number, seed, name, *key)
            return tuple(diverging(one, calls) for one in found) if name == "fading" else found

        monkeypatch.setattr(arrays, "generators", generators)
        other = gains_of(model)
        equal = int(np.argmin([*np.all(other == gains, axis=1), False]))
        diverged += equal < 12
        for done in range(equal + 1):
            np.testing.assert_array_equal(sampler_of(model, 12, 5)(other[:done]), samples[done])
    assert diverged >= 1


def test_the_rest_of_a_block_is_known():
    model = Rayleigh(coherence_rounds=5)
    sampler, gains = sampler_of(model, 12, 5), gains_of(model)
    for done, known in ((1, 4), (3, 2), (5, 0), (6, 4), (11, 1)):
        draws = sampler(gains[:done])
        assert np.all(draws[:, :known] == gains[done - 1])
        if done + known < 12:
            assert np.all(draws[:, known] != gains[done - 1])
    assert len(np.unique(sampler(gains[:0])[:, 0])) == 24 * 5  # before the first round nothing is


def test_constant_components_are_known_before_the_run():
    draws = sampler_of(Cell(**IN_A_CELL, shadowing_coherence_rounds=1), 3, DEVICES)(np.empty((0, DEVICES)))
    fading_and_path = gains_of(Cell(**IN_A_CELL | {"shadowing_db": 0.0}), num_devices=DEVICES)
    assert stats.kstest(20 * np.log10(draws[0, 0] / fading_and_path), stats.norm(0, 4.0).cdf).pvalue > 1e-4
    draws = sampler_of(Rayleigh(coherence_rounds=1, common_shadowing_db=20.0), 3, DEVICES)(np.empty((0, DEVICES)))
    common = gains_of(Rayleigh(common_shadowing_db=20.0), num_devices=DEVICES) / gains_of(Rayleigh(), 1, DEVICES)
    near((draws / common) ** 2, 1.0, 1.0)


@pytest.mark.parametrize("done", [1, 2, 5])
def test_samples_are_conditional_on_the_last_round(done):
    # E|h'|² = ρ²|h|² + (1−ρ²)·scale² given |h|; over n blocks with ρ^n
    rho, rounds = 0.9, 8
    model = Rayleigh(scale=SCALE, coherence_rounds=1, correlation=rho)
    gains = gains_of(model, rounds, DEVICES)
    draws = sampler_of(model, rounds, DEVICES)(gains[:done]) ** 2
    for ahead in range(1, rounds - done + 1):
        stays = rho ** (2 * ahead)
        known = stays * gains[done - 1] ** 2
        near(np.mean(draws[:, ahead - 1] - known, axis=0), (1 - stays) * SCALE**2, SCALE**2)
        slope = np.polyfit(gains[done - 1] ** 2, np.mean(draws[:, ahead - 1], axis=0), 1)[0]
        assert slope == pytest.approx(stays, abs=0.02)


def test_samples_have_the_distribution_of_the_later_rounds():
    for model in FADING:
        draws = sampler_of(model, 3, DEVICES)(np.empty((0, DEVICES)))
        come = gains_of(model, 3, DEVICES)
        for index in range(3):
            assert stats.ks_2samp(draws[0, index], come[index]).pvalue > 1e-4
            assert abs(np.corrcoef(draws[0, index], come[index])[0, 1]) < SIGMAS / np.sqrt(DEVICES)  # of another stream
            assert abs(np.corrcoef(draws[0, index], draws[1, index])[0, 1]) < SIGMAS / np.sqrt(DEVICES)


@pytest.mark.parametrize(
    ("model", "fixed"),
    [
        (Rayleigh(coherence_rounds=1), True),
        (Rayleigh(coherence_rounds=1, common_shadowing_db=8.0), True),
        (Rayleigh(coherence_rounds=1, common_shadowing_db=8.0, shadowing_coherence_rounds=1), True),
        (Rayleigh(coherence_rounds=1, shadowing_coherence_rounds=5), True),  # of no shadowing
        (Cell(**IN_A_CELL, shadowing_coherence_rounds=1), True),
        (Rayleigh(coherence_rounds=2), False),
        (Rayleigh(coherence_rounds=1, correlation=0.1), False),
        (Rayleigh(coherence_rounds=1, common_shadowing_db=8.0, shadowing_coherence_rounds=2), False),
        (Cell(**IN_A_CELL, coherence_rounds=1, shadowing_coherence_rounds=2), False),
    ],
)
def test_draws_are_made_once_where_rounds_are_independent(model, fixed):
    sampler = model.samples(rounds=6, num_devices=4, seed=0)
    assert callable(sampler) != fixed
    if fixed:
        assert sampler.shape == (24, 6, 4)


def test_a_constant_channel_has_no_samples():
    assert Rayleigh(common_shadowing_db=4.0).samples(rounds=5, num_devices=3, seed=0) is None


# Traces


def test_a_trace_is_known_up_to_the_present(tmp_path):
    trace = np.arange(1.0, 31.0).reshape(10, 3)
    np.save(tmp_path / "h.npy", trace)
    model = FromFile(path=tmp_path / "h.npy")
    np.testing.assert_array_equal(gains_of(model, rounds=99, num_devices=3), trace)
    np.testing.assert_array_equal(model.draw(3, np.random.default_rng(0)), trace[0])
    sampler = model.samples(rounds=10, num_devices=3, seed=0)
    for done in range(11):
        draws = sampler(trace[:done])
        assert draws.shape == (24, 10 - done, 3)
        known = {tuple(row) for row in trace[: max(done, 1)].tolist()}
        seen = {tuple(row) for row in draws.reshape(-1, 3).tolist()}
        assert seen <= known
        if 0 < done < 7:
            assert seen == known  # 24 · 4 draws or more out of 6 at most
    low = FromFile(path=tmp_path / "h.npy", minimum=5.0)
    assert gains_of(low, num_devices=3).min() == low.samples(rounds=10, num_devices=3, seed=0)(trace[:5]).min() == 5.0
    with pytest.raises(ValueError, match=r"must have 4 gains \(fleet\.num_devices\), got 3"):
        gains_of(model, num_devices=4)


def test_a_file_of_one_gain_per_device_stays(tmp_path):
    np.save(tmp_path / "h.npy", np.array([1.0, 2.0j]))
    model = FromFile(path=tmp_path / "h.npy")
    assert not model.time_varying
    assert gains_of(model, num_devices=2).tolist() == [1.0, 2.0]
    assert model.samples(rounds=10, num_devices=2, seed=0) is None
