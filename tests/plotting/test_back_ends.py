"""Both back ends draw the same charts: every series, the axes, the legend; and text stays text."""

from __future__ import annotations

import contextlib
import errno
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from airfed import Budget, Fleet, Learning, Link, Problem, planning, policies
from airfed.plotting import files, plans, svg
from airfed.plotting.chart import Axis, Band, Cells, Chart, Columns, Level, Line, Mark
from airfed.plotting.figure import Figure, draw, key, save, sheet
from airfed.plotting.roc import roc_figure
from airfed.plotting.training import training_chart

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "$\\frac{$" _'
SIZES = ((326.0, 280.0), (520.0, 280.0), (840.0, 196.0))


def a_plan(devices: int = 40) -> planning.Plan:
    gain = np.random.default_rng(0).rayleigh(np.sqrt(0.5), devices) + 0.1
    problem = Problem(
        fleet=Fleet(gain=gain, peak_power=np.ones(devices)),
        link=Link(noise_std=1.0),
        learning=Learning(
            dimension=50,
            total_steps=60,
            learning_rate=0.1,
            clip_norm=1.0,
            smoothness=10.0,
            strong_convexity=0.1,
            initial_gap=2.0,
        ),
        budget=Budget(epsilon=5.0, delta=1e-3, total_power=200.0),
    )
    return policies.plan(problem)


def catalogue() -> dict[str, Chart]:
    plan, one = a_plan(), a_plan(1)
    space = planning.candidates(plan)
    x = np.arange(1.0, 31)
    trained = training_chart(
        "loss",
        [
            Line(x=x, y=2 / x, colour="policy-optimal", name="optimal", spread=0.1 / x),
            Line(x=x[::3], y=3 / x[::3], colour="policy-full", name="full", dash="dash"),
            Line(x=x[:1], y=x[:1], colour="run-3", name="one value"),
        ],
        level=Level(at=2.5, name="budget", colour="warn"),
    )
    assert trained is not None
    rows = [{"device": k, "gain": 1 / k, "power_planned": k, "power_transmitted": k / 2} for k in range(1, 30)]
    points = Chart(
        title="measured",
        x=Axis(label="σ", low=0.05, high=5, kind="log", places=(0.1, 0.3, 1, 3)),
        y=Axis(label="accuracy", low=0, high=1, percent=True),
        parts=(
            Line(
                x=x[:4],
                y=np.array([0.9, 0.8, np.nan, 0.4]),
                spread=np.full(4, 0.1),
                colour="ink",
                name="p",
                points=True,
            ),
        ),
    )
    cells = Chart(
        title="cells",
        x=Axis(label="round", low=0.5, high=7.5, whole=True),
        y=Axis(label="devices", low=0.5, high=5.5, whole=True),
        parts=(
            Cells(
                corner=(0.5, 0.5),
                size=(2, 1),
                values=np.where(np.eye(5, 4) > 0, np.nan, np.linspace(0, 1, 20).reshape(5, 4)),
                steps=(0.1, 0.5, 1.0),
                colour="lit",
                name="share",
            ),
            Line(x=x[:7], y=x[:7] / 2, colour="ink", name="a line above"),
        ),
    )
    return {
        "cells": cells,
        "alignment": plans.alignment_chart(plan, space),
        "objective": plans.objective_chart(plan, space),
        "rounds": plans.rounds_chart(plan, plans.bound_curve(plan.problem, plan.rounds)),
        "one device": plans.alignment_chart(one, planning.candidates(one)),
        "training": trained,
        "devices": plans.devices_chart(rows),
        "points": points,
    }


CHARTS = catalogue()


def parse(markup: str) -> ET.Element:
    return ET.fromstring(f'<g xmlns="{SVG[1:-1]}">{markup}</g>')


def drawn(chart: Chart) -> Figure:
    figure = Figure()
    draw(figure.subplots(), chart)
    return figure


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CHARTS)
def test_svg_has_every_series_and_every_name(name: str, size: tuple[float, float]) -> None:
    chart = CHARTS[name]
    markup = svg.render(chart, *size)
    tree = parse(markup)
    classes = [element.get("class", "") for element in tree.iter()]
    for part in chart.parts:
        if isinstance(part, Mark):
            assert classes.count("star") == 1
        else:
            kind = {Band: "band", Cells: "cells"}.get(type(part), "line")
            assert f"{kind} {part.colour}" in classes
    image = tree[0]
    assert (image.get("role"), image.get("aria-label")) == ("img", chart.title)
    assert image[0].tag == f"{SVG}desc"
    assert image[0].text == chart.description()
    titles = [element.text for element in tree.iter(f"{SVG}title")]
    assert [text for _, text in chart.told()] == [text for text in titles if text and "\n" in text]
    keys = svg.legend(chart)
    assert all(part.name in keys for part in chart.legend())
    assert "nan" not in re.sub(r"<(title|desc)>.*?</\1>", "", markup, flags=re.DOTALL)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CHARTS)
def test_svg_axes_have_figures_in_order_that_do_not_touch(name: str, size: tuple[float, float]) -> None:
    chart = CHARTS[name]
    ticks = [
        element for element in parse(svg.render(chart, *size)).iter(f"{SVG}text") if element.get("class") == "tick"
    ]
    for anchor, place, gap in (("middle", "x", 6.0), ("end", "y", 11.0)):
        written = [(float(t.get(place, 0)), t.text or "") for t in ticks if t.get("text-anchor") == anchor]
        assert len(written) >= 2
        values = [float(text.rstrip("%")) for _, text in written]
        assert values == sorted(values)
        places = [where for where, _ in written]
        assert all(abs(a - b) >= gap for a, b in pairwise(places))
        assert all(0 <= where <= size[0] for where in places)
        if anchor == "middle" and chart.x.whole:
            assert all(value == int(value) for value in values)


