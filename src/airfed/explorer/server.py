"""The server of the page, with access control and security headers (docs/explore.md: threat model)."""

from __future__ import annotations

import contextlib
import functools
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
from nicegui import core, run, ui
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from airfed.explorer import view
from airfed.explorer.design import Design
from airfed.explorer.page import Page
from airfed.explorer.worker import compute, configure

MOST_BYTES: Final = 1_000_000  # of a request; scenarios come over the web socket
_MOST_MESSAGE: Final = 8_000_000  # bytes of a web socket's message
_SOCKET: Final = "/_nicegui_ws/socket.io"  # the only path with a web socket
_GARBAGE: Final = (TypeError, ValueError, LookupError, AttributeError)  # raised by messages that the page did not send
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
    """An ASGI application that forwards requests with the token; on loopback it answers loopback names only."""

    def __init__(self, app: ASGIApp, *, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.app, self._token = app, token
        self.cookie = f"airfed-token-{port}"  # browsers share cookies between ports
        # Starlette compares the text before the first colon. An address in brackets cannot be an attacker's DNS name.
        hosts = ["127.0.0.1", "localhost", "[" if ":" in host else host] if is_loopback(host) else ["*"]
        trusted = TrustedHostMiddleware(self._admit, allowed_hosts=hosts, www_redirect=False)
        self._guarded = BaseHTTPMiddleware(trusted, _protect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        await (self.app if scope["type"] == "lifespan" else self._guarded)(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._refusal(HTTPConnection(scope)) or self.app
        try:
            await app(scope, receive, send)
        except _GARBAGE:
            if scope["type"] == "http":
                raise
            with contextlib.suppress(RuntimeError):  # the socket may be closed already
                await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: HTTPConnection) -> Response | None:
        headers, http, path = request.headers, request.scope["type"] == "http", request.scope["path"]
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("This page does not answer other sites.", 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # other sites may only link here
            followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if not (followed and http and request.scope["method"] == "GET" and path == "/"):
                return PlainTextResponse("This page cannot be embedded in another site's page.", 403)
        if not http and not path.startswith(_SOCKET):
            return PlainTextResponse("There is no web socket at this path.", 404)
        if "transfer-encoding" in headers:
            return PlainTextResponse("A request must have a Content-Length.", 411)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > MOST_BYTES:
            return PlainTextResponse(f"A request must have at most {MOST_BYTES} bytes.", 413)
        if self._same(request.cookies.get(self.cookie, "")):
            return None
        query = request.query_params.multi_items()
        if not http or not any(self._same(value) for key, value in query if key == "token"):
            return PlainTextResponse("A token is required. Open the address that airfed explore printed.", 401)
        # Keep the token in a cookie and out of the address. One slash only: "//elsewhere" would lead to another site.
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        response = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="lax")  # links may be followed
        return response

    def _same(self, offered: str) -> bool:
        return secrets.compare_digest(offered.encode(), self._token.encode())


def is_loopback(host: str) -> bool:
    """Return whether a host name is a loopback address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


async def _protect(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add the security headers to a response, and their nonce to the scripts of a page."""
    # No proxy is expected, so its prefix is ignored. A page is not compressed, because its scripts get a nonce.
    ignored = [b"x-forwarded-prefix"] + [b"accept-encoding"] * (not request.scope["path"].startswith("/_nicegui"))
    request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0].lower() not in ignored]
    response: Any = await call_next(request)
    nonce = secrets.token_urlsafe(16)
    response.headers.update({name: value.format(nonce=nonce) for name, value in _HEADERS.items()})
    if response.headers.get("content-type", "").startswith("text/html"):
        page = b"".join([chunk async for chunk in response.body_iterator])
        page = re.sub(rb"<script\b", f'<script nonce="{nonce}"'.encode(), page)
        response.headers["content-length"] = str(len(page))
        raw_headers, response = response.raw_headers, Response(page, response.status_code)
        response.raw_headers = raw_headers
    return response  # type: ignore[no-any-return]


def serve(start: Design, *, host: str, port: int, runs: Path, open_browser: bool) -> None:
    """Serve the page, starting from a design, until a signal stops it; `runs` is the folder of run directories."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be at least 0 and at most 65535, got {port}.")
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}. Choose another --port or --host.") from None
    token, port = secrets.token_urlsafe(24), listener.getsockname()[1]
    gate = Gate(build(start, runs), token=token, host=host, port=port)
    options: dict[str, Any] = {"log_level": "error", "server_header": False, "ws_max_size": _MOST_MESSAGE}
    server = uvicorn.Server(uvicorn.Config(gate, timeout_graceful_shutdown=2, **options))
    name = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
    address = f"http://{name}:{port}/?token={token}"
    print(f"airfed explore: {address}   (Ctrl-C stops)", flush=True)
    if open_browser:
        threading.Timer(0.8, webbrowser.open, [address]).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # after uvicorn has shut down
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        server.run(sockets=[listener])
    finally:
        run.reset()  # ends every worker process, busy or not


def build(start: Design, runs: Path) -> FastAPI:
    """Return the application: one page, created anew for each visitor."""
    for name, level in (("nicegui", logging.ERROR), ("engineio.server", 50), ("socketio.server", 50)):
        logging.getLogger(name).setLevel(level)  # their warnings repeat the requested addresses
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/")
    def index(request: Request) -> None:
        Page(start, runs, dict(request.query_params))

    handlers = core.sio.handlers["/"]
    for event, handler in handlers.items():
        if event != "disconnect" and not hasattr(handler, "__wrapped__"):  # a disconnect has no message
            handlers[event] = _quiet(event, handler)
    configure()
    for _ in range(2):  # start worker processes, so that no visitor waits for imports
        core.app.on_startup(functools.partial(compute, view.show, Design()))
    ui.run_with(app, title="airfed explore", dark=None, tailwind=False, show_welcome_message=False, favicon="📡")
    return app


def _quiet(event: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler to close the connection on a message that the page did not send, without a traceback."""

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
