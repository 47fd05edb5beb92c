"""Who may talk to the page: this machine, or whoever holds the token.

A page on 127.0.0.1 can still be reached through the user's own browser: by another site's script, or by a name that an
attacker's DNS points at 127.0.0.1. Hence the host's name and the origin are checked on every request, web
sockets included.
"""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE: Final = "airfed-token"


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
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await refusal(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_name(host)):
            return PlainTextResponse("This page answers on 127.0.0.1 only.", 403)
        origin = headers.get("origin")
        if origin is not None and _site(origin) != host:
            return PlainTextResponse("This page answers no other site.", 403)
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


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _site(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _cookie(headers: Any) -> str:
    try:
        cookie: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""
