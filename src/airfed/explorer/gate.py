"""Who may talk to the page: this machine, or whoever holds the token; and what the page may do in a browser.

A page on 127.0.0.1 can still be reached through the user's own browser: by another site's script or picture, or by a
name that an attacker's DNS points at 127.0.0.1. Hence the host's name, the origin and what the browser says of the
request's source are checked on every request, web sockets included. Another site may lead here by a link, and no other
way.

Every answer, refusals included, tells the browser to run no script but the page's own (`headers.py`).
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from airfed.explorer.design import MOST_TEXT
from airfed.explorer.headers import Guarded

COOKIE: Final = "airfed-token"
_SOCKET: Final = "/_nicegui_ws/socket.io"  # the only path with a web socket
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
MOST_BYTES: Final = 4 * MOST_TEXT + 10_000  # of a request: a scenario in UTF-8 and what wraps it


class Gate:
    """An ASGI application that lets through what it may.

    Args:
        app: what is behind it.
        token: demanded of everyone where given; without it only loopback names are answered.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self.app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "http":
            await (refusal or self.app)(_plain(scope), receive, Guarded(send))
        elif refusal is None and scope["path"].startswith(_SOCKET):
            try:
                await self.app(scope, receive, send)
            except Exception:  # what is no packet of the page's
                with contextlib.suppress(Exception):  # it may be closed already
                    await send({"type": "websocket.close", "code": 1008})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_name(host)):
            return PlainTextResponse("This page answers on 127.0.0.1 only.", 403)
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("This page answers no other site.", 403)
        if not _from_here(scope, headers):
            return PlainTextResponse("This page is no part of another site's page.", 403)
        if scope["type"] == "http" and (refusal := _too_long(headers)):
            return refusal
        if self._token is None or self._same(_cookie(headers)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["type"] == "http" and any(self._same(value) for key, value in query if key == "token"):
            return self._welcome(scope["path"], query)
        return PlainTextResponse("A token is needed: open the address that airfed explore printed.", 401)

    def _same(self, offered: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(offered.encode(), self._token.encode())

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Keep the token in a cookie and out of the address, which people share."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # One slash only: "//elsewhere" would lead to another site.
        response = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        assert self._token is not None
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return response


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine and no other.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _from_here(scope: Scope, headers: Headers) -> bool:
    """Whether the request is the page's own or the user's; of another site's only a link that was followed."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return followed and scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"


def _too_long(headers: Headers) -> Response | None:
    """A refusal where the body is longer than a scenario may be, or does not say how long it is."""
    if "transfer-encoding" in headers:
        return PlainTextResponse("Expected a request that says its length.", 411)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MOST_BYTES:
        return PlainTextResponse(f"Expected a request of at most {MOST_BYTES} bytes.", 413)
    return None


def _plain(scope: Scope) -> Scope:
    """The request without a proxy's prefix (there is no proxy), and for a page, whose scripts get a nonce, unpacked."""
    ignored = [b"x-forwarded-prefix"] + ([] if scope["path"].startswith("/_nicegui") else [b"accept-encoding"])
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name.lower() not in ignored]}


def _name(host: str) -> str:
    """The name in a Host header, "" where it is none that a browser would send."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["six"] or found["name"])


def _cookie(headers: Any) -> str:
    try:
        cookie: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""
