"""Notebooks have the expected parts; test_site.py executes them."""

import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.py"))
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)


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


def test_there_are_six_notebooks_each_in_the_navigation(repository):
    navigation = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6
    assert all(f"notebooks/{notebook.stem}.md" in navigation for notebook in NOTEBOOKS)
