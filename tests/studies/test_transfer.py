"""The regret of choices by a surrogate of another data set follows from the records."""

import numpy as np
import pandas as pd
import pytest

from studies import transfer


def test_the_page_has_the_numbers_of_the_records():
    assert transfer.PAGE.read_text(encoding="utf-8") == transfer.markdown(transfer.transfers())


class Preferring:
    averages = ("none", "tail", "exponential")

    def __init__(self, point, average):
        self.point, self.average = point, self.averages.index(average)

    def predict(self, *, rounds, clip_norm, noise):
        likes = (np.asarray(rounds) == self.point[0]) & (np.asarray(clip_norm) == self.point[1])
        found = np.full((len(likes), 3), np.nan)  # outside the grid everywhere else
        found[likes, self.average] = 0.5
        return found


def grid():
    """Return made-up trainings: two seeds, two grid points, three averages."""
    rows = []
    for seed, shift in ((1, 0.0), (2, 0.02)):
        for rounds, reached in ((10, (0.6, 0.61, 0.62)), (40, (0.7, 0.75, 0.65))):
            accuracy = {
                f"accuracy_{name}": value + shift for name, value in zip(Preferring.averages, reached, strict=True)
            }
            rows.append({"seed": seed, "rounds": rounds, "clip_norm": 5.0, "noise": 0.01, **accuracy})
    return pd.DataFrame(rows)


def test_a_choice_reaches_the_recorded_accuracy_of_its_point_and_average():
    assert transfer.chosen(grid(), Preferring((40, 5.0), "tail")) == [0.75, 0.77]
    assert transfer.chosen(grid(), Preferring((10, 5.0), "none")) == [0.6, 0.62]


def test_the_regret_is_paired_with_the_best_grid_point(tmp_path, monkeypatch):
    names = list(transfer.OTHER_DATA)
    made_up = pd.concat(grid().assign(scenario=name, label="grid", about=name, version="0.3.0") for name in names)
    made_up.to_csv(tmp_path / "trainings.csv", index=False)
    monkeypatch.setattr(transfer, "RECORDS", tmp_path / "trainings.csv")
    surrogates = dict.fromkeys(transfer.OTHER_DATA.values(), Preferring((10, 5.0), "exponential"))
    monkeypatch.setattr(transfer, "shipped", lambda: surrogates)
    for each in transfer.transfers():
        assert (each.seeds, each.best) == (2, pytest.approx(76.0))
        assert str(each.other) == "+13.0 [+13.0, +13.0]"
    assert "2 seeds; airfed 0.3.0" in transfer.markdown(transfer.transfers())


def test_the_best_grid_point_is_that_of_the_regret_study():
    page = (transfer.DOCS / "regret.md").read_text(encoding="utf-8")
    section = page.partition("## Regret")[2].partition("\n### ")[0]
    cells = [[cell.strip() for cell in line.split("|")] for line in section.splitlines() if line.startswith("| ")]
    best = {row[1]: float(row[3]) for row in cells[1:]}
    for each in transfer.transfers():
        assert best[each.scenario] == pytest.approx(each.best, abs=0.06)
