"""Axes mark round values in order; a chart says in words what it shows; words and colours are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed.plotting import colours
from airfed.plotting.chart import Axis, Band, Chart, Kind, Level, Line, Mark, highest, padded
from airfed.plotting.training import training_chart
from airfed.text import phrases as words


@given(
    low=st.floats(1e-6, 1e3),
    ratio=st.floats(1.01, 1e9),
    kind=st.sampled_from(["linear", "log", "root"]),
    most=st.integers(2, 7),
)
def test_ticks_are_few_inside_and_ascending(low: float, ratio: float, kind: Kind, most: int) -> None:
    axis = Axis(label="", low=0.0 if kind == "root" else low, high=low * ratio, kind=kind)
    ticks = axis.ticks(most)
    assert len(ticks) <= 2 * most + 3
    assert all(axis.low * (1 - 1e-6) <= tick <= axis.high * (1 + 1e-6) for tick in ticks)
    assert (np.diff(axis.share(np.array(ticks))) > 0).all()
    written = [float(axis.text(tick)) for tick in ticks]
    assert written == sorted(written)


@given(
    low=st.integers(0, 3), span=st.integers(1, 5000), kind=st.sampled_from(["linear", "log"]), most=st.integers(2, 9)
)
def test_rounds_and_devices_are_whole(low: int, span: int, kind: Kind, most: int) -> None:
    low = max(low, 1) if kind == "log" else low
    ticks = Axis(label="rounds", low=low, high=low + span, kind=kind, whole=True).ticks(most)
    assert ticks
    assert all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize(
    "axis", [Axis(label="", low=0.2, high=9e3, kind="log"), Axis(label="", low=1e-4, high=1e8, kind="log")]
)
def test_a_log_axis_marks_powers_of_ten(axis: Axis) -> None:
    assert {10.0**e for e in range(0, 4)} <= set(axis.ticks(12))
    assert all(f"{tick:e}"[0] in "1235" for tick in axis.ticks(5))


def test_an_axis_meets_its_ends() -> None:
    axis = Axis(label="", low=1.0, high=100.0, kind="log")
    assert axis.share([1.0, 10.0, 100.0]).tolist() == pytest.approx([0, 0.5, 1])
    assert np.isneginf(axis.share(0.0))


def test_the_pointer_is_told_what_was_measured_and_nothing_between() -> None:
    five, ten = np.arange(0.0, 101, 5), np.arange(0.0, 101, 10)
    chart = Chart(
        title="",
        x=Axis(label="steps", low=0, high=100),
        y=Axis(label="accuracy", low=0, high=1, percent=True),
        parts=(
            Line(x=five, y=five / 100, colour="ink", name="a"),
            Line(x=ten, y=np.where(ten == 50, np.nan, 0.25), colour="ink", name="b"),
            Line(x=five, y=five, colour="ink"),
            Band(x=ten, low=ten / 200, high=ten / 100, colour="lit", name="thick"),
            Level(at=0.5, name="budget"),
        ),
    )
    told = dict(chart.told())
    assert list(told) == five.tolist()
    assert told[5.0] == "steps: 5\na: 5.0%"
    assert told[20.0] == "steps: 20\na: 20.0%\nb: 25.0%\nthick: 10.0%"
    assert "b:" not in told[50.0]
    assert [part.name for part in chart.legend()] == ["a", "b", "thick"]
    assert "a: 0.0% at first, 100.0% in the end." in chart.description()


def test_a_training_chart_covers_its_lines_and_its_budget() -> None:
    x = np.arange(1.0, 21)
    lines = [Line(x=x, y=x**2, colour="run-0", name="a", spread=x), Line(x=x[:0], y=x[:0], colour="run-1", name="none")]
    chart = training_chart("loss", lines, start=1, last=30, level=Level(at=1000.0, name="budget"))
    assert chart is not None
    assert (chart.x.low, chart.x.high, chart.x.whole) == (1, 30, True)
    assert chart.y.low <= 1 < 420 < 1000 < chart.y.high
    assert [part.name for part in chart.legend()] == ["a"]
    assert training_chart("loss", lines[1:]) is None


def test_ranges_of_nothing_are_ranges() -> None:
    assert padded([np.inf, -1.0, np.nan], below=2, above=2) == (0.1, 1.0)
    assert padded([3.0], below=1, above=1) == (1.5, 6.0)
    assert highest([np.array([]), np.array([np.nan, 0.0])]) == 1.0


def test_every_colour_is_on_the_page_light_and_dark() -> None:
    css = colours.stylesheet([".dark{%s}"])
    for name in colours.PALETTE:
        assert css.count(f"--{name}:") == 2, name
        assert f".{name}{{--own:var(--{name})}}" in css
    assert colours.policy("mine:own_policy") == "ink"


@given(st.floats(-1e300, 1e300), st.integers(2, 6))
def test_a_number_is_written_to_its_digits(value: float, digits: int) -> None:
    text = words.number(value, digits)
    assert float(text) == pytest.approx(value, rel=10.0 ** (1 - digits))
    assert "e+" not in text
    assert "e0" not in text
    assert "e-0" not in text


def test_a_mark_alone_is_described() -> None:
    chart = Chart(
        title="",
        x=Axis(label="devices", low=1, high=9),
        y=Axis(label="θ", low=0, high=1),
        parts=(Mark(x=3, y=0.5),),
    )
    assert chart.description() == "θ over devices from 1 to 9. chosen: 0.5 at 3."
    assert chart.told() == []
