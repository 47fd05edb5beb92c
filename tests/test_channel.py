"""Gain models: their laws (with stated sample sizes), the smallest gain, and files of gains."""

import pickle
import time

import numpy as np
import pytest
from scipy import stats

from airfed.channel import Cell, Fixed, FromFile, Rayleigh, Rician, Uniform, raise_to_minimum, true_channel

SAMPLES = 20_000
LEVEL = 1e-4  # of each Kolmogorov-Smirnov test; the seeds are fixed


def draw(model, seed=0, count=SAMPLES):
    return model.draw(count, np.random.default_rng(seed))


def agrees(sample, cdf):
    return stats.kstest(sample, cdf).pvalue > LEVEL


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0])
def test_rayleigh(scale):
    gains = draw(Rayleigh(scale=scale))
    assert agrees(gains, stats.rayleigh(scale=scale / np.sqrt(2)).cdf)
    # |h|² is exponential with standard deviation scale²: the mean of 20,000 has 0.7% of it
    assert np.mean(gains**2) == pytest.approx(scale**2, rel=0.035)


@pytest.mark.parametrize("k_factor", [0.0, 1.0, 10.0])
def test_rician(k_factor):
    gains = draw(Rician(scale=2.0, k_factor=k_factor))
    spread = 2.0 * np.sqrt(0.5 / (k_factor + 1))
    assert agrees(gains, stats.rice(b=np.sqrt(2 * k_factor), scale=spread).cdf)
    assert np.mean(gains**2) == pytest.approx(4.0, rel=0.035)


def test_rician_without_line_of_sight_is_rayleigh():
    assert stats.ks_2samp(draw(Rician(k_factor=0.0)), draw(Rayleigh(), seed=1)).pvalue > LEVEL


def test_rician_with_a_strong_line_of_sight_is_constant():
    np.testing.assert_allclose(draw(Rician(scale=3.0, k_factor=1e12)), 3.0, rtol=1e-4)


def test_uniform():
    gains = draw(Uniform(low=0.2, high=1.5))
    assert agrees(gains, stats.uniform(0.2, 1.3).cdf)
    assert np.all(draw(Uniform(low=0.5, high=0.5)) == 0.5)


def test_fixed():
    model = Fixed(gains=(0.3, 0.0, 2.0))
    assert draw(model, count=3).tolist() == [0.3, 0.0, 2.0]
    with pytest.raises(ValueError, match=r"Expected 4 gains .* got 3"):
        draw(model, count=4)
    with pytest.raises(ValueError, match=r"gains\[1\]"):
        draw(Fixed(gains=(0.3, -1.0)), count=2)


def test_cell_positions_are_uniform_over_the_area():
    # Divide out the fading by its mean square: E|h|² at distance r is scale²·r^(−α). With α so small that the gain is
    # nearly Rayleigh the law is known; with a strong path loss the median ratio of two cells is.
    near = draw(Cell(radius=100.0, path_loss_exponent=1e-9))
    assert agrees(near, stats.rayleigh(scale=1 / np.sqrt(2)).cdf)
    # distance² is uniform on (r₀², R²): r^(−α) = u^(−α/2), so that E|h|² for α = 2 is ∫ du/u = ln(R²/r₀²)/(R² − r₀²)
    gains = draw(Cell(radius=5.0, path_loss_exponent=2.0, scale=3.0), count=400_000)
    expected = 9.0 * np.log(25.0) / 24.0
    assert np.mean(gains**2) == pytest.approx(expected, rel=0.02)  # 400,000 samples: about 0.3%


def test_cell_law_by_an_independent_sample():
    rng = np.random.default_rng(5)
    points = rng.uniform(-50, 50, (100_000, 2))  # rejection from the square
    distance = np.hypot(*points.T)
    distance = distance[(distance < 50) & (distance > 2.0)][:SAMPLES]
    shadow = 10 ** (rng.normal(0, 6.0, SAMPLES) / 20)
    fading = np.abs(rng.normal(size=SAMPLES) + 1j * rng.normal(size=SAMPLES)) / np.sqrt(2)
    expected = 0.7 * (distance / 2.0) ** -1.75 * shadow * fading
    cell = Cell(radius=50.0, path_loss_exponent=3.5, shadowing_db=6.0, reference_distance=2.0, scale=0.7)
    assert stats.ks_2samp(draw(cell), expected).pvalue > LEVEL


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        (Rayleigh, {"scale": 0.0}, "scale"),
        (Rician, {"k_factor": -1.0}, "k_factor"),
        (Rician, {"scale": float("nan")}, "scale"),
        (Uniform, {"low": 2.0, "high": 1.0}, "low=2.0 <= high=1.0"),
        (Uniform, {"low": -1.0, "high": 1.0}, "low"),
        (Uniform, {"low": 0.0, "high": 0.0}, "high"),
        (Cell, {"radius": 0.5}, "reference_distance=1.0 <= radius=0.5"),
        (Cell, {"radius": 10.0, "shadowing_db": -1.0}, "shadowing_db"),
        (Cell, {"radius": 10.0, "path_loss_exponent": 0.0}, "path_loss_exponent"),
    ],
)
def test_bad_models(model, changes, named):
    with pytest.raises(ValueError, match=named):
        model(**changes)


