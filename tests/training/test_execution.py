"""Runs that are stopped, damaged, out of disk space and resumed: they end with the bits of an uninterrupted run."""

import csv
import errno
import io
import itertools
import json
import math
import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from airfed import scenario
from airfed.learning.quadratic import QuadraticEngine
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.training import setup
from airfed.training.directory import RunDirectory, RunError
from airfed.training.execution import execute
from airfed.training.recorder import RunRecorder
from airfed.training.run import Run
from airfed.training.setup import QuadraticLearning

pytestmark = pytest.mark.usefixtures("no_flush")
TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))


def make_scenario(**changes):
    policy = {"policy.name": "full", "policy.size": None, "policy.rounds": 6}
    return scenario.parse(TINY).override({"learning.dimension": 150, **policy, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, contents):
    """The uninterrupted run, by the number of rounds between checkpoints."""
    made = {}

    def run(every=1):
        if every not in made:
            out = tmp_path_factory.mktemp("whole") / "run"
            assert execute(make_scenario(**{"run.checkpoint_every": every}), out).status == "finished"
            made[every] = contents(out)
        return made[every]

    return run


# -- what a run leaves behind


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    records = []
    outcome = execute(make_scenario(), out, on_round=records.append)
    return out, outcome, records


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_directory_contains_the_plan_and_the_metrics(finished, contents):
    out, outcome, records = finished
    assert {item.name for item in out.iterdir()} == {*contents(out), "checkpoints", ".lock"}
    assert scenario.parse(tomllib.loads((out / "scenario.toml").read_text())) == make_scenario()
    assert strict((out / "plan.json").read_text()) == json.loads(json.dumps(outcome.setup.plan.to_dict()))
    lines = [strict(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == records == outcome.records
    assert [line["round"] for line in lines] == list(range(6))
    for line in (out / "ledger.jsonl").read_text().splitlines():
        strict(line)


def test_every_figure_of_the_issue_is_in_the_metrics(finished):
    out, outcome, records = finished
    plan, charges = outcome.setup.plan, Run.open(out).checked().ledger.charges
    budget = plan.problem.budget
    total = 0.0
    for index, record in enumerate(records):
        assert record["steps"] == 2
        assert record["loss"] > 0
        assert 0 < record["update_norm_mean"] <= record["update_norm_max"]
        assert 0 <= record["clipped_share"] <= 1
        assert record["refused"] == record["missing"] == 0
        assert record["fading_error"] == 0.0
        scale = plan.num_scheduled * plan.alignment_coefficient
        noise = outcome.setup.noise.draw(index, 150, 0.01, transmission=f" {charges[index].signal}")
        assert record["noise_error"] == pytest.approx(np.linalg.norm(noise) / scale, rel=1e-12)
        assert math.isfinite(record["signal_to_noise_db"])
        assert record["power_planned"] == pytest.approx(plan.power.sum(), rel=1e-12)
        assert 0 < record["power_transmitted"] <= record["power_planned"]
        total += record["power_transmitted"]
        assert record["power_transmitted_total"] == pytest.approx(total, rel=1e-12)
        assert record["power_planned_total"] == pytest.approx((index + 1) * plan.power.sum(), rel=1e-12)
        assert record["epsilon_round"] == pytest.approx(plan.epsilon_round, rel=1e-9)
    assert records[-1]["epsilon_total"] == pytest.approx(plan.epsilon_total, rel=1e-9)
    assert records[-1]["epsilon_total"] >= plan.epsilon_total * (1 - 1e-12)
    assert records[-1]["power_planned_total"] <= budget.total_power
    assert [r["epsilon_total"] for r in records] == sorted(r["epsilon_total"] for r in records)


def test_the_table_equals_the_lines(finished):
    out, _, records = finished
    rows = list(csv.DictReader(io.StringIO((out / "metrics.csv").read_text())))
    assert list(rows[0]) == list(records[0])
    assert [{k: float(v) if v else None for k, v in row.items()} for row in rows] == records


def test_the_manifest_names_versions_and_digests(finished):
    out, _, _ = finished
    manifest = strict((out / "run.json").read_text())
    assert manifest["airfed"]
    assert set(manifest["versions"]) >= {"python", "numpy", "scipy", "torch", "safetensors"}
    assert manifest["versions"]["numpy"] == np.__version__
    for name in ("scenario_sha256", "plan_sha256", "data_sha256"):
        assert len(manifest[name]) == 64
    assert manifest["privacy"] == "simulated"
    assert manifest["engine"] == "quadratic"


def test_the_model_is_the_last_checkpoints(finished):
    out, _, _ = finished
    tensors = load_file(out / "model.safetensors")
    latest = RunDirectory(out).latest()
    assert latest.round_index == 6
    assert tensors["parameters"].tobytes() == latest.parameters.tobytes()


def test_two_runs_with_one_seed_leave_the_same_bytes(finished, tmp_path, contents):
    execute(make_scenario(), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(finished[0])


def test_evaluations_may_be_rarer_but_never_miss_the_last_round(tmp_path):
    outcome = execute(make_scenario(**{"run.evaluate_every": 4}), tmp_path / "run")
    assert [r["round"] for r in outcome.records if r["loss"] is not None] == [0, 4, 5]


# -- interruption


@pytest.mark.parametrize("every", [1, 4, 100])
@pytest.mark.parametrize("questions", [0, 1, 2, 3, 7, 10])
def test_a_stopped_run_resumes_to_the_same_bits(whole, tmp_path, questions, every, stop_after, contents):
    built, out, started = make_scenario(**{"run.checkpoint_every": every}), tmp_path / "run", []
    outcome = execute(built, out, stop=stop_after(questions))
    assert outcome.status == "stopped"
    assert "--resume" in outcome.message
    latest = RunDirectory(out).latest()
    assert (latest.round_index if latest else 0) == len(outcome.records)  # a checkpoint of the very round
    assert not (out / "model.safetensors").exists()
    again = execute(built, out, resume=True, on_start=lambda setup, first: started.append(first))
    assert started == [len(outcome.records)]
    assert again.status == "finished"
    assert contents(out) == whole(every)


def test_a_run_may_be_stopped_many_times(whole, tmp_path, stop_after, contents):
    out, count = tmp_path / "run", 0
    status = execute(make_scenario(), out, stop=stop_after(1)).status
    while status != "finished":
        count += 1
        status = execute(make_scenario(), out, resume=True, stop=stop_after(2 + count % 2)).status
    assert count >= 3
    assert contents(out) == whole()


def test_running_totals_add_up_in_the_same_order_after_a_stop(tmp_path, stop_after, contents):
    built = make_scenario(**{"policy.rounds": 60, "learning.total_steps": 60})
    execute(built, tmp_path / "whole")
    for questions in (21, 61, 101):
        out = tmp_path / f"run-{questions}"
        execute(built, out, stop=stop_after(questions))
        execute(built, out, resume=True)
        assert contents(out) == contents(tmp_path / "whole")


def weights(average, rounds):
    """Return the average of the models after each round."""
    if average == "tail":
        return [float(index >= rounds // 2) for index in range(rounds)]
    return [math.exp(-5 * (rounds - index) / rounds) for index in range(rounds)]


@pytest.mark.parametrize("average", ["tail", "exponential"])
@pytest.mark.parametrize("rounds", [1, 2, 5, 6])
def test_the_receiver_averages_the_models(tmp_path, rounds, average):
    plain, averaged = tmp_path / "plain", tmp_path / "averaged"
    kept = {"policy.rounds": rounds, "run.checkpoint_every": 1}
    models = []

    def keep(setup_, first):
        real = RunRecorder.settle

        def settle(self, done):
            real(self, done)
            models.append(done.parameters)

        patch.setattr(RunRecorder, "settle", settle)

    with pytest.MonkeyPatch.context() as patch:
        before = execute(make_scenario(**kept), plain, on_start=keep).records
    after = execute(make_scenario(**kept, **{"policy.average": average}), averaged).records
    mean = np.average([model.astype(np.float64) for model in models], axis=0, weights=weights(average, rounds))
    released = load_file(averaged / "model.safetensors")["parameters"]
    assert released == pytest.approx(mean, rel=1e-6)
    assert RunDirectory(averaged).latest().parameters.tobytes() == models[-1].tobytes()  # what the devices go on with
    unlike = {"loss", "accuracy", "test_loss"}
    for one, other in zip(before, after, strict=True):  # power, privacy, noise: the same
        assert {k: v for k, v in one.items() if k not in unlike} == {k: v for k, v in other.items() if k not in unlike}
    alike = rounds // 2 if average == "tail" else 1
    assert before[:alike] == after[:alike]


ALL = {"run.averages": "all"}


def test_all_averages_are_evaluated_in_one_run(tmp_path):
    every = {"run.evaluate_every": 4}
    both = execute(make_scenario(**ALL, **every), tmp_path / "all").records
    for name in ("none", "tail", "exponential"):
        alone = execute(make_scenario(**every, **{"policy.average": name}), tmp_path / name).records
        assert [record["averages"] and record["averages"][name]["loss"] for record in both] == [
            record["loss"] for record in alone
        ]
        chosen = execute(make_scenario(**ALL, **every, **{"policy.average": name}), tmp_path / f"all-{name}").records
        assert [{**record, "averages": 0} for record in chosen] == [{**record, "averages": 0} for record in alone]
        model = "model.safetensors"
        assert (tmp_path / f"all-{name}" / model).read_bytes() == (tmp_path / name / model).read_bytes()
    assert [record["round"] for record in both if record["averages"] is not None] == [0, 4, 5]
    assert "averages" not in execute(make_scenario(), tmp_path / "chosen").records[-1]


def test_all_averages_have_columns_of_their_own(tmp_path):
    records = execute(make_scenario(**ALL, **{"run.evaluate_every": 4}), tmp_path / "run").records
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run" / "metrics.csv").read_text())))
    for row, record in zip(rows, records, strict=True):
        worth = record["averages"] or {}
        for name in ("none", "tail", "exponential"):
            assert row[f"averages.{name}.loss"] == str(worth.get(name, {}).get("loss", ""))
    run = Run.open(tmp_path / "run").checked()
    assert run.rounds["loss"].shape == (6,)
    with pytest.raises(KeyError):
        run.rounds["averages"]


def test_a_private_record_has_no_training_loss_of_any_average(tmp_path):
    records = execute(make_scenario(**ALL, **{"run.record": "private"}), tmp_path / "run").records
    assert {value["loss"] for record in records for value in record["averages"].values()} == {None}


@pytest.mark.parametrize("average", ["tail", "exponential"])
def test_other_averages_are_not_resumed(tmp_path, average, stop_after):
    built = make_scenario(**{"policy.average": average})
    execute(built, tmp_path / "run", stop=stop_after(9))
    with pytest.raises(RunError, match=r"run\.averages"):
        execute(built.override(ALL), tmp_path / "run", resume=True)


@pytest.mark.parametrize("average", ["tail", "exponential"])
def test_a_missing_average_is_not_resumed(tmp_path, average):
    built = make_scenario(**{"policy.average": average})
    execute(built, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    found = directory.latest()
    assert found.sums[average].shape == found.parameters.shape
    directory.save(replace(found, sums={}))
    with pytest.raises(RunError, match=r"newest checkpoint in .* belongs to another run"):
        execute(built, tmp_path / "run", resume=True)


@pytest.mark.parametrize("questions", [1, 3, 7, 10])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("changes", [{"policy.average": "tail"}, {"policy.average": "exponential"}, ALL])
def test_an_average_is_resumed_to_the_same_bits(tmp_path, questions, every, changes, stop_after, contents):
    built = make_scenario(**changes, **{"run.checkpoint_every": every})
    execute(built, tmp_path / "whole")
    execute(built, tmp_path / "run", stop=stop_after(questions))
    assert execute(built, tmp_path / "run", resume=True).status == "finished"
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_stop_after_the_last_round_comes_too_late(whole, tmp_path, stop_after, contents):
    assert execute(make_scenario(), tmp_path / "run", stop=stop_after(11)).status == "finished"
    assert contents(tmp_path / "run") == whole()


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path, contents):
    out = tmp_path / "run"
    execute(make_scenario(), out)
    assert execute(make_scenario(), out, resume=True).status == "finished"
    assert contents(out) == whole()


def damage(file, kind):
    content = file.read_bytes()
    if kind == "flip":
        rng = np.random.default_rng(len(content))
        for position in rng.integers(200, len(content), 3):  # past the padding of the header
            content = (
                content[:position] + bytes([content[position] ^ 1 << int(rng.integers(8))]) + content[position + 1 :]
            )
    file.write_bytes({"flip": content, "cut": content[:-1], "empty": b"", "garbage": os.urandom(300)}[kind])


@pytest.mark.parametrize("kind", ["flip", "cut", "empty", "garbage"])
@pytest.mark.parametrize("how_many", [1, 2, 3])
@pytest.mark.parametrize("done", ["stopped", "finished"])
def test_damaged_checkpoints_are_passed_over_and_the_end_is_the_same(
    whole, tmp_path, caplog, kind, how_many, done, stop_after, contents
):
    out = tmp_path / "run"
    execute(make_scenario(), out, stop=stop_after(8 if done == "stopped" else 1000))
    files = sorted((out / "checkpoints").iterdir(), reverse=True)
    assert len(files) == 3
    for file in files[:how_many]:
        damage(file, kind)
    first = []
    outcome = execute(make_scenario(), out, resume=True, on_start=lambda setup, start: first.append(start))
    last = 4 if done == "stopped" else 6
    assert first == [last - how_many if how_many < 3 else 0]  # the newest intact one, or the very beginning
    assert caplog.text.count("damaged") == how_many
    assert outcome.status == "finished"
    assert contents(out) == whole()


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
def test_torn_last_lines_are_repaired(whole, tmp_path, name, stop_after, contents):
    for cut in (1, 2, 10, 80):
        out = tmp_path / f"run-{cut}"
        execute(make_scenario(), out, stop=stop_after(7))
        file = out / name
        file.write_bytes(file.read_bytes() + file.read_bytes().splitlines(keepends=True)[-1][:-cut])
        execute(make_scenario(), out, resume=True)
        assert contents(out) == whole()


def test_a_start_that_was_cut_short_starts_again(whole, tmp_path, monkeypatch, contents):
    for resume in (False, True):
        for at in range(8):
            out = tmp_path / f"run-{at}-{resume}"
            with monkeypatch.context() as patch:
                faults = Faults(patch, at, kill=True)
                with pytest.raises(Killed):
                    execute(make_scenario(), out)
            assert faults.fired
            if resume or not (out / "run.json").exists():
                execute(make_scenario(), out, resume=resume)
                assert contents(out) == whole()


# -- disk full


class Killed(BaseException):
    """Raised as if the process had been killed: no handler of airfed catches it."""


class Faults:
    """Cut the n-th write to a file in two: half arrives, then the disk is full (or the process is killed)."""

    def __init__(self, monkeypatch, at, *, kill=False, half=True):
        self.left, self.fired, self.kill, self.half = at, False, kill, half
        original = Path.open
        faults = self

        def open_(path, mode="r", *rest, **named):
            stream = original(path, mode, *rest, **named)
            return Torn(stream, faults) if set(mode) & set("wax+") and path.name != ".lock" else stream

        monkeypatch.setattr(Path, "open", open_)

    def write(self, stream, content):
        self.left -= 1
        if self.fired and not self.kill and self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # it stays full
        if self.left == -1:
            self.fired = True
            stream.write(content[: len(content) // 2 if self.half else len(content)])
            stream.flush()
            if self.kill:
                raise Killed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return stream.write(content)


class Torn:
    def __init__(self, stream, faults):
        self.stream, self.faults = stream, faults

    def write(self, content):
        return self.faults.write(self.stream, content)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stream.close()

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.parametrize("every", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_disk_that_fills_up_at_any_write_costs_nothing(whole, tmp_path, monkeypatch, every, kill, contents):
    built = make_scenario(**{"run.checkpoint_every": every})
    executions = 0
    for at, half in itertools.product(range(1000), (True, False)):
        out = tmp_path / f"run-{at}-{half}"
        with monkeypatch.context() as patch:
            faults = Faults(patch, at, kill=kill, half=half)
            try:
                execute(built, out)
                message = None
            except (Killed, RunError) as error:
                message = str(error)
        if not faults.fired:
            break
        executions += 1
        if not kill:
            assert message.startswith(f"Cannot write to {out}: No space left on device.")
            assert "--resume" in message
            assert not list(out.rglob("*.part"))
        latest = RunDirectory(out).latest()
        if latest is not None:  # whole, and of a round that the ledger and the metrics know
            assert len(RunDirectory(out).read_metrics()) >= latest.round_index
            assert Ledger.load(out / "ledger.jsonl", repair=True).contains(latest.ledger_head)
        execute(built, out, resume=True)
        assert contents(out) == whole(every)
        assert not list(out.rglob("*.part"))
    assert executions > 40


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_to_flush_or_rename_costs_nothing(whole, tmp_path, monkeypatch, call, contents):
    owner = os if call == "fsync" else Path
    original = getattr(owner, call)
    for at in range(1000):
        out, left = tmp_path / f"run-{at}", [at]

        def fail(*arguments, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, call, fail)
            try:
                execute(make_scenario(), out)
            except RunError as error:
                message = str(error)
        if left[0] >= 0:
            break
        assert message.startswith(f"Cannot write to {out}: Input/output error.")
        execute(make_scenario(), out, resume=True)
        assert contents(out) == whole()
    assert at > 10


# -- a resume that would mix two runs


@pytest.fixture
def stopped(tmp_path, stop_after):
    out = tmp_path / "run"
    execute(make_scenario(), out, stop=stop_after(7))
    return out


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 4}, "seed"),
        ({"budget.epsilon": 5.0}, "budget.epsilon"),
        ({"policy.rounds": 12}, "policy.rounds"),
        ({"policy.name": "optimal"}, "policy.name"),
        ({"learning.learning_rate": 0.09}, "learning.learning_rate"),
        ({"link.noise_std": 0.011}, "link.noise_std"),
        ({"link.noise_source": "secure"}, "link.noise_source"),
    ],
)
def test_a_changed_scenario_is_refused(stopped, change, what):
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=rf"Cannot resume .*: the scenario \({what}\) changed"):
        execute(make_scenario(**change), stopped, resume=True)
    assert {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("change", [{"name": "other"}, {"run.chunk": 2}, {"run.checkpoint_every": 2}])
def test_keys_that_do_not_change_a_result_may_change(stopped, change):
    assert execute(make_scenario(**change), stopped, resume=True).status == "finished"


@pytest.mark.parametrize(
    "part", ["data", "model's code", "initial model", "engine", "versions", "probe update", "channels"]
)
def test_every_input_of_the_signal_must_be_unchanged(stopped, monkeypatch, part):
    real = setup.signal_digests

    def changed(*arguments):
        return real(*arguments) | {part: "another"}

    monkeypatch.setattr(setup, "signal_digests", changed)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=f"Cannot resume .*: the {part} changed"):
        execute(make_scenario(), stopped, resume=True)
    assert {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()} == before


def test_code_that_changes_updates_is_detected_by_the_probe(stopped, monkeypatch):
    original = QuadraticEngine.updates

    def other(self, parameters, devices, **named):
        for part, rows in original(self, parameters, devices, **named):
            yield part, np.nextafter(rows, np.float32(1))  # by the last bit

    monkeypatch.setattr(QuadraticEngine, "updates", other)
    with pytest.raises(RunError, match="probe update"):
        execute(make_scenario(), stopped, resume=True)


@pytest.mark.parametrize("name", ["run.json", "scenario.toml", "plan.json"])
def test_an_edited_file_is_not_resumed(stopped, name):
    file = stopped / name
    file.write_bytes(file.read_bytes().replace(b"tiny", b"huge").replace(b'"unit"', b'"Unit"'))
    with pytest.raises(LedgerError, match=f"{name} was changed: its digest differs"):
        execute(make_scenario(), stopped, resume=True)


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize("lost", ["run.json", "ledger.jsonl"])
def test_a_run_without_its_manifest_or_its_ledger_is_refused_and_left_as_it_is(tmp_path, source, lost, stop_after):
    out, built = tmp_path / "run", make_scenario(**{"link.noise_source": source})
    execute(built, out, stop=stop_after(7))
    (out / lost).unlink()
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    for resume in (False, True):
        with pytest.raises((RunError, LedgerError)):
            execute(built, out, resume=resume)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("kept", ["ledger.jsonl", "metrics.jsonl", "model.safetensors", "checkpoints"])
def test_traces_of_a_round_prevent_a_new_run(tmp_path, kept):
    out = tmp_path / "run"
    execute(make_scenario(), out)
    for item in out.iterdir():
        if item.name not in (kept, ".lock"):
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    with pytest.raises(RunError, match=f"contains {kept} of charged rounds but no run.json"):
        execute(make_scenario(), out)


def test_a_start_that_fails_leaves_nothing(tmp_path):
    for change in (
        {"fleet.num_devices": 3, "policy.size": 2},
        {"learning.dataset": "none.npz", "learning.model": "cnn"},
    ):
        with pytest.raises(ValueError):
            execute(make_scenario(**change), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(precious)
    with pytest.raises(RunError):
        execute(make_scenario(), tmp_path / "run")
    assert precious.read_text() == "mine"


def test_checkpoints_of_another_seed_are_refused_even_with_a_private_record(tmp_path, stop_after):
    private = {"run.record": "private"}
    for seed in (3, 4):
        execute(make_scenario(seed=seed, **private), tmp_path / f"run-{seed}", stop=stop_after(7))
    shutil.rmtree(tmp_path / "run-3/checkpoints")
    shutil.copytree(tmp_path / "run-4/checkpoints", tmp_path / "run-3/checkpoints")
    with pytest.raises(LedgerError, match="are missing"):
        execute(make_scenario(**private), tmp_path / "run-3", resume=True)


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_charge_that_lost_its_end_is_never_free(tmp_path, source, cut, stop_after):
    out, built = tmp_path / "run", make_scenario(**{"link.noise_source": source})
    execute(built, out, stop=stop_after(7))
    file, recorder = out / "ledger.jsonl", Ledger.load(out / "ledger.jsonl")
    index = recorder.rounds
    first = recorder.charges[0]
    recorder.charge(index, devices=6, alignment=first.alignment, mu=first.mu, power=first.power_planned)  # and sent
    before = Ledger.load(file).rounds
    file.write_bytes(file.read_bytes()[:-cut])
    outcome = execute(built, out, resume=True)
    assert outcome.status == "finished"
    sent_again = 0 if source == "seeded" or cut == 1 else 1  # half a line may have been a round that was sent
    assert Run.open(out).checked().ledger.rounds == 6 + sent_again
    assert before <= Ledger.load(file).rounds


def images(path, *, shift):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = rng.integers(0, 250, (60, 6, 6)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(60) % 3
    arrays["train_images"][17, 2, 2] += shift
    np.savez(path, **arrays)


def test_one_changed_pixel_is_other_data(tmp_path, stop_after, contents):
    images(tmp_path / "data.npz", shift=0)
    changes = {"learning.model": "logistic", "learning.dimension": None, "learning.dataset": str(tmp_path / "data.npz")}
    built = make_scenario(**changes, **{"run.engine": "torch", "run.threads": 1})
    out = tmp_path / "run"
    execute(built, out, stop=stop_after(4))
    images(tmp_path / "data.npz", shift=1)
    with pytest.raises(RunError, match=r"Cannot resume .*: the data changed"):
        execute(built, out, resume=True)
    images(tmp_path / "data.npz", shift=0)
    execute(built, out, resume=True)
    execute(built, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_an_existing_run_is_not_overwritten(stopped):
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match="already contains a run"):
        execute(make_scenario(), stopped)
    assert {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()} == before


def test_a_refused_folder_is_left_as_it_is(tmp_path):
    (tmp_path / "scenario.toml").write_text("# mine")
    with pytest.raises(RunError, match=r"it contains 'scenario\.toml'"):
        execute(make_scenario(), tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["scenario.toml"]
    assert (tmp_path / "scenario.toml").read_text() == "# mine"


def test_a_busy_run_is_refused(stopped):
    with RunDirectory(stopped).locked(), pytest.raises(RunError, match="Another process"):
        execute(make_scenario(), stopped, resume=True)


def test_a_resume_reads_the_ledger_once(stopped, monkeypatch):
    read, load = [], Ledger.load
    monkeypatch.setattr(Ledger, "load", lambda path, **rest: (read.append(path.name), load(path, **rest))[1])
    execute(make_scenario(), stopped, resume=True)
    assert read == ["ledger.jsonl"]


def test_a_ledger_that_lost_lines_is_refused(stopped):
    lines = (stopped / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (stopped / "ledger.jsonl").write_bytes(b"".join(lines[:-3]))
    with pytest.raises(LedgerError, match="its charge is missing"):
        execute(make_scenario(), stopped, resume=True)


def test_lost_metrics_are_noticed(stopped):
    lines = (stopped / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_bytes(b"".join(lines[1:]))
    with pytest.raises(RunError, match="line 1 contains round 2 instead of 1"):
        execute(make_scenario(), stopped, resume=True)


# -- charges


def test_dropouts_change_neither_charge_nor_divisor(tmp_path, monkeypatch):
    original = QuadraticEngine.updates

    def drop(self, parameters, devices, **named):
        kept = devices[devices != 2] if named["round_index"] == 3 else devices
        return original(self, parameters, kept, **named)

    monkeypatch.setattr(QuadraticEngine, "updates", drop)
    outcome = execute(make_scenario(), tmp_path / "run")
    assert [r["missing"] for r in outcome.records] == [0, 0, 0, 1, 0, 0]
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert [c.devices for c in ledger.charges] == [6] * 6
    assert len({c.mu for c in ledger.charges}) == 1
    assert len({c.power_planned for c in ledger.charges}) == 1
    planned = outcome.records[3]
    assert planned["power_transmitted"] < planned["power_planned"]


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_no_round_is_transmitted_that_was_not_charged(tmp_path, monkeypatch, source, stop_after):
    built, out, transmitted = make_scenario(**{"link.noise_source": source}), tmp_path / "run", []
    original = QuadraticEngine.updates

    def listen(self, parameters, devices, *, steps, round_index):
        if round_index == setup.PROBE_ROUND:
            return original(self, parameters, devices, steps=steps, round_index=round_index)
        charged = [c.round_index for c in Ledger.load(out / "ledger.jsonl").charges]  # what is on the disk by now
        transmitted.append(round_index)
        assert set(transmitted) <= set(charged)
        return original(self, parameters, devices, steps=steps, round_index=round_index)

    monkeypatch.setattr(QuadraticEngine, "updates", listen)
    execute(built, out, stop=stop_after(4))
    for questions in (1, 0, 2, 1000):
        outcome = execute(built, out, resume=True, stop=stop_after(questions))
    assert outcome.status == "finished"
    # What was stopped in the middle of a round was never received: its charge covers the next try.
    assert len(transmitted) > 6
    assert [c.round_index for c in Ledger.load(out / "ledger.jsonl").charges] == list(range(6))


def test_a_spent_budget_ends_the_run_with_its_model(tmp_path, monkeypatch):
    # Fresh noise at every attempt: a repeated round is charged again, until the budget is spent.
    built = make_scenario(**{"link.noise_source": "secure", "budget.scope": "total"})
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "settle", lambda self, done: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            execute(built, out)  # the first round was received, and is charged again
    outcome = execute(built, out, resume=True)
    assert outcome.status == "exhausted"
    assert "budget is spent after 6 rounds" in outcome.message
    assert len(outcome.records) == 5
    assert (out / "model.safetensors").exists()
    assert outcome.records[-1]["epsilon_total"] <= 4.0 * (1 + 1e-9)


# -- when it goes wrong


def test_a_diverging_run_stops_at_that_round_with_the_last_good_model(tmp_path, monkeypatch, contents):
    original, out = QuadraticLearning.evaluate, tmp_path / "run"
    calls = []

    def evaluate(self, parameters):
        calls.append(parameters.copy())
        return {"loss": math.nan} if len(calls) == 4 else original(self, parameters)

    monkeypatch.setattr(QuadraticLearning, "evaluate", evaluate)
    outcome = execute(make_scenario(), out)
    assert outcome.status == "diverged"
    assert outcome.message == "Round 4: the loss is nan; try a smaller learning_rate."
    lines = [strict(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] is None for line in lines] == [False, False, False, True]
    assert load_file(out / "model.safetensors")["parameters"].tobytes() == calls[2].tobytes()
    assert RunDirectory(out).latest().round_index == 3
    first = contents(out)
    calls[:] = [None] * 3  # the same again
    assert execute(make_scenario(), out, resume=True).status == "diverged"
    assert contents(out) == first


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_round_of_bad_updates_stops_the_run_with_a_saved_state(tmp_path, monkeypatch, bad):
    original = QuadraticEngine.updates

    def updates(self, parameters, devices, *, steps, round_index):
        for part, rows in original(self, parameters, devices, steps=steps, round_index=round_index):
            yield part, rows * np.float32(bad) if round_index == 2 else rows

    monkeypatch.setattr(QuadraticEngine, "updates", updates)
    out = tmp_path / "run"
    with np.errstate(invalid="ignore"):
        outcome = execute(make_scenario(), out)
    assert outcome.status == "diverged"
    assert outcome.message.startswith("Round 3: no device sent a usable update")
    assert len(outcome.records) == 2
    assert RunDirectory(out).latest().round_index == 2
    assert np.isfinite(load_file(out / "model.safetensors")["parameters"]).all()
    assert Ledger.load(out / "ledger.jsonl").rounds == 3  # charged: it was transmitted


def test_some_bad_devices_are_counted_and_training_continues(tmp_path, monkeypatch):
    original = QuadraticEngine.updates

    def updates(self, parameters, devices, *, steps, round_index):
        for part, rows in original(self, parameters, devices, steps=steps, round_index=round_index):
            rows[(part == 1) | (part == 4), round_index % 150] = np.nan
            yield part, rows

    monkeypatch.setattr(QuadraticEngine, "updates", updates)
    outcome = execute(make_scenario(), tmp_path / "run")
    assert outcome.status == "finished"
    assert [r["refused"] for r in outcome.records] == [2] * 6
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        strict(line)


@pytest.mark.parametrize("coherence", [None, 1])
@pytest.mark.parametrize("rate", [1e6, 1e20, 1e30])
def test_an_absurd_learning_rate_ends_in_words(tmp_path, rate, coherence):
    changes = {"learning.learning_rate": rate, "policy.rounds": 12, "learning.total_steps": 240}
    built = make_scenario(**changes, **({} if coherence is None else {"channel.coherence_rounds": coherence}))
    outcome = execute(built, tmp_path / "run")
    assert outcome.status == "diverged"
    assert outcome.message.startswith("Round ")
    assert np.isfinite(load_file(tmp_path / "run" / "model.safetensors")["parameters"]).all()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        strict(line)
    Run.open(tmp_path / "run").checked()


def test_a_closed_terminal_is_not_a_full_disk(tmp_path):
    def close(record):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        execute(make_scenario(), tmp_path / "run", on_round=close)


def test_the_engine_is_always_closed(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(QuadraticEngine, "close", lambda self: closed.append(True))
    execute(make_scenario(), tmp_path / "run")
    with pytest.raises(RunError):
        execute(make_scenario(seed=9), tmp_path / "run", resume=True)
    assert len(closed) == 2


def test_each_device_is_metered_over_the_run(tmp_path):
    outcome = execute(make_scenario(), tmp_path / "run")
    plan = outcome.setup.plan
    with (tmp_path / "run" / "devices.csv").open(newline="") as stream:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream)]
    assert [row["device"] for row in rows] == plan.scheduled.tolist()
    total = sum(row["power_transmitted"] for row in rows)
    assert total == pytest.approx(outcome.records[-1]["power_transmitted_total"], rel=1e-12)
    assert all(row["power_transmitted"] <= row["power_planned"] for row in rows)


def test_a_run_names_its_files_by_their_full_paths(tmp_path, monkeypatch):
    (tmp_path / "gains.csv").write_text("0.5\n1.0\n2.0\n0.7\n")
    file = tmp_path / "scenario.toml"
    built = make_scenario(**{"fleet.num_devices": 4, "channel": {"model": "file", "path": "gains.csv"}})
    file.write_text(built.to_toml())
    execute(scenario.load(file), tmp_path / "run")
    monkeypatch.chdir("/")
    again = scenario.load(tmp_path / "run" / "scenario.toml")
    assert again.problem().fleet.gain.tolist() == [0.5, 1.0, 2.0, 0.7]
