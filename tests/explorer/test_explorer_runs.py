"""Run directories below the root are listed, no others; a damaged run does not affect the rest."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airfed import scenario
from airfed.explorer import runs_tab
from airfed.explorer.design import Design, ScenarioError, resume_command
from airfed.explorer.runs_tab import RunsView
from airfed.privacy.ledger import Ledger
from airfed.text.phrases import number
from airfed.training.directory import RunDirectory
from airfed.training.execution import execute

EVIL = '<img src="x" onerror="alert(1)">'
TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
MADE = {
    "name": "made",
    "seed": 0,
    "fleet.num_devices": 4,
    "learning.total_steps": 6,
    "policy.name": "full",
    "policy.size": None,
    "policy.rounds": 5,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after three of five rounds."""
    folder = tmp_path_factory.mktemp("made") / "run"
    rounds: list[object] = []
    execute(scenario.parse(TINY).override(MADE), folder, on_round=rounds.append, stop=lambda: len(rounds) >= 3)
    return folder


@pytest.fixture
def make_run(made: Path) -> Callable[[Path], RunDirectory]:
    return lambda folder: RunDirectory(Path(shutil.copytree(made, folder)))


MakeRun = Callable[[Path], RunDirectory]


def read(root: Path, *selected: str) -> RunsView:
    runs = runs_tab.read(root, selected or None, None)
    assert runs is not None
    return runs


def test_runs_are_found_below_the_root_and_read(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "sweep" / "b")
    make_run(tmp_path / ".hidden")
    (tmp_path / "empty").mkdir()
    assert {entry.name: entry.text for entry in read(tmp_path).entries} == {
        "a": "full · 3 of 5 rounds · stopped",
        "sweep/b": "full · 3 of 5 rounds · stopped",
    }
    assert read(tmp_path / "none").entries == []


def test_spent_budgets_are_read_from_the_ledger(tmp_path: Path, make_run: MakeRun) -> None:
    directory = make_run(tmp_path / "a")
    ledger = Ledger.load(directory.file("ledger.jsonl"))
    once = ledger.charges[-1]
    figures = {"devices": once.devices, "alignment": once.alignment, "mu": once.mu, "power": once.power_planned}
    ledger.charge(3, **figures)  # it was killed in round 4, which has no metrics
    runs = read(tmp_path)
    assert runs.entries[0].text == "full · 3 of 5 rounds · stopped"
    (row,) = runs.cards[1].rows
    assert (row["charges"], row["ε in total"]) == ("4", number(ledger.epsilon_total, 4))
    assert row["W planned"] == number(4 * once.power_planned, 4)
    assert row["ε at"].endswith("replace-one adjacency")
    charts = {options["yAxis"]["name"]: options for options in runs.cards[0].charts}
    spent, power = charts["exact ε in total so far"], charts["power planned so far [W]"]
    assert spent["xAxis"]["name"] == "rounds charged"
    drawn = [np.array(options["series"][0]["data"])[:, 1] for options in (spent, power)]
    assert drawn[0].tolist() == [charge.epsilon_total for charge in ledger.charges]
    assert drawn[1] == pytest.approx(once.power_planned * np.arange(1, 5))


