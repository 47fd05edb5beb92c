"""A report shows the records, in one file that fetches nothing."""

import base64
import hashlib
import html
import json
import re
import shutil
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from airfed import Fleet, plan, scenario
from airfed.cli import main
from airfed.planning import load_surrogate
from airfed.planning.surrogate import Prediction
from airfed.plotting import figure, series
from airfed.report import ReportError, _plan_panels, read_run, render, write_report
from airfed.scenario.learning_section import SHIPPED
from airfed.text.phrases import gap_sentence, privacy_basis, schedule_sentence, span
from airfed.training.execution import execute

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


def test_a_report_is_one_small_file_that_fetches_nothing(run_directories, tmp_path):
    out = tmp_path / "report.html"
    write_report([read_run(run) for run in run_directories.values()], out)
    text = out.read_text()
    assert not re.search(r"src=|(?<!xlink:)href=", text)
    assert all(place.startswith(("#", "data:image/png;base64,")) for place in re.findall(r'xlink:href="(.*?)"', text))
    ids = re.findall(r'\bid="(.*?)"', text)
    assert len(ids) == len(set(ids))
    assert "http:" not in text
    assert "https:" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(text) < 300_000
    assert text.count('role="img"') == 1 + 2 + 2 * 4  # loss, ε, power, and four of each policy


def varied(run):
    """The record as if its channels had changed from round to round."""
    gain = np.random.default_rng(1).rayleigh(0.7, (6, 12)) + 0.2
    budget = replace(run.plan.problem.budget, total_power=2.0)
    problem = replace(run.plan.problem, fleet=Fleet(gain=gain, peak_power=1.0), budget=budget)
    return replace(run, _plan=plan(problem, rounds=6))


def test_a_time_varying_plan_is_drawn_round_by_round(run_directories):
    run = varied(read_run(run_directories["optimal", 0]))
    text = render([run])
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    expected = list(figure.plan_panels(run.plan, None))
    assert [title for title in expected if title in titles] == expected
    assert "θ over the number of devices" not in titles
    assert text.count('role="img"') == 1 + 2 + 4 + 1  # loss, ε, power, four of the plan, and power by device
    assert text.count("data:image/png;base64") == 1 + 1  # the map and its key
    text = html.unescape(text)
    for fact in (
        schedule_sentence(run.plan),
        gap_sentence(run.plan),
        "most exposed is device",
        "exact, most exposed round",
        f"<b>{span(run.plan.sizes, '–')} / 12</b>",
        f"Limits of θ = {run.plan.amplitudes.level.min():.4g} to {run.plan.alignment:.4g}, scaled together",
    ):
        assert fact
        assert fact in text
    assert "most exposed" not in render([read_run(run_directories["optimal", 0])])


def test_a_plan_by_accuracy_is_drawn_by_accuracy(run_directories, monkeypatch):
    run = read_run(run_directories["optimal", 0])
    surrogate = load_surrogate(SHIPPED / "mnist-5k-cnn-40.json")
    problem = replace(run.plan.problem, learning=replace(run.plan.problem.learning, total_steps=200, dimension=21840))
    problem = replace(problem, budget=replace(problem.budget, epsilon=40.0, scope="round"))
    by_accuracy = replace(run, _plan=plan(problem, objective=surrogate))
    assert by_accuracy.plan.objective == "accuracy"
    monkeypatch.setattr(type(run.scenario), "surrogate", surrogate)
    titles = set(_plan_panels(by_accuracy))
    assert "expected accuracy over the number of rounds" in titles
    assert "bound over the number of rounds" not in titles


def test_the_expected_accuracy_and_its_interval_stand_beside_the_reached_one(run_directories):
    runs = [read_run(path) for path in run_directories.values()]
    assert "90% interval" not in render(runs)
    predicted = replace(runs[0].plan, prediction=Prediction(accuracy=0.8512, low=0.8, high=0.9))
    page = render([replace(runs[0], _plan=predicted), *runs[1:]])
    assert page.count("<b>85.1%</b><span>expected; 90% interval 80–90%</span>") == 1
    assert page.count("<td>85.1% (80–90%)</td>") == 1


