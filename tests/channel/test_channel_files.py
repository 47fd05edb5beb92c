"""Files of gains: accepted files, and errors that name the line."""

import pickle
import time

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed.channel import FromFile

PLAIN = st.complex_numbers(max_magnitude=1e100, allow_nan=False, allow_infinity=False)


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


TRACE = [[0.5, 5.0, 2.0], [0.0, 1.25, 13.0]]


@pytest.mark.parametrize(
    "content",
    [
        "0.5,5,2\n0,1.25,13\n",
        "0.5,5,2\r\n0,1.25,13\r\n\r\n",
        "﻿ 0.5 ,\t5, 2\n0,1.25,13",
        '"0.5","5","2"\n"0","1.25","13"\n',
        "0.5,3+4j,2\n0,1.25,(5-12j)\n",
        "0.5j,(-3+4j),-2+0j\n0j,1.25e0J, (5+12j) \n",
    ],
)
def test_a_trace_in_csv(tmp_path, content):
    assert read(tmp_path, content).tolist() == TRACE


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex64, np.complex128, ">c16", np.int16])
def test_a_trace_in_npy(tmp_path, dtype):
    phase = 1j if np.dtype(dtype).kind == "c" else 1
    np.save(tmp_path / "gains.npy", np.asfortranarray((np.array([[3, 4, 0], [1, 2, 5]]) * phase).astype(dtype)))
    gains = FromFile(path=tmp_path / "gains.npy").read()
    assert gains.tolist() == [[3.0, 4.0, 0.0], [1.0, 2.0, 5.0]]
    assert gains.dtype == np.float64


@given(hnp.arrays(np.complex128, hnp.array_shapes(min_dims=2, max_dims=2, min_side=2), elements=PLAIN))
def test_traces_come_back_from_both_kinds_of_files(tmp_path_factory, channel):
    folder = tmp_path_factory.mktemp("traces")
    np.save(folder / "h.npy", channel)
    (folder / "h.csv").write_text("\n".join(",".join(map(str, row)) for row in channel.tolist()))
    np.savetxt(folder / "saved.csv", channel, fmt="%.17g", delimiter=",")
    for name in ("h.npy", "h.csv", "saved.csv"):
        np.testing.assert_allclose(FromFile(path=folder / name).read(), np.abs(channel), rtol=1e-15)


