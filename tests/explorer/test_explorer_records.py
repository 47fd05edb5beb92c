"""Run directories are found below their root, read as they are, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airfed.explorer.design import Design, ScenarioError
from airfed.explorer.pictures_runs import ledger_table
from airfed.explorer.records import Library
from airfed.explorer.trainer import Trainer, trained_world
from airfed.privacy.ledger import Ledger
from airfed.running.directory import RunDirectory, RunError


def make_run(folder: Path, rounds: int = 3) -> RunDirectory:
    directory = RunDirectory(folder)
    directory.begin(scenario="", plan={"rounds": 5, "policy": "optimal"}, manifest={"name": "made"})
    header = {"delta": 1e-3, "relation": "replace", "privacy": "simulated"}
    ledger = Ledger.create(directory.file("ledger.jsonl"), header)
    for index in range(rounds):
        ledger.charge(index, devices=2, alignment=0.1, mu=0.5, power=1.0)
        ledger.settle(index, 0.5)
        record = {"round": index, "accuracy": 0.2 * index, "loss": None, "power_transmitted": 0.5}
        directory.append_metrics(record)
    return directory


def test_runs_are_found_below_the_root_and_read(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "sweep" / "b")
    make_run(tmp_path / ".hidden")
    (tmp_path / "empty").mkdir()
    library = Library(tmp_path)
    assert set(library.names()) == {"a", "sweep/b"}
    record = library.read("sweep/b")
    assert (record.scenario, record.rounds_planned, record.finished, record.problem) == ("made", 5, False, "")
    assert record.series("accuracy") == ([1, 2, 3], [0.0, 0.2, 0.4])
    assert record.last("loss") is None
    assert Library(tmp_path / "none").names() == []


def test_the_ledger_is_verified(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "a")
    library = Library(tmp_path)
    spending = library.spending("a")
    assert spending.verified
    assert [charge.round_index for charge in spending.charges] == [0, 1, 2]
    assert "The chain of 3 charges holds" in ledger_table(spending)
    file = directory.file("ledger.jsonl")
    file.write_text(file.read_text().replace('"mu": 0.5', '"mu": 0.4', 1))
    spending = library.spending("a")
    assert not spending.verified
    assert "was changed" in spending.problem


@pytest.mark.parametrize("name", ["..", "../outside", "a/../../outside", "/etc", "", ".", "link", "none"])
def test_no_name_leads_out_of_the_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    make_run(root / "a")
    make_run(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    library = Library(root)
    assert library.names() == ["a"]
    for read in (library.path, library.read, library.spending):
        with pytest.raises(RunError):
            read(name)


def test_damage_is_told_not_raised(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "a")
    directory.file("plan.json").write_text("{")
    assert Library(tmp_path).read("a").problem
    directory.file("run.json").write_text(json.dumps({"format": 99}))
    assert "another version" in Library(tmp_path).read("a").problem


def test_the_button_trains_on_the_embedded_images_with_the_machines_own_settings() -> None:
    design = Design().change("learning.dataset", "mnist").change("run.threads", 4096)
    world = trained_world(design)
    assert (world.learning.dataset, world.run.threads) == ("mnist-5k", None)


def test_a_wrong_design_is_not_trained(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "runs")
    with pytest.raises(ScenarioError):
        trainer.start(Design().change("learning.model", "os:system"))
    assert not (tmp_path / "runs").exists()
    trainer.close()
