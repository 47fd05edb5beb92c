"""The gain of receive antennas: rows of trainings, table and figure."""

import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from airfed.experiments.results import estimate
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


def test_a_table_has_a_row_for_each_scenario_and_number_of_antennas(found):
    head, *cells = antennas.table(found)
    places = [tuple(each[:3]) for each in cells]
    assert places[:3] == [("one", "1", "all_antennas"), ("one", "1", "combined"), ("one", "4", "all_antennas")]
    assert len(places) == len(set(places)) == 8
    assert dict(zip(head, cells[0], strict=True))["K"] == "102"
    assert cells[0][-1].startswith("55.0% ± ")


def test_the_figure_has_a_panel_for_each_scenario_and_a_curve_for_each_adversary(found):
    figure = antennas.figure(found, "note")
    panels = figure.get_axes()
    assert [panel.get_title(loc="left") for panel in panels] == ["one", "another"]
    reached = [[line for line in panel.get_lines() if line.get_marker() == "o"] for panel in panels]
    assert [len(lines) for lines in reached] == [2, 2]
    assert reached[0][0].get_ydata() == pytest.approx([0.55, 0.55])


def test_the_page_has_the_records():
    """The table of docs/antennas.md, and the sentences below it."""
    docs = Path(__file__).parents[2] / "docs"
    rows, page = pd.read_csv(docs / "studies" / "antennas.csv"), (docs / "antennas.md").read_text(encoding="utf-8")
    groups = rows.groupby(["label", "adversary", "antennas"])
    for (label, adversary, _), seeds in groups:
        mean, half = 100 * seeds["accuracy"].mean(), 100 * seeds["accuracy"].std() * stats.t.ppf(0.975, 2) / 3**0.5
        cell = f"{mean:.1f} ± {half:.1f} ({100 * seeds['predicted_accuracy'].mean():.1f})"
        (line,) = (one for one in page.splitlines() if one.startswith(f"| {label}-limited") and f"`{adversary}`" in one)
        assert cell in line
    paired = 100 * rows.pivot_table(index="seed", columns=["label", "adversary", "antennas"], values="accuracy")

    def gain(label, adversary, antennas):
        return estimate(paired[label, adversary, antennas] - paired[label, adversary, 1])

    for setting, said in (
        (("one direction, power", "all_antennas", 4), "23 points [6, 41]"),
        (("one direction, power", "combined", 8), "29 [21, 37]"),
        (("scattered, privacy", "all_antennas", 16), "-45 points [-57, -33]"),
        (("one direction, privacy", "all_antennas", 16), "-17 [-20, -14]"),
    ):
        found = gain(*setting)
        unit = " points" if "points" in said else ""
        assert f"{found.mean:.0f}{unit} [{found.low:.0f}, {found.high:.0f}]" == said
    assert {"23 points [6, 41]", "29 [21, 37]", "45 points [33, 57]", "17 [14, 20]"} <= {
        " ".join(each.split()) for each in re.findall(r"\d+(?:\s+points)?\s+\[\d+, \d+\]", page)
    }
    for number in (2, 4, 8, 16):
        for adversary in ("all_antennas", "combined"):
            assert gain("scattered, power", adversary, number).sign == 0
        for place in ("scattered", "one direction"):
            assert gain(f"{place}, privacy", "combined", number).sign == 0
    assert set(rows["version"]) == {"0.2.0"}
    error = 100 * (groups["predicted_accuracy"].mean() - groups["accuracy"].mean())
    assert round(error.max()) == 14
    assert error[groups["rounds"].min() == 56].abs().max() < 5
    ratio = rows[rows["adversary"] == "all_antennas"].groupby(["label", "antennas"])["amplification"]
    assert round(ratio.max()["one direction, power", 4], 2) == 1.07
    assert round(ratio.mean()["one direction, power", 16], 1) == 1.4
    assert round(ratio.mean()["scattered, privacy", 16], 1) == 4.0
