"""Intervals of expected accuracies follow from the records and cover scenarios that were left out."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from airfed.planning.surrogate import INTERVALS
from studies import coverage


def test_the_package_and_the_page_have_the_intervals_of_the_records():
    found = coverage.intervals()
    assert json.loads(INTERVALS.read_text(encoding="utf-8")) == found
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.markdown(found)


@pytest.mark.parametrize("kind", ["same", "other"])
def test_nine_of_ten_trainings_of_scenarios_that_were_left_out_lie_inside(kind):
    """An oracle: the quantiles by expanding every scenario to equally many scores."""
    rows, claimed = coverage.records()[kind], json.loads(INTERVALS.read_text(encoding="utf-8"))[kind]
    scale = rows["predicted"] * (1 - rows["predicted"]) + 0.02
    score = ((rows["accuracy"] - rows["predicted"]) / scale).groupby(rows["scenario"]).apply(list)
    common, tail = math.lcm(*map(len, score)), {"same": 0.01, "other": 0.025}[kind]
    inside = 0
    for name, own in score.items():
        others = np.concatenate([np.repeat(each, common // len(each)) for key, each in score.items() if key != name])
        if kind == "other":
            others = np.concatenate((others, -others))
        low, high = np.quantile(others, (tail, 1 - tail), method="inverted_cdf")
        low, high = (min(low, -high), max(high, -low)) if kind == "other" else (low, high)
        inside += sum(low <= each <= high for each in own)
    assert claimed["trainings"] == len(rows)
    assert inside / len(rows) == pytest.approx(claimed["coverage"], abs=1e-4)
    assert inside / len(rows) >= 0.88


def test_trainings_of_another_study_are_covered():
    rows = pd.read_csv(coverage.DOCS / "networks.csv")
    other = json.loads(INTERVALS.read_text(encoding="utf-8"))["other"]
    assert coverage.inside(rows["expected"], rows["accuracy"], other).mean() >= 0.88
    assert not coverage.inside(rows["expected"], rows["expected"] + 0.35, other).any()


def test_the_command_prints_the_coverage(tmp_path, monkeypatch, capsys):
    for name in ("INTERVALS", "PAGE"):
        monkeypatch.setattr(coverage, name, tmp_path / name)
    coverage.write()
    said, found = capsys.readouterr().out, coverage.intervals()
    for kind, name in (("same", "the same"), ("other", "another")):
        each = found[kind]
        title = f"{name} data set".removeprefix("the ")
        assert f"{title}: {each['coverage']:.1%} of {each['trainings']} trainings inside" in said
    assert (tmp_path / "PAGE").exists()


def test_the_level_of_another_data_set_is_that_of_the_page_on_surrogates():
    """The numbers of docs/surrogate.md."""
    rows = coverage.records()["other"]
    error = 100 * (rows["accuracy"] - rows["predicted"]).groupby(rows["scenario"]).mean()
    found = error.round().to_dict()
    assert found == {"fashion": -10, "much-power": -10, "little-power": 8, "hundred": 10, "unlike": 13, "paper": 17}


def test_a_scenario_unlike_the_others_is_not_covered():
    rng = np.random.default_rng(0)
    names = np.repeat(["a", "b", "c", "d"], 50)
    rows = pd.DataFrame({"scenario": names, "predicted": 0.5, "accuracy": 0.5 + 0.01 * rng.standard_normal(200)})
    rows.loc[rows["scenario"] == "d", "accuracy"] += 0.2
    found = coverage.left_out(rows, 0.95, mirrored=False)
    assert found["d"] == 0
    assert min(found["a"], found["b"], found["c"]) >= 0.9
