"""Files that are no regular files, that never end, or that change: one sentence for each."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from airfed import _files, scenario
from airfed._files import DataError
from airfed.channel import FromFile
from airfed.experiments import points
from airfed.scenario import ScenarioError

# Read in a process of its own: a reader that waits for a pipe can then be stopped.
READ_ALL = """
import os, socket, sys
from pathlib import Path
from airfed import scenario
from airfed.channel import FromFile
from airfed.experiments import points
from airfed.learning import data, published

os.chdir(sys.argv[1])
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.mkdir("folder")
os.mkdir("idx")
with open("long", "wb") as stream:
    stream.truncate(10 * 2**30)
os.symlink("loop", "loop")
for ending in (".csv", ".npy"):
    for kind in ("pipe", "socket", "folder", "long", "loop"):
        os.symlink(kind, kind + ending)
    os.symlink("/dev/zero", "zero" + ending)
for file in published.IDX_FILES.values():
    os.symlink("../pipe", f"idx/{file}")
readers = [
    *((scenario.load, name) for name in ("/dev/zero", "pipe", "socket", "folder", "long", "loop", "absent", "a\\0b")),
    *((points.load, name) for name in ("/dev/zero", "pipe", "socket", "folder", "long", "x" * 300)),
    *((lambda name: FromFile(path=Path(name)).read(), name + ending) for ending in (".csv", ".npy")
      for name in ("zero", "pipe", "socket", "folder", "long", "loop")),
    *((data.load, name) for name in ("/dev/zero", "pipe", "socket", "long", "idx", "x" * 300, "a\\0b")),
]
for reader, name in readers:
    try:
        reader(name)
    except ValueError as error:
        print(ascii(f"{name}: {error}"))
    else:
        print("read", name)
"""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path_factory.mktemp("kinds"))],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_file_that_is_not_regular_is_refused_at_once(sentences):
    assert len(sentences) == 33
    assert not [line for line in sentences if line.startswith("read")]
    assert all(r"\n" not in line for line in sentences)
    for kind, count in (("a device", 5), ("a pipe", 6), ("a socket", 5), ("a folder", 4)):
        assert len([line for line in sentences if f"it is {kind}." in line]) == count, kind
    assert len([line for line in sentences if "it is longer than 32 MiB" in line]) == 3


def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x.toml").write_text("")
    monkeypatch.setattr(_files.os, "open", refuse)
    with pytest.raises(ScenarioError, match=r"Cannot read .*x.toml: Permission denied\.$"):
        scenario.load(tmp_path / "x.toml")


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path, monkeypatch):
    real = os.stat(__file__)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(_files.os, "stat", lambda path: real)
    with pytest.raises(DataError, match="it is a pipe"), _files.opened(tmp_path / "pipe", "a file"):
        pass


def test_a_pipe_that_was_handed_over_is_read_to_its_end_and_no_further_than_allowed(monkeypatch):
    monkeypatch.setattr(_files, "MAX_TEXT", 100)
    for content, expected in ((b"a = 1\n", {"a": 1}), (b"#" * 101, None)):
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        path = Path(f"/dev/fd/{reading}")
        try:
            with pytest.raises(DataError, match="it is a pipe"):  # a table of gains, say
                _files.read_text(path, "a text")
            if expected is not None:
                assert _files.read_toml(path, "a scenario") == expected
                continue
            with pytest.raises(DataError, match="it is longer than"):
                _files.read_toml(path, "a scenario")
        finally:
            os.close(reading)


@pytest.mark.parametrize(("change", "named"), [(-8, "it is damaged"), (8, "got more")])
def test_an_array_that_changes_while_it_is_read(tmp_path, monkeypatch, change, named):
    path = tmp_path / "gains.npy"
    np.save(path, np.ones(100_000))
    length = path.stat().st_size + change
    monkeypatch.setattr(_files, "check_memory", lambda size, where: os.truncate(path, length))
    with pytest.raises(DataError, match=named):
        FromFile(path=path).read()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("gain\n1\n".encode("utf-16"), "UTF-8"),
        ("gain\n1\n".encode("utf-16-le"), "a NUL, byte 1"),
        (b"gain,\xe9\n1,2\n", "UTF-8, .*byte 5"),
        (b"gain\n1\x00\n", "a NUL, byte 6"),
        (b"a," * 100_000, "at most 16384 columns"),
        (b"gain,gain\n1,2\n", "one column 'gain', .*'gain, gain'"),
        (b"gain\n1+2j\n", "line 2"),
        (b'gain,b\n"' + b"1" * 200_000 + b'",3', "line 2"),
        (b"gain\n" + b"\x1b[31mx\n" * 2, r"got '\[31mx'"),
        (b"x\n" * 3_000_000, "one column 'gain'"),
        (b"gain\n" + b"x\n" * 3_000_000, "line 2"),  # every cell is bad: the first is enough
    ],
)
def test_odd_tables_of_gains(tmp_path, content, named):
    (tmp_path / "g.csv").write_bytes(content)
    with pytest.raises(DataError, match=named):
        FromFile(path=tmp_path / "g.csv").read()


@pytest.mark.parametrize(
    "key",
    ["a" + ".a" * 100_000, "a" + " . a" * 100_000, '"a\\"b"' + '."."' * 100_000, "'a'" + ".'b'" * 100_000],
)
def test_keys_that_tomllib_would_think_about_for_hours(tmp_path, key):
    for text in (f"{key} = 1", f"[{key}]", f"x = {{{key} = 1}}"):
        (tmp_path / "x.toml").write_text(text)
        for load in (scenario.load, points.load):
            with pytest.raises(ScenarioError, match=r"x.toml: not valid TOML: a key has more than 16 parts\."):
                load(tmp_path / "x.toml")


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "9" * 5000, "x = ", "x = 2024-13-45"])
def test_every_error_of_tomllib_is_a_decode_error(tmp_path, text):
    with pytest.raises(tomllib.TOMLDecodeError):
        _files.parse_toml(text)
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ScenarioError, match=r"x.toml: not valid TOML: .*\.$"):
        points.load(tmp_path / "x.toml")


def test_dots_in_numbers_and_texts_make_no_long_key():
    gains = ", ".join(["0.5"] * 100)
    text = f'x = [{gains}]\ny = "{"One or two. " * 40}{"see a.b.c, " * 40}"\nz = "{"../" * 40}"'
    assert len(_files.parse_toml(text)["x"]) == 100


def test_free_memory_heeds_the_share_of_a_container(tmp_path, monkeypatch):
    assert 2**20 < _files.free_memory() <= 2**62
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(_files, "_CONTAINER", tmp_path)
    assert _files.free_memory() == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert _files.free_memory() > 4_000_000


def test_an_array_larger_than_half_of_the_memory_is_refused_and_a_smaller_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "SMALL_FILE", 1000)
    np.save(tmp_path / "g.npy", np.ones(1000))
    monkeypatch.setattr(_files, "free_memory", lambda: 15_999)
    with pytest.raises(DataError, match=r"g.npy does not fit into half of the free memory"):
        _files.load_npy(tmp_path / "g.npy")
    monkeypatch.setattr(_files, "free_memory", lambda: 16_000)
    assert _files.load_npy(Path(tmp_path / "g.npy")).sum() == 1000
