"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil
import re

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


@pytest.mark.parametrize("name", airfed.__all__)
def test_every_public_name_has_an_example_and_is_documented(name, repository):
    assert ">>>" in (getattr(airfed, name).__doc__ or "")
    pages = (page.read_text(encoding="utf-8") for page in (repository / "docs").glob("*.md"))
    assert any(re.search(rf"`(airfed\.)?{name}\b", page) for page in pages)