def test_the_audit_of_a_run_stands_in_its_report_while_the_ledger_is_the_same(run_directories, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(run_directories["optimal", 0], directory)
    assert "Not audited in this state" in render([read_run(directory)])
    assert main(["audit", str(directory), "--trials", "1000"]) == 0
    page = render([read_run(directory)])
    assert re.search(r"Audit: pass; the attacks show ε of at least \d\S* in total", page)
    assert "Not audited" not in page
    record = directory / "audit.json"
    record.write_text(re.sub('"ledger": "[^"]*"', f'"ledger": "{64 * "0"}"', record.read_text()))
    assert "Not audited in this state" in render([read_run(directory)])


def test_no_row_of_charts_is_half_empty(run_directories):
    run = read_run(run_directories["optimal", 0])
    for page, tall in (
        (render([run]), 0),
        (render([varied(run)]), 2),
        (render([replace(varied(run), devices=[])]), 3),
    ):
        for columns, row in re.findall(r'<div class="grid charts columns(\d)">(.*?)\n</div>', page, flags=re.DOTALL):
            rows = re.findall(r"--rows: (\d)", row)
            assert rows in ([], [str(tall)])
            cells = row.count('role="img"') + sum(int(each) - 1 for each in rows)
            assert cells % int(columns) == 0


def test_a_browser_runs_the_script_of_the_page_and_no_other(run_directories):
    text = render([read_run(run_directories["optimal", 0])])
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)
    assert policy is not None
    assert (
        policy.group(1) == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    )


def hostile(run):
    """The record with markup wherever a file could put it."""
    evil = '<script>hit()</script><img src=x onerror=hit()>" onload="hit()'
    noted = replace(run.plan, notes=(evil,))
    loaded = run.scenario.model_copy(update={"name": evil})
    manifest = {**run.manifest, "engine": evil, "airfed": evil, "versions": {evil: evil}, "plan_sha256": evil}
    ledger = copy(run.ledger)
    ledger.header = {**run.ledger.header, "privacy": evil}
    return replace(run, _plan=noted, _scenario=loaded, _manifest=manifest, _ledger=ledger)


def test_nothing_from_a_record_becomes_markup(run_directories):
    plain = render([read_run(path) for path in run_directories.values()])
    text = render([hostile(read_run(path)) for path in run_directories.values()])
    assert "<b>bold</b>" not in plain
    for tag in ("<script", "<img", "<b>"):
        assert text.count(tag) == plain.count(tag)
    assert not re.search(r"<[^>]*\son\w+=", text)
    assert text.count("&lt;script&gt;") > 10


def test_privacy_comes_from_the_ledger_and_not_from_the_metrics(run_directories, tmp_path):
    run = read_run(run_directories["optimal", 0])
    for record in run.rounds:
        record["epsilon_total"] /= 100
    run.manifest["privacy"] = "secure"
    text = render([run])
    assert text == render([read_run(run_directories["optimal", 0])])
    assert f"<b>{run.ledger.epsilon_total:.4g}</b><span>ε in total (simulated)</span>" in text
    (line,) = series.over_training([run], "epsilon_total")
    assert line.y.tolist() == [charge.epsilon_total for charge in run.ledger.charges]


def test_runs_are_listed_by_policy_and_seed_in_any_order(run_directories):
    runs = [read_run(path) for path in reversed(run_directories.values())]
    headings = re.findall(r"<h2>(.*? · seed \d)</h2>", render(runs))
    assert headings == ["optimal, I = 6 · seed 0", "optimal, I = 6 · seed 1", "full, I = 6 · seed 0"]


def test_the_page_shows_the_record(run_directories):
    run = read_run(run_directories["optimal", 0])
    text = render([run])
    for fact in (
        f"Schedule {run.plan.num_scheduled} of 12 devices, 6 rounds of 2 local steps",
        f"{run.final['epsilon_total']:.4g}",
        f"{run.final['power_transmitted_total']:.4g} W",
        "device-level, replace-one adjacency",
        "simulated",
        run.manifest["scenario_sha256"],
        "noise_std = 0.5",
    ):
        assert fact in text


def test_runs_that_differ_in_their_seed_share_a_curve_with_a_band(run_directories):
    runs = [read_run(path) for path in run_directories.values()]
    assert {label: len(members) for label, members in series.groups(runs).items()} == {
        "optimal, I = 6": 2,
        "full, I = 6": 1,
    }
    lines = series.over_training(runs, "loss")
    assert [(line.name, line.seeds) for line in lines] == [("optimal, I = 6", 2), ("full, I = 6", 1)]
    assert [line.spread is not None for line in lines] == [True, False]
    both = [run.rounds[-1]["loss"] for run in runs if run.scenario.policy.name == "optimal"]
    assert lines[0].y[-1] == pytest.approx(sum(both) / 2)
    assert series.over_training(runs, "accuracy") == []  # the quadratic task has none


def test_a_policy_in_two_scenarios_is_named_by_both_and_has_no_common_budget(make_scenario, tmp_path):
    one = make_scenario(name="one", policy__name="full")
    two = make_scenario(
        name="two", policy__name="full", budget__scope="total", budget__epsilon=9.0, budget__formula="exact"
    )
    for number, built in enumerate((one, two)):
        execute(built, tmp_path / str(number))
    runs = [read_run(tmp_path / str(number)) for number in (0, 1)]
    assert list(series.groups(runs)) == [f"{run.label} · {run.scenario.name}" for run in runs]
    assert [series.common_budget(some, "epsilon_total") for some in (runs, runs[1:])] == [None, 9.0]


