"""The regret study on made-up rows with known results, and from the command to the page in small scenarios."""

import csv
import dataclasses
import io
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies.__main__ import main
from studies.regret import curves as regret_curves
from studies.regret import page as regret_page
from studies.regret import regret
from studies.regret import rows as regret_rows

from airfed.experiments import figures, points
from airfed.experiments.claims import best_by_others, best_point
from airfed.experiments.results import Record, data_frame
from airfed.scenario.learning_section import SHIPPED
from airfed.training.directory import RunError
from studies import catalogue
from studies import page as reproduction

ROUNDS, NORMS = (10, 40, 200), (1.0, 5.0)


def row(scenario, label, seed, accuracy, *, rounds=40, norm=5.0, predicted=None, partition="iid", **more):
    return {
        "scenario": scenario,
        "about": f"{scenario}, in a few words",
        "partition": partition,
        "label": label,
        "seed": seed,
        "rounds": rounds,
        "num_scheduled": 57,
        "clip_norm": norm,
        "noise": 0.02,
        "average": "none",
        "binding": "privacy",
        "status": "finished",
        "accuracy": accuracy,
        "predicted": predicted,
        "predicted_low": None if predicted is None else predicted - 0.02,
        "predicted_high": None if predicted is None else predicted + 0.02,
        "seconds": 10.0,
        "version": "0.3.0",
        **more,
    }


def made_up(*, reached=0.895, off=0.01, names=("paper", "fashion", "unlike")):
    """Scenarios whose best grid point is I = 40, ϖ = 5 with 90%; expected accuracy is `off` below the realised one."""
    rows = []
    for name, seed in itertools.product(names, (1, 2, 3)):
        effect = (0.0, 0.004, -0.004)[seed - 1]
        part = "dirichlet" if name.startswith("unlike") else "iid"
        for rounds, norm in itertools.product(ROUNDS, NORMS):
            level = 0.9 - 0.1 * (rounds != 40) - 0.3 * (norm != 5.0)
            point = {"rounds": rounds, "norm": norm, "predicted": level - off, "partition": part}
            rows.append(row(name, "grid", seed, level + effect, **point))
        rows.append(row(name, "accuracy", seed, reached + effect, predicted=reached - off, partition=part))
        rows.append(row(name, "transfer", seed, reached - 0.002 + effect, predicted=0.7, partition=part))
        rows.append(row(name, "bound", seed, 0.84 + effect, rounds=53, partition=part))
    return rows


def test_the_verdicts_have_the_regret_of_the_scenarios():
    other, same = np.split(np.array(regret.check_regret(made_up())), 2)
    for verdicts, expected, data in ((other, 0.7, "another data set"), (same, 0.5, "the same data set")):
        for verdict, scenario in zip(verdicts, regret.scenarios(made_up()), strict=True):
            assert scenario.best == (40, 5.0, "none")
            assert verdict.effect.mean == pytest.approx(expected)
            assert verdict.effect.high == pytest.approx(expected)  # paired: all seeds agree
            assert verdict.passed
            assert data in verdict.claim
            assert scenario.name in verdict.comparison
    header, *cells = regret_page.summary(made_up())
    assert [dict(zip(header, line, strict=True))["regret, the bound"] for line in cells] == ["+6.0 [+6.0, +6.0]"] * 3
    for verdict in regret.check_regret(made_up(reached=0.888)):
        assert not verdict.passed
        assert verdict.refuted
        assert verdict.reason == "outside ±1"


def test_an_equivalence_test_needs_the_whole_interval_within_the_margin():
    rows = made_up(names=("paper",))
    for each in rows:
        if each["label"] == "accuracy":
            each["accuracy"] += (0.0, 0.05, -0.05)[each["seed"] - 1]
    _, verdict = regret.check_regret(rows)
    assert verdict.effect.mean == pytest.approx(0.5)  # within the margin; its interval is not
    assert verdict.effect.high > 10
    assert verdict.outcome == "not shown"


