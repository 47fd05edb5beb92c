"""The table of equations in the docs agrees with the code: tags, functions and test files."""

import importlib
import re

import pytest

TAG = re.compile(r"\[Yan23, (?:[^\[\]()]|\([^()]*\))+\]")


def tags_in(text):
    """Return every tag of a text; a range such as (3)-(5) means each equation in it."""
    found = set()
    for tag in TAG.findall(text):
        if span := re.fullmatch(r"\[Yan23, \((\d+)\)-\((\d+)\)\]", tag):
            found |= {f"[Yan23, ({number})]" for number in range(int(span[1]), int(span[2]) + 1)}
        else:
            found.add(tag)
    return found


@pytest.fixture(scope="module")
def table(repository):
    """Rows of docs/equations.md: (tags, functions, tests)."""
    rows = []
    for line in (repository / "docs" / "equations.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("[Yan23"):
            rows.append((TAG.findall(cells[0]), re.findall(r"`([^`]+)`", cells[2]), re.findall(r"`([^`]+)`", cells[3])))
    assert len(rows) > 15
    return rows


def test_every_tag_in_the_code_is_in_the_table_and_the_reverse(repository, table):
    in_code = set()
    for path in (repository / "src").rglob("*.py"):
        in_code |= tags_in(path.read_text(encoding="utf-8"))
    in_table = {tag for tags, _, _ in table for tag in tags}
    assert in_code - in_table == set(), "tags in the code that docs/equations.md lacks"
    assert in_table - in_code == set(), "tags in docs/equations.md that the code lacks"


def test_no_tag_stands_twice_in_the_table(table):
    tags = [tag for row, _, _ in table for tag in row]
    assert len(tags) == len(set(tags))


def test_every_row_has_tests_that_exist(repository, table):
    missing = {test for _, _, tests in table for test in tests if not (repository / test).is_file()}
    assert not missing
    assert all(tests for _, _, tests in table)


def test_every_function_in_the_table_exists(table):
    pytest.importorskip("torch")
    for _, functions, _ in table:
        for name in functions:
            find(name)


def find(name):
    """Return the object of a dotted name below airfed."""
    parts = ["airfed", *name.split(".")]
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is not in airfed")


def test_every_guard_in_the_pitfalls_exists(repository):
    text = (repository / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[^`]+\.py)`", text))
    assert named
    assert {path for path in named if not (repository / path).is_file()} == set()


def test_every_deviation_of_the_notes_is_listed(repository):
    text = (repository / "docs" / "equations.md").read_text(encoding="utf-8")
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert listed == list(range(1, 19))
