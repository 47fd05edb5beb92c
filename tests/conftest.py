"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import threadpoolctl
from hypothesis import HealthCheck, settings

import airfed
import problems

# The same examples every time, and no stop-watch: machines are busy.
settings.register_profile("airfed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("airfed")


MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30  # bytes


def pytest_configure() -> None:
    """Avoid needless waits.

    Each process of the tests, and what it starts, has one thread for linear algebra: with several at a time on few
    processors the threads of small matrices mostly wait for each other, up to thirty times as long as one alone takes.
    Temporary folders are in memory where there is room: runs flush every line, and a disk takes its time for it.
    Signals that a shell's & or nohup ignores are handled again: processes of the tests must end on a signal.
    """
    for one in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(one) is signal.SIG_IGN:
            signal.signal(one, signal.default_int_handler if one is signal.SIGINT else signal.SIG_DFL)
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    threadpoolctl.threadpool_limits(1)  # of what is loaded already
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that mostly wait (deployments, kills, installations), so that all workers end together."""
    quick = {item.path for item in items if item.get_closest_marker("slow") is None}
    items.sort(key=lambda item: item.path in quick)


@pytest.fixture(scope="session")
def random_problem():
    return problems.random


@pytest.fixture(scope="session")
def repository():
    """The source tree: the tests run on the built wheel, but examples and documents are not part of it."""
    return Path(__file__).parents[1]


PATIENCE = 900.0  # s; only bounds a hang, on however busy a machine


class Gate:
    """Holds commands that train at a chosen round, so that a test can do something meanwhile.

    `environment` is for the commands: in them, and in the processes that they start, a round begins only once the
    gate is opened for it.
    """

    def __init__(self, folder, rounds):
        self.file = folder / "gate"
        self.open(rounds)
        path = [str(Path(__file__).with_name("gate")), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.variables = {"PYTHONPATH": os.pathsep.join(path), "AIRFED_TEST_GATE": str(self.file)}
        self.environment = {**os.environ, **self.variables}

    def open(self, rounds=10**9):
        """Let this many rounds begin; by default all."""
        part = self.file.with_suffix(".part")
        part.write_text(f"{rounds}")
        part.replace(self.file)


@pytest.fixture
def gate(tmp_path_factory):
    """Return a function that makes a gate which lets a given number of rounds pass."""
    return lambda rounds: Gate(tmp_path_factory.mktemp("gate"), rounds)


@pytest.fixture(scope="session")
def wait_until():
    """Return a function that waits for a condition, and fails if the given process ends before it is met."""

    def wait(condition, process=None):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = process is not None and process.poll() is not None
            if ended and not condition():
                errors = process.stderr.read() if process.stderr else ""
                raise AssertionError(f"it ended with {process.returncode} before that: {errors}")
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.02)

    return wait


MARK = "AIRFED_TEST_MARK"


class Processes:
    """Processes of one test, marked by a variable of their environment; each writes into a file in the folder.

    With a `lifetime`, in seconds, nothing stays behind for long even if the tests themselves are killed.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {**environment, MARK: self.mark}
        self.lifetime: float | None = None

    def start(
        self, *command: str | Path, log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        if self.lifetime is not None:
            command = ("timeout", "--kill-after=5", f"{self.lifetime:.0f}", *command)
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
                continue  # ended meanwhile, or of another user
        return found

    def text(self, log: str) -> str:
        """Return the output of a process without line breaks."""
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


@pytest.fixture(scope="session")
def command_environment():
    """The variables with which a process anywhere finds this Python and the airfed that is tested."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(airfed.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def processes(tmp_path, command_environment):
    """A folder with processes, which end with the test at the latest."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs Linux")
    found = Processes(tmp_path, command_environment)
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


@pytest.fixture
def flower_app(processes, repository):
    """The processes of a copy of the example of a Flower app, which is their folder."""
    folder = processes.folder / "flower_app"
    leftovers = shutil.ignore_patterns(".flwr", "certificates", "run*", "__pycache__")
    shutil.copytree(repository / "examples" / "flower_app", folder, ignore=leftovers)
    processes.folder = folder
    processes.environment |= {
        "FLWR_HOME": str(folder / ".flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }
    return processes


# A small scenario: six devices, a quadratic task of 50 parameters, eight rounds.
SCENARIO: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "fleet": {"num_devices": 6, "peak_power": 1.0},
    "channel": {"model": "uniform", "low": 0.3, "high": 1.2},
    "link": {"noise_std": 2.0},
    "budget": {"epsilon": 3.0, "delta": 1e-5, "scope": "total", "total_power": 100.0},
    "learning": {
        "model": "quadratic",
        "dimension": 50,
        "total_steps": 20,
        "learning_rate": 0.1,
        "clip_norm": 0.5,
        "smoothness": 10.0,
        "strong_convexity": 0.1,
        "initial_gap": 2.3,
    },
    "policy": {"rounds": 8},
}


@pytest.fixture
def make_scenario():
    """Return a function that makes the small scenario, with dotted keys changed."""

    def make(**changes: Any) -> airfed.Scenario:
        return airfed.scenario.parse(SCENARIO).override(
            {key.replace("__", "."): value for key, value in changes.items()}
        )

    return make
