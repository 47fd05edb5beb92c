"""Access control and security headers of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="the explorer's packages are not installed (pip install airfed[web])")

from airfed.explorer.server import Gate, is_loopback

TOKEN = "secret-token"
COOKIE = "airfed-token-8080"
SOCKET = "/_nicegui_ws/socket.io/"


async def behind(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})
    else:
        await send({"type": "websocket.accept"})


def ask(
    bind: str = "127.0.0.1",
    *,
    kind: str = "http",
    method: str = "GET",
    query: str = "",
    path: str = "/",
    cookie: str = f"{COOKIE}={TOKEN}",
    **headers: str,
) -> tuple[int, dict[str, str]]:
    """Return the status (200 for an accepted web socket) and the headers of the response, by default with the token."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect" if kind == "websocket" else "http.request", "body": b""}

    headers["cookie"] = cookie
    scope = {
        "type": kind,
        "method": method,
        "path": SOCKET if kind == "websocket" and path == "/" else path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Gate(behind, token=TOKEN, host=bind, port=8080)(scope, receive, send))
    first = sent[0]
    if first["type"] == "websocket.accept":
        return 200, {}
    return first["status"], {name.decode(): value.decode() for name, value in first["headers"]}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.1"])
def test_this_machine_is_admitted(host: str) -> None:
    bind = "::1" if "::" in host else "127.0.0.1"
    for kind in ("http", "websocket"):
        assert ask(bind, kind=kind, host=host)[0] == 200
        assert ask(bind, kind=kind, host=host, origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_another_user_of_this_machine_is_refused(kind: str) -> None:
    assert ask(kind=kind, host="127.0.0.1:8080", cookie="")[0] == 401
    assert ask(kind=kind, host="127.0.0.1:8080", cookie=f"airfed-token-8081={TOKEN}")[0] == 401


FOREIGN = ["evil.example:8080", "127.0.0.1.evil.example", "", "[", "10.0.0.1", "evil@127.0.0.1", "127.0.0.1/evil"]


@pytest.mark.parametrize("host", [*FOREIGN, "127.0.0.1#@evil", "[::1]evil", "localhost\n", "127.1"])
def test_a_foreign_host_name_is_refused(host: str) -> None:
    assert ask(host=host)[0] == 400
    assert ask(host=host, kind="websocket")[0] == 400


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "http://[", "http://127.0.0.1:8080/x", "127.0.0.1:8080"],
)
def test_the_script_of_another_site_is_refused(origin: str) -> None:
    assert ask(host="127.0.0.1:8080", origin=origin)[0] == 403
    assert ask(kind="websocket", host="127.0.0.1:8080", origin=origin)[0] == 403


@pytest.mark.parametrize(("bind", "host"), [("10.0.0.1", "10.0.0.1:8080"), ("127.0.0.1", "127.0.0.1:8080")])
def test_the_token_is_moved_from_the_query_to_a_cookie(bind: str, host: str) -> None:
    assert ask(bind, host=host, cookie="")[0] == 401
    assert ask(bind, host=host, cookie="", query="token=wrong")[0] == 401
    assert ask(bind, host=host, cookie="", query="token=" + TOKEN.upper())[0] == 401
    status, headers = ask(bind, host=host, cookie="", query=f"token={TOKEN}&budget.epsilon=3")
    assert (status, headers["location"]) == (303, "/?budget.epsilon=3")
    cookie = headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=lax" in cookie.lower()
    assert ask(bind, host=host, cookie=f"{COOKIE}={TOKEN}")[0] == 200
    assert ask(bind, host=host, cookie=f"{COOKIE}=wrong")[0] == 401
    assert ask(bind, host=host, cookie=f"{COOKIE}=ä")[0] == 401


def test_a_web_socket_requires_the_cookie() -> None:
    known = {"kind": "websocket", "host": "10.0.0.1:8080"}
    assert ask("10.0.0.1", query=f"token={TOKEN}", cookie="", **known)[0] == 401
    assert ask("10.0.0.1", **known)[0] == 200
    assert ask("10.0.0.1", path="/elsewhere", **known)[0] == 404


def test_the_redirect_stays_on_this_site() -> None:
    _, headers = ask("10.0.0.1", host="h", cookie="", query=f"token={TOKEN}", path="//evil.example/x")
    assert headers["location"] == "/evil.example/x"


def test_loopback_names_are_recognised() -> None:
    assert [is_loopback(name) for name in ("127.0.0.1", "127.1.2.3", "::1", "LOCALHOST")] == [True] * 4
    assert [is_loopback(name) for name in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [False] * 5


HERE = "127.0.0.1:8080"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
@pytest.mark.parametrize(
    ("mode", "dest"),
    [("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("navigate", "object"), ("cors", "empty")],
)
def test_another_site_cannot_embed_the_page(site: str, mode: str, dest: str) -> None:
    sent = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    for path in ("/", "/_nicegui/anything"):
        assert ask(host=HERE, path=path, **sent)[0] == 403
    assert ask(host=HERE, kind="websocket", **sent)[0] == 403


def test_a_link_on_another_site_can_be_followed() -> None:
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert ask(host=HERE, **followed)[0] == 200
    assert ask(host=HERE, path="/_nicegui/x", **followed)[0] == 403
    assert ask(host=HERE, method="POST", **followed)[0] == 403
    for site in ("same-origin", "none"):
        assert ask(host=HERE, sec_fetch_site=site, sec_fetch_mode="cors", sec_fetch_dest="empty")[0] == 200


@pytest.mark.parametrize(
    ("length", "status"), [("10", 200), ("99999999999", 413), ("-1", 413), ("x", 413), ("9" * 5000, 413), ("²", 413)]
)
def test_the_length_of_a_request_is_limited(length: str, status: int) -> None:
    assert ask(host=HERE, method="POST", content_length=length)[0] == status


def test_a_request_of_unknown_length_is_refused() -> None:
    assert ask(host=HERE, method="POST", transfer_encoding="chunked")[0] == 411


@pytest.mark.parametrize("host", [HERE, "evil.example"])
def test_every_response_has_the_security_headers(host: str) -> None:
    headers = ask(host=host)[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert "unsafe-inline" not in policy["script-src"]
    assert policy["script-src-attr"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] != ask(host=host)[1]["content-security-policy"]


def test_the_scripts_of_a_page_carry_its_nonce() -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        start = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": start})
        await send({"type": "http.response.body", "body": b"<script>1</script><scr", "more_body": True})
        await send({"type": "http.response.body", "body": b'ipt type="module">2</script><scripted>'})

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    known = [(b"host", HERE.encode()), (b"cookie", f"{COOKIE}={TOKEN}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": known}
    asyncio.run(Gate(page, token=TOKEN, port=8080)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    nonce = headers["content-security-policy"].partition("'nonce-")[2].partition("'")[0]
    assert len(nonce) > 20
    body = f'<script nonce="{nonce}">1</script><script nonce="{nonce}" type="module">2</script><scripted>'
    assert sent[1]["body"].decode() == body
    assert headers["content-length"] == str(len(body))
