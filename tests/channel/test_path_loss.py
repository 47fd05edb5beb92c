"""Path loss: every model against values computed by hand from its source, its slopes, its limits and its range."""

import numpy as np
import pytest

from airfed.channel import PathLoss, path_loss
from airfed.channel.path_loss import PATH_LOSS_MODELS, break_point

HEIGHTS = {"base_height": 25.0, "device_height": 1.5}
SMALL = {"base_height": 10.0, "device_height": 1.5}
HATA = {"base_height": 30.0, "device_height": 1.5}


def at(name, distance, frequency, **own):
    return float(PATH_LOSS_MODELS[name].loss(np.array(float(distance)), frequency=frequency, **own))


@pytest.mark.parametrize(
    ("name", "distance", "frequency", "own", "decibels"),
    [
        # 20·lg 1000 + 20·lg 2.4e9 − 147.5522
        ("free_space", 1000, 2.4e9, {}, 100.0520),
        # 20·lg(4π·1e9/c) = 32.4478 at 1 m, and 3 decades of 35 dB
        ("log_distance", 1000, 1e9, {"exponent": 3.5, "close_in": 1.0}, 137.4478),
        # 46.3 + 33.9·3.301030 − 13.82·1.477121 − 0.047093
        ("cost231_hata", 1000, 2e9, HATA, 137.7440),
        # and 35.2249·lg 5
        ("cost231_hata", 5000, 2e9, HATA, 162.3651),
        # D = 102.7241: 28 + 22·2.011672 + 20·0.544068
        ("uma_los", 100, 3.5e9, HEIGHTS, 83.1381),
        # beyond 560 m: 28 + 40·3.000120 + 10.881361 − 9·5.497140
        ("uma_los", 1000, 3.5e9, HEIGHTS, 109.4119),
        # 13.54 + 39.08·2.011672 + 10.881361
        ("uma_nlos", 100, 3.5e9, HEIGHTS, 103.0375),
        # a device at 6.5 m has 0.6·5 dB less (D = 101.6969)
        ("uma_nlos", 100, 3.5e9, {"base_height": 25.0, "device_height": 6.5}, 99.8670),
        # D = 100.3606: 32.4 + 21·2.001563 + 10.881361
        ("umi_los", 100, 3.5e9, SMALL, 85.3142),
        # beyond 210 m: 32.4 + 40·3.0000157 + 10.881361 − 9.5·4.645149
        ("umi_los", 1000, 3.5e9, SMALL, 119.1531),
        # 22.4 + 35.3·2.001563 + 21.3·0.544068
        ("umi_nlos", 100, 3.5e9, SMALL, 104.6438),
    ],
)
def test_values_computed_by_hand(name, distance, frequency, own, decibels):
    assert at(name, distance, frequency, **own) == pytest.approx(decibels, abs=2e-4)


def test_free_space_has_20_db_per_decade_of_distance_and_frequency():
    start = at("free_space", 10, 1e9)
    for decades in (1, 2, 5):
        assert at("free_space", 10 * 10**decades, 1e9) - start == pytest.approx(20 * decades)
        assert at("free_space", 10, 1e9 * 10**decades) - start == pytest.approx(20 * decades)
    # 0 dB where the sphere around the sender is as large as the receiver's antenna: r = c/(4πf)
    assert at("free_space", path_loss.LIGHT / (4 * np.pi * 1e9), 1e9) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("exponent", [2.0, 3.76, 5.0])
def test_log_distance_begins_as_free_space_and_falls_by_its_exponent(exponent):
    own = {"exponent": exponent, "close_in": 7.0}
    assert at("log_distance", 7, 2e9, **own) == pytest.approx(at("free_space", 7, 2e9))
    assert at("log_distance", 700, 2e9, **own) - at("log_distance", 7, 2e9, **own) == pytest.approx(20 * exponent)
    if exponent == 2:
        assert at("log_distance", 123, 2e9, **own) == pytest.approx(at("free_space", 123, 2e9))
    from_nothing = at("log_distance", 40, 915e6, exponent=exponent, close_in=path_loss.LIGHT / (4 * np.pi * 915e6))
    power = (path_loss.LIGHT / (4 * np.pi * 915e6 * 40)) ** exponent
    assert from_nothing == pytest.approx(-10 * np.log10(power))


@pytest.mark.parametrize(("name", "own", "slopes"), [("uma_los", HEIGHTS, (22, 40)), ("umi_los", SMALL, (21, 40))])
@pytest.mark.parametrize("frequency", [0.7e9, 3.5e9, 28e9])
def test_both_slopes_meet_at_the_break_point(name, own, slopes, frequency):
    edge = break_point(frequency=frequency, **own)
    assert edge == pytest.approx(4 * (own["base_height"] - 1) * 0.5 * frequency / 3e8)
    below, above = at(name, edge * (1 - 1e-9), frequency, **own), at(name, edge * (1 + 1e-9), frequency, **own)
    assert above - below == pytest.approx(0.0, abs=1e-6)
    for slope, factor in zip(slopes, (1 / 1.01, 1.01), strict=True):  # dB per decade of the slant distance
        near, far = edge * factor, edge * factor**2
        slant = [np.hypot(distance, own["base_height"] - own["device_height"]) for distance in (near, far)]
        rise = at(name, far, frequency, **own) - at(name, near, frequency, **own)
        assert rise / np.log10(slant[1] / slant[0]) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(("blocked", "seen", "own"), [("uma_nlos", "uma_los", HEIGHTS), ("umi_nlos", "umi_los", SMALL)])
