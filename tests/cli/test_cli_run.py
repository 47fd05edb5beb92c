"""airfed run: its output, its overrides, and one sentence for every mistake."""

import json
import os
import re
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from airfed.cli.app import main
from airfed.privacy.ledger import Ledger
from airfed.training.loop import federated_averaging

SCENARIO = Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(SCENARIO)
    return tmp_path


def airfed(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_shows_plan_progress_and_summary(place, capsys):
    code, out, err = airfed(capsys, "run", "tiny.toml", "--out", "run")
    assert code == 0
    assert err == ""
    for words in (
        "Schedule 3 of 6 devices",
        "Bound on the optimality gap",
        "simulated",
        "finished after 4 of 4 rounds",
    ):
        assert words in out
    for words in ("W transmitted", "W planned", "per round", "in total", "δ = 0.001", "record: run"):
        assert words in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_is_one_object_and_nothing_else(place, capsys):
    code, out, err = airfed(capsys, "run", "tiny.toml", "--out", "run", "--json")
    assert code == 0
    summary = json.loads(out, parse_constant=pytest.fail)
    assert summary["status"] == "finished"
    assert summary["rounds"] == summary["rounds_planned"] == 4
    assert summary["num_scheduled"] == 3
    assert summary["power_transmitted"] <= summary["power_planned"]
    assert summary["epsilon_total"] > summary["epsilon_round"] > 0
    assert "Schedule 3 of 6" in err  # what people read goes elsewhere


def resolved(run):
    return tomllib.loads((run / "scenario.toml").read_text()), json.loads((run / "plan.json").read_text())


def test_policy_seed_and_rounds_override_the_file(place, capsys):
    assert airfed(capsys, "run", "tiny.toml", "--out", "a", "--policy", "full", "--rounds", 6, "--seed", 11)[0] == 0
    tables, plan = resolved(place / "a")
    assert tables["seed"] == 11
    assert (tables["policy"]["name"], tables["policy"]["rounds"]) == ("full", 6)
    assert plan["policy"] == "full"
    assert plan["rounds"] == 6
    assert plan["num_scheduled"] == 6
    airfed(capsys, "run", "tiny.toml", "--out", "b")
    tables, plan = resolved(place / "b")
    assert tables["seed"] == 3
    assert {**tables["policy"], "name": "uniform", "size": 3, "rounds": 4} == tables["policy"]
    # the resolved file alone repeats the run
    airfed(capsys, "run", "b/scenario.toml", "--out", "c")
    assert (place / "c" / "model.safetensors").read_bytes() == (place / "b" / "model.safetensors").read_bytes()


def test_an_interrupted_command_is_resumed_with_the_same_overrides(place, capsys):
    arguments = ("run", "tiny.toml", "--out", "a", "--seed", 4)
    airfed(capsys, *arguments)
    code, _, err = airfed(capsys, "run", "tiny.toml", "--out", "a", "--resume")
    assert code == 2
    assert "Cannot resume a: the scenario (seed) changed" in err
    code, out, _ = airfed(capsys, *arguments, "--resume")
    assert code == 0
    assert "all rounds are finished" in out
    (place / "a" / "model.safetensors").unlink()
    for path in sorted((place / "a" / "checkpoints").iterdir())[1:]:
        path.unlink()
    code, out, _ = airfed(capsys, *arguments, "--resume")
    assert code == 0
    assert re.search(r"resuming at round [234]\n", out)  # a person counts from 1


def test_an_interrupted_run_counts_power_and_epsilon_over_the_same_rounds(place, capsys, monkeypatch):
    asked = iter([False] * 2)  # one question a round
    monkeypatch.setattr("airfed.training.execution.federated_averaging", partial(stopping, asked))
    out = airfed(capsys, "run", "tiny.toml", "--out", "run", "--json")[1]
    summary = json.loads(out)
    assert (summary["status"], summary["rounds"], summary["charged"]) == ("stopped", 2, 3)
    ledger = Ledger.load(place / "run" / "ledger.jsonl")
    assert summary["power_planned"] == ledger.power_planned == pytest.approx(3 * ledger.charges[0].power_planned)
    assert summary["epsilon_total"] == ledger.epsilon_total
    monkeypatch.undo()
    monkeypatch.chdir(place)
    code, out, _ = airfed(capsys, "run", "tiny.toml", "--out", "run", "--resume")
    assert code == 0
    assert "charged" not in out


def stopping(asked, *given, **named):
    named["stop"] = lambda: next(asked, True)
    return federated_averaging(*given, **named)


def test_names_with_brackets_are_shown_as_they_are(place, capsys):
    (place / "tiny.toml").write_text(SCENARIO.replace('"tiny"', '"[red]x[/] [b"'))
    code, out, _ = airfed(capsys, "run", "tiny.toml", "--out", "a[bold]b[/]")
    assert code == 0
    assert "record: a[bold]b[/]" in out
    assert "[red]x[/] [b" in out


def sentence(err, *words):
    assert err.startswith("airfed: ")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "tiny.toml"), ("--out",)),
        (("run", "--out", "run"), ("FILE",)),
        (("run", "none.toml", "--out", "run"), ("none.toml", "no such file")),
        (("run", ".", "--out", "run"), ("folder",)),
        (("run", "tiny.toml", "--out", "run", "--resume"), ("There is no run to resume in run.",)),
        (("run", "tiny.toml", "--out", "tiny.toml"), ("tiny.toml is a file, not a directory",)),
        (("run", "tiny.toml", "--out", "tiny.toml/run"), ("Cannot write to tiny.toml/run",)),
        (("run", "tiny.toml", "--out", "."), (". is neither empty nor a run: it contains 'tiny.toml'",)),
        (("run", "tiny.toml", "--out", "/proc/airfed"), ("Cannot write to /proc/airfed",)),
        (("run", "tiny.toml", "--out", "run", "--policy", "best"), ("policy", "best")),
        (("run", "tiny.toml", "--out", "run", "--rounds", "0"), ("rounds",)),
        (("run", "tiny.toml", "--out", "run", "--rounds", "13"), ("rounds",)),
        (("run", "tiny.toml", "--out", "run", "--seed", "-1"), ("seed",)),
        (("run", "tiny.toml", "--out", "run", "--seed", "x"), ("seed",)),
        (("run", "tiny.toml", "--out", "run", "--fast"), ("--fast",)),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(place, capsys, arguments, words):
    code, out, err = airfed(capsys, *arguments)
    assert code == 2
    assert out == ""
    sentence(err, *words)
    assert (place / "tiny.toml").read_text() == SCENARIO


