"""Two hosts: network namespaces joined by a link, held only by this process and the processes in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest


class Hosts:
    """Two hosts at `addresses`. They vanish with their holders, which end when this process does, however it ends."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self) -> None:
        self._holders = [
            subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in self.addresses
        ]

    def join(self) -> None:
        """Lay the link."""
        here = os.readlink("/proc/self/ns/net")
        for holder in self._holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == here:
                if holder.poll() is not None:
                    raise OSError((holder.stderr.read() or b"unshare has failed").decode().strip())
                time.sleep(0.01)
        ends = ("type", "veth", "peer", "name", "link0", "netns", str(self._holders[1].pid))
        self._ip(0, "link", "add", "link0", *ends)
        for host, address in enumerate(self.addresses):
            self._ip(host, "address", "add", f"{address}/24", "dev", "link0")
            self._ip(host, "link", "set", "lo", "up")
            self._ip(host, "link", "set", "link0", "up")

    def on(self, host: int, *command: str | Path) -> list[str | Path]:
        """Return the command that runs another one on a host."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", *command]

    def cut(self) -> None:
        """Cut the link."""
        self._ip(1, "link", "set", "link0", "down")

    def restore(self) -> None:
        """Mend the link."""
        self._ip(1, "link", "set", "link0", "up")

    def end(self) -> None:
        for holder in self._holders:
            holder.communicate()  # its input ends, and so does it

    def _ip(self, host: int, *words: str) -> None:
        done = subprocess.run(self.on(host, "ip", *words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts():
    """Two hosts joined by a link; skips where they cannot be made."""
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        pytest.skip(f"network namespaces need {', '.join(missing)}")
    found = Hosts()
    try:
        try:
            found.join()
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield found
    finally:
        found.end()
