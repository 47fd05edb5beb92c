"""The site as `make docs` builds it, strictly: every notebook is executed and its assertions hold.

One build serves all tests: it runs the notebooks that `.cache` does not hold from the same sources.
"""

import json
import math
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
    # A broken link, anchor or reference, a page outside nav, an undocumented name and a failing cell each fail it.
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


def terms(text):
    """Return the search terms of a text: lower case, without tags, plural or hyphen."""
    words = re.findall(r"[\w]+", re.sub(r"<[^>]+>", " ", text).lower())
    return [word.removesuffix("s") for word in words]


def ranked(index, query):
    """Return the pages of a search index, best first: BM25 as in lunr, by section, with the index's own boosts."""
    boosts = {name: field["boost"] for name, field in index["config"]["fields"].items()}
    sections = [
        {name: terms(" ".join(found) if isinstance(found := doc.get(name, ""), list) else found) for name in boosts}
        for doc in index["docs"]
    ]
    mean = {name: sum(len(each[name]) for each in sections) / len(sections) or 1 for name in boosts}
    holding = {term: sum(any(term in each[name] for name in boosts) for each in sections) for term in terms(query)}
    scores = {}
    for doc, section in zip(index["docs"], sections, strict=True):
        score = 0.0
        for term, sections_with_it in holding.items():
            rarity = math.log(1 + (len(sections) - sections_with_it + 0.5) / (sections_with_it + 0.5))
            for name, boost in boosts.items():
                count = section[name].count(term)
                length = 1.2 * (0.25 + 0.75 * len(section[name]) / mean[name])
                score += boost * rarity * 2.2 * count / (length + count)
        page = doc["location"].partition("#")[0]
        scores[page] = max(scores.get(page, 0.0), score)
    return sorted(scores, key=scores.__getitem__, reverse=True)


def test_the_search_finds_the_page_of_each_word_of_the_field_first(site, words):
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    first = {word: ranked(index, word)[0] for word in words}
    assert first == {word: f"{page}.html" for word, page in words.items()}


def test_formulas_are_typeset_from_the_site_itself(site):
    page = (site / "privacy-math.html").read_text("utf-8")
    assert page.count('class="arithmatex"') > 50
    assert "assets/katex/katex.min.js" in page
    sheet = (site / "assets" / "katex" / "katex.min.css").read_text("utf-8")
    fonts = set(re.findall(r"url\((fonts/[^)]+)\)", sheet))
    assert len(fonts) == 20
    assert all((site / "assets" / "katex" / font).is_file() for font in fonts)
    assert (site / "assets" / "katex" / "LICENSE").is_file()


def test_it_is_searched_without_a_server(site):
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    assert not re.findall(r'<(?:script|img|iframe)[^>]+src="https?://', (site / "index.html").read_text("utf-8"))
