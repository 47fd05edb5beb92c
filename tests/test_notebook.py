"""The API of a notebook: load, plan, run, plot, compare."""

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import airfed
from airfed import scenario
from airfed.training.directory import RunError

TINY = tomllib.loads(Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    full = {"policy.name": "full", "policy.size": None}
    path.write_text(scenario.parse(TINY).override({"link.noise_std": 0.5, **full}).to_toml())
    return path


def test_from_a_file_to_a_report(file, tmp_path, capsys):
    loaded = airfed.load(file)
    plan = airfed.plan(loaded)
    assert "Schedule" in str(plan)
    assert max(map(len, str(plan).splitlines())) <= 80
    assert plan._repr_html_().count("<table") >= 1
    assert plan.plot().axes

    run = airfed.run(loaded, tmp_path / "run")
    assert "round" in capsys.readouterr().out  # the live line
    assert isinstance(run, airfed.Run)
    assert run.rounds["loss"].shape == (4,)
    assert np.isfinite(run.rounds["loss"]).all()
    assert run.ledger.epsilon_total == run.rounds[-1]["epsilon_total"]
    assert "finished after 4 of 4 rounds" in str(run)
    assert "tiny" in run._repr_html_()
    assert run.plot().axes
    assert run.report(tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run.audit(trials=500).verdict == "pass"

    again = airfed.Run.open(tmp_path / "run")
    assert again.plan.to_dict() == run.plan.to_dict()
    assert airfed.run(file, tmp_path / "run", resume=True, progress=False).finished
    with pytest.raises(RunError, match="already contains a run"):
        airfed.run(file, tmp_path / "run", progress=False)


def test_runs_side_by_side(file, tmp_path):
    loaded = airfed.load(file)
    runs = [
        airfed.run(loaded.override({"policy.name": name}), tmp_path / name, progress=False)
        for name in ("full", "top_k")
    ]
    both = airfed.compare([runs[0], tmp_path / "top_k"])
    assert [row["devices"] for row in both.rows()] == [6, 3]
    assert [row["epsilon_total"] for row in both.rows()] == [run.ledger.epsilon_total for run in runs]
    assert "top_k" in str(both)
    assert both._repr_html_().count("<table") == 1
    assert both.plot().axes
    with pytest.raises(ValueError, match="at least one"):
        airfed.compare([])
    metrics = tmp_path / "full" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"round": 3', '"round": 7'))
    with pytest.raises(ValueError, match="round 8"):
        airfed.compare([tmp_path / "full"])


def test_pandas_is_used_where_it_is(file, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = airfed.run(file, tmp_path / "run", progress=False).rounds.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["round"]) == [0, 1, 2, 3]


def test_every_public_name_is_there_and_documented():
    for name in airfed.__all__:
        value = getattr(airfed, name)
        assert value.__doc__, name
    assert set(airfed.__all__) <= set(dir(airfed))
    with pytest.raises(AttributeError):
        airfed.nothing  # noqa: B018


def test_the_import_is_light_and_free_of_torch():
    heavy = "('torch', 'numba', 'flwr', 'matplotlib')"
    names = "airfed.plan, airfed.load, airfed.benchmark"
    script = f"import sys, airfed; {names}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
