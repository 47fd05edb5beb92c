"""A process that computes for the page, and may be ended at any moment.

`python -m airfed.explorer.worker FD` imports everything once and then forks: a worker for each line (a socket) that the
server sends it. A worker answers one request after another and ends when its line is closed, whatever it is doing. Time
and memory are limited by the kernel as well.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

MEMORY: Final = 2 * 2**30  # bytes of address space
SECONDS: Final = 30.0  # of processor time for one request; the server's own patience is shorter

LENGTH: Final = 8  # bytes of the number before every message


class TooMuchMemory(Exception):
    """A request did not fit into `MEMORY`."""


def encode(message: object) -> bytes:
    """Return a message as it goes over the line."""
    content = pickle.dumps(message)
    return len(content).to_bytes(LENGTH, "little") + content


def length(head: bytes) -> int:
    """Return how many bytes follow the first ones of a message."""
    return int.from_bytes(head, "little")


def decode(content: bytes) -> Any:
    """Return the message in the bytes that follow."""
    return pickle.loads(content)


def serve(control: socket.socket, warm_up: Callable[[], object]) -> None:
    """Fork a worker for each line that arrives, until the server goes; then end, and every worker too."""
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a worker ended
    while True:
        message, lines, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        if os.fork() == 0:
            control.close()
            work(socket.socket(fileno=lines[0]))
        os.close(lines[0])
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


def work(line: socket.socket) -> None:
    """Answer requests, (function, arguments) each, until the line is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _limit(resource.RLIMIT_AS, MEMORY)
    requests: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(line, requests), daemon=True).start()
    while True:
        function, arguments = requests.get()
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + SECONDS) + 1)
        answer: object
        try:
            answer = function(*arguments)
        except MemoryError:
            answer = TooMuchMemory()
        try:
            line.sendall(encode(answer))
        except OSError:  # nobody waits for it any more
            os._exit(0)


def _listen(line: socket.socket, requests: queue.SimpleQueue[Any]) -> None:
    """Pass requests on; end the process, at once, when the line is closed."""
    with contextlib.suppress(OSError), line.makefile("rb") as stream:
        while head := stream.read(LENGTH):
            requests.put(decode(stream.read(length(head))))
    os._exit(0)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    from airfed.explorer import worker
    from airfed.explorer.shown import warm_up

    worker.serve(socket.socket(fileno=int(sys.argv[1])), warm_up)
