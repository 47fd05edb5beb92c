"""Sweeps: points are skipped, resumed and stopped, fail one by one, and errors are reported."""

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from rich.console import Console

from airfed.cli import main
from airfed.experiments import points, results, sweep
from airfed.privacy.ledger import Ledger
from airfed.training.directory import RunDirectory, RunError
from airfed.training.state import AVERAGES

EXPERIMENT = """
base = "scenario.toml"
[axes]
seed = [0, 1]
"""


@pytest.fixture
def folder(folder):
    with (folder / "scenario.toml").open("a") as file:
        file.write("[policy]\nrounds = 4\n")
    (folder / "experiment.toml").write_text(EXPERIMENT)
    return folder


@pytest.fixture
def expanded(folder):
    return points.expand(points.load(folder / "experiment.toml"))


def test_finished_points_are_not_run_again(folder, expanded, monkeypatch):
    out = folder / "out"
    first = sweep.run(expanded, out)
    assert [record.status for record in first] == ["finished", "finished"]

    def refuse(*arguments):
        raise AssertionError("nothing was left to run")

    monkeypatch.setattr(sweep, "run_point", refuse)
    again = sweep.run(expanded, out)
    assert [record.row() for record in again] == [record.row() for record in first]


def test_the_epsilon_of_a_point_is_that_of_its_ledger(folder, expanded, monkeypatch):
    out = folder / "out"
    first, _ = sweep.run(expanded, out)
    ledger = Ledger.load(results.run_path(out, expanded[0].key) / "ledger.jsonl")
    assert first.row()["epsilon_total"] == ledger.epsilon_total == pytest.approx(first.plan["epsilon_total"])
    monkeypatch.setattr(Ledger, "epsilon_total", 42.0)
    assert results.read(out, expanded[0]).row()["epsilon_total"] == 42.0


def test_all_averages_are_in_the_record_and_in_both_tables(folder):
    (folder / "experiment.toml").write_text(EXPERIMENT + '[set]\n"run.averages" = "all"\n"run.evaluate_every" = 2\n')
    expanded = points.expand(points.load(folder / "experiment.toml"))
    done = sweep.run(expanded, folder / "out")
    results.write_tables(folder / "out", done)
    tables = {name: pyarrow.parquet.read_table(folder / "out" / f"{name}.parquet") for name in ("points", "rounds")}
    for name in AVERAGES:
        final = [record.final["averages"][name]["loss"] for record in done]
        column = f"averages.{name}.loss"
        assert tables["points"].column(column).to_pylist() == final
        rows = tables["rounds"].select(["round", column]).to_pylist()
        assert [row["round"] for row in rows if row[column] is not None] == [0, 2, 3] * 2
        assert [row[column] for row in rows if row["round"] == 3] == final
        for table in tables:
            lines = csv.DictReader((folder / "out" / f"{table}.csv").read_text().splitlines())
            read = [float(row[column]) if row[column] else None for row in lines]
            assert read == tables[table].column(column).to_pylist()
    assert not set(tables["points"].column_names) & {"averages", "averages.tail"}


def test_an_interrupted_point_goes_on_and_ends_as_if_it_had_not_been(folder, expanded):
    whole = sweep.run(expanded, folder / "whole")
    calls = iter([False] * 3)
    out, point = folder / "parts", expanded[0]
    stop_file = out / "stop"
    from airfed.training.execution import execute

    execute(point.scenario, results.run_path(out.resolve(), point.key), stop=lambda: next(calls, True))
    assert results.read(out, point) is None
    assert not stop_file.exists()
    done = sweep.run(expanded, out)
    assert [record.status for record in done] == ["finished", "finished"]
    assert done[0].rounds == whole[0].rounds


def test_a_stopped_sweep_can_be_resumed(folder, expanded):
    stopped = sweep.run(expanded, folder / "out", stop=lambda: True)
    assert {record.status for record in stopped} <= {"stopped", "finished"}
    assert [record.status for record in sweep.run(expanded, folder / "out")] == ["finished", "finished"]
    assert not list((folder / "out").glob(".stop*"))


