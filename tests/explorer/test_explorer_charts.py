"""Every chart can be drawn by a browser, whatever the design."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from airfed.explorer import compare_tab, view
from airfed.explorer.charts import Options
from airfed.explorer.design import Design


def check(options: Options) -> None:
    """Strict JSON: no value that is not finite; axes that have a length; every series within reason."""
    text = json.dumps(options, allow_nan=False)
    assert len(text) < 200_000
    for axis in (options["xAxis"], options["yAxis"]):
        if axis["type"] != "category":
            assert axis["min"] < axis["max"]
            assert axis["type"] == "value" or axis["min"] > 0
            assert len(axis["axisLabel"]["customValues"]) <= 8


@settings(max_examples=12, deadline=None)
@given(
    devices=st.integers(1, 450),
    epsilon=st.floats(1e-3, 1e3),
    power=st.floats(1e-3, 1e7),
    noise=st.floats(1e-3, 1e2),
    spread=st.sampled_from([1.0, 50.0]),
    steps=st.integers(1, 300),
)
def test_a_plan_can_be_drawn(
    devices: int, epsilon: float, power: float, noise: float, spread: float, steps: int
) -> None:
    design = Design().change("fleet.num_devices", devices).change("budget.epsilon", epsilon)
    design = design.change("budget.total_power", power).change("link.noise_std", noise)
    seen = view.show(
        design.change("fleet.peak_power", [spread, *[1.0] * (devices - 1)]).change("learning.total_steps", steps)
    )
    if isinstance(seen, view.Refusal):
        return
    assert [len(card.charts) for card in seen.cards] == [1, 2, 1]
    for card in seen.cards:
        for options in card.charts:
            check(options)


def test_the_strip_lights_one_bar_for_each_scheduled_device() -> None:
    design = Design().change("link.noise_std", 1.0).change("budget.total_power", 300.0).change("budget.epsilon", 5.0)
    seen = view.show(design)
    assert isinstance(seen, view.View)
    lit, dark = (
        sum(y is not None for _, y in each["data"])
        for each in seen.cards[0].charts[0]["series"]
        if each["type"] == "bar"
    )
    size = design.world().plan().num_scheduled
    assert (lit, dark) == (size, 100 - size)
    line = seen.cards[0].charts[0]["series"][0]["markLine"]
    assert line["label"]["formatter"] == "total power stops the next one"
    assert line["data"] == [{"xAxis": size + 0.5}]


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_a_comparison_can_be_drawn(spread: float) -> None:
    design = (
        Design()
        .change("fleet.num_devices", 30)
        .change("fleet.peak_power", [1.0, spread] * 15)
        .change("link.noise_std", 1.0)
    )
    front = compare_tab.front(design)
    for options in (
        compare_tab.front_map(front),
        *(compare_tab.slice_chart(front, o) for o in ("epsilon", "total_power")),
    ):
        check(options)
    found = compare_tab.compare(design)
    assert isinstance(found, compare_tab.Compared)
    assert set(found.bought) == {"One more watt", "One more unit of ε", "Twice the power", "Twice the ε"}
    assert all(text.startswith(("lowers the bound by", "changes nothing")) for text in found.bought.values())


@pytest.mark.parametrize(
    "changes",
    [{"link.noise_std": 1.0}, {"budget.epsilon": 0.5}, {"link.noise_std": 1.0, "budget.total_power": 300.0}],
    ids=["power", "privacy", "template"],
)
def test_the_present_design_is_on_its_own_line(changes: dict[str, float]) -> None:
    design = Design().change("fleet.num_devices", 30)
    for key, value in changes.items():
        design = design.change(key, value)
    front = compare_tab.front(design)
    assert front.binding[front.middle, front.middle] != "peak_power"
    path = np.log(compare_tab.contours(front)[front.now])
    here = np.log([front.epsilon[front.middle], front.total_power[front.middle]])
    distances = []
    for start, end in pairwise(path):
        along = np.clip(np.dot(here - start, end - start) / max(np.dot(end - start, end - start), 1e-300), 0, 1)
        distances.append(float(np.hypot(*(start + along * (end - start) - here))))
    assert min(distances) < 1e-6


@pytest.mark.parametrize("antennas", [1, 2])
def test_lines_of_equal_loss_fall_and_do_not_cross(antennas: int) -> None:
    design = Design().change("fleet.num_devices", 12).change("link.antennas", antennas).change("link.trust", "combiner")
    front = compare_tab.front(design.change("budget.total_power", 30000.0).change("budget.epsilon", 50.0))
    assert np.isclose(front.loss, front.now, rtol=1e-9).sum() > 20  # level ground
    lines = compare_tab.contours(front)
    assert front.now in lines
    ordered = [lines[level] for level in sorted(lines)]
    for path in ordered:
        assert (np.diff(path[:, 0]) >= 0).all()
        assert (np.diff(path[:, 1]) <= 1e-9 * path[:-1, 1]).all()
    for better, worse in pairwise(ordered):  # a better one needs more power at any ε
        shared = better[:, 0][(better[:, 0] > worse[1, 0]) & (better[:, 0] < worse[-1, 0])][1:]
        needed = [np.interp(shared, path[:, 0], path[:, 1]) for path in (better, worse)]
        assert (needed[0] >= needed[1] * (1 - 1e-6)).all()


def test_a_flat_map_has_no_lines() -> None:
    flat = compare_tab.Front(
        of="bound",
        epsilon=np.logspace(-1, 1, 3),
        total_power=np.logspace(-1, 1, 3),
        loss=np.full((3, 3), 2.0),
        binding=np.full((3, 3), "peak_power"),
    )
    assert compare_tab.contours(flat) == {}
    check(compare_tab.front_map(flat))


def test_labels_of_lines_do_not_hide_each_other() -> None:
    front = compare_tab.front(Design().change("fleet.num_devices", 30).change("link.noise_std", 1.0))
    spans = [math.log(values[-1] / values[0]) for values in (front.epsilon, front.total_power)]
    places = [
        (
            math.log(point["value"][0] / front.epsilon[0]) / spans[0],
            math.log(point["value"][1] / front.total_power[0]) / spans[1],
        )
        for each in compare_tab.front_map(front)["series"]
        if each["type"] == "line"
        for point in each["data"]
        if isinstance(point, dict)
    ]
    assert len(places) >= 4
    for index, (x, y) in enumerate(places):
        assert abs(x - 0.5) > 0.1 or abs(y - 0.5) > 0.05  # the star
        assert all(abs(x - a) > 0.1 or abs(y - b) > 0.05 for a, b in places[:index])
