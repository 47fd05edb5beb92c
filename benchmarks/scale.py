"""Time and memory of one simulation from 10² to 10⁶ devices, over one and two processes.

    python benchmarks/scale.py [--max-exponent 6] [--rounds 3] [--processes 1 2]

Each line is a run of its own: the quadratic task (d = 20), every device scheduled, a fixed number of rounds of two
local steps. Start-up (drawing the fleet, planning, writing the plan, joining the other processes) is timed apart from
the rounds. Peak memory is rank 0's, which has the most to keep.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIO = """
name = "scale"
[fleet]
num_devices = {devices}
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.1
[link]
noise_std = 1.0
[budget]
epsilon = 2.0
delta = 1e-7
total_power = {power}
[learning]
model = "quadratic"
dimension = 20
total_steps = {steps}
learning_rate = 0.5
clip_norm = 4.0
smoothness = 2.0
strong_convexity = 0.5
initial_gap = 10.0
[policy]
name = "full"
rounds = {rounds}
"""

CHILD = """
import json, resource, sys, time
from pathlib import Path
from airfed import scenario
from airfed.training import distributed, execution
begin = time.perf_counter()
marks = []
with distributed.join() as group:
    execution.execute(
        scenario.load(sys.argv[1]), Path(sys.argv[2]), group=group,
        on_start=lambda setup, first: marks.append(time.perf_counter()),
    )
    end = time.perf_counter()
    if group.rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"start": marks[0] - begin, "rounds": end - marks[0], "peak": peak}))
"""


def measure(devices: int, rounds: int, processes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file, child = Path(folder, "scenario.toml"), Path(folder, "child.py")
        file.write_text(SCENARIO.format(devices=devices, power=10.0 * devices, steps=2 * rounds, rounds=rounds))
        child.write_text(CHILD)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launcher = torchrun if processes > 1 else []
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *launcher, str(child), str(file), str(Path(folder, "run"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return {**result, "total": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-exponent", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print(
        f"{'devices':>9} {'processes':>9} {'start-up s':>10} {'s per round':>11} {'µs per device':>13} {'peak MB':>8}"
    )
    for exponent in range(2, options.max_exponent + 1):
        for processes in options.processes:
            devices = 10**exponent
            result = measure(devices, options.rounds, processes)
            each = result["rounds"] / options.rounds
            print(
                f"{devices:>9} {processes:>9} {result['start']:>10.2f} {each:>11.3f} {1e6 * each / devices:>13.2f} "
                f"{result['peak']:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
