"""Time of the exact planner, compared with `np.argsort` of the gains, and its memory.

    python benchmarks/planner.py [--max-exponent 7] [--repeat 5] [--constants scaled|paper]
    python benchmarks/planner.py --fading

Every candidate number of rounds 1..200 is searched, with equal peak powers (1 W) and with different ones
(log-uniform from 0.1 to 10 W), for aligned plans ("optimal") and over all amplitudes ("weighted"). Gains are
Rayleigh and at least 0.1. Measurements are interleaved in one process; each figure is the best of the repeats, so
that a busy machine does not favour one of them. Times are processor times.
Memory is the peak resident size of a process of its own that draws the fleet and plans once.

With the constants "paper" (σ = 0.1) the noise matters less as the fleet grows, and nearly all devices are scheduled.
"scaled" (the default) lets σ grow with the fleet, so that the choice of devices is hard at every size.

With --fading, gains are drawn anew in each of 200 rounds: the clairvoyant plan over every number of rounds, the causal
plan, and the memory of a large fleet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from airfed import Budget, Fleet, Learning, Link, Problem, plan
from airfed.planning.exact import best_schedule
from airfed.planning.weighted import weighted
from airfed.privacy import gaussian_epsilon

TOTAL_STEPS, DIMENSION, NOISE_STD, CAP = 200, 21840, 0.1, 0.2
CONTRACTION, INITIAL_GAP, CLIP_OVER_CONVEXITY, DELTA = 0.99, 2.3, 10.0, 1e-9
POWER_PER_DEVICE = 0.5  # W over all rounds, so that total power limits many rounds and peak power few


def instance(num_devices: int, *, equal: bool, constants: str) -> tuple[np.ndarray, np.ndarray, dict[str, object]]:
    rng = np.random.default_rng(0)
    gain = np.maximum(rng.rayleigh(size=num_devices), 0.1)
    power = np.broadcast_to(1.0, gain.shape) if equal else 10 ** rng.uniform(-1, 1, num_devices)
    rounds = np.arange(1, TOTAL_STEPS + 1)
    shrunk = CONTRACTION**rounds
    scale = CLIP_OVER_CONVEXITY * (1 - shrunk)
    growth = (num_devices / 100) ** 2 if constants == "scaled" else 1.0
    return (
        gain,
        power,
        {
            "cap": np.full(rounds.size, CAP),
            "round_budget": POWER_PER_DEVICE * num_devices / rounds,
            "offset": shrunk * INITIAL_GAP + scale * (TOTAL_STEPS / rounds - 1) ** 2,
            "scale": scale,
            "noise_weight": DIMENSION * NOISE_STD**2 / 2 * growth,
        },
    )


def seconds(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def compare(num_devices: int, repeat: int, constants: str) -> tuple[list[float], str]:
    """Return the best times of argsort, and of both planners with equal and different peak powers; and the schedule."""
    gain, one, equal = instance(num_devices, equal=True, constants=constants)
    _, power, different = instance(num_devices, equal=False, constants=constants)
    tasks = (
        lambda: np.argsort(gain),
        lambda: best_schedule(gain, one, **equal),
        lambda: best_schedule(gain, power, **different),
        *(partial(weighted, static(gain, peak, constants), np.arange(1, TOTAL_STEPS + 1)) for peak in (one, power)),
    )
    times = np.array([[seconds(task) for task in tasks] for _ in range(repeat)]).min(axis=0)
    found = best_schedule(gain, power, **different)
    schedule = f"{found.size / num_devices:.1%} in {found.round_index + 1} rounds, {found.binding}"
    return times.tolist(), schedule


def memory(num_devices: int, kind: str, constants: str) -> float:
    """Return the peak resident megabytes of a process that draws the fleet and plans once."""
    command = [sys.executable, __file__, "--plan-once", kind, str(num_devices), "--constants", constants]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def peak_megabytes() -> float:
    """Return VmHWM of this process; on Linux the maximum of `getrusage` includes that of the parent."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def time_varying(num_devices: int) -> Problem:
    """Return a problem with Rayleigh gains drawn anew in each round, with the constants of `instance`."""
    gain = np.random.default_rng(0).rayleigh(np.sqrt(0.5), (TOTAL_STEPS, num_devices))
    return static(gain, 1.0, "scaled")


