"""Processor time of starting up, the best of five.

    python benchmarks/startup.py

Limits on an idle machine: import airfed 0.05 s more than Python alone, --version and --help 0.25 s, plan 1 s.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import airfed": ("-c", "import airfed"),
    "airfed --version": ("-m", "airfed", "--version"),
    "airfed --help": ("-m", "airfed", "--help"),
    "airfed plan examples/paper.toml": ("-m", "airfed", "plan", str(ROOT / "examples" / "paper.toml")),
}


def seconds(arguments: tuple[str, ...]) -> float:
    """Processor time, user and system, of one process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin while they wait
    for name, arguments in COMMANDS.items():
        print(f"{name:34}{min(seconds(arguments) for _ in range(5)):6.3f} s")
