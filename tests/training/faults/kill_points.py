"""Kill a run at chosen or random moments, many times; each attempt is a forked child that ends without clean-up.

Run as a script: `kill_points.py SCENARIO FOLDER MODE SEED COUNT`. It prints one JSON object. The parent only forks,
kills and compares; it has no threads, so that a fork is a faithful and cheap new process.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from airfed import scenario
from airfed.learning.quadratic import QuadraticEngine
from airfed.privacy.ledger import Ledger
from airfed.training.execution import execute
from airfed.training.setup import PROBE_ROUND

RESULTS = (
    "model.safetensors",
    "metrics.jsonl",
    "metrics.csv",
    "ledger.jsonl",
    "plan.json",
    "scenario.toml",
    "run.json",
)


class Countdown:
    """Ends the process at the n-th of the calls that touch the disk: before it, in the middle of it, or after it."""

    def __init__(self, calls, when):
        self.left, self.when = calls, when

    def around(self, call, torn=None):
        self.left -= 1
        if self.left != -1:
            return call()
        if self.when == "after":
            call()
        elif self.when == "within" and torn is not None:
            torn()
        os._exit(9)

    def install(self):
        for owner, name in ((os, "fsync"), (os, "truncate"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
            original = getattr(owner, name)
            setattr(owner, name, lambda *a, _call=original, **k: self.around(lambda: _call(*a, **k)))
        original_open = Path.open

        def open_(path, mode="r", *rest, **named):
            stream = self.around(lambda: original_open(path, mode, *rest, **named))
            return Stream(stream, self) if set(mode) & set("wax+") and path.name != ".lock" else stream

        Path.open = open_


class Stream:
    """A file whose writes are counted, and torn in two where the process ends within one."""

    def __init__(self, stream, countdown):
        self.stream, self.countdown = stream, countdown

    def write(self, content):
        def torn():
            self.stream.write(content[: len(content) // 2])
            self.stream.flush()

        def full():
            self.stream.write(content)
            self.stream.flush()

        self.countdown.around(full, torn)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stream.close()

    def __getattr__(self, name):
        return getattr(self.stream, name)


def life(loaded, out, aired, countdown=None, delay=None):
    """Begin or resume a run in a child process, which may be killed. Return its exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        listen(aired)
        if countdown is not None:
            countdown.install()
        try:
            outcome = execute(loaded, out, resume=out.is_dir())
            if delay is not None:
                signal.pause()  # however fast it was, it is the kill that ends it
            os._exit(0 if outcome.status == "finished" else 3)
        except BaseException as error:  # the parent must hear of it, and pytest through the parent
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(4)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def listen(aired):
    """Note the number of each round as its devices start."""
    updates, descriptor = QuadraticEngine.updates, os.open(aired, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(self, parameters, devices, *, steps, round_index):
        if round_index != PROBE_ROUND:
            os.write(descriptor, f"{round_index}\n".encode())
        return updates(self, parameters, devices, steps=steps, round_index=round_index)

    QuadraticEngine.updates = noted


def check_charges(out, aired):
    """Every round that any attempt has transmitted is in the ledger, once, in order."""
    transmitted = {int(line) for line in aired.read_text().split()} if aired.exists() else set()
    if not transmitted:
        return
    copy = aired.with_suffix(".copy")
    shutil.copy(out / "ledger.jsonl", copy)
    charged = [charge.round_index for charge in Ledger.load(copy, repair=True).charges]
    assert charged == list(range(len(charged)))
    assert transmitted <= set(charged)


def contents(out):
    return {name: (out / name).read_bytes() for name in RESULTS}


def main(file, folder, mode, seed, count):
    loaded, folder, chance = scenario.load(file), Path(folder), random.Random(int(seed))
    execute(loaded, folder / "warm")  # so that the children need not import anything
    started = time.monotonic()
    assert life(loaded, folder / "whole", folder / "whole.air") == 0
    duration = time.monotonic() - started
    whole = contents(folder / "whole")
    calls = count_calls(loaded, folder)
    kills = 0

    def perhaps_die(out, aired, share):
        """Run an attempt that is killed after about `share` of the duration of a run, unless it finishes first."""
        if mode == "times":
            return life(loaded, out, aired, delay=share * duration)
        return life(loaded, out, aired, Countdown(int(share * calls), chance.choice(("before", "within", "after"))))

    for run in range(int(count)):
        out, aired = folder / f"run-{run}", folder / f"run-{run}.air"
        share = (run + chance.random()) / int(count)  # spread evenly from the first moment to the last
        code = perhaps_die(out, aired, share)
        while code != 0:
            assert code in (9, -signal.SIGKILL), code
            kills += 1
            check_charges(out, aired)
            code = perhaps_die(out, aired, chance.random()) if chance.random() < 0.4 else life(loaded, out, aired)
        check_charges(out, aired)
        assert contents(out) == whole, f"run {run} of mode {mode} and seed {seed} ended with other bytes"
        assert not list(out.rglob("*.part"))
        shutil.rmtree(out)
    print(json.dumps({"kills": kills, "calls": calls}))


def count_calls(loaded, folder):
    """Return how many calls of a run touch the disk."""
    low, high = 0, 1
    while life(loaded, folder / f"count-{high}", folder / "count.air", Countdown(high, "before")) != 0:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        finished = life(loaded, folder / f"count-{middle}", folder / "count.air", Countdown(middle, "before")) == 0
        low, high = (low, middle) if finished else (middle, high)
    return high


if __name__ == "__main__":
    main(*sys.argv[1:])
