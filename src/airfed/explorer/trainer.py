"""Trainings in the background: each a process of its own, at most a few at once."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from airfed.explorer.design import Design
from airfed.running.directory import RunError
from airfed.scenario import Scenario

DATASET: Final = "mnist-5k"
MOST_AT_ONCE: Final = 2
_PATIENCE: Final = 20.0  # seconds that a stopped training has for its checkpoint


@dataclass(kw_only=True, eq=False)
class Training:
    """A process, `airfed run`, that trains into `root/name`; `said` and `complaints` are its two outputs."""

    name: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    complaints: IO[bytes]

    @property
    def running(self) -> bool:
        """Whether it still trains."""
        return self.process.poll() is None

    @property
    def outcome(self) -> tuple[str, str]:
        """How it ended, and why: ("finished", ""); ("running", "") while it has not."""
        if self.running:
            return "running", ""
        if self.process.returncode == -signal.SIGTERM:
            return "stopped", "It had not begun yet."
        try:
            summary = json.loads(_content(self.said))
        except ValueError:
            lines = _content(self.complaints).strip().splitlines()
            reason = lines[-1] if lines else f"It ended with code {self.process.returncode}."
            return "failed", reason.removeprefix("airfed: ").removeprefix("/dev/stdin: ")
        return summary["status"], summary["message"]

    def stop(self) -> None:
        """Ask it to stop; it ends with a checkpoint."""
        if self.running:
            self.process.terminate()


class Trainer:
    """Starts trainings below a root and stops them; safe to call from several threads.

    Args:
        root: where run directories go.
        clock: names them.
    """

    def __init__(self, root: Path, *, clock: Callable[[], time.struct_time] = time.localtime) -> None:
        self._root, self._clock = root, clock
        self._trainings: dict[str, Training] = {}
        self._lock = threading.Lock()

    def start(self, design: Design) -> Training:
        """Train a design on mnist-5k in the background.

        Raises:
            ScenarioError: the design is wrong.
            RunError: too many trainings are running, or torch is missing.
        """
        world = trained_world(design)
        if importlib.util.find_spec("torch") is None:
            raise RunError('Training needs torch: pip install "airfed[sim]".')
        with self._lock:
            if sum(training.running for training in self._trainings.values()) >= MOST_AT_ONCE:
                raise RunError(f"{MOST_AT_ONCE} trainings are running already: stop one, or wait for it.")
            name = f"explore-{time.strftime('%Y%m%d-%H%M%S', self._clock())}-{secrets.token_hex(2)}"
            self._root.mkdir(parents=True, exist_ok=True)
            training = _launch(world, (self._root / name).absolute())
            self._trainings[name] = training
            return training

    def find(self, name: str) -> Training | None:
        """Return the training of a run that was started here."""
        return self._trainings.get(name)

    def close(self) -> None:
        """Stop every training and wait for their checkpoints."""
        running = [training for training in self._trainings.values() if training.running]
        for training in running:
            training.stop()
        for training in running:
            try:
                training.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                training.process.kill()
                training.process.wait()


def trained_world(design: Design) -> Scenario:
    """Return the scenario that the button trains: the design on mnist-5k, with the machine's own [run] settings.

    Raises:
        ScenarioError: the design is wrong.
    """
    return design.world().override({"learning.dataset": DATASET, "run": {}})


def _launch(world: Scenario, out: Path) -> Training:
    said, complaints = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - they live with the training
    process = subprocess.Popen(
        [sys.executable, "-m", "airfed", "run", "/dev/stdin", "--out", str(out), "--json"],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=complaints,
        start_new_session=True,  # Ctrl-C reaches the server alone, which then stops its trainings in good order
    )
    assert process.stdin is not None
    # It may have died at once; `outcome` then says why.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(world.to_toml().encode())
    return Training(name=out.name, process=process, said=said, complaints=complaints)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
