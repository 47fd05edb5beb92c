"""NPY and NPZ: valid files are read; invalid ones raise one DataError before memory is allocated."""

import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from airfed import _files
from airfed._files import DataError, load_npy, load_npz

A = {"a": ("a",)}


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def crafted(shape="(1,)", *, descr="'<f8'", order="False", data=bytes(8), version=1, padding="\n"):
    """An NPY file with the given header."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}{padding}".encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def npz(*members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return bytearray(buffer.getvalue())


def central(raw, offset, form, value):
    """The archive with a field of its only directory entry changed."""
    struct.pack_into(form, raw, raw.rindex(b"PK\x01\x02") + offset, value)
    return raw


@given(
    arrays_of.arrays(
        st.one_of(
            arrays_of.integer_dtypes(endianness="?"),
            arrays_of.unsigned_integer_dtypes(endianness="?"),
            arrays_of.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
            arrays_of.complex_number_dtypes(endianness="?", sizes=(64, 128)),
        ),
        arrays_of.array_shapes(min_dims=0, min_side=0),
    ),
    st.booleans(),
)
def test_every_plain_array_comes_back(array, fortran):
    array = np.asfortranarray(array) if fortran and array.ndim else array
    back = load_npy(npy(array), max_values=array.size)
    assert back.dtype.isnative
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(load_npz(bytes(npz(("a.npy", npy(array)))), A)["a"], array)


def test_headers_of_other_writers_are_read():
    assert load_npy(crafted(version=2)).tolist() == [0.0]
    assert load_npy(npy(np.ones((1,) * 32))).shape == (1,) * 32
    assert load_npy(crafted(padding=" " * 9000 + "\n")).tolist() == [0.0]
    assert load_npy(crafted(padding="\n  \n ")).tolist() == [0.0]
    assert load_npy(crafted(descr='"<f8"')).tolist() == [0.0]
    header = b'{"shape":(2, 1),"fortran_order":True,"descr":"|u1"}'
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\1\2"
    assert load_npy(raw).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "shape",
    [
        *("(4000000000,)", f"({2**70},)", "(-1,)", "(-1, -1)", "(1.0,)", "(2**3,)", "(1)", "(,)", "(01,)", "1"),
        *("()(1,)", "(1,),", "(1 1,)", "[1]", "(1,", "(2,)", "(0,)", "(1, 2)", "None"),
        *(f"(0, {2**70})", f"(0, {2**62}, {2**62})", f"({'9' * 4000},)", f"({'9' * 5000},)"),
        *(f"({'1,' * 33})", f"({'1,' * 4000})", f"({'0,' * 70})", f"({'(' * 3000}1,)", "((1,),)"),
    ],
)
def test_a_shape_that_the_bytes_cannot_have(shape):
    with pytest.raises(DataError, match=r"x.npy must be a complete .* it is damaged|must match its header") as caught:
        load_npy(crafted(shape), name="x.npy")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "descr",
    [
        *("'|O'", "'<M8[s]'", "'V8'", "'<f16'", "'<f1'", "'<i3'", "'<c4'", "'(2,)f4'", "'<f4,<f4'", "'|b1'", "'<U2'"),
        *("'a8'", "''", "'f8\\x00'", "[('x', '<f8')]", "8", "None", "'<f8", "'<f8' '<f8'", "b'<f8'", "'" + "9" * 5000),
    ],
)
def test_only_plain_numbers(descr):
    with pytest.raises(DataError, match=r"plain numbers, got type .{0,70}\.$|it is damaged"):
        load_npy(crafted(descr=descr))


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "damaged"),
        (b"\x93NUMPY", "damaged"),
        (pickle.dumps([1.0]), "damaged"),
        (npy(np.ones(3))[:9], "damaged"),
        (npy(np.ones(3))[:50], "damaged"),
        (npy(np.ones(3))[:-1], "does not fill"),
        (npy(np.ones(3)) + b"x", "does not fill"),
        (crafted(padding=" " * 20_000, version=2), "damaged"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), "damaged"),
        (crafted(f"(0, {2**70})", data=b""), "damaged"),
        (crafted(f"(0, {2**62}, {2**62})", data=b""), "damaged"),
        (crafted(f"({'0,' * 70})", data=b""), "does not fill"),
        (crafted(order="0"), "damaged"),
        (crafted(order="None"), "damaged"),
        (crafted("__import__('os').abort()"), "damaged"),
    ],
)
def test_bytes_that_are_not_an_array(raw, named):
    with pytest.raises(DataError, match=named):
        load_npy(raw)


def test_more_values_than_asked_for_are_refused():
    assert load_npy(npy(np.ones((2, 3))), max_values=6).shape == (2, 3)
    with pytest.raises(DataError, match=r"^the signal must have at most 5 values, got 6\.$"):
        load_npy(npy(np.ones((2, 3))), name="the signal", max_values=5)


def test_memory_that_is_not_there_is_a_sentence(monkeypatch):
    def full(*args, **options):
        raise MemoryError

    raw = npy(np.ones(3))
    monkeypatch.setattr(_files.np, "load", full)
    with pytest.raises(DataError, match="does not fit into memory"):
        load_npy(raw)


def one(compression=zipfile.ZIP_STORED):
    return npz(("a.npy", npy(np.arange(100.0))), compression=compression)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "damaged"),
        (one()[:-5], "damaged"),
        (one()[100:], "damaged"),
        (npz(("a.npy", b"1"), ("a", b"2")), "one name occurs twice"),
        (npz(("b.npy", b"1")), "named a; got b"),
        (npz(("x\ny\x1b[31m" + "q" * 5000, b"")), r"got x y \[31mq+ \.\.\.\.$"),
        (npz(*((f"{i}" * 3000, b"") for i in range(100, 300))), "directory is longer than"),
        (central(one(), 8, "<H", 1), "got encryption"),
        (central(one(), 8, "<H", 32), "patched"),
        (one(zipfile.ZIP_BZIP2), "got method 12"),
        (one(zipfile.ZIP_LZMA), "got method 14"),
        (central(one(), 10, "<H", 97), "got method 97"),
        (central(one(), 16, "<I", 1), "Bad CRC"),
        (central(one(zipfile.ZIP_DEFLATED), 16, "<I", 1), "Bad CRC"),
        (central(one(), 24, "<I", 2**31), "declares 2147483648 bytes, more than its"),
        (central(one(zipfile.ZIP_DEFLATED), 24, "<I", 2**31), "declares 2147483648 bytes, more than 100 times"),
        (central(one(zipfile.ZIP_DEFLATED), 24, "<I", 2**26), "declares 67108864 bytes, more than 1032 times"),
        (central(central(one(), 20, "<I", 2**31), 24, "<I", 2**31), "declares 2147483648 bytes, more than its"),
        (central(one(), 42, "<I", 2**31), "damaged"),
        (central(one(), 42, "<I", 40), "damaged"),
        (central(npz(("a.npy", b"")), 42, "<I", 100), "damaged"),  # a header cut by the end of the file
        (central(one(zipfile.ZIP_DEFLATED), 24, "<I", 1000), "does not fill"),
        (npz(("a.npy", npy(np.arange(100.0))[:-8])), "does not fill"),
        (npz(("a.npy", npy(np.arange(100.0)) + b"x")), "does not fill"),
    ],
)
def test_damaged_and_hostile_archives(raw, named):
    with pytest.raises(DataError, match=named) as caught:
        load_npz(bytes(raw), A, name="x.npz")
    assert "x.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_compressed_stream_that_ends_early_is_refused():
    array = npy(np.arange(1000.0))
    raw = npz(("a.npy", zlib.compress(array, wbits=-15)[:-20]))
    struct.pack_into("<H", raw, 8, zipfile.ZIP_DEFLATED)  # what was stored is said to be deflated
    central(central(raw, 10, "<H", zipfile.ZIP_DEFLATED), 24, "<I", len(array))
    with pytest.raises(DataError, match=r"x\.npz"):
        load_npz(bytes(raw), A, name="x.npz")


def test_compression_to_less_than_a_hundredth_is_refused_above_a_size(monkeypatch):
    raw = bytes(npz(("a.npy", npy(np.zeros(100_000))), compression=zipfile.ZIP_DEFLATED))
    assert len(raw) < 8000
    assert load_npz(raw, A)["a"].sum() == 0
    monkeypatch.setattr(_files, "SMALL_FILE", 100_000)
    with pytest.raises(DataError, match=r"more than 100 times .* store it uncompressed\.$"):
        load_npz(raw, A)
    stored = bytes(npz(("a.npy", npy(np.zeros(100_000)))))
    assert load_npz(stored, A)["a"].size == 100_000
