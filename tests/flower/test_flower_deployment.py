"""A Flower deployment: the commands of the example's README, and a SuperNode that is killed during a training.

Every process listens on 127.0.0.1 only, lives for a bounded time, and is marked by a variable of its environment:
whatever a test started is ended by its process id when the test ends, however it ends.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")
pytest.importorskip("mlxtend")

from safetensors.numpy import load_file

from airfed.privacy.ledger import Ledger
from airfed.scenario import load
from airfed.training.directory import RunDirectory
from airfed.training.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
PATIENCE = 900.0  # s; only bounds a hang, on however busy a machine
SCHEDULED = [0, 2, 3, 4]  # of the small scenario


def quiet(file: Path, **changes: object) -> None:
    """Make a scenario's noise negligible: it is keyed by the exact sum, and uploads are rounded to float32 here."""
    file.write_text(load(file).override({"link.noise_std": 1e-9, "budget.epsilon": 1e15, **changes}).to_toml())


SHORT = {"policy.rounds": 2}  # each message starts a process on the device


@pytest.fixture
def app(flower_app):
    """A copy of the example, and its processes."""
    flower_app.lifetime = PATIENCE
    quiet(flower_app.folder / "flower_app" / "scenario.toml", **SHORT)
    return flower_app.folder, flower_app


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in np.random.default_rng().integers(20000, 50000, size=100).tolist():
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
        return first
    raise AssertionError("no free ports")


def commands(section: str) -> str:
    """The commands of a section of the example's README."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
    return "".join(re.findall(r"^```sh\n(.*?)^```", body, flags=re.S | re.M))


def run_readme(app, section: str) -> str:
    """Run the settings and a section in one shell, with free ports, and return what was printed."""
    folder, processes = app
    script = (commands("Settings") + commands(section)).replace("PORT=8000", f"PORT={free_ports(5)}")
    (folder / "script.sh").write_text(script)
    shell = processes.start("bash", "-eu", "script.sh", log="output.txt")
    code = shell.wait(PATIENCE)
    output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    assert code == 0, output[-5000:]
    return output


@pytest.fixture(scope="module")
def reference(tmp_path_factory, command_environment):
    """The training by airfed alone, from the README's last section."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE / "flower_app", folder / "flower_app", ignore=shutil.ignore_patterns("__pycache__"))
    quiet(folder / "flower_app" / "scenario.toml", **SHORT)
    words = commands("The same without Flower").split()
    assert words[0] == "airfed"
    command = [sys.executable, "-m", *words]
    subprocess.run(command, cwd=folder, env=command_environment, check=True, timeout=PATIENCE, capture_output=True)
    return folder / "run-airfed"


def assert_same_run(run: Path, reference: Path, replay) -> None:
    model, own = load_file(run / "model.safetensors"), replay(run)
    assert model.keys() == own.keys()
    for name, tensor in own.items():
        np.testing.assert_allclose(model[name], tensor, rtol=0.0, atol=1e-5 * min(1.0, np.abs(tensor).max()))
    ledgers = [Ledger.load(folder / "ledger.jsonl") for folder in (run, reference)]
    assert ledgers[0].header.keys() - ledgers[1].header.keys() == {"nonce"}
    assert ledgers[0].mu_total == ledgers[1].mu_total
    assert ledgers[0].power_planned == ledgers[1].power_planned


def test_a_simulation_trains_the_model_of_airfed(app, reference, replay):
    run_readme(app, "Simulation")
    assert_same_run(app[0] / "run-simulation", reference, replay)


def test_tls_and_node_authentication_admit_only_registered_nodes(app, reference, replay):
    output = run_readme(app, "Deployment with TLS and node authentication")
    assert_same_run(app[0] / "run-secure", reference, replay)
    before, _, after = output.partition("Failed to activate SuperNode")
    assert after.startswith(".")
    assert "node rejected" in after
    assert "node rejected" not in before


