"""Serves the page, and guards it: who may talk to it, what it may do in a browser (docs/explore.md: threat model)."""

from __future__ import annotations

import contextlib
import functools
import hmac
import inspect
import ipaddress
import logging
import re
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI, Request
from nicegui import app as nicegui_app
from nicegui import core, run, ui
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airfed.explorer import view
from airfed.explorer.design import Design
from airfed.explorer.page import Page
from airfed.explorer.worker import compute, configure

MOST_BYTES: Final = 1_000_000  # of a request; scenarios come over the web socket
_MOST_MESSAGE: Final = 8_000_000  # bytes of a web socket's message
_SOCKET: Final = "/_nicegui_ws/socket.io"  # the only path with a web socket
_GARBAGE: Final = (TypeError, ValueError, LookupError, AttributeError)  # what a message not of the page's own leads to
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; script-src-attr "
    "'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """An ASGI application that passes requests with the token on; on loopback only loopback names are answered."""

    def __init__(self, app: ASGIApp, *, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.app, self._token = app, token
        self.cookie = f"airfed-token-{port}"  # browsers share cookies between ports
        # Starlette compares what precedes the first colon; an address in brackets cannot be an attacker's DNS name.
        hosts = ["127.0.0.1", "localhost", "[" if ":" in host else host] if is_loopback(host) else ["*"]
        self._checked = TrustedHostMiddleware(self._admit, allowed_hosts=hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            # There is no proxy, whose prefix would count, and a page, whose scripts get a nonce, comes unpacked.
            ignored = [b"x-forwarded-prefix"] + [b"accept-encoding"] * (not scope["path"].startswith("/_nicegui"))
            headers = [(name, value) for name, value in scope["headers"] if name.lower() not in ignored]
            await self._checked({**scope, "headers": headers}, receive, _guarded(send))
        else:
            await (self._checked if scope["type"] == "websocket" else self.app)(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._refusal(HTTPConnection(scope)) or self.app
        try:
            await app(scope, receive, send)
        except _GARBAGE:
            if scope["type"] == "http":
                raise
            with contextlib.suppress(RuntimeError):  # it may be closed already
                await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: HTTPConnection) -> Response | None:
        headers, http, path = request.headers, request.scope["type"] == "http", request.scope["path"]
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("This page answers no other site.", 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # another site's: only a followed link
            followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if not (followed and http and request.scope["method"] == "GET" and path == "/"):
                return PlainTextResponse("This page is no part of another site's page.", 403)
        if not http and not path.startswith(_SOCKET):
            return PlainTextResponse("There is no web socket here.", 404)
        if "transfer-encoding" in headers:
            return PlainTextResponse("Expected a request that says its length.", 411)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > MOST_BYTES:
            return PlainTextResponse(f"Expected a request of at most {MOST_BYTES} bytes.", 413)
        if self._same(request.cookies.get(self.cookie, "")):
            return None
        query = request.query_params.multi_items()
        if not http or not any(self._same(value) for key, value in query if key == "token"):
            return PlainTextResponse("A token is needed: open the address that airfed explore printed.", 401)
        # Keep the token in a cookie and out of the address. One slash only: "//elsewhere" would lead to another site.
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        response = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="lax")  # links may be followed
        return response

    def _same(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode(), self._token.encode())


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine and no other."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _guarded(send: Send) -> Send:
    """Return an ASGI `send` that adds the headers, and the nonce to the scripts of a page."""
    nonce, page = secrets.token_urlsafe(16), bytearray()
    start: Message | None = None  # of a page, whose length is known in the end only

    async def guard(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update({name: value.format(nonce=nonce) for name, value in _HEADERS.items()})
            if headers.get("content-type", "").startswith("text/html"):
                start = message
                return
        elif message["type"] == "http.response.body" and start is not None:
            page.extend(message.get("body", b""))
            if message.get("more_body", False):
                return
            message["body"] = re.sub(rb"<script\b", f'<script nonce="{nonce}"'.encode(), bytes(page))
            MutableHeaders(scope=start)["Content-Length"] = str(len(message["body"]))
            await send(start)
        await send(message)

    return guard


def serve(start: Design, *, host: str, port: int, runs: Path, open_browser: bool) -> None:
    """Serve the page, which begins with a design, until a signal ends it; `runs` is the folder of run directories."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}; give another --port or --host.") from None
    token, port = secrets.token_urlsafe(24), listener.getsockname()[1]
    gate = Gate(build(start, runs), token=token, host=host, port=port)
    options: dict[str, Any] = {"log_level": "error", "server_header": False, "ws_max_size": _MOST_MESSAGE}
    server = uvicorn.Server(uvicorn.Config(gate, timeout_graceful_shutdown=2, **options))
    name = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
    address = f"http://{name}:{port}/?token={token}"
    print(f"airfed explore: {address}   (Ctrl-C stops)", flush=True)
    if open_browser:
        threading.Timer(0.8, webbrowser.open, [address]).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # once uvicorn has ended in good order
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        server.run(sockets=[listener])
    finally:
        run.reset()  # ends every worker process, busy or not


def build(start: Design, runs: Path) -> FastAPI:
    """Return the application: one page, a fresh one for every visitor."""
    for name, level in (("nicegui", logging.ERROR), ("engineio.server", 50), ("socketio.server", 50)):
        logging.getLogger(name).setLevel(level)  # their warnings repeat addresses that anybody may ask for
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/")
    def index(request: Request) -> None:
        Page(start, runs, dict(request.query_params))

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
    """End the connection of a message that is none of the page's own, without a traceback in the log."""

    @functools.wraps(handler)
    async def handle(sid: str, *message: Any) -> Any:
        try:
            answer = handler(sid, *message)
            return await answer if inspect.isawaitable(answer) else answer
        except _GARBAGE:
            if event == "connect":
                return False  # refused
            await core.sio.disconnect(sid)

    return handle