@pytest.mark.parametrize("name", ["..", "../outside", "a/../../outside", "/etc", "", ".", "link", "none"])
def test_no_name_leads_out_of_the_root(tmp_path: Path, make_run: MakeRun, name: str) -> None:
    root = tmp_path / "root"
    make_run(root / "a")
    make_run(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    runs = read(root, name)
    assert [entry.name for entry in runs.entries] == ["a"]
    assert (runs.names, runs.cards) == ([], [])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_an_unreadable_folder_is_listed_as_bad(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, error: OSError, depth: int
) -> None:
    make_run(tmp_path / "a")
    closed = tmp_path.joinpath(*["inner"] * (depth - 1), "closed")
    closed.mkdir(parents=True)
    _break_listing(monkeypatch, closed, error)
    name = closed.relative_to(tmp_path).as_posix()
    good, bad = read(tmp_path).entries
    assert (good.name, good.state, bad.name, bad.state) == ("a", "stopped", name, "bad")
    assert str(error.strerror) in bad.text


def test_a_folder_that_disappears_is_not_listed(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "gone").mkdir()
    _break_listing(monkeypatch, tmp_path / "gone", FileNotFoundError(2, "No such file or directory"))
    assert [entry.name for entry in read(tmp_path).entries] == ["a"]


def test_an_unreadable_root_is_listed_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _break_listing(monkeypatch, tmp_path, PermissionError(13, "Permission denied"))
    (entry,) = read(tmp_path).entries
    assert entry.state == "bad"
    assert "Permission denied" in entry.text


def _break_listing(monkeypatch: pytest.MonkeyPatch, folder: Path, error: OSError) -> None:
    for name, real in (("listdir", os.listdir), ("scandir", os.scandir)):  # os.walk asks the latter

        def listed(path: Any = ".", real: Any = real) -> Any:
            if Path(path) == folder:
                raise OSError(error.errno, error.strerror, str(path))
            return real(path)

        monkeypatch.setattr(os, name, listed)


def test_the_list_shows_the_state_of_a_run_and_whether_it_can_be_resumed(tmp_path: Path, make_run: MakeRun) -> None:
    directory = make_run(tmp_path / "a")
    runs = read(tmp_path)
    (entry,) = runs.entries
    assert (entry.state, entry.resumable) == ("stopped", True)
    assert runs.names == ["a"]
    assert runs.cards[1].rows[0]["charges"] == "3"
    assert runs_tab.read(tmp_path, None, runs.seen) is None  # nothing has changed
    with directory.locked():  # some other program trains it
        (entry,) = read(tmp_path).entries
        assert (entry.state, entry.resumable) == ("training", False)
    execute(scenario.load(directory.file("scenario.toml")), directory.path, resume=True)
    (entry,) = read(tmp_path).entries
    assert (entry.state, entry.resumable) == ("done", False)


def ruin_json(name: str, value: object) -> Callable[[RunDirectory], None]:
    return lambda directory: directory.file(name).write_text(json.dumps(value))


def replace_by(make: Callable[[Path], object]) -> Callable[[RunDirectory], None]:
    def ruin(directory: RunDirectory) -> None:
        directory.file("plan.json").unlink()
        make(directory.file("plan.json"))

    return ruin


def append(line: str) -> Callable[[RunDirectory], None]:
    def ruin(directory: RunDirectory) -> None:
        with directory.file("metrics.jsonl").open("a") as stream:
            stream.write(line + "\n")

    return ruin


RUINS: dict[str, Callable[[RunDirectory], None]] = {
    "plan-list": ruin_json("plan.json", []),
    "plan-torn": lambda directory: directory.file("plan.json").write_text("{"),
    "plan-null": ruin_json("plan.json", None),
    "plan-markup": ruin_json("plan.json", {"rounds": EVIL, "num_scheduled": EVIL, "policy": EVIL}),
    "plan-deep": lambda directory: directory.file("plan.json").write_text("[" * 100_000),
    "plan-pipe": replace_by(os.mkfifo),
    "plan-folder": replace_by(Path.mkdir),
    "plan-link": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "plan-huge": replace_by(lambda path: (path.touch(), os.truncate(path, 10**10))),
    "run-markup": ruin_json("run.json", {"format": EVIL, "name": EVIL}),
    "metrics-5": append("5"),
    "metrics-null": append("null"),
    "metrics-empty": append("{}"),
    "metrics-markup": append(json.dumps({"round": EVIL, "accuracy": EVIL})),
    "metrics-infinite": append('{"round": Infinity, "accuracy": 1e400}'),
    "metrics-digits": append('{"round": ' + "9" * 5000 + "}"),
    "ledger-gone": lambda directory: directory.file("ledger.jsonl").unlink(),
    "ledger-markup": lambda directory: directory.file("ledger.jsonl").write_text(EVIL),
    "ledger-mu": lambda directory: directory.file("ledger.jsonl").write_text(
        directory.file("ledger.jsonl").read_text().replace('"mu": ', '"mu": 1', 1)
    ),
    "metrics-epsilon": lambda directory: directory.file("metrics.jsonl").write_text(
        re.sub('"epsilon_total": [0-9.]+', '"epsilon_total": 0.01', directory.file("metrics.jsonl").read_text())
    ),
    "scenario-deep": lambda directory: directory.file("scenario.toml").write_text("a = " + "[" * 100_000),
    "scenario-bytes": lambda directory: directory.file("scenario.toml").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("name", sorted(RUINS))
def test_a_damaged_run_is_listed_as_bad_and_does_not_affect_others(
    tmp_path: Path, make_run: MakeRun, name: str
) -> None:
    make_run(tmp_path / "good")
    RUINS[name](make_run(tmp_path / "bad"))
    runs = read(tmp_path, "bad", "good")
    entries = {entry.name: entry for entry in runs.entries}
    assert entries["bad"].state == "bad"
    assert entries["bad"].text
    assert entries["good"].state == "stopped"
    assert runs.names == ["good"]
    assert EVIL not in str(runs.cards)


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308, 1e308, 5e-324, 1e-310, 0.0, -0.0])
def test_extreme_values_do_not_affect_other_runs(tmp_path: Path, make_run: MakeRun, loss: float) -> None:
    make_run(tmp_path / "good")
    file = make_run(tmp_path / "odd").file("metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for sign, line in zip((1, -1, 1), lines, strict=True):
        line["loss"] = sign * loss
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = read(tmp_path, "odd", "good")
    assert [entry.state for entry in runs.entries] == ["stopped", "stopped"]
    curves = runs.cards[0].charts
    json.dumps(curves, allow_nan=False)
    assert "training loss" in [options["yAxis"]["name"] for options in curves]


def test_a_run_of_an_older_version_is_listed_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "run.json").write_text('{"format": 2}')
    (entry,) = read(tmp_path).entries
    assert (entry.state, entry.resumable) == ("bad", False)
    assert "written by airfed 0.2.0 or older" in entry.text


def test_the_command_that_resumes_a_run_quotes_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a; rm -rf $HOME `x` 'y'"
    words = ["airfed", "run", str(folder / "scenario.toml"), "--out", str(folder), "--resume"]
    assert shlex.split(resume_command(folder)) == words


@pytest.mark.parametrize("key", ["name", "learning.dataset", "channel.gains", "policy.options.x"])
def test_no_value_in_a_link_terminates_the_here_document(key: str) -> None:
    try:
        command = Design().change(key, "x\nEOF\ntouch evil\n").command("run")
    except ScenarioError:
        return
    _, *scenario_lines, end, last = command.strip().split("\n")
    assert (end, last) == ("EOF", "airfed run explored.toml")
    assert "EOF" not in scenario_lines


def test_the_command_that_trains_a_design_contains_its_scenario(tmp_path: Path) -> None:
    *_, last = Design().command("run", "--out", str(tmp_path / "my runs")).strip().split("\n")
    assert shlex.split(last) == ["airfed", "run", "explored.toml", "--out", str(tmp_path / "my runs")]
    with pytest.raises(ScenarioError):
        Design().change("learning.model", "os:system").command("run")
