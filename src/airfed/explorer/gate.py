"""Who may talk to the page, and what the page may do in a browser. The threat model is in the package's docstring.

Scripts within the page run by a nonce, new in every answer. `unsafe-eval` is there because NiceGUI compiles its
components in the browser and sends calls as text; markup in a name or a message cannot reach either. Styles may be
inline, because bars and meters carry their lengths in them.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import secrets
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airfed.explorer.design import MOST_TEXT

_SOCKET: Final = "/_nicegui_ws/socket.io"  # the only path with a web socket
MOST_BYTES: Final = 4 * MOST_TEXT + 10_000  # of a request: a scenario in UTF-8 and what wraps it
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; script-src-attr 'none'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
_FIXED: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """An ASGI application that passes allowed requests on to another.

    Args:
        app: the application behind it.
        token: demanded of everyone, in the address once and then in the cookie.
        host, port: where the server listens; on loopback only loopback names are answered.
    """

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
            await self._checked({**scope, "headers": headers}, receive, _Guarded(send))
        elif scope["type"] == "websocket":
            await self._checked(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._refusal(HTTPConnection(scope)):
            await refusal(scope, receive, send)
        elif scope["type"] == "http":
            await self.app(scope, receive, send)
        else:
            try:
                await self.app(scope, receive, send)
            except Exception:  # not a packet of the page's
                with contextlib.suppress(Exception):  # it may be closed already
                    await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: HTTPConnection) -> Response | None:
        headers, http, path = request.headers, request.scope["type"] == "http", request.scope["path"]
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("This page answers no other site.", 403)
        if not _from_here(request.scope, headers):
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
        # Keep the token in a cookie and out of the address, which people share.
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # One slash only: "//elsewhere" would lead to another site.
        response = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="lax")  # links may be followed
        return response

    def _same(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode(), self._token.encode())


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine and no other.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _from_here(scope: Scope, headers: Headers) -> bool:
    """Whether the request is the page's own or the user's; of another site's only a link that was followed."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return followed and scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"


class _Guarded:
    """An ASGI `send` that adds the headers, and the nonce to the scripts of a page."""

    def __init__(self, send: Send) -> None:
        self._send, self._nonce = send, secrets.token_urlsafe(16)
        self._start: Message | None = None  # of a page, whose length is known in the end only
        self._page = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update({**_FIXED, "Content-Security-Policy": _POLICY.format(nonce=self._nonce)})
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._page += message.get("body", b"")
            if message.get("more_body", False):
                return
            page = re.sub(rb"<script\b", f'<script nonce="{self._nonce}"'.encode(), bytes(self._page))
            MutableHeaders(scope=self._start)["Content-Length"] = str(len(page))
            start, self._start = self._start, None
            await self._send(start)
            message = {**message, "body": page}
        await self._send(message)
