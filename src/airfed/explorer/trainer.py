"""Trainings in the background: each a process of its own, at most a few at once, none that outlives the page."""

from __future__ import annotations

import json
import os
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

from airfed import _extras
from airfed.explorer.admission import NOTHING_OWN, Own, admit
from airfed.explorer.design import Design
from airfed.explorer.library import Library
from airfed.running.directory import RunError
from airfed.scenario import Scenario, ScenarioError

DATASET: Final = "mnist-5k"
MOST_AT_ONCE: Final = 2
_PATIENCE: Final = 20.0  # seconds that a stopped training has for its checkpoint


@dataclass(kw_only=True, eq=False)
class Training:
    """A process, `airfed run`, that trains into `root/name`; `said` and `complaints` are its two outputs.

    It ends when `leash` is closed, be it by the kernel because this process is no more.
    """

    name: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    complaints: IO[bytes]
    leash: IO[bytes]

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
        own: what may be trained beyond what is built in.
        clock: names them.
    """

    def __init__(
        self, root: Path, own: Own = NOTHING_OWN, *, clock: Callable[[], time.struct_time] = time.localtime
    ) -> None:
        self._root, self._own, self._clock = root, own, clock
        self._trainings: dict[str, Training] = {}
        self._lock = threading.Lock()

    def start(self, design: Design) -> Training:
        """Train a design in the background, on mnist-5k or on data of the user's own.

        Raises:
            ScenarioError: the design is wrong.
            RunError: too many trainings are running, or torch is missing.
        """
        world = trained_world(design)
        name = f"explore-{time.strftime('%Y%m%d-%H%M%S', self._clock())}-{secrets.token_hex(2)}"
        return self._launch(name, Path("/dev/stdin"), world.to_toml())

    def resume(self, name: str) -> Training:
        """Go on with a run that was interrupted.

        Raises:
            RunError: there is no such run, it is being trained, or too many are.
            ScenarioError: it names code or files that the page was not started with.
            ValueError: its scenario cannot be read.
        """
        run = Library(self._root).read(name)
        try:
            admit(run.scenario, self._own)
        except ScenarioError as error:
            raise ScenarioError(f"{error} On the command line: airfed run ... --out {run.path} --resume.") from None
        return self._launch(name, run.path / "scenario.toml", "", "--resume")

    def _launch(self, name: str, file: Path, content: str, *options: str) -> Training:
        try:
            _extras.require("torch")
        except _extras.MissingExtra as error:
            raise RunError(str(error)) from None
        with self._lock:
            running = self.running()
            if name in running:
                raise RunError(f"{name} is being trained already.")
            if len(running) >= MOST_AT_ONCE:
                raise RunError(f"{MOST_AT_ONCE} trainings are running already: stop one, or wait for it.")
            self._root.mkdir(parents=True, exist_ok=True)
            arguments = ("run", str(file), "--out", str((self._root / name).absolute()), "--json", *options)
            training = _start(name, arguments, content)
            self._trainings.pop(name, None)
            self._trainings[name] = training
            return training

    def running(self) -> list[str]:
        """Return the runs that are being trained, the newest last."""
        return [name for name, training in list(self._trainings.items()) if training.running]

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

    A design with a model or data set of the user's own keeps its data.

    Raises:
        ScenarioError: the design is wrong.
    """
    world = design.world()
    return world.override({"learning.dataset": dataset(design), "run": {}})


def dataset(design: Design) -> str:
    """Return what the button trains a design on."""
    model, data = design.get("learning.model"), design.get("learning.dataset")
    own = model == design.own.model or data == design.own.dataset
    return str(data) if own else DATASET


def _start(name: str, arguments: tuple[str, ...], content: str) -> Training:
    said, complaints = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - they live with the training
    theirs, mine = os.pipe()
    with tempfile.TemporaryFile() as scenario_file:  # a file, not a pipe: its size can be seen before it is read
        scenario_file.write(content.encode())
        scenario_file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "airfed.explorer.trainee", str(theirs), *arguments],
            stdin=scenario_file,
            stdout=said,
            stderr=complaints,
            pass_fds=[theirs],
            start_new_session=True,  # Ctrl-C reaches the server alone, which then stops its trainings in good order
        )
    os.close(theirs)
    leash = os.fdopen(mine, "wb", buffering=0)
    return Training(name=name, process=process, said=said, complaints=complaints, leash=leash)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