CLIENT = '''
"""Devices that send invalid replies or none, and a node that never names its device."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from airfed.flower import client_app, messages

honest = client_app(Path(__file__).with_name("scenario.toml"))
app = ClientApp()


def sending(data):
    return {"over-the-air": ArrayRecord({"signal": Array("float32", (12,), "numpy.ndarray", data)})}


good = Array(np.ones(12, np.float32)).data
FAULTS = {}


@app.train()
def train(message, context):
    device = context.node_config["partition-id"]
    if "ask" in message.content[messages.RECORD]:
        time.sleep(3600.0 if device == 9 else 0.0)
        return honest(message, context)
    place = device, messages.RoundConfig.of(message).round_index
    if place not in FAULTS:
        return honest(message, context)
    fault = FAULTS[place]
    if fault is None:
        time.sleep(3600.0)
    return Message(fault if isinstance(fault, Error) else RecordDict(fault), reply_to=message)
'''
FAULTS = """FAULTS = {
    (0, 0): {**sending(good), "config": ConfigRecord({"x": "y" * 10**6})},
    (2, 0): sending(b"PK\\x03\\x04 is no zip"),
    (3, 0): sending(good.replace(b"(12,)", b"(4000000000,)")),
    (0, 1): {"over-the-air": ArrayRecord({"signal": Array(np.full(12, np.nan))})},
    (4, 1): Error(code=1, reason="\\x1b[2J" + "x" * 10**6),
    (2, 1): None,
}"""
ROUNDS = 2


def deploy(app, scenario_file, indices: list[int]):
    """Start the README's SuperLink, a SuperNode for each index, and a training; return the training and the nodes."""
    folder, processes = app
    shutil.copy(scenario_file, folder / "flower_app" / "scenario.toml")
    quiet(folder / "flower_app" / "scenario.toml", **{"policy.rounds": ROUNDS})
    port, home = free_ports(6), folder / ".flwr"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    lines = [line.strip().removesuffix(" &") for line in commands("Deployment").replace("\\\n", "").splitlines()]

    def words(start: str, place: int = 0) -> list[str]:
        """The README's first command that starts with this word, with the port and the index of a node."""
        line = next(line for line in lines if line.startswith(start)).replace("$((PORT + 1))", str(port + 1 + place))
        return shlex.split(line.replace("$PORT", str(port)).replace("partition-id=0", f"partition-id={indices[place]}"))

    processes.start(*words("flower-superlink"), log="superlink.txt")
    assert wait_for(lambda: listens(port), time.monotonic() + PATIENCE)
    nodes = {
        index: processes.start(*words("flower-supernode", place), log=f"node-{index}.txt")
        for place, index in enumerate(indices)
    }
    *command, settings = words("flwr run")
    settings += f" round-timeout={PATIENCE} wait-for-devices={PATIENCE}"  # no round ends early on a slow machine
    return processes.start(*command, settings, log="output.txt"), nodes


def assert_trained_without(missing: set[tuple[int, int]], app, replay) -> None:
    """All devices were charged, and the model is that of a training without the missing ones."""
    run, output = RunDirectory(app[0] / "run-deployment"), (app[0] / "output.txt").read_text()
    counts = [sum(index == round_index for _, index in missing) for round_index in range(ROUNDS)]
    assert [record["missing"] for record in run.read_metrics()] == counts, output[-5000:]
    found = Run.open(run.path).checked()
    assert found.plan.scheduled.tolist() == SCHEDULED
    trained = load_file(run.file("model.safetensors"))["parameters"]
    np.testing.assert_allclose(trained, replay(run.path, missing)["parameters"], rtol=0.0, atol=1e-5)
    mu, charges = found.plan.mu_round, found.ledger.charges
    assert [(c.round_index, c.devices, c.mu) for c in charges] == [(i, 4, mu) for i in range(ROUNDS)]


def test_a_deployment_trains_despite_malicious_unresponsive_and_lost_supernodes(app, scenario_file, replay):
    (app[0] / "flower_app" / "client_app.py").write_text(CLIENT.replace("FAULTS = {}", FAULTS))
    training, nodes = deploy(app, scenario_file, [*SCHEDULED, 9])
    run, output = RunDirectory(app[0] / "run-deployment"), app[0] / "output.txt"
    wait_for(lambda: bool(run.read_metrics()) or training.poll() is not None, time.monotonic() + PATIENCE)
    assert run.read_metrics(), output.read_text()[-5000:]
    os.killpg(nodes[2].pid, signal.SIGKILL)  # the SuperNode and all that it runs
    nodes[2].wait(10)
    assert training.wait(PATIENCE) == 0, output.read_text()[-5000:]
    faults = {(0, 0), (2, 0), (3, 0), (0, 1), (4, 1)}
    assert_trained_without(faults | {(2, 1)}, app, replay)
    for device, index in faults:
        assert f"round {index + 1}: device {device} counts as zero" in output.read_text()
    assert "\x1b[2J" not in output.read_text()


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition, deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