@given(
    st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.floats(0, 100), min_size=3, max_size=3),
)
def test_the_best_on_the_other_seeds_is_at_no_seed_better_than_the_best(points, plan):
    # c maximises the sum over the others and b that over all, so that a(c, seed) = S(c) - S_others(c) <= a(b, seed)
    grid = {regret.GridSetting(index, 1.0): dict(enumerate(values)) for index, values in enumerate(points)}
    own = dict(enumerate(plan))
    scenario = regret.ScenarioResult(name="", about="", grid=grid, by_accuracy=own, by_transfer={}, by_bound={})
    assert scenario.regret_of_others(own).mean <= scenario.regret(own).mean + 1e-9
    best, others = best_point(grid, [0, 1, 2]), best_by_others(grid)
    assert all(grid[others[seed]][seed] <= grid[best][seed] + 1e-9 for seed in range(3))


def test_the_two_regrets_enclose_the_truth_where_all_grid_points_are_alike():
    # 400 studies of 20 grid points and 3 seeds, deviation 1 point, the plan as good as every point: true regret 0.
    # The mean of one study has a deviation of about 0.8, so that the mean of 400 is within 0.2 of it.
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        values = rng.normal(80, 1, (21, 3))
        grid = {regret.GridSetting(index, 1.0): dict(enumerate(values[index])) for index in range(20)}
        plan = dict(enumerate(values[20]))
        scenario = regret.ScenarioResult(name="", about="", grid=grid, by_accuracy=plan, by_transfer={}, by_bound={})
        found.append((scenario.regret(plan).mean, scenario.regret_of_others(plan).mean))
    over, fair = np.mean(found, axis=0)
    assert over > 0.8
    assert abs(fair) < 0.2


def test_averages_of_models_are_the_third_axis():
    rows = made_up(names=("paper",))
    for each in rows:
        if each["label"] == "grid":
            gain = 0.02 * (each["rounds"] == 40)
            each |= {"accuracy_none": each["accuracy"], "accuracy_tail": each["accuracy"] + gain}
    (scenario,) = regret.scenarios(rows)
    assert len(scenario.grid) == 2 * len(ROUNDS) * len(NORMS)
    assert scenario.best == (40, 5.0, "tail")
    assert "tail average" in str(scenario.best)
    assert scenario.regret(scenario.by_accuracy).mean == pytest.approx(2.5)


def test_expectations_are_judged_where_data_are_iid():
    (verdict,) = regret.check_prediction(made_up(off=0.01))
    assert verdict.effect.mean == pytest.approx(1.0)
    assert verdict.effect.count == 2  # scenarios
    assert "over all 14 points 1.00" in verdict.remark  # 6 grid points and one plan, of two scenarios
    assert "over the 8 with more than 60% expected 1.00" in verdict.remark
    assert verdict.passed
    assert not regret.check_prediction(made_up(off=-0.016))[0].passed
    assert regret.check_prediction(made_up(names=("unlike",))) == []
    assert regret.errors(regret.expected(made_up(off=0.01)))["unlike"] == pytest.approx((1.0, 1.0))


def test_rows_survive_the_csv_to_the_last_verdict():
    rows = made_up(reached=0.8812345678)
    again = regret_rows.typed(csv.DictReader(io.StringIO(data_frame(rows).to_csv(index=False))))
    for check in (regret.check_regret, regret.check_prediction):
        assert [verdict.to_dict() for verdict in check(again)] == [verdict.to_dict() for verdict in check(rows)]
    texts = list(csv.DictReader(io.StringIO(data_frame(rows).to_csv(index=False))))
    texts[4]["noise"] = "much"
    with pytest.raises(RunError, match="Values of the table must be numbers"):
        regret_rows.typed(texts)


def test_the_page_lists_every_verdict_and_every_grid_point():
    tables = dict.fromkeys(("regret", "prediction"), made_up(reached=0.88))
    page = reproduction.markdown(pd.DataFrame(), figures=["regret", "prediction"], quick=False, tables=tables)
    assert page.count("| **FAIL** |") == 6
    assert page.count("| pass |") == 1
    assert "**1 of 7 comparisons pass.**" in page
    assert page.count("| 40 | 60.0 (59.0) | 90.0 (89.0) |") == 3
    assert "lies above zero" not in page
    assert "Settings that the paper does not state" not in page