@pytest.mark.parametrize(
    "model", [Rayleigh(), Rician(), Uniform(low=0.0, high=1.0), Cell(radius=9.0, shadowing_db=3.0)]
)
def test_one_seed_one_draw(model):
    np.testing.assert_array_equal(draw(model, seed=3, count=50), draw(model, seed=3, count=50))
    assert np.all(draw(model, seed=3, count=50) != draw(model, seed=4, count=50))
    gains = draw(model, count=50)
    assert gains.shape == (50,)
    assert gains.dtype == np.float64
    assert np.all(gains >= 0)


# The smallest gain


def test_minimum_raises_the_weak_and_leaves_the_rest():
    gains = np.array([0.05, 0.3, 0.0, 2.0])
    assert raise_to_minimum(gains, 0.1).tolist() == [0.1, 0.3, 0.1, 2.0]
    assert raise_to_minimum(gains, 0.0).tolist() == gains.tolist()
    assert gains.tolist() == [0.05, 0.3, 0.0, 2.0]


def test_pin_sets_the_weakest_exactly():
    assert raise_to_minimum(np.array([0.5, 0.3, 2.0]), 0.2, pin=True).tolist() == [0.5, 0.2, 2.0]
    assert raise_to_minimum(np.array([0.1, 0.05, 2.0]), 0.2, pin=True).tolist() == [0.2, 0.2, 2.0]
    assert raise_to_minimum(np.array([0.5]), 0.2, pin=True).tolist() == [0.2]


@pytest.mark.parametrize("minimum", [-0.1, float("nan"), "0.1"])
def test_bad_minimum(minimum):
    with pytest.raises(ValueError, match="minimum"):
        raise_to_minimum(np.array([1.0]), minimum)


# What the devices do not know


def test_true_channel_error_has_the_stated_power():
    # 20,000 devices: the mean of |e|² has a relative standard deviation of 0.7%.
    rng = np.random.default_rng(0)
    gain, phase = draw(Rayleigh(scale=2.0)), rng.uniform(0, 2 * np.pi, SAMPLES)
    error = true_channel(gain, phase, nmse=0.1, rng=rng) - gain * np.exp(1j * phase)
    assert np.mean(np.abs(error) ** 2) == pytest.approx(0.1 * np.mean(gain**2), rel=0.035)
    spread = np.sqrt(0.05 * np.mean(gain**2))  # circularly symmetric: equal, independent parts
    assert agrees(error.real, stats.norm(0, spread).cdf)
    assert agrees(error.imag, stats.norm(0, spread).cdf)
    assert abs(np.corrcoef(error.real, error.imag)[0, 1]) < 5 / np.sqrt(SAMPLES)


def test_perfect_knowledge():
    gain, phase = np.array([0.5, 2.0]), np.array([0.0, 1.0])
    known = true_channel(gain, phase, nmse=0.0, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(known, gain * np.exp(1j * phase))


# Files


def read(tmp_path, content, name="gains.csv", column="gain"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return FromFile(path=path, column=column).read()


@pytest.mark.parametrize(
    "content",
    [
        "0.5\n1.25\n2\n",
        "0.5\n1.25\n2",
        "0.5\r\n1.25\r\n2\r\n",
        "0.5\r1.25\r2\r",
        "0.5\n1.25\n2\n\n  \n\n",
        "gain\n0.5\n1.25\n2\n",
        '"gain"\n"0.5"\n"1.25"\n"2"\n',
        "﻿gain\n0.5\n1.25\n2\n",
        "﻿0.5\n1.25\n2\n",
        "name,gain\na,0.5\nb,1.25\nc,2\n",
        'name,gain,note\na,0.5,"x, y"\nb,1.25,\nc,2,z\n',
        " gain , name\n 0.5 ,a\n1.25,b\n2,c\n",
        "  0.5\n\t1.25 \n+2.0e0\n",
    ],
)
def test_csv(tmp_path, content):
    assert read(tmp_path, content).tolist() == [0.5, 1.25, 2.0]


def test_csv_with_a_column_of_another_name(tmp_path):
    assert read(tmp_path, "gain,h_abs\n1,0.5\n2,0.7\n", column="h_abs").tolist() == [0.5, 0.7]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "at least one gain"),
        ("\n\n", "at least one gain"),
        ("gain\n", "only a header"),
        ("gain\n\n", "only a header"),
        ("\n0.5\n", "column 'gain'"),
        ("0.5\nabc\n", "line 2 of .*got 'abc'"),
        ("0.5\n\n0.7\n", "line 2 of .*got ''"),
        ("gain\n0.5\n-0.1\n", "line 3 of .*got '-0.1'"),
        ("gain\n0.5\nnan\n", "line 3 of .*got 'nan'"),
        ("0.5\ninf\n", "line 2"),
        ("0.5\n1e999\n", "line 2"),
        ("0.5\n1_000\n", "line 2"),
        ("0.5\n0,5\n", "line 2"),
        ("0.5\n0x10\n", "line 2"),
        ("name,gain\na,0.5\nb\n", "line 3 .*got 'b'"),
        ("name,gain\na,0.5,9\n", "line 2"),
        ("1,2\n3,4\n", "header line .*2 columns and no names"),
        ("h\n0.5\n", "column 'gain' in .*its header has 'h'"),
        ("x" * 200_000 + "\n0.5\n", "column 'gain'"),
        ("0.5\n" + "9" * 200_000 + "\n", "line 2"),
        (b"\xff\xfe0\x00.\x005\x00", "text in"),
        (b"0.5\n\x00\n", "text in UTF-8 .*a NUL, byte 4"),
    ],
)
def test_bad_csv(tmp_path, content, named):
    with pytest.raises(ValueError, match=named) as caught:
        read(tmp_path, content)
    assert "gains.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("bad", ["abc", "-1", "nan"])
