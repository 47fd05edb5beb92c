"""The planner as a live page: move a slider, read the plan.

Threat model: one user, hostile web pages in the same browser, other users of the machine.

1. The server listens on 127.0.0.1. `--host` listens elsewhere; the connection is not encrypted.
2. Other users of the machine can connect, so every request needs the printed token; a cookie keeps it (HttpOnly).
3. DNS rebinding: on loopback only the names 127.0.0.1 and localhost are answered (TrustedHostMiddleware).
4. A hostile page's requests are refused by their Origin and Sec-Fetch-Site, web sockets included (no CSRF).
5. It can only lead the user here by a link. Nothing is computed before the page's own web socket connects.
6. A link names no code and no file, and its size is limited before computing (`design.admit`).
7. A request's body, a message, a run's files, a computation's time and memory have limits too.
8. NiceGUI escapes every text, and the content security policy runs no script but the page's own, in no frame.
9. Garbage on the web socket ends that connection only. Run directories are data: read, never written, never left.
10. The page starts no training and runs no command. The commands it shows are quoted for the shell.

Not covered: an attacker with the user's own account, and the network between `--host` and the browser.
"""

from airfed.explorer.design import Design

__all__ = ["Design"]
