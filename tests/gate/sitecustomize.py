"""Imported by every Python process of a gated test, workers included: a round waits until the test lets it begin.

`AIRFED_TEST_GATE` names a file with a number: rounds below it may begin, the others wait. See `gate` in
`tests/conftest.py`.
"""

import functools
import os
import sys
import time
from importlib.machinery import PathFinder

ENGINES = {
    "airfed.learning.quadratic": "QuadraticEngine",
    "airfed.learning.torch_engine": "TorchEngine",
    "airfed.learning.fused": "FusedEngine",
}
PROBE_ROUND = 2**31 - 1  # of airfed.training.setup: nothing of it is ever transmitted
MOST_SECONDS = 1800  # a test that died must not leave anybody waiting


class Finder:
    """Puts the gate into an engine as its module is imported; importing all engines here would slow every start."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ENGINES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            engine = getattr(module, ENGINES[name])
            engine.updates = gated(engine.updates)

        spec.loader.exec_module = exec_module
        return spec


def gated(updates):
    @functools.wraps(updates)
    def wait_then_train(self, parameters, devices, *, steps, round_index):
        if round_index != PROBE_ROUND:
            wait(round_index)
        return updates(self, parameters, devices, steps=steps, round_index=round_index)

    return wait_then_train


def wait(round_index):
    deadline = time.monotonic() + MOST_SECONDS
    while round_index >= allowed():
        if time.monotonic() > deadline:
            os._exit(99)
        time.sleep(0.01)


def allowed():
    with open(os.environ["AIRFED_TEST_GATE"]) as stream:
        return int(stream.read())


if "AIRFED_TEST_GATE" in os.environ:
    sys.meta_path.insert(0, Finder)
