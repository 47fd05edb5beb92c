"""Figures show the numbers of plans, runs and audits; text is never markup; files are written atomically."""

from __future__ import annotations

import errno
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import problems
from airfed import planning, policies, scenario
from airfed.plotting import colours, figure, series
from airfed.text.phrases import number

HOSTILE = '<script>alert(1)</script> & "$\\frac{$" _'


def a_plan(devices: int = 40) -> planning.Plan:
    gain = np.random.default_rng(0).rayleigh(np.sqrt(0.5), devices) + 0.1
    given = {"noise": 1.0, "steps": 60, "clip": 1.0, "convexity": 0.1, "gap": 2.0, "total_power": 200.0}
    return policies.plan(problems.make(gain, **given))


def panels(devices: int = 40) -> dict[str, figure.Draw]:
    plan = a_plan(devices)
    rows = [{"device": k, "gain": 1 / k, "power_planned": k, "power_transmitted": k / 2} for k in range(1, 30)]
    found = figure.plan_panels(plan, series.over_rounds(plan, None))
    return {**found, "devices": lambda axes: figure.plot_devices(axes, rows)}


def values(draw: figure.Draw) -> dict[str, np.ndarray]:
    axes = figure.Figure().subplots()
    draw(axes)
    return {name: y for name, _, y in figure._named(axes)}


def test_charts_show_the_numbers_of_the_plan() -> None:
    plan, found = a_plan(), panels()
    curve = series.over_rounds(plan, None)
    assert isinstance(curve, series.Curve)
    shown = values(found["bound over the number of rounds"])
    for name, label in figure.TERMS.items():
        assert shown[label].tolist() == curve.terms[name].tolist()
    assert shown["bound"].tolist() == curve.total.tolist()
    assert shown["chosen"].tolist() == [plan.bound.total]
    alignment = values(found["θ over the number of devices"])
    assert alignment["chosen"].tolist() == [plan.alignment]
    np.testing.assert_array_equal(alignment["largest θ"], planning.candidates(plan).alignment)
    devices = values(found["devices"])
    assert devices["planned, worst case [W]"].tolist() == (2 * devices["transmitted [W]"]).tolist()
    assert devices["device"].tolist() == list(range(1, 30))


@pytest.mark.parametrize("title", panels())
def test_svg_is_text_in_the_colours_of_the_page_the_same_each_time(title: str) -> None:
    draw = panels()[title]
    text = figure.svg(draw, title, height=270, salt=title)
    assert text == figure.svg(draw, title, height=270, salt=title)
    tree = ET.fromstring(text.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
    assert len([element for element in tree.iter() if element.tag.endswith("text")]) > 5
    assert not re.search(r":#[0-9a-f]{6}", text)  # of the palette, every one
    assert "metadata" not in text
    assert "<style" not in text
    boxes = [(float(box.get("x")), float(box.get("width"))) for box in tree.iter() if box.get("class") == "hover"]
    assert all(a + size == pytest.approx(b, abs=0.2) for (a, size), (b, _) in pairwise(boxes))
    titles = [element.text for element in tree.iter() if element.tag == "title"]
    names = values(draw)
    assert titles
    assert all(any(f"{name}: " in text for text in titles) for name in names)
    other = figure.svg(draw, title, height=270, salt="another")
    ids = [set(re.findall(r'\bid="(.*?)"', drawn)) for drawn in (text, other)]
    assert ids[0]
    assert not ids[0] & ids[1]


def hostile(axes: figure.Axes) -> None:
    x = np.arange(1.0, 4)
    for name, listed in ((HOSTILE, True), ("_" + HOSTILE, True), (HOSTILE + "!", False)):
        figure._plot_lines(axes, [series.Series(name=name, colour="ink", x=x, y=x, listed=listed)])


def test_text_is_never_markup(tmp_path) -> None:
    text = figure.svg(hostile, HOSTILE, height=200, salt="x")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 6
    sheet = figure._sheet({HOSTILE: hostile}, height=3, mosaic=["a"])
    sheet.set_label(HOSTILE)
    figure.save(sheet, tmp_path / "hostile.png")
    assert (tmp_path / "hostile.txt").read_text() == f"{HOSTILE}\n"
    assert len(sheet.legends[0].texts) == 2
    with pytest.raises(ValueError, match=r"A picture name must end in \.png, \.pdf or \.svg, got hostile\.exe"):
        figure.save(sheet, tmp_path / "hostile.exe")
    with pytest.raises(ValueError, match="Cannot write"):
        figure.save(sheet, tmp_path / "no" / "folder.png")


def test_a_picture_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    sheet, file = figure._sheet({"x": hostile}, height=3, mosaic=["a"]), tmp_path / "picture.png"
    figure.save(sheet, file)
    before = file.read_bytes()

    def cut_short(self, target, **options) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(sheet), "savefig", cut_short)
    with pytest.raises(ValueError, match="No space left"):
        figure.save(sheet, Path(file))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("devices", [1, 40])
