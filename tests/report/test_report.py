"""A report says what the records say, in one file that fetches nothing."""

import json
import re
import shutil

import pytest

from airfed import scenario
from airfed.cli import main
from airfed.report import ReportError, charts, read_run, write_report
from airfed.report.page import render
from airfed.running.execution import execute

SCENARIO = """
name = "a <b>bold</b> </script> name · seed={seed}"
seed = {seed}
[fleet]
num_devices = 12
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.2
[link]
noise_std = 0.5
[budget]
epsilon = 3.0
delta = 1e-3
total_power = 500.0
[learning]
model = "quadratic"
dimension = 10
total_steps = 12
learning_rate = 0.5
clip_norm = 2.0
smoothness = 2.0
strong_convexity = 0.5
initial_gap = 5.0
[policy]
name = "{policy}"
rounds = 6
"""


@pytest.fixture(scope="module")
def run_directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for policy, seed in (("optimal", 0), ("optimal", 1), ("full", 0)):
        file = root / f"{policy}{seed}.toml"
        file.write_text(SCENARIO.format(policy=policy, seed=seed))
        execute(scenario.load(file), root / f"{policy}{seed}")
        found[policy, seed] = root / f"{policy}{seed}"
    return found


def test_a_report_is_one_file_that_fetches_nothing(run_directories, tmp_path):
    out = tmp_path / "report.html"
    write_report([read_run(run_directories["optimal", 0])], out)
    text = out.read_text()
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # plotly's own code names addresses
    assert not re.search(r"(src|href)=", outside)
    assert "http" not in outside


def test_names_from_the_scenario_cannot_break_the_page(run_directories):
    text = render([read_run(run_directories["optimal", 0]), read_run(run_directories["full", 0])])
    assert "<b>bold</b>" not in text
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, flags=re.DOTALL)
    assert data is not None
    assert set(json.loads(data.group(1))) == {"learning", "budget", "decision", "run0", "run1"}


def test_runs_are_listed_by_policy_and_seed_in_whatever_order_they_come(run_directories):
    runs = [read_run(path) for path in reversed(run_directories.values())]
    headings = re.findall(r"<h2>(.*? · seed \d)</h2>", render(runs))
    assert headings == ["optimal, I = 6 · seed 0", "optimal, I = 6 · seed 1", "full, I = 6 · seed 0"]


def test_the_page_says_what_was_recorded(run_directories):
    run = read_run(run_directories["optimal", 0])
    text = render([run])
    for fact in (
        f"Schedule {run.plan.num_scheduled} of 12 devices, 6 rounds of 2 steps",
        f"{run.final['epsilon_total']:.4g}",
        f"{run.final['power_transmitted_total']:.4g} W",
        "unit: device",
        "neighbours: replace one device",
        "simulated",
        run.manifest["scenario_sha256"],
        "noise_std = 0.5",
    ):
        assert fact in text


def test_runs_that_differ_in_their_seed_share_a_curve_with_a_band(run_directories):
    runs = [read_run(path) for path in run_directories.values()]
    assert {label: len(members) for label, members in charts.groups(runs).items()} == {
        "optimal, I = 6": 2,
        "full, I = 6": 1,
    }
    chart = charts.learning(runs, "loss", "training loss")
    lines = [trace for trace in chart["data"] if trace.get("mode") == "lines"]
    bands = [trace for trace in chart["data"] if trace.get("fill")]
    assert (len(lines), len(bands)) == (2, 1)
    both = [run.rounds[-1]["loss"] for run in runs if run.scenario.policy.name == "optimal"]
    assert lines[0]["y"][-1] == pytest.approx(sum(both) / 2)
    assert charts.learning(runs, "accuracy", "accuracy") is None  # the quadratic task has none


def test_charts_follow_the_plan(run_directories):
    run = read_run(run_directories["full", 0])
    chart = charts.candidates(run)
    star = next(trace for trace in chart["data"] if trace["name"] == "chosen")
    assert star["x"] == [12]
    assert star["y"] == [run.plan.alignment]
    bars = charts.bound([run])["data"]
    assert sum(bar["x"][0] for bar in bars) == pytest.approx(run.plan.bound.total)
    spent = charts.power([run])["data"][0]["y"]
    assert spent == [record["power_transmitted_total"] for record in run.rounds]


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("run.json", b"{}", "another version"),
        ("run.json", None, "there is none"),
        ("plan.json", b"{", "not a complete run"),
        ("plan.json", b"{}", "plan.json has no 'dimension'"),
        ("scenario.toml", b"name = 1", "not a complete run"),
        ("metrics.jsonl", b"", "no round has been recorded"),
        ("metrics.jsonl", b'{"round": 0}\n', "no 'steps'"),
        ("metrics.jsonl", b"garbage\n", "line 1 is damaged"),
        ("ledger.jsonl", b"{}\n", "ledger"),
    ],
)
def test_a_damaged_run_gets_one_sentence(run_directories, tmp_path, file, damage, sentence):
    copy = tmp_path / "run"
    shutil.copytree(run_directories["optimal", 0], copy)
    if damage is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(damage)
    with pytest.raises(ReportError, match=sentence):
        read_run(copy)


def test_the_command_passes_over_what_it_cannot_read(run_directories, tmp_path, capsys):
    out = tmp_path / "report.html"
    good = str(run_directories["optimal", 0])
    assert main(["report", good, str(tmp_path / "nothing"), "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"] == 1
    assert "passed over" in captured.err
    assert main(["report", str(tmp_path / "nothing"), "--out", str(out)]) == 2
    assert main(["report", good, "--out", str(tmp_path / "no" / "such" / "folder.html")]) == 2
    assert "Traceback" not in capsys.readouterr().err