def static(gain: np.ndarray, power: np.ndarray | float, constants: str) -> Problem:
    """Return a problem with the given gains and the constants of `instance`."""
    num_devices = gain.shape[-1]
    noise_std = NOISE_STD * (num_devices / 100 if constants == "scaled" else 1.0)
    return Problem(
        fleet=Fleet(gain=gain, peak_power=power),
        link=Link(noise_std=noise_std),
        learning=Learning(
            dimension=DIMENSION,
            total_steps=TOTAL_STEPS,
            clip_norm=1.0,
            learning_rate=0.1,
            smoothness=1 / ((1 - CONTRACTION) * CLIP_OVER_CONVEXITY),
            strong_convexity=1 / CLIP_OVER_CONVEXITY,
            initial_gap=INITIAL_GAP,
        ),
        budget=Budget(
            epsilon=gaussian_epsilon(2 * CAP / noise_std, DELTA),
            delta=DELTA,
            total_power=POWER_PER_DEVICE * num_devices,
        ),
    )


def fading(repeat: int) -> None:
    """Print times and gaps with time-varying channels."""
    print(f"{'devices':>10} {'clairvoyant':>12} {'gap':>8}  rounds")
    for num_devices in (100, 1000, 10_000):
        problem = time_varying(num_devices)
        best = min(seconds(lambda problem=problem: plan(problem)) for _ in range(repeat))
        found = plan(problem)
        print(f"{num_devices:>10,} {best:>10.3f} s {found.gap:>8.1e}  {found.rounds}", flush=True)
    samples = np.random.default_rng(1).rayleigh(np.sqrt(0.5), (8, TOTAL_STEPS, 1000))
    problem = time_varying(1000)
    best = min(seconds(lambda: plan(problem, samples=samples)) for _ in range(repeat))
    found = plan(problem, samples=samples)
    print(f"causal, 1,000 devices, 8 samples: {best:.2f} s for {found.rounds} rounds, {found.gap:.1%} above the bound")
    done = subprocess.run(
        [sys.executable, __file__, "--fading-once", "100000"], check=True, capture_output=True, text=True
    )
    print(done.stdout, end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--max-exponent", type=int, default=7, help="largest fleet, as a power of ten")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--constants", choices=("scaled", "paper"), default="scaled")
    parser.add_argument("--plan-once", nargs=2, metavar=("KIND", "DEVICES"), help=argparse.SUPPRESS)
    parser.add_argument("--fading", action="store_true", help="channels that vary from round to round instead")
    parser.add_argument("--fading-once", type=int, metavar="DEVICES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fading:
        fading(options.repeat)
        return
    if options.fading_once:
        took = seconds(lambda: plan(time_varying(options.fading_once)))
        print(f"clairvoyant, {options.fading_once:,} devices: {took:.1f} s, peak memory {peak_megabytes():,.0f} MB")
        return
    if options.plan_once:
        kind, count = options.plan_once
        gain, power, arguments = instance(int(count), equal=kind == "equal", constants=options.constants)
        best_schedule(gain, power, **arguments)
        print(peak_megabytes())
        return
    print("equal and different peak powers, with the ratio to argsort; optimal, then weighted")
    columns = ("equal", "different", "w. equal", "w. different")
    print(f"{'devices':>10} {'argsort':>10}", *(f"{name:>12} {'ratio':>6}" for name in columns), " decision")
    for exponent in range(3, options.max_exponent + 1):
        (sort, *times), decided = compare(10**exponent, options.repeat, options.constants)
        cells = (f"{each * 1e3:>9.2f} ms {each / sort:>6.1f}" for each in times)
        print(f"{10**exponent:>10,} {sort * 1e3:>7.2f} ms", *cells, f" {decided}", flush=True)
    for kind in ("equal", "different"):
        peak = memory(10**options.max_exponent, kind, options.constants)
        print(f"peak memory, 10^{options.max_exponent} devices, {kind} peak powers: {peak:,.0f} MB")


if __name__ == "__main__":
    main()
