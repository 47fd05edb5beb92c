"""What every answer tells the browser: run no script but the page's own, show it in no frame, guess no type.

Scripts within the page run by a nonce, new in every answer. `unsafe-eval` is there because NiceGUI compiles its
components in the browser and sends calls as text; markup in a name or a message cannot reach either. Styles may be
inline, because bars and meters carry their lengths in them.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

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
_SCRIPT: Final = re.compile(rb"<script\b")


class Guarded:
    """An ASGI `send` that adds the headers, and the nonce to the scripts of a page."""

    def __init__(self, send: Send) -> None:
        self._send, self._nonce = send, secrets.token_urlsafe(16)
        self._start: Message | None = None  # of a page, whose length is known in the end only
        self._page = bytearray()

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _FIXED.items():
                headers[name] = value
            headers["Content-Security-Policy"] = _POLICY.format(nonce=self._nonce)
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._page += message.get("body", b"")
            if message.get("more_body", False):
                return
            page = _SCRIPT.sub(f'<script nonce="{self._nonce}"'.encode(), bytes(self._page))
            headers = MutableHeaders(scope=self._start)
            headers["Content-Length"] = str(len(page))
            start, self._start = self._start, None
            await self._send(start)
            message = {**message, "body": page}
        await self._send(message)
