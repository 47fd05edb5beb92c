"""Processes that are all gone when a test ends, and a run of several of them that can be held in a round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import airfed

MARK = "AIRFED_TEST_MARK"
PATIENCE = 300.0  # s, for a machine that has much else to do


class Processes:
    """Processes of one test, marked by a variable of their environment; each writes into a file in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(airfed.__file__).parents[1]),  # the airfed that is tested, wherever a process runs
            "OMP_NUM_THREADS": "1",
        }

    def start(
        self, *command: str | Path, log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        with (self.folder / log).open("wb") as stream:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env=self.environment | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def alive(self, *variables: str) -> list[int]:
        """The ids of all processes that carry this test's mark, and these variables ("RANK=1")."""
        wanted = {word.encode() for word in (f"{MARK}={self.mark}", *variables)}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue  # gone meanwhile, or somebody else's
        return found

    def text(self, log: str) -> str:
        """What a process has written, without the line breaks."""
        return " ".join((self.folder / log).read_text(encoding="utf-8", errors="replace").split())

    def end(self) -> None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.alive():
                try:
                    os.kill(pid, kind)
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    continue
            _wait_for(lambda: not self.alive(), 5.0)
            for process in self.started:
                process.poll()
        for process in self.started:
            process.wait(30)


@pytest.fixture
def processes(tmp_path):
    """A folder with processes; none of them outlives the test."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs Linux")
    found = Processes(tmp_path)
    try:
        yield found
    finally:
        found.end()
    assert found.alive() == []


def _wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="session")
def wait_for():
    """Wait until a condition comes true; return whether it did."""
    return _wait_for


SCENARIO = """
name = "cluster"
[fleet]
num_devices = 23
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.1
estimation_error = 0.01
[link]
noise_std = 1.0
[budget]
epsilon = 5.0
delta = 1e-3
total_power = 1000.0
[learning]
model = "quadratic"
dimension = 30
total_steps = 12
learning_rate = 0.5
clip_norm = 4.0
smoothness = 2.0
strong_convexity = 0.5
initial_gap = 10.0
[policy]
name = "full"
rounds = 6
[run]
patience = {patience}
"""
HELD = 2  # the round in which a gated run is held


class Gated:
    """A run of one scenario by several processes that wait in round `HELD` for `go`."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.folder = processes, processes.folder
        self.out, self.scenario = self.folder / "run", self.folder / "scenario.toml"

    def prepare(self, *, patience: float) -> None:
        self.scenario.write_text(SCENARIO.format(patience=patience))

    @property
    def script(self) -> list[str | Path]:
        """What Python has to run."""
        run = ("run", self.scenario, "--out", self.out)
        return [Path(__file__).with_name("gated.py"), self.folder, str(HELD), *run]

    def held(self, *ranks: int) -> None:
        """Wait until these have come to the round."""
        files = [self.folder / f"waiting-{rank}" for rank in ranks]

        def there() -> bool:
            ended = [process for process in self.processes.started if process.poll() is not None]
            return bool(ended) or all(file.exists() for file in files)

        assert _wait_for(there)
        texts = {path.name: path.read_text() for path in self.folder.glob("*.log")}
        assert all(file.exists() for file in files), texts
        assert self.rounds == HELD, texts

    @property
    def rounds(self) -> int:
        """How many are recorded."""
        metrics = self.out / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def go(self, rank: int | None = None) -> None:
        """Let one process go on, or all of them."""
        (self.folder / ("go" if rank is None else f"go-{rank}")).touch()

    def alone(self, out: Path, *extra: str) -> dict[str, bytes]:
        """Run or resume with one process and return the record."""
        run = ("-m", "airfed", "run", self.scenario, "--out", out, *extra)
        done = self.processes.start(sys.executable, *run, log="alone.log")
        assert done.wait(PATIENCE) == 0, self.processes.text("alone.log")
        return self.record(out)

    def record(self, out: Path | None = None) -> dict[str, bytes]:
        names = ("model.safetensors", "metrics.jsonl", "metrics.csv", "ledger.jsonl")
        return {name: ((out or self.out) / name).read_bytes() for name in names}


@pytest.fixture
def gated(processes):
    """A run that can be held in a round."""
    return Gated(processes)
