"""Flower on two hosts: after a cut link the devices behind it miss some rounds, and the training continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from airfed.privacy.ledger import Ledger
from airfed.scenario import load
from airfed.training.directory import RunDirectory

pytestmark = pytest.mark.slow

PORT = 9092  # in a namespace nobody else has it
ROUND_TIMEOUT = 90.0  # s; the first round includes the start of the devices, on however busy a machine
NEAR, FAR = (0, 2), (3, 4)  # the devices on the SuperLink's host, and on the other one

SMALL = Path(__file__).parents[2] / "flower" / "small.toml"


def test_devices_behind_a_cut_link_count_as_zero_and_come_back(hosts, flower_app, wait_for):
    processes, folder = flower_app, flower_app.folder
    many = load(SMALL).override({"name": "hosts", "learning.total_steps": 1000, "policy.rounds": 1000})
    (folder / "flower_app" / "scenario.toml").write_text(many.to_toml())
    address, run = hosts.addresses[0], RunDirectory(folder / "run")
    (folder / ".flwr").mkdir()
    (folder / ".flwr" / "config.toml").write_text(
        f'[superlink.here]\naddress = "{address}:{PORT}"\ninsecure = true\n', encoding="utf-8"
    )
    link = ("flower-superlink", "--insecure", "--host", address, "--port", str(PORT))
    processes.start(*hosts.on(0, *link), log="superlink.log")
    for host, devices in enumerate((NEAR, FAR)):
        for device in devices:
            node = ("flower-supernode", "--insecure", "--superlink", f"{address}:{PORT}", "--host", "127.0.0.1")
            which = ("--port", str(PORT + 1 + device), "--node-config", f"partition-id={device}")
            processes.start(*hosts.on(host, *node, *which), log=f"node-{device}.log")
    assert wait_for(lambda: listens(hosts, address)), processes.text("superlink.log")
    asking = ("flwr", "run", ".", "here", "--stream", "--run-config", f"round-timeout={ROUND_TIMEOUT}")
    training = processes.start(*hosts.on(0, *asking), log="output.log")

    def missing() -> list[int]:
        return [record["missing"] for record in run.read_metrics()]

    def becomes(condition) -> bool:
        wait_for(lambda: condition(missing()) or training.poll() is not None)
        return condition(missing())

    assert becomes(lambda rounds: 0 in rounds), processes.text("output.log")[-5000:]
    hosts.cut()
    assert becomes(lambda rounds: rounds[-1:] == [len(FAR)]), processes.text("output.log")[-5000:]
    hosts.restore()
    cut = len(missing())
    assert becomes(lambda rounds: 0 in rounds[cut:]), processes.text("output.log")[-5000:]
    assert training.poll() is None

    processes.end()
    ledger = Ledger.load(run.file("ledger.jsonl"), repair=True)
    assert [charge.devices for charge in ledger.charges] == [len(NEAR + FAR)] * len(ledger.charges)
    assert len(ledger.charges) >= len(missing())


def listens(hosts, address: str) -> bool:
    """Whether the SuperLink is there."""
    attempt = f"import socket; socket.create_connection(({address!r}, {PORT}), timeout=5)"
    return subprocess.run(hosts.on(0, sys.executable, "-c", attempt), capture_output=True, check=False).returncode == 0
