"""Studies lie outside the package: they are importable from the repository's root."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def registered():
    """The studies beside the paper's figures, while these tests run."""
    from airfed.experiments import figures, notes, verdicts
    from studies import catalogue

    before = dict(figures.FIGURES), dict(verdicts.TESTS), list(notes.FOLDERS)
    catalogue.register()
    yield
    for now, old in zip((figures.FIGURES, verdicts.TESTS), before, strict=False):
        now.clear()
        now.update(old)
    notes.FOLDERS[:] = before[2]