def test_both_figures_are_drawn():
    rows = made_up()
    assert len(regret_curves.regret_figure(rows, "note").axes) == 2
    figure = regret_curves.prediction_figure(rows, "note")
    hollow = {line.get_label().split(":")[0]: line.get_markerfacecolor() == "none" for line in figure.axes[0].lines[1:]}
    assert hollow == {"paper": False, "fashion": False, "unlike": True}


def studies(quick):
    return figures.studies({"regret": catalogue.STUDIES["regret"]}, quick=quick)


@pytest.mark.parametrize("quick", [True, False])
def test_every_scenario_has_its_grid(quick, monkeypatch):
    monkeypatch.setattr("airfed.experiments.points.dataset_digest", lambda dataset: dataset)
    found = studies(quick)
    assert tuple(found) == regret_rows.SCENARIOS
    for title, study in found.items():
        base = study.experiment.base
        assert (SHIPPED / f"{base.policy.surrogate}.json").is_file()
        assert not any(point.problem for point in study.points), title
        seeds = {point.values["seed"] for point in study.points}
        assert len(seeds) >= 2
        assert not seeds & set(base.surrogate.about["seeds"])
        grid = {tuple(point.values.values())[1:] for point in study.points if point.label == "grid"}
        assert len(grid) == (15 if base.learning.model == "cnn" else 20)
        assert len(study.points) == (len(grid) + 3) * len(seeds)
        other = {point.scenario.surrogate.about["dataset"] for point in study.points if point.label == "transfer"}
        if not quick:  # the quick version has the images of mnist-5k everywhere
            assert other == {"mnist-5k" if base.learning.dataset == "fashion-mnist" else "fashion-mnist"}
        assert {point.scenario.learning.clip_norm for point in study.points if point.label == "bound"} == {
            5.0 if base.learning.model == "cnn" else 1.0
        }


def ended(study, status, accuracy):
    """Records of a study, made up: status and accuracy by point."""
    records = []
    for point in study.points:
        plan = {
            **{"rounds": point.values.get("policy.rounds", 40), "num_scheduled": 57, "alignment": 0.6},
            **{"clip_norm": point.values.get("policy.clip_norm", 5.0), "average": "none", "binding": "privacy"},
            **{"predicted_accuracy": 0.8, "predicted_interval": [0.7, 0.9]},
        }
        last = {"loss": 0.5, "accuracy": accuracy(point), "averages": {"tail": {"accuracy": 0.5}}}
        run = SimpleNamespace(figures=plan, rounds=[last], manifest={"airfed": "0.3.0"})
        records.append(Record(point=point, status=status(point), message="No.", run=run))
    return figures.Study(experiment=study.experiment, points=study.points, records=records)


def test_a_diverged_run_counts_as_chance_level_and_a_failed_one_excludes_its_seed(monkeypatch):
    monkeypatch.setattr("airfed.experiments.points.dataset_digest", lambda dataset: dataset)
    title = "regret-paper"
    monkeypatch.setattr(regret_rows, "SCENARIOS", (title,))
    study = studies(True)[title]

    def setting(point):
        return point.values.get("policy.rounds"), point.values.get("policy.clip_norm")

    def status(point):
        if setting(point) == (200, 10.0):
            return "diverged"
        return "failed" if point.label == "bound" and point.values["seed"] == 2 else "finished"

    rows = regret_rows.rows({title: ended(study, status, lambda point: 0.9)})
    assert {each["seed"] for each in rows} == {1}
    for each in rows:
        chance = (each["rounds"], each["clip_norm"]) == (200, 10.0)
        assert (each["accuracy"], each["accuracy_tail"]) == ((0.1, 0.1) if chance else (0.9, 0.5))
        assert (each["predicted"], each["predicted_low"]) == (0.8, 0.7)
    with pytest.raises(RunError, match="No seed of regret-paper is complete: No"):
        regret_rows.rows({title: ended(study, lambda point: "failed", lambda point: 0.9)})