def test_a_failing_point_is_recorded_and_the_others_run(folder):
    threshold = '"policy.name" = ["threshold"]\n"policy.threshold" = [0.0, 1e9]\n'
    (folder / "experiment.toml").write_text(EXPERIMENT + threshold)
    expanded = points.expand(points.load(folder / "experiment.toml"))
    done = sweep.run(expanded, folder / "out")
    assert [record.status for record in done] == ["finished", "failed"] * 2
    assert done[1].message.startswith("No plan fits")
    files = results.write_tables(folder / "out", done)
    rows = list(csv.DictReader((folder / "out" / "points.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["finished", "failed"] * 2
    assert [row["clip_norm"] for row in rows] == [str(expanded[0].scenario.learning.clip_norm), ""] * 2
    table = pyarrow.parquet.read_table(folder / "out" / "points.parquet").to_pylist()
    assert [row["loss"] for row in table] == [float(row["loss"]) if row["loss"] else None for row in rows]
    long = pyarrow.parquet.read_table(folder / "out" / "rounds.parquet")
    assert long.num_rows == 2 * 4
    assert long.column("step").to_pylist() == [3, 6, 9, 12] * 2
    assert len(files) == 4


def test_two_workers_give_the_results_of_one(folder, expanded):
    alone = sweep.run(expanded, folder / "one", jobs=1)
    together = sweep.run(expanded, folder / "two", jobs=2)
    assert [record.rounds for record in together] == [record.rounds for record in alone]


def test_progress_counts_every_point_and_those_that_failed(folder):
    threshold = '"policy.name" = ["threshold"]\n"policy.threshold" = [0.0, 1e9]\n'
    (folder / "experiment.toml").write_text(EXPERIMENT + threshold)
    console = Console(file=io.StringIO(), width=100)
    sweep.run(
        points.expand(points.load(folder / "experiment.toml")), folder / "out", console=console, title="thresholds"
    )
    shown = " ".join(console.file.getvalue().split())
    assert shown.startswith("thresholds")
    assert "4/4 points, 2 failed" in shown


def test_a_half_written_run_is_taken_up(folder, expanded):
    path = results.run_path(folder / "out", expanded[0].key)
    path.mkdir(parents=True)
    (path / ".lock").touch()
    (path / "scenario.toml").write_text("half")
    (path / ".plan.json.part").write_text("{")
    done = sweep.run(expanded, folder / "out")
    assert [record.status for record in done] == ["finished", "finished"]


def test_a_run_of_another_version_is_left_alone(folder, expanded):
    path = results.run_path(folder / "out", expanded[0].key)
    path.mkdir(parents=True)
    (path / "run.json").write_text('{"format": 99}')
    done = sweep.run(expanded, folder / "out")
    assert [record.status for record in done] == ["failed", "finished"]
    assert "Use that version to read it" in done[0].message
    assert (path / "run.json").read_text() == '{"format": 99}'


def damage_record(out, point):
    results.record_path(out, point.key).write_text("{")


def age_record(out, point):
    file = results.record_path(out, point.key)
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 0}))


def drop_column(out, point):
    file = results.run_path(out, point.key) / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    del lines[1]["loss"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def drop_run(out, point):
    (results.run_path(out, point.key) / "run.json").unlink()


def drop_plan(out, point):
    (results.run_path(out, point.key) / "plan.json").write_text("[")


def odd_line(out, point):
    with (results.run_path(out, point.key) / "metrics.jsonl").open("a") as stream:
        stream.write("5\n")


def text_for_a_number(out, point):
    file = results.run_path(out, point.key) / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["loss"] = "<b>0</b>"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def odd_bound(out, point):
    file = results.run_path(out, point.key) / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "bound": 5}))