def test_a_second_run_in_the_same_place_is_refused(place, capsys):
    airfed(capsys, "run", "tiny.toml", "--out", "run")
    code, _, err = airfed(capsys, "run", "tiny.toml", "--out", "run")
    assert code == 2
    sentence(err, "run already contains a run", "--resume")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(place, capsys):
    (place / "closed").mkdir(mode=0o500)
    code, _, err = airfed(capsys, "run", "tiny.toml", "--out", "closed/run")
    assert code == 2
    sentence(err, "Cannot write to closed/run: Permission denied")


def test_a_data_set_that_was_not_fetched_says_how_to_get_it(place, capsys, monkeypatch):
    monkeypatch.setenv("AIRFED_DATA", str(place / "nothing"))
    text = SCENARIO.replace('"quadratic"', '"logistic"\ndataset = "mnist"').replace("dimension = 50\n", "")
    (place / "mnist.toml").write_text(text)
    code, _, err = airfed(capsys, "run", "mnist.toml", "--out", "run")
    assert code == 2
    sentence(err, "airfed data fetch mnist")
    # and once it is there, the same command works: nothing is in its way
    (place / "mnist.toml").write_text(SCENARIO)
    assert airfed(capsys, "run", "mnist.toml", "--out", "run")[0] == 0


def test_no_feasible_plan_is_exit_code_3(place, capsys):
    text = SCENARIO.replace(
        'model = "rayleigh"\nminimum = 0.3', 'model = "fixed"\ngains = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]'
    )
    (place / "unreachable.toml").write_text(text)
    code, _, err = airfed(capsys, "run", "unreachable.toml", "--out", "run")
    assert code == 3
    sentence(err)


def test_divergence_is_reported_with_exit_code_2(place, capsys):
    (place / "wild.toml").write_text(SCENARIO.replace("learning_rate = 0.1", "learning_rate = 1e30"))
    code, out, _ = airfed(capsys, "run", "wild.toml", "--out", "run")
    assert code == 2
    assert "diverged after" in out
    assert "Round " in out
    assert (place / "run" / "model.safetensors").exists()


