"""One run on two hosts: the same bits as on one, and a clear message if a host is lost."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

PORT = 29500  # in a namespace nobody else has it

# Connects to every port that a process listens at, from its own host, sends something, and stays.
STRANGER = """
import socket, sys, time
kept = []
for port in map(int, sys.argv[2:]):
    for words in (b"", b"GET / HTTP/1.0\\r\\n\\r\\n", bytes(4096), b"\\xff" * 4096):
        try:
            kept.append(socket.create_connection((sys.argv[1], port), timeout=5))
            kept[-1].sendall(words)
        except OSError as error:
            print(port, error)
print(len(kept), "connected", flush=True)
time.sleep(600)
"""


def launch(gated, hosts, *extra: str):
    """Start torchrun on both hosts, with one process each, as docs/scale.md has it."""
    return [
        gated.processes.start(
            *hosts.on(host, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
            *(f"--node-rank={host}", f"--master-addr={hosts.addresses[0]}", f"--master-port={PORT}"),
            *(*gated.script, *extra),
            log=f"host-{host}.log",
        )
        for host in (0, 1)
    ]


def test_a_link_that_comes_back_and_strangers_change_nothing(hosts, gated, wait_for):
    gated.prepare(process_timeout=120.0)
    launchers = launch(gated, hosts)
    gated.held(0, 1)
    for host in (0, 1):
        (worker,) = gated.processes.alive(f"RANK={host}", "LOCAL_RANK=0")
        ports = [*listening(worker), *([PORT] if host == 0 else [])]
        assert len(ports) == 2 - host  # torch.distributed's, and on the first host the store
        stranger = hosts.on(1 - host, sys.executable, "-c", STRANGER, hosts.addresses[host], *map(str, ports))
        gated.processes.start(*stranger, log=f"stranger-{host}.log")
    for host in (0, 1):
        assert wait_for(lambda host=host: "connected" in gated.processes.text(f"stranger-{host}.log"))
    hosts.cut()
    gated.go()  # both sides are done with their devices, and cannot tell each other
    time.sleep(3.0)
    assert gated.rounds == 2
    hosts.restore()
    assert [launcher.wait(300) for launcher in launchers] == [0, 0], gated.processes.text("host-0.log")
    assert gated.record() == gated.undisturbed()


def test_a_cut_link_ends_both_sides_and_one_host_resumes(hosts, gated):
    gated.prepare(process_timeout=6.0)
    launchers = launch(gated, hosts)
    gated.held(0, 1)
    hosts.cut()
    gated.go()
    assert [launcher.wait(300) for launcher in launchers] == [1, 1]  # torchrun's own code
    for host in (0, 1):
        text = gated.processes.text(f"host-{host}.log")
        other = 1 - host
        sentence = f"Rank {other} on {socket.gethostname()} ({hosts.addresses[other]}) has not responded for 6 s."
        assert sentence in text
        assert "exitcode : 5 " in text
    assert "Stopped before round 3; use --resume to continue." in gated.processes.text("host-0.log")
    assert gated.rounds == 2
    assert gated.resumed() == gated.undisturbed()


def test_the_hosts_leave_nothing_behind(hosts):
    names = [Path(f"/proc/{holder.pid}") for holder in hosts._holders]
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    hosts.end()
    assert not any(name.exists() for name in names)
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout == listed


def listening(process: int) -> list[int]:
    """The TCP ports at which a process listens."""
    handles = Path(f"/proc/{process}/fd").iterdir()
    own = {str(handle.readlink()) for handle in handles}
    rows = []
    for table in ("tcp", "tcp6"):
        rows += [line.split() for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
