"""Invalid messages on the web socket close the connection without a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="the explorer's packages are not installed (pip install airfed[web])")
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

SOCKET = "_nicegui_ws/socket.io/?EIO=4&transport=websocket"
PATHS = ("nowhere", "_nicegui_ws/", SOCKET, f"{SOCKET}&implicit_handshake=true", f"{SOCKET}&client_id=x")
EVENTS = ("handshake", "event", "javascript_response", "ack", "log", "nothing")
GARBAGE: tuple[str | bytes, ...] = (
    *("garbage", "", b"\x00\xff", "4", "9", "-1", "42[", "42{}", "42[1]", "45", "451-[]", "43[]", "4" + "[" * 5000),
    *(f'42["{event}"{rest}]' for event in EVENTS for rest in ("", ",1", ",null", ",{}", ',{"client_id":[]}')),
)


def test_invalid_messages_on_the_web_socket_leave_no_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "airfed", "explore", "--port", "0", "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True, env=environment
    ) as page:
        assert page.stdout is not None
        found = re.search(r"http(://\S+:(\d+)/)\?token=(\S+)", page.stdout.readline())
        assert found is not None
        known = {"Cookie": f"airfed-token-{found[2]}={found[3]}"}
        try:
            for path in PATHS:
                for message in GARBAGE:
                    with contextlib.suppress(WebSocketException, TimeoutError, OSError):
                        _send(f"ws{found[1]}{path}", message, known)
            with urllib.request.urlopen(urllib.request.Request(f"http{found[1]}", headers=known), timeout=60) as answer:
                assert answer.status == 200
        finally:
            page.terminate()
        output = page.stdout.read()
    assert output == ""


def _send(address: str, message: str | bytes, headers: dict[str, str]) -> None:
    with connect(address, additional_headers=headers, open_timeout=60, close_timeout=1) as socket:
        socket.recv(timeout=60)  # the session id
        socket.send("40")
        socket.recv(timeout=60)
        socket.send(message)
        socket.send("42[]")
        socket.recv(timeout=0.02)
