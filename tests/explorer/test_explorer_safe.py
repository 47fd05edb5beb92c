"""Text reaches the page escaped, and there is one way to put it there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from markupsafe import Markup

from airfed import explorer
from airfed.explorer import elements, shown
from airfed.explorer.design import Design

EVIL = "<img src=x onerror=alert(1)>"
SOURCES = sorted(Path(explorer.__file__).parent.glob("*.py"))


def test_text_is_escaped_and_markup_is_not() -> None:
    assert elements._safe(EVIL) == "&lt;img src=x onerror=alert(1)&gt;"
    assert elements._safe(Markup("<b>{}</b>").format(EVIL)) == "<b>&lt;img src=x onerror=alert(1)&gt;</b>"


def test_there_is_no_other_way() -> None:
    """The linter refuses `Markup` around anything but a literal; here is what else could carry markup."""
    other = re.compile(r"ui\.html|ui\.markdown|sanitize=|add_body_html|innerHTML|noqa: S704")
    found = {(path.name, match.group()) for path in SOURCES for match in other.finditer(path.read_text())}
    assert found == {
        ("elements.py", "ui.html"),
        ("elements.py", "sanitize="),
    }  # drawings enter by airfed.plotting.drawings


@pytest.mark.parametrize("key", ["name", "budget.epsilon", "channel.model", "policy.name", "learning.dataset", EVIL])
def test_markup_in_a_design_is_text(key: str) -> None:
    answer = shown.show(Design().change(key, EVIL), 800.0, 400.0)
    texts = [answer.reason] if isinstance(answer, shown.Refusal) else [*vars(answer).values()]
    assert EVIL not in "".join(elements._safe(text) for text in texts)


def test_a_budget_by_lemma_1_is_told_as_such() -> None:
    answer = shown.show(Design().change("budget.epsilon", 2.0).change("budget.formula", "classic"), 800.0, 400.0)
    assert isinstance(answer, shown.Shown)
    text = re.sub("<[^>]*>", " ", answer.facts)
    assert "Privacy budget used" in text
    assert "of 2 by Lemma 1" in text
    assert "ε per round, exact" in text
    assert "The budget is counted by Lemma 1, as asked" in answer.remarks
    exact = shown.show(Design(), 800.0, 400.0)
    assert isinstance(exact, shown.Shown)
    assert "Lemma" not in exact.facts + exact.remarks