def test_runs_of_the_same_name_get_different_labels_and_epsilon_names_its_adversary(make_scenario, tmp_path):
    for folder, adversary in (("one", None), ("all", "all_antennas"), ("front", "combined")):
        execute(
            make_scenario(name="w")
            if adversary is None
            else make_scenario(name="w", link__antennas=4, link__adversary=adversary),
            tmp_path / folder,
        )
    runs = [read_run(tmp_path / folder) for folder in ("one", "all", "front")]
    labels = [f"{run.label} · w ({run.path.name})" for run in runs]
    assert list(series.groups(runs)) == labels
    page = html.unescape(render(runs))
    assert "has different meanings in these runs" in page
    for label, run in zip(labels, runs, strict=True):
        assert f"<td>{label}" in page
        assert f"{label}: {privacy_basis(run.plan)}." in page
    assert "different meanings" not in render(runs[1:2])


def test_charts_follow_the_record(run_directories):
    run = read_run(run_directories["full", 0])
    spent, planned = series.over_training([run], "power_transmitted_total")
    assert spent.y.tolist() == [record["power_transmitted_total"] for record in run.rounds]
    assert planned.y.tolist() == pytest.approx([record["power_planned_total"] for record in run.rounds])
    assert series.common_budget([run], "power_transmitted_total") == 500.0


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("run.json", b"{}", "was changed: its digest differs"),
        ("run.json", None, "There is no run"),
        ("plan.json", b"{", "not a complete run"),
        ("plan.json", b"{}", "was changed: its digest differs"),
        ("scenario.toml", b"name = 1", "not a complete run"),
        ("metrics.jsonl", b"", "missing from the metrics"),
        ("metrics.jsonl", b'{"round": 0}\n', "steps: field required"),
        ("metrics.jsonl", b"garbage\n", "line 1 is damaged"),
        ("ledger.jsonl", b"{}\n", "ledger"),
        ("audit.json", b"{}", "ledger: field required"),
    ],
)
def test_a_damaged_run_is_reported_in_one_sentence(run_directories, tmp_path, file, damage, sentence):
    copy = tmp_path / "run"
    shutil.copytree(run_directories["optimal", 0], copy)
    if damage is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(damage)
    with pytest.raises(ReportError, match=sentence):
        read_run(copy)


def test_the_command_skips_unreadable_runs(run_directories, tmp_path, capsys):
    out = tmp_path / "report.html"
    good = str(run_directories["optimal", 0])
    assert main(["report", good, str(tmp_path / "nothing"), "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"] == 1
    assert "skipped" in captured.err
    assert main(["report", str(tmp_path / "nothing"), "--out", str(out)]) == 2
    assert main(["report", good, "--out", str(tmp_path / "no" / "such" / "folder.html")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_takes_a_folder_with_runs_below_it(run_directories, tmp_path, capsys):
    for place, run in zip(("one", "runs/two", "runs/deep/three"), run_directories.values(), strict=True):
        shutil.copytree(run, tmp_path / "sweep" / place)
    out = str(tmp_path / "report.html")
    folder = str(tmp_path / "sweep")
    assert main(["report", folder, f"{folder}/one", "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 3
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "--out", out]) == 2
    assert "is not a complete run" in capsys.readouterr().err


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser is on the PATH")
def test_the_page_fits_a_phone_shows_values_and_runs_no_foreign_script(run_directories, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    out = tmp_path / "report.html"
    write_report([hostile(varied(read_run(path))) for path in run_directories.values()], out)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for width in (390, 1280):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
            page.add_init_script("window.hits = 0; window.hit = () => { window.hits += 1; };")
            page.goto(out.as_uri())
            assert page.evaluate("window.hits") == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            shown = page.locator("svg.chart:visible")
            assert shown.count() == 1 + 2 + 2 * 5
            assert page.locator(".chart image:visible").count() == 2 * 2  # maps and their keys
            smallest = page.evaluate(
                "Math.min(...[...document.querySelectorAll('.chart text')].map(t => t.getBoundingClientRect().height)"
                ".filter(h => h > 0))"
            )
            assert smallest >= 10  # pixels: letters keep their size
            shown.first.locator(".hover").nth(2).hover()
            page.wait_for_function("document.getElementById('tip').textContent.includes('local steps')")
            background = "getComputedStyle(document.body).backgroundColor"
            dark = page.evaluate(background)
            page.click("#theme")
            assert page.evaluate(background) != dark
            page.close()
        browser.close()
