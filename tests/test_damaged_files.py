"""Every kind of file that a user may name, damaged at random and built to exhaust memory."""

import gzip
import io
import subprocess
import sys

import numpy as np
import pytest

from airfed import _files
from airfed._files import DataError, load_npy
from airfed.channel import FromFile
from airfed.learning import data, published

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (6, 5, 5), np.uint8)
CONTENT = {
    "train_images": IMAGES,
    "train_labels": np.arange(6, dtype=np.uint8) % 3,
    "test_images": IMAGES[::-1],
    "test_labels": np.arange(6, dtype=np.uint8) % 2,
}
LETTERS = b"0123456789()[]{}',:-<>|LOfiuMVeE.jx \n\t*+="


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def written(write, *args, **kwargs):
    buffer = io.BytesIO()
    write(buffer, *args, **kwargs)
    return buffer.getvalue()


def gains(path):
    vector = FromFile(path=path).read()
    assert np.isfinite(vector).all()
    assert (vector >= 0).all()


def images(path):
    loaded = data.load(path)
    assert len(loaded.train_images) == len(loaded.train_labels)
    assert np.isfinite(loaded.train_images).all()


KINDS = {  # ending: the undamaged file, where it is most delicate, its reader
    ".npy": (written(np.save, np.linspace(0, 1, 20)), 128, gains),
    ".bin": (written(np.save, IMAGES), 128, lambda path: load_npy(path.read_bytes(), max_values=150)),
    ".npz": (written(np.savez, **CONTENT), 10**6, images),
    ".z.npz": (written(np.savez_compressed, **CONTENT), 10**6, images),
    ".csv": (b'name,gain\na,0.5\nb,1.25\n"c",2e-1\n', 10**6, gains),
    ".idx": (idx(IMAGES), 16, lambda path: published.parse_idx(published.read_idx_bytes(path))),
    ".idx.gz": (gzip.compress(idx(IMAGES)), 10**6, lambda path: published.parse_idx(published.read_idx_bytes(path))),
    ".toml": (b'name = "x"\n[a]\nb.c = [1.5, 2e3]\n"d" = {e = 1979-05-27}\n', 10**6, lambda path: toml(path)),
}


def toml(path):
    assert isinstance(_files.read_toml(path, "a file"), dict)


def damaged(raw, delicate, rng):
    """The file with one to three defects: bits flipped, bytes replaced, inserted or lost, the end cut off."""
    raw = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(max(1, len(raw) if rng.random() < 0.4 else min(delicate, len(raw)))))
        accident = rng.integers(6)
        if accident == 0:
            raw[at : at + 1] = bytes([raw[at] ^ 1 << int(rng.integers(8))]) if raw else b""
        elif accident == 1:
            raw[at : at + 1] = rng.bytes(1)
        elif accident == 2:
            raw[at : at + 1] = LETTERS[(letter := int(rng.integers(len(LETTERS)))) : letter + 1]
        elif accident == 3:
            raw[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif accident == 4:
            del raw[at : at + int(rng.integers(1, 9))]
        else:
            del raw[at:]
    return bytes(raw)


def outcomes(tmp_path, ending, times, seed):
    raw, delicate, reader = KINDS[ending]
    path, rng = tmp_path / f"file{ending}", np.random.default_rng(seed)
    path.write_bytes(raw)
    reader(path)
    sentences = []
    for _ in range(times):
        path.write_bytes(damaged(raw, delicate, rng))
        try:
            reader(path)  # what it accepts, it has checked
        except DataError as error:
            sentences.append(str(error))
    assert not [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 500]
    return len(sentences)


@pytest.mark.parametrize("ending", KINDS)
def test_a_damaged_file_is_read_or_refused(tmp_path, ending):
    assert outcomes(tmp_path, ending, times=300, seed=1) > 150


@pytest.mark.slow
@pytest.mark.parametrize("ending", KINDS)
def test_many_damaged_files_are_read_or_refused(tmp_path, ending):
    assert outcomes(tmp_path, ending, times=2000, seed=2) > 1000


# Files of a few kB or MB that claim, or unpack to, gigabytes: a process with 400 MB to spare refuses each.
BOMBS = r"""
import os, resource, struct, sys, zipfile, zlib
from pathlib import Path

from airfed._files import DataError, load_npy
from airfed.channel import FromFile
from airfed.learning import data, published

os.chdir(sys.argv[1])
SIZE = 2_000_000_000

def zeros(first, wbits):
    "`first` and SIZE zeros, compressed, in no time: the flushed blocks are all alike"
    press = zlib.compressobj(9, wbits=wbits)
    start = press.compress(first) + press.flush(zlib.Z_FULL_FLUSH)
    block = press.compress(bytes(10_000_000)) + press.flush(zlib.Z_FULL_FLUSH)
    return start + block * (SIZE // 10_000_000)  # the end is missing: nobody should come that far

def npy(count, descr="|u1"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text

def npz(name, member, method, size):
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("x_train.npy", member)
    raw = bytearray(Path(name).read_bytes())
    entry = raw.rindex(b"PK\1\2")
    struct.pack_into("<H", raw, 8, method), struct.pack_into("<H", raw, entry + 10, method)
    struct.pack_into("<I", raw, 22, size), struct.pack_into("<I", raw, entry + 24, size)
    Path(name).write_bytes(raw)

npz("truthful.npz", zeros(npy(SIZE), -15), 8, len(npy(SIZE)) + SIZE)
npz("lying.npz", npy(SIZE) + b"x" * 2_000_000, 0, len(npy(SIZE)) + SIZE)
npz("header.npz", npy(SIZE), 0, len(npy(SIZE)))
Path("gains.npy").write_bytes(npy(SIZE, "<f8") + bytes(100))
Path("truthful.gz").write_bytes(zeros(b"\0\0\x08\3" + struct.pack(">III", 2000, 1000, 1000), 31))
Path("modest.gz").write_bytes(zeros(b"\0\0\x08\3" + struct.pack(">III", 20, 10, 10), 31))
Path("lying.idx").write_bytes(b"\0\0\x08\3" + struct.pack(">III", 2000, 1000, 1000))
calls = {
    **{name: lambda name=name: data.load(name) for name in ("truthful.npz", "lying.npz", "header.npz")},
    "bytes": lambda: load_npy(npy(2**62, "<f8"), max_values=10),
    "gains.npy": lambda: FromFile(path=Path("gains.npy")).read(),
    **{n: lambda n=n: published.read_idx_bytes(Path(n)) for n in ("truthful.gz", "modest.gz", "lying.idx")},
}
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 400 * 2**20, resource.RLIM_INFINITY))
for name, call in calls.items():
    try:
        call()
        print(f"{name}: read")
    except DataError as error:
        print(f"{name}: refused: {error}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of the address space is Linux's")
def test_bombs_are_refused_by_a_process_with_little_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, str(tmp_path)],
        env={"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for line in lines:
        assert ": refused: " in line, line
        assert "fit into memory" not in line, line  # it is refused for what it is, not for the machine it is read on
