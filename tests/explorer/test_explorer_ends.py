"""No training outlives the page that started it, in whatever way the page ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airfed.explorer.design import Design
from airfed.running.directory import RunDirectory

PATIENCE = 120.0  # seconds; a busy machine is slow, an orphan trains for an hour

PAGE = """
import signal, sys
from pathlib import Path
from airfed.explorer.design import from_query
from airfed.explorer.trainer import Trainer
training = Trainer(Path("runs")).start(from_query({"policy.rounds": "20000", "learning.total_steps": "20000"}))
print(training.name, training.process.pid, flush=True)
signal.pause()
"""


def until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_trainee_ends_when_its_pipe_does(tmp_path: Path) -> None:
    theirs, mine = os.pipe()
    wait = "import sys, airfed.explorer.trainee as t; print(flush=True); t.watch(int(sys.argv[1]))"
    command = [sys.executable, "-c", wait, str(theirs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[theirs], cwd=tmp_path) as process:
        os.close(theirs)
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        os.close(mine)
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_a_trainee_is_airfed(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(Design().world().to_toml())
    theirs, mine = os.pipe()
    command = [sys.executable, "-m", "airfed.explorer.trainee", str(theirs), "plan", "s.toml", "--json"]
    done = subprocess.run(command, capture_output=True, pass_fds=[theirs], cwd=tmp_path, text=True)
    os.close(theirs)
    os.close(mine)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"num_scheduled"' in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_training_ends_with_a_checkpoint_when_the_page_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install airfed[sim]")
    page = subprocess.Popen([sys.executable, "-c", PAGE], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with page:
        assert page.stdout is not None
        name, pid = page.stdout.readline().split()
        directory = RunDirectory(tmp_path / "runs" / name)
        until(lambda: directory.file("metrics.jsonl").exists() and directory.file("metrics.jsonl").stat().st_size)
        assert not gone(int(pid))
        page.send_signal(number)
        page.wait(PATIENCE)
    until(lambda: gone(int(pid)))
    assert directory.latest() is not None  # it can be resumed
    assert not directory.file("model.safetensors").exists()
