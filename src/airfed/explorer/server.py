"""Serves the page: binds, prints the address, waits for a signal."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from nicegui import app as nicegui_app
from nicegui import core, run, ui

from airfed.explorer import view
from airfed.explorer.design import Design
from airfed.explorer.gate import Gate
from airfed.explorer.page import Page
from airfed.explorer.worker import compute, configure


def serve(start: Design, *, host: str, port: int, runs: Path, open_browser: bool) -> int:
    """Serve the page until a signal ends it (Ctrl-C, SIGTERM, SIGHUP), and return the exit code that this means.

    Args:
        start: the design that the page shows first.
        host: where to listen; everyone needs the token, which is printed with the address.
        port: where to listen; 0 takes a free one.
        runs: the folder of run directories; nothing outside it is read.
        open_browser: whether to open the page.

    Raises:
        ValueError: the address cannot be listened on.
    """
    token = secrets.token_urlsafe(24)
    with contextlib.closing(_listen(host, port)) as listener:
        port = listener.getsockname()[1]
        gate = Gate(build(start, runs), token=token, host=host, port=port)
        options: dict[str, Any] = {"log_level": "error", "server_header": False, "ws_max_size": 8_000_000}
        server = _Server(uvicorn.Config(gate, timeout_graceful_shutdown=2, **options))
        name = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
        address = f"http://{name}:{port}/?token={token}"
        print(f"airfed explore: {address}   (Ctrl-C stops)", flush=True)
        if open_browser:
            threading.Timer(0.8, webbrowser.open, [address]).start()
        try:
            server.run(sockets=[listener])
        finally:
            run.reset()  # ends every worker process, busy or not
    return 128 + server.caught[0] if server.caught else 0


def build(start: Design, runs: Path) -> FastAPI:
    """Return the application: one page, a fresh one for every visitor."""
    for name, level in (("nicegui", logging.ERROR), ("engineio.server", 50), ("socketio.server", 50)):
        logging.getLogger(name).setLevel(level)  # their warnings repeat addresses that anybody may ask for
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/")
    def index(request: Request) -> None:
        Page(start, runs, dict(request.query_params))

    # A message that is none of the page's own ends its connection, without a traceback in the log. Errors of the page's
    # own code do not pass here: NiceGUI hands them to its own handler.
    handlers = core.sio.handlers["/"]
    for event, handler in handlers.items():
        if event != "disconnect" and not hasattr(handler, "__wrapped__"):  # which brings no message
            handlers[event] = _quiet(event, handler)
    configure()
    for _ in range(2):  # worker processes, so that no visitor waits for imports
        nicegui_app.on_startup(functools.partial(compute, view.show, Design()))
    ui.run_with(app, title="airfed explore", dark=None, tailwind=False, show_welcome_message=False, favicon="📡")
    return app


def _quiet(event: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    async def handle(sid: str, *message: Any) -> Any:
        try:
            answer = handler(sid, *message)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception:
            if event == "connect":
                return False  # refused
            await core.sio.disconnect(sid)
            return None

    return handle


class _Server(uvicorn.Server):
    """Ends in good order on a signal; a second one does not wait for visitors."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.caught: list[int] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        old = {number: signal.signal(number, self._heed) for number in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _heed(self, number: int, frame: object) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught.append(number)
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}; give another --port or --host.") from None
    except OverflowError:
        raise ValueError(f"Expected 0 <= port={port} <= 65535.") from None
