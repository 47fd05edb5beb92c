"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import airfed

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(airfed.__path__, "airfed.", onerror=lambda name: None)
    if not info.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert failures == 0
