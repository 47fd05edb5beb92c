"""The gain of receive antennas: rows of trainings, table and figure."""

from pathlib import Path

import pytest

from studies import antennas


def row(label, number, adversary, seed, accuracy):
    return {
        "label": label,
        "antennas": number,
        "adversary": adversary,
        "seed": seed,
        "num_scheduled": 100 + seed,
        "rounds": 20,
        "binding": "privacy",
        "amplification": 1.5,
        "epsilon_total": 2.0,
        "predicted_accuracy": 0.5,
        "accuracy": accuracy,
    }


@pytest.fixture
def found():
    return [
        row(label, number, adversary, seed, 0.4 + 0.1 * seed)
        for label in ("one", "another")
        for number in (1, 4)
        for adversary in ("all_antennas", "combined")
        for seed in (1, 2)
    ]


def test_a_table_has_a_row_for_each_scenario_and_adversary(found):
    head, *cells = antennas.table(found)
    assert head == ["scenario", "adversary", "A = 1", "A = 4"]
    assert [tuple(each[:2]) for each in cells] == [
        (label, adversary) for label in ("one", "another") for adversary in ("all_antennas", "combined")
    ]
    assert {each for line in cells for each in line[2:]} == {"55.0 ± 63.5 (50.0)"}  # t(0.975, 1)·0.1/2 = 0.635


def test_the_figure_has_a_panel_for_each_scenario_and_a_curve_for_each_adversary(found):
    figure = antennas.figure(found, "note")
    panels = figure.get_axes()
    assert [panel.get_title(loc="left") for panel in panels] == ["one", "another"]
    reached = [[line for line in panel.get_lines() if line.get_marker() == "o"] for panel in panels]
    assert [len(lines) for lines in reached] == [2, 2]
    assert reached[0][0].get_ydata() == pytest.approx([0.55, 0.55])


def test_the_docs_have_the_differences_on_record():
    """The list in docs/antennas.md."""
    docs = Path(__file__).parents[2] / "docs"
    rows = antennas.read(docs / "studies" / "antennas-trainings.csv")
    text = " ".join((docs / "antennas.md").read_text(encoding="utf-8").split())
    found = antennas.gains(rows)
    for setting, said in (
        (("one direction, power", "all_antennas", 8), "gain 23 points [16, 30]"),
        (("one direction, power", "combined", 16), "gain 31 [23, 39]"),
        (("scattered, power", "combined", 16), "gain 5 points [1, 10]"),
        (("scattered, power", "all_antennas", 16), "cost 11 points [4, 18]"),
        (("scattered, privacy", "all_antennas", 16), "cost 45 points [40, 50]"),
        (("one direction, privacy", "all_antennas", 16), "20 [12, 29] in one direction"),
    ):
        each = found[setting]
        ends = sorted(abs(value) for value in (each.low, each.high))
        numbers = f"{abs(each.mean):.0f}{' points' if 'points' in said else ''} [{ends[0]:.0f}, {ends[1]:.0f}]"
        assert numbers in said
        assert (each.mean > 0) == (said.startswith("gain"))
        assert said in text
    open_ = {key for key, each in found.items() if each.sign == 0}
    assert {
        (place, "combined", number)
        for place in ("scattered, privacy", "one direction, privacy")
        for number in (2, 4, 8, 16)
    } <= open_
    assert {("scattered, power", "combined", number) for number in (2, 4, 8)} <= open_
    assert {(row["version"], row["seed"]) for row in rows} == {("0.3.0", seed) for seed in range(1, 11)}