def test_no_line_of_sight_never_loses_less_than_one(blocked, seen, own):
    distances = np.geomspace(1.0, 5000.0, 200)
    for frequency in (0.5e9, 6e9, 100e9):
        least = PATH_LOSS_MODELS[seen].loss(distances, frequency=frequency, **own)
        most = PATH_LOSS_MODELS[blocked].loss(distances, frequency=frequency, **own)
        assert np.all(most >= least)
        assert np.all(np.diff(most) > 0)
        assert np.any(most > least)
        high = own | {"device_height": 10.0}
        least = PATH_LOSS_MODELS[seen].loss(distances, frequency=frequency, **high)
        most = PATH_LOSS_MODELS[blocked].loss(distances, frequency=frequency, **high)
        assert np.all(most >= least)


def test_close_to_a_high_device_no_line_of_sight_loses_as_much_as_one():
    # at 10 m, 13 m high, 1 GHz: D = 15.6205, and 28 + 22·1.193695 = 54.261 is more than
    # 13.54 + 39.08·1.193695 − 0.6·11.5 = 53.290
    assert at("uma_nlos", 10, 1e9, base_height=25.0, device_height=13.0) == pytest.approx(54.2613, abs=2e-4)


def test_the_squared_gain_is_the_received_fraction_of_the_power():
    # all devices at 100 m, no fading: exactly the amplitude of the model
    where = {"frequency": "3.5 GHz", "radius": 100.0, "inner_radius": 100.0, "k_factor": 1e14}
    gains = PathLoss(path_loss_model="umi_nlos", **where, antenna_gain="8 dB").draw(5, np.random.default_rng(0))
    np.testing.assert_allclose(20 * np.log10(gains), 8.0 - 104.6438, atol=1e-3)


def test_devices_lie_between_the_radii():
    model = PathLoss(frequency=2e9, radius=300.0, inner_radius=60.0, k_factor=1e14)
    distance = path_loss.LIGHT / (4 * np.pi * 2e9) / model.draw(20_000, np.random.default_rng(1))
    assert 59.9 < distance.min() < 61
    assert 299 < distance.max() < 300.1
    # uniform over the area: half of it lies within √((60² + 300²)/2)
    assert np.mean(distance < np.sqrt((60**2 + 300**2) / 2)) == pytest.approx(0.5, abs=0.02)  # 20,000: 0.0035


OUTSIDE = {
    "cost231_hata": [
        {"frequency": 1.4e9},
        {"frequency": "2.1 GHz"},
        {"inner_radius": 999.0},
        {"radius": "21 km"},
        {"base_height": 29.0},
        {"device_height": 11.0},
    ],
    "uma_los": [{"frequency": 0.4e9}, {"inner_radius": 9.0}, {"base_height": 26.0}, {"device_height": 14.0}],
    "uma_nlos": [{"radius": 5001.0}],
    "umi_los": [{"base_height": 11.0}],
    "umi_nlos": [{"frequency": 101e9}, {"device_height": 23.0}],
}


@pytest.mark.parametrize(("name", "keys"), [(name, keys) for name, cases in OUTSIDE.items() for keys in cases])
def test_outside_its_range_a_model_is_refused_or_extrapolated(name, keys):
    inside = {"path_loss_model": name, "frequency": 1.8e9, "inner_radius": 1000.0, "radius": 2000.0}
    PathLoss(**inside)
    (key,) = keys
    with pytest.raises(
        ValueError, match=rf"^channel\.{key} must be between .* the range for which it was fitted, got .*\.$"
    ):
        PathLoss(**inside | keys)
    PathLoss(**inside | keys, extrapolate=True)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"inner_radius": 301.0},
            r"channel\.inner_radius must be at most channel\.radius=300\.0 \(in metres\), got 301\.0",
        ),
        (
            {"path_loss_model": "log_distance", "close_in_distance": 11.0},
            r"close_in_distance must be at most channel\.inner_radius=.*, got 11\.0",
        ),
        ({"base_height": 10.0}, r"channel\.base_height must not be set with channel\.path_loss_model = 'free_space'"),
        (
            {"path_loss_model": "umi_los", "device_height": 1.0, "extrapolate": True},
            r"device_height must be greater than 1 m with channel\.path_loss_model = ",
        ),
        ({"antenna_gain": 61.0}, r"must be between 0 and 1000 dB, got -0\.9\d* to"),
        ({"frequency": "2.4 GHZ"}, r"must have one of the units Hz, kHz, MHz, GHz, got '2.4 GHZ'"),
        ({"antenna_gain": "5 dBi"}, r"must have one of the units dB, got '5 dBi'"),
    ],
)
def test_inconsistent_keys_give_one_sentence(keys, words):
    with pytest.raises(ValueError, match=rf"^[^\n]*{words}[^\n]*\.$"):
        PathLoss(**{"frequency": 2.4e9, "radius": 300.0} | keys)