@pytest.mark.parametrize("name", CHARTS)
def test_a_file_has_every_series_and_the_same_axes(name: str) -> None:
    chart = CHARTS[name]
    figure = drawn(chart)
    axes = figure.axes[0]
    kinds = {kind: sum(isinstance(part, kind) for part in chart.parts) for kind in (Line, Band, Level, Mark, Columns)}
    shaded = sum(isinstance(part, Line) and part.spread is not None and not part.points for part in chart.parts)
    lines = [line for line in axes.lines if line.get_linestyle() != "None" or line.get_marker() == "*"]
    assert len(lines) == kinds[Line] + kinds[Level] + kinds[Mark]
    assert len(axes.containers) >= kinds[Columns]
    assert len(axes.collections) >= kinds[Band] + shaded
    named = {part.name for part in chart.legend() if not isinstance(part, Cells)}
    assert set(axes.get_legend_handles_labels()[1]) == named
    assert [own.get_xlabel() for own in figure.axes[1:]] == [p.name for p in chart.parts if isinstance(p, Cells)]
    for ours, low_high, label, ticks in (
        (chart.x, axes.get_xlim(), axes.get_xlabel(), axes.get_xticks()),
        (chart.y, axes.get_ylim(), axes.get_ylabel(), axes.get_yticks()),
    ):
        assert low_high == pytest.approx((ours.low, ours.high))
        assert label == ours.label
        assert ticks.tolist() == sorted(ticks.tolist()) == ours.ticks(6)


@pytest.mark.parametrize("name", ["alignment", "rounds", "training", "devices"])
def test_axes_cover_what_matters(name: str) -> None:
    chart = CHARTS[name]
    for part in chart.parts:
        if isinstance(part, Mark):
            assert chart.x.low <= part.x <= chart.x.high
            assert chart.y.low <= part.y <= chart.y.high
        elif not isinstance(part, Level):
            assert chart.x.low <= part.x.min()
            assert part.x.max() <= chart.x.high
            if name in ("training", "devices"):
                assert chart.y.low <= part.y.min()
                assert part.y.max() <= chart.y.high


def hostile() -> Chart:
    x = np.arange(1.0, 4)
    return Chart(
        title=HOSTILE,
        x=Axis(label=HOSTILE, low=1, high=3),
        y=Axis(label=HOSTILE, low=0, high=3),
        parts=(
            Line(x=x, y=x, colour="ink", name=HOSTILE),
            Band(x=x, low=x, high=x, colour="lit", name="_" + HOSTILE),
            Level(at=1, name=HOSTILE),
            Mark(x=1, y=1, name=HOSTILE + "!"),
        ),
        notes={2.0: HOSTILE},
    )


def test_text_stays_text_on_a_page() -> None:
    markup = svg.render(hostile(), 400, 200) + svg.legend(hostile())
    tree = parse(markup)
    assert not list(tree.iter(f"{SVG}script"))
    assert sum(element.text == HOSTILE for element in tree.iter(f"{SVG}text")) == 3
    wrong = Line(x=np.ones(1), y=np.ones(1), colour='ink"><script>', name="x")
    with pytest.raises(ValueError, match="Expected a colour of the palette"):
        svg.render(Chart(title="", x=hostile().x, y=hostile().y, parts=(wrong,)), 400, 200)


def test_text_stays_text_in_a_file(tmp_path) -> None:
    figure = sheet([hostile()], height=3, note=HOSTILE, titles=True)
    save(figure, tmp_path / "hostile.png")
    assert len(figure.legends[0].texts) == 3
    with pytest.raises(ValueError, match="Expected a picture name"):
        save(figure, tmp_path / "hostile.exe")
    with pytest.raises(ValueError, match="Cannot write"):
        save(figure, tmp_path / "no" / "folder.png")


def test_a_picture_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    figure, file = sheet([hostile()], height=3), tmp_path / "picture.png"
    save(figure, file)
    before = file.read_bytes()

    def cut_short(self, target, **options) -> None:
        with target.open("wb") if isinstance(target, Path) else contextlib.nullcontext(target) as stream:
            stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(figure), "savefig", cut_short)
    with pytest.raises(ValueError, match="No space left"):
        save(figure, file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_the_legend_of_a_sheet_covers_no_panel() -> None:
    plan = a_plan()
    for figure in (files.plan_figure(plan, "a note"), files.comparison_figure({"optimal": plan, "paper": plan})):
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        for axes in figure.axes:
            assert not legend.overlaps(axes.get_tightbbox())


def test_a_legend_without_names_is_not_drawn() -> None:
    figure = Figure()
    key(figure, [figure.subplots()])
    assert not figure.legends


@pytest.mark.parametrize("lower", [None, 1.05])
def test_an_audit_without_an_attack_is_drawn_too(lower: float | None) -> None:
    rates = [] if lower is None else [0.0, 0.3, 1.0]
    audit = {
        "mu_claimed": 1.2,
        "mu_lower": lower,
        "scenario": HOSTILE,
        "verdict": "holds",
        "roc": {"false_positive": rates, "true_positive": rates},
    }
    figure = roc_figure(audit)
    figure.draw_without_rendering()
    assert [len(axes.lines) for axes in figure.axes] == [2, 2] if lower is None else [3, 3]
