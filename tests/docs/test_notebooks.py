"""Every notebook of the site runs, and what it asserts holds; its parts are those that a reader counts on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.py"))
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_asserts_holds(notebook, tmp_path):
    # In this format a notebook is a program.
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "error::RuntimeWarning"}
    done = subprocess.run(
        [sys.executable, notebook], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_diagram_first_an_exercise_last_and_a_solution_that_asserts(notebook):
    text = notebook.read_text(encoding="utf-8")
    kinds = [kind.strip() for kind in CELL.findall(text)]
    first = CELL.split(text)[2]
    assert kinds[0] == "[markdown]"
    assert first.lstrip().startswith("# # ")
    drawing = re.search(r"!\[[^\]]{20,}\]\((images/[\w-]+\.svg)\)", first)
    assert drawing
    assert (notebook.parent / drawing[1]).is_file()
    assert kinds[-1] == 'tags=["solution"]'
    assert "assert " in CELL.split(text)[-1]
    assert "# ## Exercise" in CELL.split(text)[-3]


def test_there_are_five_notebooks_each_in_the_navigation(repository):
    navigation = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    assert all(f"notebooks/{notebook.stem}.md" in navigation for notebook in NOTEBOOKS)


def test_every_page_is_in_the_navigation(repository):
    navigation = (repository / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    docs = repository / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    listed = set(re.findall(r"^ +- (?:[^#\n]*: )?([\w/-]+\.md)$", navigation, re.MULTILINE))
    assert pages - listed == set(), "add them to nav in mkdocs.yml"