def test_the_legend_of_a_sheet_covers_no_panel(devices: int) -> None:
    plan = a_plan(devices)
    for sheet in (figure.plan_figure(plan), figure.comparison_figure({"optimal": plan, "paper": plan})):
        sheet.draw_without_rendering()
        legend = sheet.legends[0].get_window_extent()
        assert not any(legend.overlaps(axes.get_tightbbox()) for axes in sheet.axes)


@pytest.mark.parametrize("lower", [None, 1.05])
def test_an_audit_without_an_attack_is_drawn_too(lower: float | None) -> None:
    rates = [] if lower is None else [0.0, 0.3, 1.0]
    roc = {"false_positive": rates, "true_positive": rates}
    sheet = figure.roc_figure(
        {"mu_claimed": 1.2, "mu_lower": lower, "scenario": HOSTILE, "verdict": "holds", "roc": roc}
    )
    sheet.draw_without_rendering()
    assert [len(axes.lines) for axes in sheet.axes] == ([2, 2] if lower is None else [3, 3])


def test_every_colour_is_on_the_page_light_and_dark() -> None:
    css = colours.stylesheet(["body.dark{%s}"])
    for name in (*colours.PALETTE, *colours.PAGE):
        assert css.count(f"--{name}:") == 2
    assert all(value[6:-1] in {*colours.PALETTE, *colours.PAGE} for value in colours.VARIABLES.values())
    assert colours.policy("mine:own_policy") == "ink"


def test_each_method_has_one_look_of_its_own() -> None:
    looks = {name: tuple(colours.marker(name).values()) for name in policies.EVERY}
    assert len({colour for colour, _, _ in looks.values()}) == len(looks)
    assert len({(shape, face == "white") for _, shape, face in looks.values()}) == len(looks)
    styles = colours.line_styles({name: name for name in looks})
    assert all(colours.PALETTE[styles[name][0]] == colour for name, (colour, _, _) in looks.items())


def test_a_bound_far_above_the_others_does_not_squeeze_them() -> None:
    plan = a_plan()
    worse = replace(plan, amplitudes=replace(plan.amplitudes, level=plan.amplitudes.level / 100))
    assert worse.bound.total > 20 * plan.bound.total
    (axes,) = figure.comparison_figure({"optimal": plan, "paper": plan, "full": worse}).axes
    assert plan.bound.total < axes.get_xlim()[1] < 2 * plan.bound.total
    texts = [text.get_text() for text in axes.texts]
    assert ["outside the axis" in text for text in texts] == [False, False, True]
    assert number(worse.bound.total, 4) in texts[2]


@given(st.floats(-1e300, 1e300), st.integers(2, 6))
def test_a_number_is_written_to_its_digits(value: float, digits: int) -> None:
    text = number(value, digits)
    assert float(text) == pytest.approx(value, rel=10.0 ** (1 - digits))
    assert not re.search(r"e\+|e-?0", text)


def test_the_objective_of_a_weighted_plan_is_inside_the_drawn_range() -> None:
    plan = scenario.load(Path(__file__).parents[2] / "examples" / "paper.toml").plan(policy="weighted")
    low, high = series.objective_range(plan, space := planning.candidates(plan))
    assert low < series.own_objective(plan) < high
    assert series.own_objective(plan) < space.objective.min()