def endless(out, point):
    file = results.record_path(out, point.key)
    file.write_text(json.dumps({**json.loads(file.read_text()), "seconds": float("inf")}))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (odd_line, "line 5 is damaged"),
        (text_for_a_number, "line 4 is damaged: loss"),
        (odd_bound, "was changed: its digest differs"),
        (endless, "it is damaged. To run the point again, remove it"),
        (damage_record, "it is damaged. To run the point again, remove it"),
        (age_record, "another version of airfed wrote it"),
        (drop_column, "line 2 is damaged: loss: field required"),
        (drop_run, "There is no run"),
        (drop_plan, "was changed: its digest differs"),
    ],
)
def test_a_bad_record_is_one_sentence_and_costs_one_point(folder, expanded, harm, sentence):
    out = folder / "out"
    sweep.run(expanded, out)
    harm(out, expanded[0])
    with pytest.raises(RunError, match=sentence):
        results.read(out, expanded[0])
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file() and file.name != ".lock"}
    again = sweep.run(expanded, out)
    assert [record.status for record in again] == ["failed", "finished"]
    assert "\n" not in again[0].message
    assert "remove it" in again[0].message or "To run the point from the start, move" in again[0].message
    assert all(file.read_bytes() == content for file, content in before.items())


def test_two_sweeps_do_not_share_a_folder(folder, expanded):
    with sweep.locked_folder(folder / "out", ""), pytest.raises(RunError, match="Another sweep is running"):
        sweep.run(expanded, folder / "out")


def test_the_command_prints_one_json_object(folder, capsys):
    code = main(["sweep", str(folder / "experiment.toml"), "--out", str(folder / "out"), "--jobs", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["counts"] == {"finished": 2}
    assert [row["seed"] for row in found["points"]] == [0, 1]
    assert all(row["rounds"] == 4 for row in found["points"])


def test_the_command_says_what_is_wrong(folder, capsys):
    (folder / "experiment.toml").write_text('base = "scenario.toml"\n[axes]\nbudgett.epsilon = [1.0]\n')
    assert main(["sweep", str(folder / "experiment.toml"), "--out", str(folder / "out")]) == 2
    assert "Unknown key 'budgett'" in capsys.readouterr().err
    assert main(["sweep", str(folder / "experiment.toml"), "--out", str(folder / "out"), "--jobs", "0"]) == 2


def start(folder, gate, *extra, **options):
    """The command, two points at a time, held at the gate."""
    command = [sys.executable, "-m", "airfed", "sweep", "experiment.toml", "--out", "out", "--jobs", "2", *extra]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None if gate is None else gate.environment,
        **options,
    )


def rounds(folder):
    """Number of rounds of each run on the disk."""
    return sorted(file.read_bytes().count(b"\n") for file in (folder / "out").glob("runs/*/metrics.jsonl"))


def finish(process):
    output, errors = process.communicate(timeout=900)
    assert "Traceback" not in errors
    return process.returncode, output, errors


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "group"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)])
def test_a_signal_ends_with_its_code_and_the_same_command_resumes(folder, kind, group, gate, wait_until):
    held = gate(2)
    process = start(folder, held, start_new_session=True)
    wait_until(lambda: rounds(folder) == [2, 2], process)
    (os.killpg if group else os.kill)(process.pid, kind)
    wait_until(lambda: list((folder / "out").glob(".stop-*")) or process.poll() is not None)
    held.open()
    code, output, errors = finish(process)
    assert code == 128 + kind, errors
    assert "the same command resumes" in output
    assert max(rounds(folder)) < 4
    code, output, errors = finish(start(folder, None, "--json"))
    assert code == 0, errors
    assert json.loads(output)["counts"] == {"finished": 2}
    assert not list((folder / "out").glob(".stop-*"))