def test_the_page_on_surrogates_has_the_numbers_of_the_records():
    """The paragraphs on regret and prediction of docs/surrogate.md."""
    rows = reproduction.kept(reproduction.DOCS / "studies" / "regret.md", ["regret"])["regret"]
    found = regret.scenarios(rows)
    assert {len(each.by_accuracy) for each in found} == {10}
    text = (reproduction.DOCS / "surrogate.md").read_text(encoding="utf-8")
    for label, name in (("transfer", "another"), ("accuracy", "the same"), ("bound", "the bound")):
        regrets = [each.regret(getattr(each, f"by_{label}")) for each in found]
        within = sum(each.low >= -1 and each.high <= 1 for each in regrets)
        (line,) = (each for each in text.splitlines() if each.startswith("| ") and name in each and "scenario" in each)
        means = sorted(each.mean for each in regrets)
        assert f"| {means[0]:.1f} to {means[-1]:.1f} | {within} scenario" in line
        outside = sum(each.low > 1 for each in regrets)
        assert (f"outside in {outside}" in line) == (label == "transfer")
    by_name = {each.name: each for each in found}
    assert f"{by_name['paper'].regret(by_name['paper'].by_transfer).mean:.1f} points in the paper's scenario" in text
    assert f"and {by_name['fashion'].regret(by_name['fashion'].by_transfer).mean:.1f} on Fashion-MNIST" in text
    assert by_name["paper"].regret(by_name["paper"].by_bound).low < 0
    (verdict,) = regret.check_prediction(rows)
    assert not verdict.passed
    assert "over all 100 points 2.31, over the 86 with more than 60% expected 1.67" in verdict.remark
    table = data_frame(rows).query("label == 'accuracy'")
    error = 100 * (table["accuracy"] - table["predicted"]).astype(float).abs()
    iid = error[table["partition"] == "iid"]
    assert (len(iid), f"{iid.mean():.1f}", f"{iid.max():.1f}") == (50, "1.3", "4.6")
    rest = error[table["partition"] != "iid"]
    assert (len(rest), f"{rest.mean():.1f}") == (10, "1.4")


@pytest.mark.slow
def test_from_the_command_to_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AIRFED_DEBUG", "1")
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    images = rng.normal(0.2 * labels[:, None, None], 0.1, (80, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    changes = {
        "learning.dataset": str(tmp_path / "tiny.npz"),
        "learning.model": "logistic",
        "learning.dimension": 4 * 4 * 4 + 4,
        "learning.partition": "iid",
        "learning.images": 60,
        "fleet.num_devices": 20,
        "link.noise_std": 0.05,
        "budget": {"epsilon": 50.0, "delta": 1e-3, "total_power": 1e4},
        "policy.surrogate": str(SHIPPED / "mnist-5k-logistic-4.json"),
        "policy.rounds": [10, 20],
        "policy.clip_norm": [1.0, 2.0],
        "run.threads": 1,
        "seed": [1],
    }
    load = points.load

    def smaller(path, *, quick=False):
        experiment = load(path, quick=quick)
        variants = tuple(
            dataclasses.replace(
                each,
                axes=replaced(each.axes),
                changes={key: changes[key] if key == "policy.surrogate" else v for key, v in each.changes.items()},
            )
            for each in experiment.variants
        )
        varied = {*experiment.axes, *(key for variant in variants for key in variant.axes)}
        base = experiment.base.vary({key: value for key, value in changes.items() if key not in varied})
        return dataclasses.replace(experiment, base=base, axes=replaced(experiment.axes), variants=variants)

    def replaced(axes):
        return {key: tuple(changes.get(key, values)) for key, values in axes.items()}

    monkeypatch.setattr(points, "load", smaller)
    page = tmp_path / "page.md"
    arguments = {"out": tmp_path / "out", "jobs": 1, "docs": page}
    assert main("regret", "prediction", **arguments) == 0
    rows = reproduction.kept(page, ["regret"])["regret"]
    assert len(rows) == 6 * (4 + 3)
    assert all(each["predicted"] is not None for each in rows)  # the bound's plan was rows, too
    assert len(regret.scenarios(rows)) == 6
    text = page.read_text(encoding="utf-8")
    assert text == reproduction.again(page)
    capsys.readouterr()
    assert main("regret", "prediction", **arguments) == 0  # nothing is left to run
    assert "comparisons pass" in capsys.readouterr().out
