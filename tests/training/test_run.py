"""`Run.open` is the only reader of runs: every error is reported, and nothing wrong is accepted."""

import json
import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airfed import InfeasibleError, Plan, scenario
from airfed.aircomp import Superposition
from airfed.audit.audit import record_checks, subject_of
from airfed.cli.app import main
from airfed.learning.quadratic import QuadraticEngine
from airfed.planning.limits import allowed_mu
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.report import ReportError, read_run
from airfed.training.directory import RunDirectory, RunError, runs_below, sha256
from airfed.training.execution import execute
from airfed.training.formats import FORMAT
from airfed.training.recorder import RunRecorder
from airfed.training.run import Run
from airfed.training.setup import PROBE_ROUND

TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))


def make_scenario(**changes):
    learning = {"learning.dimension": 20, "learning.total_steps": 8}
    policy = {"policy.name": "full", "policy.size": None}
    return scenario.parse(TINY).override({"seed": 0, **learning, **policy, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    execute(make_scenario(), out)
    return out


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_line(file, number, change):
    lines = file.read_text().splitlines()
    entry = json.loads(lines[number])
    change(entry)
    lines[number] = json.dumps(entry)
    file.write_text("\n".join(lines) + "\n")


def test_an_intact_run_is_read_as_written(run):
    found = Run.open(run).checked()
    assert found.problem == ""
    assert (found.name, found.finished, found.running, found.checkpoint) == ("tiny", True, False, 4)
    assert found.plan.to_dict() == json.loads((run / "plan.json").read_text())
    assert found.rounds["loss"].shape == (4,)
    assert np.isnan(found.rounds["accuracy"]).all()
    assert found.accuracy is None
    assert found.rounds[-1] == found.final == json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert found.ledger.epsilon_total == found.final["epsilon_total"]
    assert [row["device"] for row in found.devices] == list(range(6))
    assert found.steps == [2, 4, 6, 8]
    with pytest.raises(KeyError, match="accuracy"):
        found.rounds["accurracy"]


def test_a_plan_comes_back_without_being_solved_again(run, monkeypatch):
    found = Run.open(run)
    monkeypatch.setattr("airfed.planning.policy.completed", None)
    recorded = json.loads((run / "plan.json").read_text())
    assert Plan.from_dict(found.plan.problem, recorded).to_dict() == recorded
    for name in ("mu_round", "epsilon_total", "power_total"):
        with pytest.raises(ValueError, match=name):
            Plan.from_dict(found.plan.problem, {**recorded, name: recorded[name] * 1.001})


@pytest.mark.parametrize("form", [1, 2, FORMAT + 1])
def test_a_run_of_another_version_is_refused_everywhere_in_one_sentence(run, form, capsys):
    edit(run / "run.json", lambda manifest: manifest.update(format=form))
    (run / "scenario.toml").write_text("of = 'another version'")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    version = "airfed 0.2.0 or older" if form < FORMAT else "a later version of airfed"
    sentence = f"The run in {run} was written by {version}. Use that version to read it."
    found = Run.open(run)
    assert [str(error) for error in found.errors] == [sentence]
    assert str(found) == f"{run}: {sentence}"
    for part in ("manifest", "scenario", "figures", "plan", "ledger"):
        with pytest.raises(RunError, match="Use that version to read it"):
            getattr(found, part)
    with pytest.raises(RunError, match="Use that version to read it"):
        execute(make_scenario(), run, resume=True)
    for command in (["ledger"], ["audit"], ["report", "--out", str(run.parent / "r.html")]):
        assert main([command[0], str(run), *command[1:]]) == 2
        printed = capsys.readouterr().err
        assert printed.endswith(f"{sentence}\n")
        assert printed.count("\n") == 1
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("changes", [{"clip_norm": 3.0}, {"alignment_coefficient": 3.0}, {"num_scheduled": 1}], ids=str)
@pytest.mark.parametrize("objective", ["bound", "accuracy"])
def test_a_plan_with_another_clip_norm_or_size_does_not_come_back(run, objective, changes):
    found = Run.open(run).plan
    with pytest.raises(ValueError, match="which the plan implies; got"):
        Plan.from_dict(found.problem, {**found.to_dict(), "objective": objective, **changes})


@pytest.mark.parametrize("changes", [{"predicted_accuracy": 5.0}, {"predicted_interval": [0.5]}], ids=str)
def test_a_forecast_is_a_share_and_an_interval(run, changes):
    edit(run / "plan.json", lambda plan: plan.update(changes))
    with pytest.raises(RunError, match=r"plan\.json is damaged: predicted_"):
        RunDirectory(run).plan()


def test_runs_are_found_below_a_folder(run, tmp_path):
    for place in ("a/b/run", "a/b/c/too/deep", ".hidden/run"):
        shutil.copytree(run, tmp_path / "tree" / place)
    (tmp_path / "tree" / "link").symlink_to(run)
    assert runs_below(tmp_path / "tree") == [tmp_path / "tree" / "a" / "b" / "run"]
    assert runs_below(run) == runs_below(tmp_path / "none") == []


METRICS = [
    ("epsilon_total", 0.01),
    ("epsilon_round", 0.5),
    ("power_planned", 0.5),
    ("power_planned_total", 0.5),
    ("power_transmitted", 0.5),
    ("power_transmitted_total", 0.5),
]


@pytest.mark.parametrize(("name", "factor"), METRICS)
def test_metrics_that_say_something_else_than_the_ledger_are_noticed_everywhere(run, name, factor, capsys):
    edit_line(run / "metrics.jsonl", 3, lambda record: record.update({name: record[name] * factor}))
    with pytest.raises(LedgerError):
        Run.open(run).checked()
    with pytest.raises(ReportError):
        read_run(run)
    assert main(["ledger", str(run)]) == 4
    assert not all(check.passed for check in record_checks(subject_of(run), Run.open(run)))
    assert "Traceback" not in capsys.readouterr().err


def forged(run):
    """Write scenario.toml and plan.json of another budget, with matching digests in run.json."""
    other = run.parent / "other"
    execute(make_scenario(**{"budget.epsilon": 2.0}), other)
    for name in ("scenario.toml", "plan.json"):
        shutil.copy(other / name, run / name)
    digests = json.loads((other / "run.json").read_text())
    names = ("scenario_sha256", "plan_sha256", "signal")
    edit(run / "run.json", lambda manifest: manifest.update({name: digests[name] for name in names}))


def test_scenario_plan_and_manifest_edited_together_are_noticed(run, capsys):
    forged(run)
    with pytest.raises(LedgerError, match="was changed: its digest differs"):
        Run.open(run).checked()
    assert main(["ledger", str(run)]) == 4
    assert main(["audit", str(run), "--trials", "200"]) == 4
    assert main(["report", str(run), "--out", str(run.parent / "r.html")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_that_claims_secure_noise_falsely_is_detected(run):
    edit(run / "run.json", lambda manifest: manifest.update(privacy="secure"))
    with pytest.raises(LedgerError, match=r"run\.json"):
        Run.open(run).checked()
    assert subject_of(run).noise().privacy == "simulated"


@pytest.mark.parametrize("status", ["finished", "exhausted"])
@pytest.mark.parametrize("how", ["another run's", "one bit", "its line cut off"])
def test_another_model_under_this_runs_epsilon_is_noticed(tmp_path, monkeypatch, how, status, capsys):
    few = {} if status == "finished" else {"link.noise_source": "secure", "budget.total_power": 5e-5}
    run = tmp_path / "run"
    if few:
        with monkeypatch.context() as patch:
            patch.setattr(RunRecorder, "settle", lambda self, done: (_ for _ in ()).throw(Died))
            with pytest.raises(Died):
                execute(make_scenario(**few), run)
    assert execute(make_scenario(**few), run, resume=run.exists()).status == status
    model, ledger = run / "model.safetensors", run / "ledger.jsonl"
    assert json.loads(ledger.read_text().splitlines()[-1])["sha256"] == sha256(model.read_bytes())
    assert Run.open(run).checked().finished
    if how == "another run's":
        execute(make_scenario(seed=9), tmp_path / "other")
        shutil.copy(tmp_path / "other" / model.name, model)
    elif how == "one bit":
        content = bytearray(model.read_bytes())
        content[-1] ^= 1
        model.write_bytes(content)
    else:
        ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    sentence = (
        "digest of the model is missing" if how == "its line cut off" else "was changed or belongs to another run"
    )
    with pytest.raises(LedgerError, match=sentence):
        Run.open(run).checked()
    assert main(["ledger", str(run)]) == 4
    assert main(["report", str(run), "--out", str(tmp_path / "r.html")]) == 2
    with pytest.raises(LedgerError, match=sentence):
        execute(make_scenario(**few), run, resume=True)
    capsys.readouterr()
    model.unlink()
    execute(make_scenario(**few), run, resume=True)  # the model follows from the last checkpoint
    assert Run.open(run).checked().finished


def test_a_kill_between_the_line_of_the_model_and_the_model_is_made_good(tmp_path, monkeypatch):
    execute(make_scenario(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish", lambda self, model, devices: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            execute(make_scenario(), tmp_path / "run")
    assert not Run.open(tmp_path / "run").checked().finished
    execute(make_scenario(), tmp_path / "run", resume=True)
    for name in ("ledger.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


FILES = ["metrics.jsonl", "run.json", "plan.json", "devices.csv", "ledger.jsonl", "scenario.toml"]
ODD = ["5", "null", "[]", '"x"', "{}", '{"round": 0}', "{", "", "\x00", "1" * 5000, "[" * 5000, '{"round": "0"}']


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "run.json", "plan.json", "devices.csv", "ledger.jsonl", "scenario.toml"]
)
def test_a_bad_line_is_reported_in_one_sentence(run, name, odd, capsys):
    file = run / name
    file.write_text(odd + "\n" if name != "metrics.jsonl" else file.read_text() + odd + "\n")
    found = Run.open(run)
    assert found.problem
    with pytest.raises((RunError, LedgerError, scenario.ScenarioError)):
        found.checked()
    for command in (["ledger", str(run)], ["report", str(run), "--out", str(run.parent / "r.html")]):
        assert main(command) in (2, 4)
        captured = capsys.readouterr()
        assert captured.err.startswith("airfed: ")
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", '"5"', "true", "1e400", "[1]"])
def test_figures_that_are_no_figures_are_refused(run, value):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    for key in record:
        other = [*lines]
        other[2] = json.dumps(record | {key: "HERE"}).replace('"HERE"', value)
        (run / "metrics.jsonl").write_text("\n".join(other) + "\n")
        good = key in ("loss", "test_loss", "signal_to_noise_db") and value == "-1"
        assert bool(Run.open(run).problem) is not good, key


def test_markup_in_a_plan_is_refused_on_reading(run):
    edit(run / "plan.json", lambda plan: plan.update(rounds="<script>alert(1)</script>"))
    assert "plan.json is damaged: rounds" in str(Run.open(run).errors)


def test_the_power_of_the_devices_must_add_up(run):
    file = run / "devices.csv"
    rows = file.read_text().splitlines()
    file.write_text("\n".join([rows[0], *rows[2:]]) + "\n")
    assert "devices.csv" in Run.open(run).problem


def test_cut_off_ledgers_and_forged_checkpoints_are_noticed(run):
    (run / "model.safetensors").unlink()  # which would give a ledger away that was cut off
    file = run / "ledger.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    assert "are missing" in Run.open(run).problem
    file.write_bytes(whole + b'{"half')
    assert "half-written" in Run.open(run).problem
    file.write_bytes(whole)
    directory = RunDirectory(run)
    latest = directory.latest()
    for index in (-3, 99):
        object.__setattr__(latest, "round_index", index)
        directory.save(latest)
    with pytest.raises((RunError, LedgerError)):
        execute(make_scenario(), run, resume=True)


def test_there_must_be_a_run(tmp_path):
    with pytest.raises(RunError, match="There is no run"):
        Run.open(tmp_path)


# -- accounts


def with_shared_ledger(tmp_path, **changes):
    shared_ledger = str(tmp_path / "shared.jsonl")
    return make_scenario(
        **{"budget.scope": "total", "budget.shared_ledger": shared_ledger, "policy.rounds": 4, **changes}
    )


def test_runs_on_one_shared_ledger_share_one_budget(tmp_path):
    first = with_shared_ledger(tmp_path)
    small = {"budget.total_power": 5e-5}  # which does not spend all privacy
    outcome = execute(with_shared_ledger(tmp_path, **small), tmp_path / "one")
    spent = Ledger.load(tmp_path / "shared.jsonl")
    assert spent.rounds == 4
    assert spent.mu_total == Run.open(tmp_path / "one").ledger.mu_total == outcome.setup.plan.mu_total
    again = execute(with_shared_ledger(tmp_path, seed=7), tmp_path / "two")
    assert again.setup.plan.problem.budget.spent == spent.mu_total
    assert again.setup.plan.mu_total < first.problem(spent=0.0).budget.epsilon
    total = Ledger.load(tmp_path / "shared.jsonl")
    assert total.rounds == 8
    assert 3.9 < total.epsilon_total <= 4.0
    assert Run.open(tmp_path / "two").checked().ledger.header["spent"] == spent.mu_total
    left = with_shared_ledger(tmp_path, seed=8).problem().budget
    assert left.spent == total.mu_total
    assert allowed_mu(left) < 1e-3 * total.mu_total  # rounding has left a crumb
    with pytest.raises(InfeasibleError, match="leaves no privacy budget"):
        allowed_mu(replace(left, spent=2 * total.mu_total))


def test_policies_on_one_shared_ledger_do_not_share_their_noise(tmp_path):
    small = {"budget.total_power": 5e-5}
    noises = []
    for policy in ("full", "top_k"):
        execute(with_shared_ledger(tmp_path, **small, **{"policy.name": policy}), tmp_path / policy)
        noises.append(Run.open(tmp_path / policy).rounds["noise_error"])
    scale = [
        Run.open(tmp_path / p).plan.num_scheduled * Run.open(tmp_path / p).plan.alignment for p in ("full", "top_k")
    ]
    assert not np.allclose(noises[0] * scale[0], noises[1] * scale[1])


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_a_killed_round_is_in_the_shared_ledger_and_a_seeded_replay_is_charged_once(tmp_path, monkeypatch, source):
    built = with_shared_ledger(tmp_path, **{"link.noise_source": source, "budget.total_power": 5e-5})
    execute(built, tmp_path / "whole")
    whole = Ledger.load(tmp_path / "shared.jsonl").rounds
    real = Ledger.charge
    calls = []

    def die(self, *arguments, **named):
        calls.append(self.path.name)
        if len(calls) == 6:  # the shared ledger is charged, the run's own ledger is not
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    (tmp_path / "shared.jsonl").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", die)
        with pytest.raises(KeyboardInterrupt):
            execute(built, tmp_path / "run")
    assert calls[-1] == "ledger.jsonl"
    assert execute(built, tmp_path / "run", resume=True).status == "finished"
    assert Ledger.load(tmp_path / "shared.jsonl").rounds == whole + (source == "secure")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"budget.epsilon": 5.0}, "epsilon"),
        ({"budget.delta": 1e-4}, "delta"),
        ({"budget.adjacency": "add_remove"}, "adjacency"),
    ],
)
def test_a_shared_ledger_keeps_the_budget_it_was_opened_with(tmp_path, change, what):
    execute(with_shared_ledger(tmp_path, **{"budget.total_power": 5e-5}), tmp_path / "one")
    with pytest.raises(ValueError, match=rf"budget\.{what} must be "):
        execute(with_shared_ledger(tmp_path, **change), tmp_path / "two")


def test_a_shared_ledger_is_printed_and_verified(tmp_path, capsys):
    for seed in (1, 2):
        execute(with_shared_ledger(tmp_path, seed=seed, **{"budget.total_power": 2e-5}), tmp_path / f"run-{seed}")
    file = tmp_path / "shared.jsonl"
    assert main(["ledger", str(file)]) == 0
    text = capsys.readouterr().out
    assert "shared ledger · 8 rounds charged by 2 runs" in text
    assert "add to δ" in text
    assert "for all trainings together" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["ledger", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["charged"] == 8
    file.write_bytes(file.read_bytes().replace(b'"devices": 6', b'"devices": 1', 1))
    assert main(["ledger", str(file)]) == 4
    with pytest.raises(ValueError, match="was changed"):
        with_shared_ledger(tmp_path).problem()


@pytest.mark.parametrize(
    ("link", "words"),
    [("shared.jsonl", "Too many levels"), ("nowhere", "There is no ledger"), ("loop/a", "Too many levels")],
)
def test_a_shared_ledger_that_is_a_link_to_nothing_is_one_sentence_in_plan_and_run(tmp_path, link, words, capsys):
    if link == "loop/a":
        (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "shared.jsonl").symlink_to(link)
    built = with_shared_ledger(tmp_path)
    (tmp_path / "s.toml").write_text(built.to_toml())
    for command, *more in (["plan"], ["run", "--out", str(tmp_path / "run")]):
        assert main([command, str(tmp_path / "s.toml"), *more]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
    assert built.anchored().budget.shared_ledger


def test_a_shared_ledger_needs_a_total_and_is_no_run(tmp_path):
    with pytest.raises(ValueError, match=r'budget\.scope.*"total".*budget\.shared_ledger'):
        make_scenario(**{"budget.shared_ledger": "a.jsonl"})
    execute(make_scenario(**{"budget.scope": "total"}), tmp_path / "run")
    ledger = str(tmp_path / "run/ledger.jsonl")
    with pytest.raises(ValueError, match="is not a shared ledger"):
        make_scenario(**{"budget.scope": "total", "budget.shared_ledger": ledger}).problem()


# -- what an attack found


class Died(BaseException):
    """Raised as if the process had been killed."""


def test_a_charge_that_was_never_used_covers_one_transmission_and_no_more(tmp_path, monkeypatch):
    built = make_scenario(**{"link.noise_source": "secure", "run.checkpoint_every": 3, "budget.epsilon": 4.0})
    received, settle, transmit = [], RunRecorder.settle, Superposition.receive

    def receive(self, noise):
        received.append(noise.copy())
        return transmit(self, noise)

    def die_late(self, done):
        settle(self, done)
        if done.index == 1:
            raise Died

    monkeypatch.setattr(Superposition, "receive", receive)
    out, asked = tmp_path / "run", iter([True])
    assert execute(built, out, stop=lambda: next(asked, False)).status == "stopped"  # in the middle of the first round
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "settle", die_late)
        for _ in range(5):
            with pytest.raises(Died):
                execute(built, out, resume=True)
    execute(built, out, resume=True)
    assert len(received) <= Run.open(out).checked().ledger.rounds


def test_a_repeated_round_that_is_another_signal_is_charged_and_drawn_anew(tmp_path, monkeypatch):
    built = make_scenario(**{"run.record": "private", "run.checkpoint_every": 100})
    out, drawn, updates = tmp_path / "run", [], QuadraticEngine.updates
    real = Superposition.receive

    def receive(self, noise):
        drawn.append((self.digest(), noise.tobytes()))
        return real(self, noise)

    def other(self, parameters, devices, *, steps, round_index):
        for part, rows in updates(self, parameters, devices, steps=steps, round_index=round_index):
            yield part, rows if round_index == PROBE_ROUND else 2 * rows  # which no digest and no probe can know

    def die(self, done):
        if done.index == 2:
            raise Died
        settle(self, done)

    settle = RunRecorder.settle
    monkeypatch.setattr(Superposition, "receive", receive)
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "settle", die)
        with pytest.raises(Died):
            execute(built, out)
    monkeypatch.setattr(QuadraticEngine, "updates", other)
    assert execute(built, out, resume=True).status == "finished"
    signals = {}
    for signal, noise in drawn:
        assert signals.setdefault(noise, signal) == signal  # one noise, one signal
    assert len(drawn) == Run.open(out).checked().ledger.rounds == 7


def test_two_directories_never_share_noise_even_if_no_digest_detects_the_difference(tmp_path, monkeypatch):
    drawn, updates, real = {}, QuadraticEngine.updates, Superposition.receive

    def other(self, parameters, devices, *, steps, round_index):
        for part, rows in updates(self, parameters, devices, steps=steps, round_index=round_index):
            yield part, rows if round_index == PROBE_ROUND else 2 * rows

    for name in ("first", "again", "other"):
        kept = drawn[name] = []
        monkeypatch.setattr(
            Superposition, "receive", lambda self, noise, kept=kept: kept.append(noise) or real(self, noise)
        )
        if name == "other":
            monkeypatch.setattr(QuadraticEngine, "updates", other)
        execute(make_scenario(), tmp_path / name)
    signals = [Run.open(tmp_path / name).manifest["signal"] for name in drawn]
    assert signals[0] == signals[1] == signals[2]
    assert np.array_equal(drawn["first"], drawn["again"])
    assert not np.any(np.equal(drawn["first"], drawn["other"]))


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize("how", ["deleted", "cut", "replaced", "another"])
def test_a_shared_ledger_without_the_charges_of_a_run_is_detected_on_resume(tmp_path, source, how):
    small = {"budget.total_power": 5e-5, "link.noise_source": source}
    built, file = with_shared_ledger(tmp_path, **small), tmp_path / "shared.jsonl"
    asked = iter([False] * 5 + [True] * 100)
    execute(built, tmp_path / "run", stop=lambda: next(asked))
    assert Ledger.load(file).rounds >= 2
    if how == "deleted":
        file.unlink()
    elif how == "cut":
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    elif how == "replaced":
        file.unlink()
        execute(with_shared_ledger(tmp_path, seed=9, **small), tmp_path / "other")
    else:
        built = built.override({"budget.shared_ledger": str(tmp_path / "second.jsonl")})
    with pytest.raises(LedgerError, match="some are missing"):
        execute(built, tmp_path / "run", resume=True)


def test_a_shared_ledger_is_not_charged_for_a_round_that_the_run_cannot_afford(tmp_path, monkeypatch):
    built = with_shared_ledger(tmp_path, **{"budget.total_power": 5e-5, "link.noise_source": "secure"})
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "settle", lambda self, done: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            execute(built, tmp_path / "run")
    assert execute(built, tmp_path / "run", resume=True).status == "exhausted"
    spent = Ledger.load(tmp_path / "shared.jsonl").rounds
    for _ in range(3):
        assert execute(built, tmp_path / "run", resume=True).status == "exhausted"
    assert Ledger.load(tmp_path / "shared.jsonl").rounds == spent


def test_a_private_record_keeps_no_energies_and_stays_private(tmp_path):
    asked = iter([False] * 5 + [True] * 100)
    execute(make_scenario(**{"run.record": "private"}), tmp_path / "run", stop=lambda: next(asked))
    assert RunDirectory(tmp_path / "run").latest().energy.size == 0
    with pytest.raises(RunError, match=r"run\.record"):
        execute(make_scenario(), tmp_path / "run", resume=True)
    assert execute(make_scenario(**{"run.record": "private"}), tmp_path / "run", resume=True).status == "finished"


def content(folder):
    return b"\n".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_a_private_record_has_no_digest_that_depends_on_data(tmp_path, monkeypatch, source):
    """An adversary who knows all data except one record can compute these digests for each guess."""
    sums, real = [], Superposition.digest
    monkeypatch.setattr(Superposition, "digest", lambda self: sums.append(real(self)) or sums[-1])
    models = []
    for record in ("full", "private"):
        sums.clear()
        out = tmp_path / record
        done = execute(make_scenario(**{"run.record": record, "link.noise_source": source}), out)
        signal = done.setup.signal
        written = [
            digest for digest in (signal["data"], signal["probe update"], *sums) if digest.encode() in content(out)
        ]
        if record == "full":
            assert written == [signal["data"], signal["probe update"], *(sums if source == "seeded" else [])]
        else:
            assert len(sums) == done.setup.plan.rounds
            assert written == []
            assert sha256(json.dumps(dict(signal), sort_keys=True).encode()).encode() not in content(out)
            assert not (out / "secret.key").exists()
            assert execute(done.setup.scenario, out, resume=True).status == "finished"
            Run.open(out).checked()
        models.append((out / "model.safetensors").read_bytes())
    assert source == "secure" or models[0] == models[1]  # the secret is no part of the noise's key


def test_a_killed_private_run_resumes_with_its_secret_only(tmp_path, monkeypatch, killed_in):
    built = make_scenario(**{"run.record": "private", "run.checkpoint_every": 2})
    whole = execute(built, tmp_path / "whole")
    out = tmp_path / "run"
    killed_in(built, out, 3)
    secret = out / "secret.key"
    assert (secret.stat().st_mode & 0o777, secret.stat().st_size) == (0o600, 32)
    kept = secret.read_bytes()
    sent = Ledger.load(out / "ledger.jsonl").latest(3)
    for change, message in ((secret.unlink, "secret.key is missing"), (lambda: secret.write_bytes(b"half"), "damaged")):
        change()
        with pytest.raises(RunError, match=message):
            execute(built, out, resume=True)
    secret.write_bytes(bytes(32))
    with pytest.raises(RunError, match="the data changed"):
        execute(built, out, resume=True)
    secret.write_bytes(kept)
    done = execute(built, out, resume=True)
    assert (done.status, done.ledger.rounds) == ("finished", whole.ledger.rounds)  # the same signals: charged once
    assert done.ledger.latest(3).signal == sent.signal != whole.ledger.latest(3).signal
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert not secret.exists()


def test_an_ended_private_run_trains_no_further_round(tmp_path, monkeypatch):
    """Without the secret, nothing reveals that a repeated round has the same signal."""
    updates, built = QuadraticEngine.updates, make_scenario(**{"run.record": "private"})

    def nothing(self, parameters, devices, *, steps, round_index):
        rows = updates(self, parameters, devices, steps=steps, round_index=round_index)
        return iter(()) if round_index == 2 else rows

    monkeypatch.setattr(QuadraticEngine, "updates", nothing)
    assert execute(built, tmp_path / "run").status == "diverged"
    before = (tmp_path / "run/ledger.jsonl").read_bytes()
    with pytest.raises(RunError, match="has ended and its secret was deleted"):
        execute(built, tmp_path / "run", resume=True)
    assert (tmp_path / "run/ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "lie",
    [{"privacy": "secure"}, {"adjacency": "add_remove"}, {"epsilon": 400.0}, {"total_power": 1.0}, {"devices": [1]}],
)
def test_a_ledger_whose_first_line_was_forged_is_refused(run, lie, capsys):
    file = run / "ledger.jsonl"
    forged = run / "forged.jsonl"
    old = Ledger.load(file)
    new = Ledger.create(forged, {**old.header, **lie})
    for charge in old.charges:
        figures = {name: getattr(charge, name) for name in ("devices", "alignment", "mu")}
        new.charge(charge.round_index, power=charge.power_planned, **figures)
        new.mark_sent(charge.round_index, charge.signal)
        new.settle(charge.round_index, charge.power_metered)
    forged.replace(file)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    (run / "model.safetensors").unlink()
    with pytest.raises(LedgerError, match="is not that of the plan and the scenario"):
        Run.open(run).checked()
    assert main(["ledger", str(run)]) == 4
    with pytest.raises(LedgerError):
        execute(make_scenario(), run, resume=True)
    assert "Traceback" not in capsys.readouterr().err


def test_metrics_that_end_before_the_checkpoint_are_noticed(run):
    (run / "devices.csv").unlink()
    file = run / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    assert "missing from the metrics" in Run.open(run).problem
    file.unlink()
    assert "missing from the metrics" in Run.open(run).problem
    shutil.rmtree(run / "checkpoints")
    assert "checkpoints of a finished run are missing" in str(Run.open(run).errors)


def test_pipes_and_devices_in_a_run_directory_hang_nothing(run):
    for name in ("ledger.jsonl", "metrics.jsonl", "plan.json", "checkpoints/round-000009.safetensors"):
        copy = run.parent / name.replace("/", "-")
        shutil.copytree(run, copy)
        (copy / name).unlink(missing_ok=True)
        os.mkfifo(copy / name)
        found = Run.open(copy)
        assert found.problem or name.startswith("checkpoints")
    (run / "checkpoints/round-000009.safetensors").symlink_to("/dev/zero")
    assert Run.open(run).checkpoint == 4


def test_an_interrupted_start_does_not_block_the_directory(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", ".ledger.jsonl.1397.part", ".run.json.part"):
        (tmp_path / "run" / name).write_bytes(b"")
    assert execute(make_scenario(), tmp_path / "run").status == "finished"