def test_a_million_lines_with_one_bad_cell(tmp_path, bad):
    lines = ["0.5"] * 1_000_000
    lines[765_432] = bad
    started = time.process_time()
    with pytest.raises(ValueError, match=f"line 765433 of .*got '{bad}'"):
        read(tmp_path, "\n".join(lines))
    assert time.process_time() - started < 120  # about one second; a quadratic search would take hours


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int32, np.uint8, ">f8"])
def test_npy(tmp_path, dtype):
    np.save(tmp_path / "gains.npy", np.array([1, 2, 3], dtype=dtype))
    gains = FromFile(path=tmp_path / "gains.npy").read()
    assert gains.tolist() == [1.0, 2.0, 3.0]
    assert gains.dtype == np.float64


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.array(["a"]), "type '<U1'"),
        (np.array([True]), "type '.b1'"),
        (np.array([1 + 1j]), "dtype complex128"),
        (np.zeros((2, 2)), "shape"),
        (np.float64(1.0), "shape"),
        (np.array([]), "at least one"),
        (np.array([0.5, np.nan]), r"gain\[1\]=nan"),
        (np.array([0.5, -1.0]), r"gain\[1\]=-1.0"),
    ],
)
def test_bad_npy(tmp_path, array, named):
    np.save(tmp_path / "gains.npy", array)
    with pytest.raises(ValueError, match=named) as caught:
        FromFile(path=tmp_path / "gains.npy").read()
    assert "gains.npy" in str(caught.value)


class Trap:
    """Unpickling this would raise the alarm."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_nothing_is_unpickled(tmp_path):
    (tmp_path / "gains.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|header says"):
        FromFile(path=tmp_path / "gains.npy").read()
    np.save(tmp_path / "objects.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|header says"):
        FromFile(path=tmp_path / "objects.npy").read()


def test_files_that_only_look_like_vectors(tmp_path):
    np.savez(tmp_path / "archive.npz", gain=np.ones(3))
    (tmp_path / "archive.npz").rename(tmp_path / "gains.npy")
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|header says"):
        FromFile(path=tmp_path / "gains.npy").read()
    np.save(tmp_path / "cut.npy", np.ones(1000))
    whole = (tmp_path / "cut.npy").read_bytes()
    for length in (0, 5, 20, 200, len(whole) - 8):
        (tmp_path / "cut.npy").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"NumPy array|plain numbers|header says"):
            FromFile(path=tmp_path / "cut.npy").read()


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        FromFile(path=tmp_path / "gains.csv").read()
    with pytest.raises(ValueError, match=r"\.csv or \.npy file"):
        FromFile(path=tmp_path).read()
    (tmp_path / "gains.txt").write_text("0.5\n")
    with pytest.raises(ValueError, match=r"\.csv or \.npy file, got gains\.txt"):
        FromFile(path=tmp_path / "gains.txt").read()
    (tmp_path / "GAINS.CSV").write_text("0.5\n")
    assert FromFile(path=tmp_path / "GAINS.CSV").read().tolist() == [0.5]


def test_the_count_must_fit(tmp_path):
    (tmp_path / "gains.csv").write_text("0.5\n0.6\n")
    model = FromFile(path=tmp_path / "gains.csv")
    assert draw(model, count=2).tolist() == [0.5, 0.6]
    with pytest.raises(ValueError, match=r"Expected 3 gains .* got 2"):
        draw(model, count=3)
