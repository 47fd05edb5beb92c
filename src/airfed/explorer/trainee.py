"""`airfed` as a child of the page: it ends, with a checkpoint, when the page is gone.

`python -m airfed.explorer.trainee FD ARGUMENTS...` runs `airfed ARGUMENTS...` and watches the pipe FD, whose other end
the page holds open and never writes to. Its end of file says that the page has ended, in whatever way; the training is
then stopped as Ctrl-C would.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def watch(pipe: int) -> None:
    """Stop this process when the other end of a pipe is closed."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(int(sys.argv.pop(1)),), daemon=True).start()
    sys.argv[0] = "airfed"
    runpy.run_module("airfed", run_name="__main__", alter_sys=True)
