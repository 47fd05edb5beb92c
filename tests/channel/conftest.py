"""Fixtures of the tests of channels."""

import numpy as np
import pytest


class Diverging:
    """A random generator that deviates after a number of draws."""

    def __init__(self, generator, calls):
        self.generator, self.left = generator, calls

    def __getattr__(self, name):
        self.left -= 1
        if self.left == -1:
            self.generator = np.random.default_rng(99)
        return getattr(self.generator, name)


@pytest.fixture
def diverging():
    return Diverging
