"""Charts are valid for every design."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from airfed.explorer import compare_tab, view
from airfed.explorer.charts import Options
from airfed.explorer.design import Design, ScenarioError
from airfed.problem import InfeasibleError


def check(options: Options) -> None:
    """Check for strict JSON of limited size and axes with a positive length."""
    text = json.dumps(options, allow_nan=False)
    assert len(text) < 200_000
    for axis in (options["xAxis"], options["yAxis"]):
        if axis["type"] != "category":
            assert axis["min"] < axis["max"]
        if axis["type"] == "log":
            assert axis["min"] > 0
            assert 1 <= len(axis["axisLabel"]["customValues"]) <= 7


@settings(max_examples=12, deadline=None)
@given(
    devices=st.integers(1, 450),
    epsilon=st.floats(1e-3, 1e3),
    power=st.floats(1e-3, 1e7),
    noise=st.floats(1e-3, 1e2),
    spread=st.sampled_from([1.0, 50.0]),
    steps=st.integers(1, 300),
)
def test_the_charts_of_a_plan_are_valid(
    devices: int, epsilon: float, power: float, noise: float, spread: float, steps: int
) -> None:
    design = Design().change("fleet.num_devices", devices).change("budget.epsilon", epsilon)
    design = design.change("budget.total_power", power).change("link.noise_std", noise)
    design = design.change("fleet.peak_power", [spread, *[1.0] * (devices - 1)]).change("learning.total_steps", steps)
    try:
        seen = view.show(design)
    except (InfeasibleError, ScenarioError):
        return
    assert [len(card.charts) for card in seen.cards] == [1, 2, 1]
    for card in seen.cards:
        for options in card.charts:
            check(options)


def test_the_device_chart_has_one_bar_for_each_device() -> None:
    design = (
        Design()
        .change("policy.name", "optimal")
        .change("link.noise_std", 1.0)
        .change("budget.total_power", 300.0)
        .change("budget.epsilon", 5.0)
    )
    seen = view.show(design)
    assert isinstance(seen, view.View)
    lit, dark = (
        sum(y is not None for _, y in each["data"])
        for each in seen.cards[0].charts[0]["series"]
        if each["type"] == "bar"
    )
    size = design.scenario().plan().num_scheduled
    assert (lit, dark) == (size, 100 - size)
    line = seen.cards[0].charts[0]["series"][0]["markLine"]
    assert line["label"]["formatter"] == "total power excludes the next device"
    assert line["data"] == [{"xAxis": size + 0.5}]


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_charts_of_a_comparison_are_valid(spread: float) -> None:
    peaks = [1.0, spread] * 15
    design = Design().change("fleet.num_devices", 30).change("fleet.peak_power", peaks).change("link.noise_std", 1.0)
    for options in (*compare_tab.front_map(design).charts, *compare_tab.frontier_card(design).charts):
        check(options)
    policies, sensitivities = compare_tab.compare(design)
    check(*policies.charts)
    changes = re.findall(r"bound (-|unchanged|\+)", sensitivities.text)
    assert len(changes) == 2  # with more power, and with more ε
    assert "+" not in changes


def test_the_star_of_the_map_is_at_the_current_budgets() -> None:
    design = Design().change("fleet.num_devices", 30).change("link.noise_std", 1.0).change("budget.epsilon", 3.0)
    (options,) = compare_tab.front_map(design.change("budget.total_power", 170.0)).charts
    column, row = options["series"][1]["data"][0]
    assert (options["xAxis"]["data"][column], options["yAxis"]["data"][row]) == ("3", "170")
    assert options["series"][1]["name"].startswith("current budgets: bound ")
