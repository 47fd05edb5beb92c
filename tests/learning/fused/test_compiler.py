"""The cache of compiled code: quick when warm; errors of the cache do not stop a training."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from airfed.learning.fused import FusedEngine, available
from airfed.network import Network

if not available():
    pytest.skip("the fused engine needs numba", allow_module_level=True)

from airfed.learning.fused import compiler
from airfed.learning.fused.tables import Machine

NETWORK = Network(input_shape=(1, 4, 4), classes=2)


@pytest.fixture
def code():
    """The code of this machine, from the user's cache (compiled if need be)."""
    compiler.compiled()
    found = compiler._read(compiler.object_file())
    return found if found is not None else compiler.compile_object()


@pytest.fixture
def cold(code, tmp_path, monkeypatch):
    """An empty cache directory, and the list of compilations (which take no time)."""
    compilations = []

    def compile_object():
        compilations.append(1)
        return code

    compiler.compiled.cache_clear()
    monkeypatch.setenv("AIRFED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "compile_object", compile_object)
    yield compilations
    compiler.compiled.cache_clear()


def start():
    """A new engine, as in a fresh process, and its messages."""
    messages = []
    compiler.compiled.cache_clear()
    images = np.ones((2, 1, 4, 4), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler.LOG, "warning", lambda text, *_: messages.append(text))
        engine = FusedEngine(NETWORK, images, np.arange(2), np.arange(2)[None], learning_rate=0.1)
    with engine:
        ((_, updates),) = engine.updates(np.zeros(NETWORK.dimension, np.float32), np.arange(1), steps=1, round_index=0)
    assert np.isfinite(updates).all()
    return messages


def test_the_first_start_compiles_with_a_message_and_the_second_does_not(cold):
    assert start() == [compiler.MESSAGE]
    assert start() == []
    assert len(cold) == 1


def test_by_default_the_message_is_logged(cold, caplog):
    compiler.compiled()
    assert caplog.messages == [compiler.MESSAGE]


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 5000])
def test_a_damaged_file_is_replaced(cold, damage):
    start()
    path = compiler.object_file()
    path.write_bytes(damage)
    assert start() == [compiler.MESSAGE]
    assert start() == []


def test_a_flipped_bit_is_noticed(cold):
    start()
    path = compiler.object_file()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert start() == [compiler.MESSAGE]


def test_other_sources_versions_or_processors_have_other_files(cold, monkeypatch):
    before = compiler.object_file()
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "SOURCES", compiler.SOURCES[1:])
        assert compiler.object_file() != before
    with monkeypatch.context() as patch:
        patch.setattr(compiler.importlib.metadata, "version", lambda package: "0")
        assert compiler.object_file() != before
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "host", lambda: Machine("haswell", ""))
        assert compiler.object_file() != before
    assert compiler.object_file() == before


def test_a_cache_that_cannot_be_written_is_no_error(cold, tmp_path):
    (tmp_path / "cache").write_text("a file where the directory should be")
    for _ in range(2):
        said, problem = start()
        assert said == compiler.MESSAGE
        assert "compiled again next time" in problem


@pytest.mark.parametrize("since", [0, 2**32], ids=["past", "future"])  # the clock may have been set back
def test_old_files_are_pruned(cold, tmp_path, since):
    (tmp_path / "cache").mkdir()
    for k in range(12):
        old = tmp_path / "cache" / f"fused-{k}.o"
        old.write_bytes(b"")
        os.utime(old, (since + k, since + k))
    start()
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(left) == compiler.KEEP
    assert compiler.object_file().name in left
    assert "fused-11.o" in left


def test_a_failed_compilation_gives_the_reason(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="could not be compiled"):
        compiler.compile_object()


PROGRAM = """
import sys
import numpy as np
from airfed.learning.fused import FusedEngine
from airfed.network import builtin
assert "numba" not in sys.modules and "llvmlite" not in sys.modules
network = builtin("cnn", input_shape=(1, 28, 28), classes=10)
images, labels = np.ones((16, 1, 28, 28), np.float32), np.zeros(16, int)
with FusedEngine(network, images, labels, np.arange(16)[None], learning_rate=0.1) as engine:
    w = network.initial_parameters(np.random.default_rng(0))
    ((_, updates),) = engine.updates(w, np.arange(1), steps=1, round_index=0)
assert "numba" not in sys.modules
"""


def fresh_process(environment=None):
    """Run PROGRAM in a fresh process and return its output."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return run.stderr


def test_a_warm_start_compiles_nothing_and_does_not_import_numba(code):
    assert fresh_process() == ""


@pytest.mark.slow
def test_a_cold_start_compiles_once_and_the_next_is_warm(tmp_path):
    environment = os.environ | {"AIRFED_CACHE_DIR": str(tmp_path)}
    assert compiler.MESSAGE in fresh_process(environment)
    assert len(list(tmp_path.glob("fused-*.o"))) == 1
    assert fresh_process(environment) == ""
