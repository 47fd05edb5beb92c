"""Every picture is well-formed, whatever the design."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airfed.explorer import comparison, pictures
from airfed.explorer.design import Design
from airfed.plotting.figure import svg
from airfed.problem import InfeasibleError

SVG = "{http://www.w3.org/2000/svg}"


def parse(markup: str) -> ET.Element:
    return ET.fromstring(f'<g xmlns="{SVG[1:-1]}">{markup}</g>')


def coordinates(markup: str) -> list[float]:
    found = []
    for element in parse(markup).iter():
        found += [float(element.get(name, 0)) for name in ("x", "y", "width", "height")]
    return found


@settings(max_examples=12, deadline=None)
@given(
    devices=st.integers(1, 450),
    epsilon=st.floats(1e-3, 1e3),
    power=st.floats(1e-3, 1e7),
    noise=st.floats(1e-3, 1e2),
    spread=st.sampled_from([1.0, 50.0]),
    steps=st.integers(1, 300),
    width=st.sampled_from([280.0, 840.0]),
)
def test_design_pictures_are_well_formed(
    devices: int, epsilon: float, power: float, noise: float, spread: float, steps: int, width: float
) -> None:
    design = Design().change("fleet.num_devices", devices).change("budget.epsilon", epsilon)
    design = design.change("budget.total_power", power).change("link.noise_std", noise)
    design = design.change("peak_spread", spread).change("learning.total_steps", steps)
    try:
        seen = pictures.look(design.world())
    except InfeasibleError:
        return
    drawn = pictures.strip(seen, width), pictures.candidates(seen, width), svg.render(seen.rounds, width, 364)
    for markup in drawn:
        assert "nan" not in markup.lower().replace("finance", "")
        assert all(np.isfinite(coordinates(markup)))
        assert len(markup) < 60_000
    lit = pictures.strip(seen, width).split('class="bar-lit"')[1].split('d="')[1].split('"')[0]
    assert lit.count("M") == min(seen.plan.num_scheduled, lit.count("M"))
    assert lit


def test_the_strip_lights_one_bar_for_each_scheduled_device() -> None:
    design = Design().change("link.noise_std", 1.0).change("budget.total_power", 300.0).change("budget.epsilon", 5.0)
    seen = pictures.look(design.world())
    markup = pictures.strip(seen, 800.0)
    bars = {
        name: markup.split(f'class="bar-{name}"')[1].split('d="')[1].split('"')[0].count("M") for name in ("lit", "out")
    }
    assert bars == {"lit": seen.plan.num_scheduled, "out": 100 - seen.plan.num_scheduled}
    assert "total power stops the next one" in markup


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_comparison_pictures_are_well_formed(spread: float) -> None:
    design = Design().change("fleet.num_devices", 30).change("peak_spread", spread).change("link.noise_std", 1.0)
    world = design.world()
    front = comparison.front(world)
    assert front is not None
    for markup in (
        comparison.front_map(front, 800.0),
        comparison.slice_chart(front, 380.0, over="epsilon"),
        comparison.slice_chart(front, 380.0, over="total_power"),
    ):
        assert all(np.isfinite(coordinates(markup)))
    plans, reasons = world.compare()
    table = comparison.policy_table(plans, {**reasons, "threshold": "<b>no</b>"})
    assert "&lt;b&gt;no" in table
    sentences = dict(comparison.sensitivity_sentences(comparison.sensitivity(world)))
    assert set(sentences) == {"One more watt", "One more unit of ε", "Twice the power", "Twice the ε"}
    assert all(text.startswith(("lowers the bound by", "changes nothing")) for text in sentences.values())


@pytest.mark.parametrize("antennas", [1, 2])
def test_a_level_bound_has_one_line_around_it(antennas: int) -> None:
    design = Design().change("fleet.num_devices", 12).change("link.antennas", antennas).change("link.trust", "combiner")
    front = comparison.front(design.change("budget.total_power", 30000.0).change("budget.epsilon", 50.0).world())
    here = front.loss[front.power_index, front.epsilon_index]
    assert np.isclose(front.loss, here, rtol=1e-9).sum() > 20
    drawn = parse(comparison.front_map(front, 800.0))
    now = [path for path in drawn.iter() if path.get("class") == "contour now"]
    assert sum(path.get("d", "").count("M") for path in now) == 1


@pytest.mark.parametrize("width", [300.0, 360.0, 800.0])
def test_labels_of_lines_do_not_hide_each_other(width: float) -> None:
    front = comparison.front(Design().change("fleet.num_devices", 30).change("link.noise_std", 1.0).world())
    assert front is not None
    texts = [
        element
        for element in parse(comparison.front_map(front, width)).iter(f"{SVG}text")
        if "contour-label" in element.get("class", "")
    ]
    assert any("now" in element.get("class", "") for element in texts)
    assert len(texts) >= 4
    places = [
        (float(element.get("x", 0)), float(element.get("y", 0)), 6.1 * len(element.text or "")) for element in texts
    ]
    for index, (x, y, wide) in enumerate(places):
        for other_x, other_y, other_wide in places[:index]:
            assert abs(x - other_x) >= (wide + other_wide) / 2 or abs(y - other_y) >= 11
