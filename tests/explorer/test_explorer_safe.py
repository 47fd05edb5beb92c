"""All text on the page is escaped by NiceGUI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from airfed import explorer
from airfed.explorer import view
from airfed.explorer.design import Design
from airfed.explorer.page import _FIGURE

EVIL = "<img src=x onerror=alert(1)>"
SOURCES = sorted(Path(explorer.__file__).parent.glob("*.py"))


def test_the_package_contains_no_markup() -> None:
    other = re.compile(r"ui\.html|ui\.markdown|sanitize=|add_body_html|innerHTML|v-html|Markup|<(?:div|span|p|svg)\b")
    found = {(path.name, match.group()) for path in SOURCES for match in other.finditer(path.read_text())}
    assert found == set()


def test_only_names_in_page_js_are_evaluated() -> None:
    """NiceGUI evaluates values of options whose key begins with a colon."""
    for path in SOURCES:
        for key, value in re.findall(r'"(:\w+)": ([^,}\n]+)', path.read_text()):
            assert (key, value) in {(":formatter", "text"), (":valueFormatter", "formatter")}
        assert not re.search(r'text="(?!airfed\.(number|percent|squared)")airfed', path.read_text())


@pytest.mark.parametrize("key", ["name", "budget.epsilon", "channel.model", "policy.name", "learning.dataset", EVIL])
def test_markup_in_a_design_does_not_reach_the_view(key: str) -> None:
    shown = reason = ""
    try:
        shown = str(view.show(Design().change(key, EVIL)))
    except ValueError as error:
        reason = str(error)
    assert EVIL not in shown
    assert "\n" not in reason


def test_the_figures_of_the_headline_are_in_bold() -> None:
    parts = _FIGURE.split("Schedule 47 of 100 devices, 35 rounds of 5-6 local steps; ε = 3.21 per round, 1e-5 in all.")
    assert parts[1::2] == ["47 of 100", "35", "5-6", "ε = 3.21", "1e-5"]
    assert "".join(parts).startswith("Schedule 47 of 100 devices")


def test_a_budget_by_lemma_1_is_labelled() -> None:
    answer = view.show(Design().change("budget.epsilon", 2.0).change("budget.formula", "classic"))
    assert isinstance(answer, view.View)
    facts = {fact.label: fact for fact in answer.facts}
    assert "of 2 by Lemma 1" in facts["Privacy budget used"].remark
    assert "ε per round, exact" in facts
    assert any("The scenario counts the budget by Lemma 1" in line for line in answer.remarks)
    exact = view.show(Design())
    assert isinstance(exact, view.View)
    assert "Lemma" not in str((exact.facts, exact.remarks))
