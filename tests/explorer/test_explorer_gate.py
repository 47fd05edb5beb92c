"""Who may talk to the page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the explorer's packages are not installed (pip install airfed[web])")

from airfed.explorer.gate import COOKIE, Gate, is_loopback

TOKEN = "secret-token"


async def behind(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})
    else:
        await send({"type": "websocket.accept"})


def ask(
    token: str | None, *, kind: str = "http", method: str = "GET", query: str = "", path: str = "/", **headers: str
) -> tuple[int | str, dict[str, str]]:
    """The status (or, of a web socket, what became of it) and the response's headers."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect" if kind == "websocket" else "http.request", "body": b""}

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Gate(behind, token=token)(scope, receive, send))
    first = sent[0]
    if kind == "websocket":
        return first["type"], {}
    return first["status"], {name.decode(): value.decode() for name, value in first["headers"]}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.1"])
def test_this_machine_may_enter(host: str) -> None:
    assert ask(None, host=host)[0] == 200
    assert ask(None, host=host, origin=f"http://{host}")[0] == 200


FOREIGN = ["evil.example:8080", "127.0.0.1.evil.example", "", "[", "10.0.0.1", "evil@127.0.0.1", "127.0.0.1/evil"]


@pytest.mark.parametrize("host", [*FOREIGN, "127.0.0.1#@evil", "[::1]evil", "127.0.0.1:x", "localhost\n", "127.1"])
def test_a_name_that_points_here_by_foreign_dns_may_not(host: str) -> None:
    assert ask(None, host=host)[0] == 403
    assert ask(None, host=host, kind="websocket")[0] == "websocket.close"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "http://[", "http://127.0.0.1:8080/x", "127.0.0.1:8080"],
)
def test_another_sites_script_may_not(origin: str) -> None:
    assert ask(None, host="127.0.0.1:8080", origin=origin)[0] == 403
    assert ask(None, kind="websocket", host="127.0.0.1:8080", origin=origin)[0] == "websocket.close"


def test_a_token_opens_and_is_then_kept_in_a_cookie() -> None:
    host = "10.0.0.1:8080"
    assert ask(TOKEN, host=host)[0] == 401
    assert ask(TOKEN, host=host, query="token=wrong")[0] == 401
    assert ask(TOKEN, host=host, query="token=" + TOKEN.upper())[0] == 401
    status, headers = ask(TOKEN, host=host, query=f"token={TOKEN}&budget.epsilon=3")
    assert (status, headers["location"]) == (303, "/?budget.epsilon=3")
    cookie = headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert ask(TOKEN, host=host, cookie=f"{COOKIE}={TOKEN}")[0] == 200
    assert ask(TOKEN, host=host, cookie=f"{COOKIE}=wrong")[0] == 401
    assert ask(TOKEN, host=host, cookie=f"{COOKIE}=ä")[0] == 401


def test_a_web_socket_needs_the_cookie_too() -> None:
    host = "10.0.0.1:8080"
    assert ask(TOKEN, kind="websocket", host=host, query=f"token={TOKEN}")[0] == "websocket.close"
    known = {"kind": "websocket", "host": host, "cookie": f"{COOKIE}={TOKEN}"}
    assert ask(TOKEN, path="/_nicegui_ws/socket.io/", **known)[0] == "websocket.accept"
    assert ask(TOKEN, path="/elsewhere", **known)[0] == "websocket.close"


def test_the_welcome_leads_to_this_site_only() -> None:
    _, headers = ask(TOKEN, host="h", query=f"token={TOKEN}", path="//evil.example/x")
    assert headers["location"] == "/evil.example/x"


def test_loopback_names() -> None:
    assert [is_loopback(name) for name in ("127.0.0.1", "127.1.2.3", "::1", "LOCALHOST")] == [True] * 4
    assert [is_loopback(name) for name in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [False] * 5


HERE = "127.0.0.1:8080"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
@pytest.mark.parametrize(
    ("mode", "dest"),
    [("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("navigate", "object"), ("cors", "empty")],
)
def test_another_site_may_not_use_it_as_a_part(site: str, mode: str, dest: str) -> None:
    sent = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    for path in ("/", "/_nicegui/anything"):
        assert ask(None, host=HERE, path=path, **sent)[0] == 403
    assert ask(None, host=HERE, kind="websocket", **sent)[0] == "websocket.close"


def test_a_link_may_be_followed_from_anywhere() -> None:
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert ask(None, host=HERE, **followed)[0] == 200
    assert ask(None, host=HERE, path="/_nicegui/x", **followed)[0] == 403
    assert ask(None, host=HERE, method="POST", **followed)[0] == 403
    for site in ("same-origin", "none"):
        assert ask(None, host=HERE, sec_fetch_site=site, sec_fetch_mode="cors", sec_fetch_dest="empty")[0] == 200


@pytest.mark.parametrize(
    ("length", "status"), [("10", 200), ("99999999999", 413), ("-1", 413), ("x", 413), ("9" * 5000, 413), ("²", 413)]
)
def test_a_request_has_a_length_that_can_be_kept(length: str, status: int) -> None:
    assert ask(None, host=HERE, method="POST", content_length=length)[0] == status


def test_a_request_of_unknown_length_is_refused() -> None:
    assert ask(None, host=HERE, method="POST", transfer_encoding="chunked")[0] == 411


@pytest.mark.parametrize("host", [HERE, "evil.example"])
def test_every_answer_says_what_the_browser_may_do(host: str) -> None:
    headers = ask(None, host=host)[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert "unsafe-inline" not in policy["script-src"]
    assert policy["script-src-attr"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] != ask(None, host=host)[1]["content-security-policy"]


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

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", HERE.encode())]}
    asyncio.run(Gate(page, token=None)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    nonce = headers["content-security-policy"].partition("'nonce-")[2].partition("'")[0]
    assert len(nonce) > 20
    body = f'<script nonce="{nonce}">1</script><script nonce="{nonce}" type="module">2</script><scripted>'
    assert sent[1]["body"].decode() == body
    assert headers["content-length"] == str(len(body))
