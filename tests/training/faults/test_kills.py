"""SIGKILL at dozens of moments, SIGINT, SIGTERM and a full disk: the result is that of an uninterrupted run.

More than 100 kills: at chosen calls that touch the disk, at random times within a run, and of real commands from the
first import on.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from airfed.privacy.ledger import Ledger
from airfed.scenario import load, parse
from airfed.training.directory import RunDirectory
from airfed.training.execution import execute

pytestmark = pytest.mark.slow

RESULTS = (
    "model.safetensors",
    "metrics.jsonl",
    "metrics.csv",
    "ledger.jsonl",
    "plan.json",
    "scenario.toml",
    "run.json",
)

TINY = tomllib.loads(Path(__file__).parents[2].joinpath("tiny.toml").read_text(encoding="utf-8"))


def scenario(file, *, rounds, every, **changes):
    short = {"name": "short rounds", "seed": 5, "learning.dimension": 150, "learning.total_steps": 2 * rounds}
    policy = {"policy.name": "full", "policy.size": None, "policy.rounds": rounds}
    scenario = parse(TINY).override({**short, **policy, "run.checkpoint_every": every, **changes})
    file.write_text(scenario.to_toml())
    return file


def contents(out):
    return {name: (out / name).read_bytes() for name in RESULTS}


def whole(file, out):
    """The files of an uninterrupted run by this process."""
    assert execute(load(file), out).status == "finished"
    return contents(out)


@pytest.fixture
def fast_folder(tmp_path):
    """A folder in memory where there is one: flushing to a disk takes most of the time otherwise."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def start(*arguments, gate=None):
    return subprocess.Popen(
        [sys.executable, "-m", "airfed", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=None if gate is None else gate.environment,
    )


def finish(process):
    _, err = process.communicate(timeout=900)
    return process.returncode, err


@pytest.mark.parametrize(("mode", "every", "count"), [("points", 1, 30), ("points", 3, 30), ("times", 2, 50)])
def test_death_at_any_call_or_moment_costs_nothing(tmp_path, fast_folder, mode, every, count):
    file = scenario(tmp_path / "s.toml", rounds=12, every=every)
    script = Path(__file__).with_name("kill_points.py")
    done = subprocess.run(
        [sys.executable, script, file, fast_folder, mode, str(every), str(count)], capture_output=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["kills"] >= count


def kill_and_resume(file, out, gate, seed, duration):
    """Kill the command five times, each at a random moment (before the last round at the latest), then let it end."""
    chance = random.Random(seed)
    for _ in range(5):
        process = start("run", file, "--out", out, *(["--resume"] if out.is_dir() else []), gate=gate)
        time.sleep(chance.uniform(0, 1.1) * duration)  # whatever it has come to by then
        process.kill()
        assert finish(process)[0] == -signal.SIGKILL
    assert finish(start("run", file, "--out", out, *(["--resume"] if out.is_dir() else []))) == (0, "")


def test_a_killed_command_is_resumed_to_the_same_bits(fast_folder, gate):
    file = scenario(fast_folder / "s.toml", rounds=60, every=7)
    started = time.monotonic()
    assert finish(start("run", file, "--out", fast_folder / "whole")) == (0, "")
    duration = time.monotonic() - started
    closed = gate(59)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: kill_and_resume(file, fast_folder / f"run-{n}", closed, n, duration), range(2)))
    for n in range(2):
        assert contents(fast_folder / f"run-{n}") == contents(fast_folder / "whole")


def test_a_killed_training_on_images_is_resumed_to_the_same_bits(tmp_path, gate, wait_until):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 255, (60, 12, 12)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(60) % 3
    np.savez(tmp_path / "data.npz", **arrays)
    file = scenario(
        tmp_path / "s.toml",
        rounds=20,
        every=3,
        **{
            "learning.model": "mlp",
            "learning.dataset": "data.npz",
            "learning.batch_size": 4,
            "learning.dimension": None,
        },
        **{"run.engine": "torch", "run.threads": 2, "run.chunk": 2},
    )
    expected, out = whole(file, tmp_path / "whole"), tmp_path / "run"
    for rounds in (1, 15):
        process = start("run", file, "--out", out, *(["--resume"] if out.is_dir() else []), gate=gate(rounds))
        wait_until(partial(trained, out, rounds), process)
        process.kill()
        assert finish(process)[0] == -signal.SIGKILL
    assert finish(start("run", file, "--out", out, "--resume"))[0] == 0
    assert contents(out) == expected


def trained(out, rounds):
    """Return whether so many rounds are on the disk."""
    file = out / "metrics.jsonl"
    return file.exists() and file.read_bytes().count(b"\n") == rounds


@pytest.fixture(scope="module")
def polite(tmp_path_factory):
    """A scenario without checkpoints, and the files of its uninterrupted run."""
    folder = tmp_path_factory.mktemp("polite")
    file = scenario(folder / "s.toml", rounds=60, every=10_000)
    return file, whole(file, folder / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_polite_signal_leaves_a_checkpoint_of_the_very_round(tmp_path, number, code, gate, wait_until, polite):
    file, expected = polite
    out = tmp_path / "run"
    held = gate(5)
    process = start("run", file, "--out", out, gate=held)
    wait_until(partial(trained, out, 5), process)
    process.send_signal(number)
    held.open()
    ended, err = finish(process)
    assert (ended, err) == (code, "")
    directory = RunDirectory(out)
    stopped = directory.latest().round_index
    assert 5 <= stopped == len(directory.read_metrics()) < 60
    assert Ledger.load(out / "ledger.jsonl").rounds in (stopped, stopped + 1)
    ended, err = finish(start("run", file, "--out", out, "--resume"))
    assert (ended, err) == (0, "")
    assert contents(out) == expected


def test_two_commands_cannot_share_a_run(tmp_path, gate, wait_until):
    file = scenario(tmp_path / "s.toml", rounds=4, every=10)
    one = start("run", file, "--out", tmp_path / "run", gate=gate(1))
    wait_until(partial(trained, tmp_path / "run", 1), one)
    code, err = finish(start("run", file, "--out", tmp_path / "run", "--resume"))
    one.kill()
    finish(one)
    assert code == 2
    assert err.startswith("airfed: Another process is running in ")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_ends_the_run_in_words_and_more_room_lets_it_go_on(tmp_path, small_disk):
    file = scenario(tmp_path / "s.toml", rounds=60, every=1)
    out = small_disk / "run"
    code, err = finish(start("run", file, "--out", out))
    assert code == 2
    assert err.startswith(f"airfed: Cannot write to {out}: No space left on device.")
    assert len(err.splitlines()) == 1
    directory = RunDirectory(out)
    stopped = directory.latest().round_index
    assert 0 < stopped < 60
    assert finish(start("run", file, "--out", out, "--resume"))[0] == 2  # still full
    assert directory.latest().round_index >= stopped
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    assert finish(start("run", file, "--out", out, "--resume"))[0] == 0
    assert contents(out) == whole(file, tmp_path / "whole")
