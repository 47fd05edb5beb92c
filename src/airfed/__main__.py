"""The program: `airfed`, or `python -m airfed`."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # see airfed/__init__.py
if TYPE_CHECKING:
    from types import FrameType


def main() -> int:
    """Run the command line and return its exit code.

    Until the command is imported, Ctrl-C ends the process at once: during an import it may appear as another exception.
    """
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise ignored, as under nohup
    if default:
        signal.signal(signal.SIGINT, _end)
    from airfed.cli import main as command_line

    return command_line(ready=lambda: default and signal.signal(signal.SIGINT, signal.default_int_handler))


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"airfed: stopped.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