@pytest.mark.slow
def test_after_the_death_of_a_sweep_its_workers_stop_and_the_same_command_resumes(folder, gate, wait_until):
    held = gate(2)
    process = start(folder, held)
    wait_until(lambda: rounds(folder) == [2, 2], process)
    process.kill()
    process.wait()
    again = start(folder, None, "--json")  # the workers that are left still hold their runs
    held.open()
    code, output, errors = finish(again)
    assert code == 0, errors
    assert json.loads(output)["counts"] == {"finished": 2}
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_cluster_gives_the_results_of_one_process(folder, expanded, backend):
    pytest.importorskip("ray" if backend == "ray" else "distributed")
    alone = sweep.run(expanded, folder / "one")
    # In a process of its own: a cluster's start-up leaves warnings and threads behind.
    command = [sys.executable, "-m", "airfed", "sweep", "experiment.toml", "--out", "out", "--jobs", "2"]
    done = subprocess.run(
        [*command, "--backend", backend, "--json"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"finished": 2}
    there = [results.read(folder / "out", point) for point in expanded]
    assert [record.rounds for record in there] == [record.rounds for record in alone]


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(folder, gate, wait_until):
    (folder / "experiment.toml").write_text('base = "scenario.toml"\n[axes]\n"policy.rounds" = [2, 3, 4, 11, 12, 1]\n')
    held = gate(5)
    process = start(folder, held, "--json")
    wait_until(lambda: rounds(folder) == [2, 3, 4, 5, 5], process)
    finished = {file: file.read_bytes() for file in (folder / "out").glob("records/*.json")}
    assert len(finished) == 3
    os.kill(_worker(process.pid), signal.SIGKILL)
    held.open()
    code, output, errors = finish(process)
    assert code == 0, errors
    assert json.loads(output)["counts"] == {"finished": 6}
    assert all(file.read_bytes() == content for file, content in finished.items())
    assert not list((folder / "out").glob("records/*.begun"))


OWN_MODEL = """
import os, sys, torch
def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
def deadly():
    os.kill(os.getpid(), 9)
def leaving():
    sys.exit("enough")
def wrong():
    return {}["no such key"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "sentences", [{"deadly": "died twice"}, {"leaving": "SystemExit: enough", "wrong": "no such key"}], ids="-".join
)
def test_a_model_that_misbehaves_costs_its_own_points_only(folder, sentences, monkeypatch):
    images, labels = np.zeros((16, 4, 4), np.float32), np.arange(16) % 4
    np.savez(folder / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    (folder / "own.py").write_text(OWN_MODEL)
    change = f'dataset = "{folder / "tiny.npz"}"\nmodel = "own:make"\ndimension = 68'
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text.replace('model = "quadratic"\ndimension = 20', change))
    models = [f"own:{model}" for model in (*sentences, "make")]
    axis = f'"learning.model" = {json.dumps(models)}\nseed = [0, 1]\n'
    (folder / "experiment.toml").write_text('base = "scenario.toml"\n[axes]\n' + axis)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    code, output, _ = finish(start(folder, None, "--json"))
    assert code == 2
    rows = json.loads(output)["points"]
    expected = [sentence for sentence in sentences.values() for _ in range(2)]
    assert [row["status"] for row in rows] == [*("failed" for _ in expected), "finished", "finished"]
    assert all(sentence in row["message"] for sentence, row in zip(expected, rows, strict=False)), rows


def test_a_worker_whose_sweep_is_dead_begins_nothing(folder, expanded):
    point, out = expanded[0], folder / "out"
    sweep.run_point(point.scenario, out, point.key, folder / "stop", parent=os.getpid())
    assert not out.exists()
    sweep.run_point(point.scenario, out, point.key, folder / "stop", parent=os.getppid())
    assert results.read(out, point).status == "finished"


def test_a_run_that_a_dead_sweep_s_worker_still_holds_is_waited_for(folder, expanded, monkeypatch):
    point, out = expanded[0], folder / "out"
    path = results.run_path(out, point.key)
    held = contextlib.ExitStack()
    held.enter_context(RunDirectory(path).locked())
    waits = []
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: waits.append(seconds) or held.close())
    sweep.run_point(point.scenario, out, point.key, folder / "stop")
    assert len(waits) == 1
    assert results.read(out, point).status == "finished"


def _worker(parent):
    """The process id of one of joblib's workers."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as stream:
                ours = int(stream.read().rsplit(")", 1)[1].split()[1]) == parent
            with open(f"/proc/{process}/cmdline", "rb") as stream:
                words = stream.read()
        except OSError:
            continue
        if ours and b"LokyProcess" in words:
            return int(process)
    raise AssertionError("no worker")


HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from airfed.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(folder, hidden, *arguments):
    """The command without some packages."""
    command = [sys.executable, "-c", HIDDEN.format(hidden=hidden), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_without_pyarrow_the_tables_are_csv_and_one_line_says_so(folder):
    done = without(folder, ("pyarrow",), "sweep", "experiment.toml", "--out", "out", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Tables: CSV only; Parquet needs pyarrow")
    assert {file.name for file in (folder / "out").glob("*.*") if file.is_file()} == {
        "points.csv",
        "rounds.csv",
        ".lock",
    }
    done = without(folder, ("pyarrow",), "sweep", "experiment.toml", "--out", "out", "--jobs", "1", "--json")
    assert json.loads(done.stdout)["tables"] == ["out/points.csv", "out/rounds.csv"]
    assert done.stderr == ""


@pytest.mark.parametrize("command", [("sweep", "experiment.toml"), ("figures", "fig4", "--quick")])
def test_without_joblib_nothing_starts(folder, command):
    done = without(folder, ("joblib",), *command, "--out", "out")
    assert done.returncode == 2
    assert done.stderr == "airfed: This needs airfed[sweep] (joblib is missing): pip install 'airfed[sweep]'.\n"
    assert done.stdout == ""
    assert not (folder / "out").exists()


def test_an_invalid_file_name_of_a_plot_is_reported_before_the_training(folder):
    command = ("sweep", "experiment.toml", "--out", "out", "--plot")
    done = without(folder, ("matplotlib",), *command, "p.png")
    sentence = "airfed: This needs airfed[report] (matplotlib is missing): pip install 'airfed[report]'.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)
    done = without(folder, (), *command, "p.nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert not (folder / "out").exists()


def test_drawing_a_sweep_needs_no_torch(folder):
    done = without(folder, ("torch",), "sweep", "experiment.toml", "--out", "out", "--jobs", "1", "--plot", "p.png")
    assert done.stderr == "airfed: Nothing to draw: the runs of experiment have no accuracy.\n"  # and of nothing else


def test_without_a_cluster_nothing_starts(folder):
    done = without(folder, ("ray",), "sweep", "experiment.toml", "--out", "out", "--backend", "ray")
    assert (done.returncode, done.stderr) == (2, 'airfed: Backend ray needs Ray: pip install "ray".\n')
    assert not (folder / "out").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(folder, capsys):
    (folder / "out").write_text("a file")
    assert main(["sweep", str(folder / "experiment.toml"), "--out", str(folder / "out"), "--json"]) == 2
    assert "Cannot write to" in capsys.readouterr().err


def test_a_symbolic_link_in_the_lock_s_place_is_not_followed(folder, expanded):
    (folder / "precious").write_text("precious")
    (folder / "out").mkdir()
    (folder / "out" / ".lock").symlink_to(folder / "precious")
    with pytest.raises(RunError, match="Cannot write to"):
        sweep.run(expanded, folder / "out")
    assert (folder / "precious").read_text() == "precious"


def test_a_full_disk_is_reported_and_costs_no_point(folder, expanded, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(results, "write", full)
        with pytest.raises(RunError, match=r"Cannot write to .*No space left on device.*the same command resumes"):
            sweep.run(expanded, folder / "out")
    done = sweep.run(expanded, folder / "out")
    assert [record.status for record in done] == ["finished", "finished"]
    with monkeypatch.context() as patch:
        patch.setattr(results, "write_atomic", full)
        with pytest.raises(RunError, match=r"Cannot write the tables .*No space left"):
            results.write_tables(folder / "out", done)


def test_the_remaining_runs_are_reported_before_they_start(folder, expanded, capsys):
    assert sweep.remaining(expanded, folder / "out") == "2 runs: 0 finished, 2 to do."
    sweep.run(expanded[:1], folder / "out")
    arguments = ["sweep", str(folder / "experiment.toml"), "--out", str(folder / "out"), "--jobs", "1"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("2 runs: 1 finished, 1 to do")
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("2 runs, all finished.")
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    json.loads(shown.out)
    assert shown.err == ""
