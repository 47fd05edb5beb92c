"""Serves the page: binds, prints the address, waits for Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import webbrowser
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI, Request
from nicegui import ui

from airfed.explorer.design import Design
from airfed.explorer.gate import Gate, is_loopback
from airfed.explorer.page import Page
from airfed.explorer.records import Library
from airfed.explorer.trainer import Trainer
from airfed.explorer.view import look


def serve(start: Design, *, host: str, port: int, runs: Path, open_browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Args:
        start: what the page shows first.
        host: where to listen; anything but loopback demands a token, which is printed.
        port: where to listen; 0 takes a free one.
        runs: the folder of run directories; nothing outside it is read or written.
        open_browser: whether to open the page.

    Raises:
        ValueError: the address cannot be listened on.
        KeyboardInterrupt: Ctrl-C, after everything has been stopped.
    """
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    trainer = Trainer(runs)
    with contextlib.closing(_listen(host, port)) as listener, contextlib.closing(trainer):
        address = _address(host, listener.getsockname()[1], token)
        print(f"airfed explore: {address}   (Ctrl-C stops)", flush=True)
        config = uvicorn.Config(
            Gate(build(start, Library(runs), trainer), token=token),
            log_level="error",
            timeout_graceful_shutdown=3,
            ws_max_size=8_000_000,
        )
        if open_browser:
            threading.Timer(0.8, webbrowser.open, [address]).start()
        uvicorn.Server(config).run(sockets=[listener])


def build(start: Design, library: Library, trainer: Trainer) -> FastAPI:
    """Return the application: one page, a fresh one for every visitor."""
    _warm_up()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/", response_timeout=30.0)
    async def index(request: Request) -> None:
        page = Page(start, dict(request.query_params), library, trainer)
        await page.begin()

    ui.run_with(app, title="airfed explore", dark=None, tailwind=False, show_welcome_message=False, favicon="📡")
    return app


def _warm_up() -> None:
    """Plan once, so that the first visitor does not wait for imports."""
    look(Design().world())


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}; give another --port or --host.") from None
    except OverflowError:
        raise ValueError(f"Expected 0 <= port={port} <= 65535.") from None


def _address(host: str, port: int, token: str | None) -> str:
    name = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
    return f"http://{name}:{port}/" + (f"?{urlencode({'token': token})}" if token else "")
