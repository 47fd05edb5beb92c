"""The gain of receive antennas: rows of trainings, table and figure."""

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
