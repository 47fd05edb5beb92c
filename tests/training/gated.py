"""airfed with the devices of one round held until they are released: `gated.py FOLDER ROUND ARGUMENT...`.

A process that has come to the round makes FOLDER/waiting-RANK, and computes until there is FOLDER/go or FOLDER/go-RANK.
"""

import os
import sys
import time
from pathlib import Path

from airfed import cli
from airfed.learning.quadratic import QuadraticEngine

folder, held = Path(sys.argv[1]), int(sys.argv[2])
original = QuadraticEngine.updates


def updates(self, parameters, devices, *, steps, round_index):
    if round_index == held:
        rank = os.environ.get("RANK", "0")
        (folder / f"waiting-{rank}").touch()
        deadline = time.monotonic() + 600.0
        while not ((folder / "go").exists() or (folder / f"go-{rank}").exists()):
            sum(range(100_000))  # computing, not sleeping
            if time.monotonic() > deadline:
                os._exit(9)
    return original(self, parameters, devices, steps=steps, round_index=round_index)


QuadraticEngine.updates = updates
sys.exit(cli.main(sys.argv[3:]))