def test_a_name_that_could_be_a_number_is_a_name(tmp_path):
    assert read(tmp_path, "j,gain\n1,0.5\n2,0.7\n").tolist() == [0.5, 0.7]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "at least one gain"),
        ("\n\n", "at least one gain"),
        ("gain\n", "only a header"),
        ("gain\n\n", "only a header"),
        ("\n0.5\n", "column 'gain'"),
        ("0.5\nabc\n", "line 2: .*got 'abc'"),
        ("0.5\n\n0.7\n", "line 2: .*got ''"),
        ("gain\n0.5\n-0.1\n", "line 3: .*got '-0.1'"),
        ("gain\n0.5\nnan\n", "line 3: .*got 'nan'"),
        ("0.5\ninf\n", "line 2"),
        ("0.5\n1e999\n", "line 2"),
        ("0.5\n1_000\n", "line 2"),
        ("0.5\n0,5\n", "line 2"),
        ("0.5\n0x10\n", "line 2"),
        ("name,gain\na,0.5\nb\n", "line 3: .*got 'b'"),
        ("name,gain\na,0.5,9\n", "line 2"),
        ("1,2\n3,4,5\n", "line 2 must have 2 cells, as line 1, got 3"),
        ("1,2\n3\n", "line 2 must have 2 cells, as line 1, got 1"),
        ("1,2\n\n3,4\n", "line 2 must have 2 cells, as line 1, got 1"),
        ("1,2\n3,abc\n", "line 2, cell 2: .*got 'abc'"),
        ("1,2\n3,\n", "line 2, cell 2: .*got ''"),
        ("1,2\nnan,4\n", "line 2, cell 1: .*got 'nan'"),
        ("inf,2\n3,4\n", "line 1, cell 1: .*got 'inf'"),
        ("1,2\n3,-4\n", "line 2, cell 2: .*got '-4'"),
        ("1,2\n3,1e999\n", "line 2, cell 2"),
        ("1,2\n3,1_0\n", "line 2, cell 2"),
        ("1,2\n3,1_0j\n", "line 2, cell 2"),
        ("1,2\n3,nan+1j\n", "line 2, cell 2"),
        ("1,2\n3,1e999j\n", "line 2, cell 2"),
        ("1,2\n3,1e308+1.7e308j\n", "line 2, cell 2"),
        ("1,2\n3,1 + 2j\n", "line 2, cell 2"),
        ("1,gain\n3,4\n", "line 1, cell 2: .*got 'gain'"),
        ("1+2j\n3\n", "line 1: .*got '1.2j'"),
        ("h\n0.5\n", "one column 'gain', got the header row 'h'.*Set channel.column"),
        ("a,b\n0.5,0.7\n", "header row 'a, b'.*in a trace .*delete the header row"),
        ("x" * 200_000 + "\n0.5\n", "column 'gain'"),
        ("0.5\n" + "9" * 200_000 + "\n", "line 2"),
        (b"\xff\xfe0\x00.\x005\x00", "text in"),
        (b"0.5\n\x00\n", "text in UTF-8, .*a NUL, byte 4"),
    ],
)
def test_bad_csv(tmp_path, content, named):
    with pytest.raises(ValueError, match=named) as caught:
        read(tmp_path, content)
    assert "gains.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_million_lines_with_one_bad_cell(tmp_path):
    lines = ["0.5"] * 1_000_000
    lines[765_432] = "nan"
    started = time.process_time()
    with pytest.raises(ValueError, match=r"line 765433: .*got 'nan'"):
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
        (np.array([1 + 1j, complex(np.nan, 1)]), r"gain\[1\] must be non-negative and finite, got nan"),
        (np.array([[1 + 1j, 1], [complex(0, np.inf), 1]]), r"gain\[1, 0\] must be non-negative and finite, got inf"),
        (np.array([complex(1.7e308, 1.7e308)]), r"gain\[0\] must be non-negative and finite, got inf"),
        (np.array([[0.5, 1.0], [0.5, -1.0]]), r"gain\[1, 1\] must be non-negative and finite, got -1.0"),
        (np.zeros((2, 2, 2)), r"shape \(devices,\) or \(rounds, devices\), got \(2, 2, 2\)"),
        (np.zeros((0, 3)), "at least one"),
        (np.zeros((3, 0)), "at least one"),
        (np.float64(1.0), "shape"),
        (np.array([]), "at least one"),
        (np.array([0.5, np.nan]), r"gain\[1\] must be non-negative and finite, got nan"),
        (np.array([0.5, -1.0]), r"gain\[1\] must be non-negative and finite, got -1.0"),
    ],
)
def test_bad_npy(tmp_path, array, named):
    np.save(tmp_path / "gains.npy", array)
    with pytest.raises(ValueError, match=named) as caught:
        FromFile(path=tmp_path / "gains.npy").read()
    assert "gains.npy" in str(caught.value)


class Trap:
    """Unpickling this object fails the test."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_nothing_is_unpickled(tmp_path):
    (tmp_path / "gains.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|match its header"):
        FromFile(path=tmp_path / "gains.npy").read()
    np.save(tmp_path / "objects.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|match its header"):
        FromFile(path=tmp_path / "objects.npy").read()


def test_files_that_only_look_like_vectors(tmp_path):
    np.savez(tmp_path / "archive.npz", gain=np.ones(3))
    (tmp_path / "archive.npz").rename(tmp_path / "gains.npy")
    with pytest.raises(ValueError, match=r"NumPy array|plain numbers|match its header"):
        FromFile(path=tmp_path / "gains.npy").read()
    np.save(tmp_path / "cut.npy", np.ones(1000))
    whole = (tmp_path / "cut.npy").read_bytes()
    for length in (0, 5, 20, 200, len(whole) - 8):
        (tmp_path / "cut.npy").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"NumPy array|plain numbers|match its header"):
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
    assert model.draw(2, np.random.default_rng(0)).tolist() == [0.5, 0.6]
    with pytest.raises(ValueError, match=r"must have 3 gains .* got 2"):
        model.draw(3, np.random.default_rng(0))
