"""The maps of `airfed frontier`: their points are the plans of the scenario, and the files say the same."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import airfed
from airfed.cli import main
from airfed.experiments import frontier as maps
from airfed.keys import ScenarioError
from airfed.planning import converse
from airfed.plotting import series as numbers
from airfed.plotting.figure import Figure
from airfed.plotting.series import EPSILON, EPSILONS, POWER

PRIVATE = {"fleet.num_devices": 60, "link.noise_std": 0.1}


@pytest.fixture(scope="module")
def private():
    """Expected accuracies, as in examples/private.toml with fewer devices."""
    return airfed.load("examples/private.toml").override(PRIVATE | {"learning.images": 240})


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(numbers, "EPSILONS", EPSILONS[4:7])
    monkeypatch.setattr(numbers, "FACTORS", (0.25, 1.0))


def test_each_point_is_the_plan_of_the_changed_scenario(private, few):
    found = numbers.frontier(private)
    assert found.by_accuracy
    assert [point.value for point in found.along(EPSILON)] == [2.0, 2.828, 4.0]
    assert [point.value for point in found.along(POWER)] == [250.0, 1000.0]
    for point in found.points:
        changed = private.override({point.budget: point.value})
        plan = changed.plan()
        expected = (plan.predicted_accuracy, plan.prediction.low, plan.prediction.high)
        assert (point.accuracy, point.low, point.high) == expected
        assert (point.rounds, point.noise_share, point.noise_floor) == (plan.rounds, plan.noise_share, plan.noise_floor)
        assert point.highest == converse.highest_accuracy(changed.problem(), private.surrogate)
        assert point.accuracy <= point.highest + 1e-12
    assert found.points[0].accuracy < found.points[2].accuracy


def test_the_values_are_those_that_the_docs_name():
    assert EPSILONS == (0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0, 5.657, 8.0, 11.31, 16.0)
    assert (numbers.FACTORS[0], numbers.FACTORS[-1]) == (1 / 16, 16.0)
    assert maps._CHECKED == (0.5, 1.0, 2.0, 4.0, 8.0)


def test_a_budget_without_a_plan_has_a_reason(private, few, tmp_path):
    found = numbers.frontier(private.override({"link.noise_std": 1e4}))
    assert all("noise per coordinate" in point.reason for point in found.points)
    assert all(point.highest < 0.5 and point.accuracy is None for point in found.points)
    assert maps.remarks(found, "x.toml")[-1].startswith(
        "5 points without a plan. privacy budget ε, in total = 2: No plan"
    )
    maps.write(found, tmp_path)  # a picture without a line


def test_a_scenario_without_any_plan_is_infeasible(few, tmp_path, capsys):
    file = tmp_path / "none.toml"
    file.write_text(airfed.load("tests/tiny.toml").override({"budget.epsilon": 1e-9, "link.noise_std": 1e90}).to_toml())
    assert main(["frontier", str(file), "--out", str(tmp_path / "maps")]) == 3
    assert "No plan fits" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()


def test_noise_below_the_floor_is_explained(few):
    outside = numbers.frontier(
        airfed.load("tests/tiny.toml").vary({"policy.name": "dp_fedavg", "budget.total_power": 1e-3})
    )
    assert maps.remarks(outside, "x.toml")[-1].startswith("Noise below the floor: the plan breaks a limit")
    inside = numbers.frontier(airfed.load("tests/tiny.toml"))
    assert not any("below" in line for line in maps.remarks(inside, "x.toml"))


def test_energy_takes_the_place_of_power_where_a_bandwidth_is_known(private, few):
    found = numbers.frontier(private.override({"link.bandwidth": 1e6}))
    assert found.axis(POWER) == ("total energy [J]", 1e-6)
    assert found.axis(EPSILON) == ("privacy budget ε, in total", 1.0)
    column = maps.table(found).columns[1]
    assert list(column.cells)[-1] == "0.001"


def test_the_drawing_has_the_numbers(private, few):
    found = numbers.frontier(private)
    trained = replace(found, points=(replace(found.points[0], trained=0.7), *found.points[1:]))
    axes = Figure().subplots()
    maps.plot_frontier(axes, trained, EPSILON)
    highest, plan, dots, _ = (line.get_ydata() for line in axes.lines)
    assert np.allclose(highest, [point.highest for point in found.along(EPSILON)])
    assert np.allclose(plan, [point.accuracy for point in found.along(EPSILON)])
    assert (dots[0], math.isnan(dots[1])) == (0.7, True)
    assert axes.lines[-1].get_xdata()[0] == 2.0
    noise = numbers.frontier(airfed.load("tests/tiny.toml"))
    noise = replace(noise, points=(replace(noise.points[0], trained=0.7), *noise.points[1:]))
    other = Figure().subplots()
    maps.plot_frontier(other, noise, EPSILON)
    assert np.allclose(other.lines[0].get_ydata(), [point.noise_floor for point in noise.along(EPSILON)])
    assert len(other.lines) == 3  # an accuracy is not on the axis of noise
    assert other.get_ylim()[0] < min(point.noise_floor for point in noise.points)
    low, high = axes.get_ylim()
    assert (low, high, axes.get_xlabel()) == (0, 1, "privacy budget ε, in total")


def test_the_command_writes_and_prints_the_maps(few, tmp_path, capsys):
    file, out = tmp_path / "one.toml", tmp_path / "maps"
    file.write_text(airfed.load("tests/tiny.toml").override({"learning.model": "quadratic"}).to_toml())
    assert main(["frontier", str(file), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [path.name for path in sorted(out.iterdir())] == [
        f"frontier.{ending}" for ending in ("csv", "pdf", "png", "tex", "txt")
    ]
    assert sorted(printed["files"]) == sorted(map(str, out.iterdir()))
    table = pd.read_csv(out / "frontier.csv")
    assert table["noise_floor"].tolist() == [point["noise_floor"] for point in printed["points"]]
    assert (table["noise_share"] >= table["noise_floor"]).all()
    assert table["accuracy"].isna().all()
    assert r"$\varepsilon$ & 2 &" in (out / "frontier.tex").read_text(encoding="utf-8")
    assert "no accuracy surrogate fits" in (out / "frontier.txt").read_text(encoding="utf-8")
    assert main(["frontier", str(file), "--out", str(out), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| budget ")


def test_without_a_surrogate_the_command_names_the_pilot_runs(few, tmp_path, capsys):
    file = tmp_path / "paper.toml"
    file.write_text(airfed.load("examples/paper.toml").override({"learning.total_steps": 30}).to_toml())
    assert main(["frontier", str(file), "--out", str(tmp_path / "maps")]) == 0
    shown = "".join(capsys.readouterr().out.split())  # a long path is broken over lines
    hint = f"so the maps show noise. To fit a surrogate, run airfed pilot {file} --data PROXY --out FILE."
    assert hint.replace(" ", "") in shown


def test_check_trains_at_five_points(few, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(maps, "_CHECKED", (2.0, 4.0))
    changes = {"learning.model": "logistic", "learning.dataset": "mnist-5k", "learning.dimension": None}
    changes |= {"learning.clip_norm": 1.0, "run.threads": 1, "policy.rounds": 2, "learning.total_steps": 2}
    scenario = airfed.load("tests/tiny.toml").override(changes)
    file, out = tmp_path / "one.toml", tmp_path / "maps"
    file.write_text(scenario.to_toml())
    arguments = ["frontier", str(file), "--out", str(out), "--check", "--jobs", "1", "--json"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["points"]
    trained = {row["value"]: row["trained"] for row in rows if row["budget"] == EPSILON}
    assert trained[2.828] is None
    runs = {run.plan.problem.budget.epsilon: run for run in map(airfed.Run.open, (out / "runs").iterdir())}
    assert {epsilon: runs[epsilon].accuracy for epsilon in (2.0, 4.0)} == {each: trained[each] for each in (2.0, 4.0)}
    assert all(row["trained"] is None for row in rows if row["budget"] == POWER)


def test_check_refuses_a_shared_ledger_and_a_task_without_accuracy(tmp_path):
    scenario = airfed.load("tests/tiny.toml").override(
        {"budget.scope": "total", "budget.shared_ledger": str(tmp_path / "shared.jsonl")}
    )
    with pytest.raises(ScenarioError, match="--check needs a task with a test accuracy; "):
        maps.check_points(airfed.load("tests/tiny.toml"))
    with pytest.raises(ScenarioError, match=r"--check needs a scenario without budget\.shared_ledger"):
        maps.check_points(scenario)


def test_a_folder_that_cannot_be_written_is_one_sentence(few, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["frontier", "tests/tiny.toml", "--out", str(tmp_path / "file")]) == 2
    assert "Cannot write the maps to" in capsys.readouterr().err
