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


def test_a_choice_reaches_the_recorded_accuracy_of_its_point_and_average():
    every = pd.read_csv(transfer.DOCS / "reproduction-regret.csv")
    grid = every[(every["scenario"] == "fashion") & (every["label"] == "grid")]
    assert transfer.chosen(grid, Preferring((40, 5.0), "tail")) == [0.7274, 0.7165]
    assert transfer.chosen(grid, Preferring((10, 10.0), "none")) == [0.7095, 0.6543]


def test_the_best_grid_point_is_that_of_the_regret_study():
    """As in docs/studies/reproduction.md, which the regret study wrote."""
    best = {each.scenario: each.best for each in transfer.transfers()}
    for scenario, accuracy in {"paper": 91.6, "fashion": 72.2, "hundred": 83.9, "much-power": 77.0}.items():
        assert best[scenario] == pytest.approx(accuracy, abs=0.06)