USER = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Tanh(), nn.Linear(4, 3))
"""


@pytest.fixture
def own(place):
    """A scenario in a folder of its own, with its data, its model and a helper of that beside it."""
    folder = place / "scenario"
    folder.mkdir()
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 255, (60, 6, 6)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(60) % 3
    np.savez(folder / "data.npz", **arrays)
    (folder / "own_cli_model.py").write_text("import own_cli_helper\n" + USER)
    (folder / "own_cli_helper.py").touch()
    text = SCENARIO.replace('"quadratic"', '"own_cli_model:make"\ndataset = "data.npz"').replace("dimension = 50\n", "")
    (folder / "own.toml").write_text(text)
    yield folder / "own.toml"
    for name in ("own_cli_model", "own_cli_helper"):
        sys.modules.pop(name, None)


def test_a_users_own_model_from_plan_to_model_file(own, place, capsys):
    assert json.loads(airfed(capsys, "plan", own, "--json")[1])["dimension"] == 163
    assert json.loads(airfed(capsys, "compare", own, "--json")[1])["policies"]["full"]["dimension"] == 163
    code, out, _ = airfed(capsys, "run", own, "--out", "run", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] is not None
    # what is recorded means the same from anywhere, to the bit
    recorded = tomllib.loads((place / "run" / "scenario.toml").read_text())["learning"]
    assert recorded["model"] == f"{own.parent}/own_cli_model:make"
    code, _, _ = airfed(capsys, "run", "run/scenario.toml", "--out", "again", "--json")
    assert code == 0
    model = "model.safetensors"
    assert (place / "again" / model).read_bytes() == (place / "run" / model).read_bytes()
    assert airfed(capsys, "audit", own, "--trials", 1000)[0] == 0


def test_mistakes_with_own_models_and_data_are_one_sentence_each(own, place, capsys):
    text = own.read_text()

    def said(*change, command=("plan",)):
        assert change[0] in text
        own.write_text(text.replace(*change))
        code, out, err = airfed(capsys, command[0], own, *command[1:])
        assert (code, out) == (2, "")
        sentence(err)
        own.write_text(text)
        return err

    run = ("run", "--out", "other")
    for command in (("plan",), ("compare",), run):
        err = said("own_cli_model:make", "own_cli_modle:make", command=command)
        assert f"no module 'own_cli_modle' in {own.parent} or in {place}, nor is it installed" in err
        assert "must be a callable" in said("own_cli_model:make", "own_cli_model:absent", command=command)
        assert "did you mean 'own_cli_model:make'" in said("cli_model:make", "cli_model.make", command=command)
        assert "did you mean 'own_cli_model:make'" in said("cli_model:make", "cli_model.py:make", command=command)
    for command in (("plan",), ("compare",), run):
        err = said('own_cli_model:make"\ndataset = "data.npz"', 'mlp"\ndataset = "mnst"', command=command)
        assert "learning.dataset must be one of mnist-5k, mnist, fashion-mnist, cifar-10, a folder" in err
        assert f"no such file in {own.parent} (did you mean 'mnist'?)" in err
    assert "learning.dimension must be 163" in said("total_steps", "dimension = 99\ntotal_steps", command=run)
    assert not (place / "other").exists()


def test_the_size_of_a_built_in_model_follows_the_users_data(own, capsys):
    text = own.read_text()
    own.write_text(text.replace("own_cli_model:make", "mlp"))
    assert json.loads(airfed(capsys, "plan", own, "--json")[1])["dimension"] == 36 * 64 + 64 + 64 * 3 + 3
    own.write_text(text.replace("own_cli_model:make", "cnn"))
    code, _, err = airfed(capsys, "plan", own)
    assert code == 2
    sentence(err, "Images of 6×6 are too small")
    (own.parent / "data.npz").write_bytes(b"rubbish")
    code, _, err = airfed(capsys, "plan", own)
    assert code == 2
    sentence(err, "data.npz")


def test_a_device_that_is_not_there_is_one_sentence(place, own, capsys):
    text = own.read_text()
    own.write_text(text + '[run]\ndevice = "hpu:7"\n')
    code, _, err = airfed(capsys, "run", own, "--out", "run")
    assert code == 2
    sentence(err, "run.device must be available to torch on this machine (cpu), got 'hpu:7'.")
    own.write_text(text + '[run]\ndevice = "cpu"\n')
    assert airfed(capsys, "run", own, "--out", "run")[0] == 0
    (place / "tiny.toml").write_text(SCENARIO + '[run]\ndevice = "cuda"\n')
    code, _, err = airfed(capsys, "run", "tiny.toml", "--out", "quadratic")
    assert code == 2
    sentence(err, "run.device to 'auto'")


def test_a_poor_training_is_diagnosed(place, capsys):
    text = SCENARIO.replace('"quadratic"\ndimension = 50', '"logistic"').replace("clip_norm = 40.0", "clip_norm = 1e-6")
    (place / "poor.toml").write_text(text)
    code, out, _ = airfed(capsys, "run", "poor.toml", "--out", "poor")
    assert code == 0
    assert "hint: The accuracy, 10.0%, is at chance level for 10 classes." in out or "hint: The loss hardly" in out
    assert "hint: Every update was clipped" in out
    code, out, _ = airfed(capsys, "run", "poor.toml", "--out", "again", "--json")
    assert len(json.loads(out)["hints"]) in (2, 3)
