"""One training in a process of its own: `python -m airfed.explorer.worker DIR`, the scenario's TOML on standard input.

The same `execute` as `airfed run`, and so an ordinary run directory. SIGTERM and SIGINT end it with a checkpoint.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from airfed import execution
from airfed.explorer.design import from_text


def main(out: str) -> int:
    """Train into the directory `out` and return the exit code: 0 done, 2 a mistake (it is told), 143 stopped."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        world = from_text(sys.stdin.read()).world()
        outcome = execution.execute(world, Path(out), stop=stop.is_set)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if outcome.message:
        print(outcome.message, file=sys.stderr)
    return 143 if outcome.status == "stopped" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
