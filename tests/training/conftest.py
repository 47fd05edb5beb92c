"""Fixtures of the tests of training: runs of several processes that can be held in a round."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airfed.scenario import Scenario, load
from airfed.training.execution import execute
from airfed.training.noise import SeededNoise

SCENARIO = """
name = "cluster"
[fleet]
num_devices = 23
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.1
csi_error = 0.01
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
process_timeout = {process_timeout}
"""
HELD = 2  # the round in which a gated run is held


class Gated:
    """A run of one scenario by several processes that wait in round `HELD` for `go`."""

    def __init__(self, processes: Any, wait_for: Callable[[Callable[[], bool]], bool], made: Path) -> None:
        self.processes, self.folder, self.wait_for, self.made = processes, processes.folder, wait_for, made
        self.out, self.scenario = self.folder / "run", self.folder / "scenario.toml"

    def prepare(self, *, process_timeout: float) -> None:
        self.scenario.write_text(SCENARIO.format(process_timeout=process_timeout))
        self.whole = self.made / f"{process_timeout}"

    @property
    def script(self) -> list[str | Path]:
        """The arguments of Python."""
        run = ("run", self.scenario, "--out", self.out)
        return [Path(__file__).with_name("gated.py"), self.folder, str(HELD), *run]

    def held(self, *ranks: int) -> None:
        """Wait until these processes have reached the round."""
        files = [self.folder / f"waiting-{rank}" for rank in ranks]

        def there() -> bool:
            ended = [process for process in self.processes.started if process.poll() is not None]
            return bool(ended) or all(file.exists() for file in files)

        assert self.wait_for(there)
        texts = {path.name: path.read_text() for path in self.folder.glob("*.log")}
        assert all(file.exists() for file in files), texts
        assert self.rounds == HELD, texts

    @property
    def rounds(self) -> int:
        """Number of recorded rounds."""
        metrics = self.out / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def go(self, rank: int | None = None) -> None:
        """Release one process, or all of them."""
        (self.folder / ("go" if rank is None else f"go-{rank}")).touch()

    def resumed(self) -> dict[str, bytes]:
        """Resume the run in this process alone and return the record."""
        assert execute(load(self.scenario), self.out, resume=True).status == "finished"
        return self.record()

    def undisturbed(self) -> dict[str, bytes]:
        """The record of a run by this process alone, to the end; the tests of one process_timeout share it."""
        if not self.whole.exists():
            assert execute(load(self.scenario), self.whole).status == "finished"
        return self.record(self.whole)

    def record(self, out: Path | None = None) -> dict[str, bytes]:
        names = ("model.safetensors", "metrics.jsonl", "metrics.csv", "ledger.jsonl")
        return {name: ((out or self.out) / name).read_bytes() for name in names}


@pytest.fixture(scope="session")
def undisturbed_runs(tmp_path_factory):
    """The folder of the runs that nothing disturbs."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def gated(processes, wait_for, undisturbed_runs):
    """A run that can be held in a round."""
    return Gated(processes, wait_for, undisturbed_runs)


FILES = (
    *("model.safetensors", "metrics.jsonl", "metrics.csv", "devices.csv"),
    *("ledger.jsonl", "plan.json", "scenario.toml", "run.json"),
)


@pytest.fixture
def no_flush(monkeypatch):
    """Skip flushing to the disk, which matters for power cuts only."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def contents():
    """The bytes of every file that a finished run leaves, by name."""
    return lambda path: {name: (path / name).read_bytes() for name in FILES}


class StopAfter:
    """A stop function that returns True from its n-th call on."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.fixture(scope="session")
def stop_after():
    return StopAfter


class Killed(BaseException):
    """Raised as if the process had been killed: no handler of airfed catches it."""


@pytest.fixture
def killed_in(monkeypatch):
    """Execute a scenario until the noise of a round is drawn: charged and sent, with nothing else on the disk."""

    def run(scenario: Scenario, out: Path, deadly: int) -> None:
        real = SeededNoise.draw

        def draw(self: SeededNoise, index: int, *arguments: Any, **named: Any) -> Any:
            if index == deadly:
                raise Killed
            return real(self, index, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "draw", draw)
            with pytest.raises(Killed):
                execute(scenario, out)

    return run


class SameNoise(SeededNoise):
    """The noise depends on the round only, so that a test can subtract it."""

    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        return super().draw(round_index, dimension, noise_std)


@pytest.fixture
def same_noise():
    return SameNoise(b"")


class Shout:
    """Every device sends the same direction with a norm far above the clipping norm."""

    def updates(self, parameters, devices, *, steps, round_index):
        yield devices, np.full((devices.size, parameters.size), 1e3, np.float32)


@pytest.fixture
def shout():
    return Shout()
