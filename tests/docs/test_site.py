"""The site as `make docs` builds it, strictly: every notebook is executed, and what it asserts holds.

One build serves all: it runs the notebooks of which `.cache` has no outputs from the very same sources.
"""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=repository,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "error::RuntimeWarning"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    # A link, an anchor, a reference, a page in no menu, an undocumented name, a failing cell: each ends it.
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_notebooks_are_shown_with_their_outputs_and_stored_without(site, repository):
    for source in (repository / "docs" / "notebooks").glob("*.py"):
        page = (site / "notebooks" / f"{source.stem}.html").read_text(encoding="utf-8")
        assert page.count('<div class="output"') >= 3
        assert '<details class="solution"' in page
        assert '"outputs": []' in (site / "notebooks" / f"{source.stem}.ipynb").read_text(encoding="utf-8")
        assert '"output_type"' not in (site / "notebooks" / f"{source.stem}.ipynb").read_text(encoding="utf-8")


def test_the_reference_has_every_key_and_command(site):
    from airfed.cli.app import app
    from airfed.keys import key_of
    from airfed.scenario import template

    commands = (site / "cli.html").read_text(encoding="utf-8")
    assert all(f"airfed {name}" in commands for name in app if not name.startswith("-"))
    keys = (site / "scenario.html").read_text(encoding="utf-8")
    declared = {name for _, kind in template.sections() for name, info in kind.model_fields.items() if key_of(info)}
    assert {"epsilon", "log", "noise_std"} <= declared
    assert {name for name in declared if f"<code>{name}</code>" not in keys} == set()


def test_it_is_searched_without_a_server(site):
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    assert not re.findall(r'<(?:script|img|iframe)[^>]+src="https?://', (site / "index.html").read_text("utf-8"))
