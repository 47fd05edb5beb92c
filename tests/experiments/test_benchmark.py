"""Benchmarks: every method on the same seeds and budgets, as a table, in words and in figures."""

import contextlib
import csv
import errno
import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import airfed
from airfed import _extras, scenario
from airfed.cli import main
from airfed.experiments import benchmark, points, results, sweep
from airfed.experiments.benchmark_table import Benchmark, MethodResult
from airfed.policies import EVERY
from airfed.privacy.ledger import Ledger
from airfed.problem import InfeasibleError
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.setup import QuadraticLearning

TINY = Path(__file__).parents[1] / "tiny.toml"
EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISED = {
    *("policy", "accuracy", "accuracy_low", "accuracy_high", "epsilon_total", "mu_total", "power_total"),
    *("power_transmitted", "air_time", "channel_uses", "gap", "private", "rounds", "num_scheduled", "seeds", "note"),
}


@pytest.fixture
def tiny():
    return scenario.parse(tomllib.loads(TINY.read_text())).override({"policy.size": 2})


@pytest.fixture
def undrawn(monkeypatch):
    """Draw nothing, because figures take seconds."""
    monkeypatch.setattr(Benchmark, "plot", lambda self: {})


def fake_run(score, *, epsilon=3.0, power=5.0, private=True, violations=(), **rest):
    spent = (
        {"epsilon_total": epsilon, "mu_total": 1.0}
        if private
        else dict.fromkeys(("epsilon_total", "mu_total"), math.inf)
    )
    return {
        **{"accuracy": score, "loss": 1 - score, "power_total": power, "power_transmitted": power / 2},
        **{"air_time": None, "channel_uses": 800, "rounds": 4, "num_scheduled": 3, "status": "finished"},
        **{"private": private, "violations": list(violations)},
        **spent,
        **rest,
    }


def fake_benchmark(methods, seeds=3):
    """A benchmark of methods, each given by its scores and other columns of its runs."""
    results = [
        MethodResult(
            policy=name,
            runs={seed: fake_run(score, **rest) for seed, score in scores.items()},
            reasons={seed: "No plan fits." for seed in range(seeds) if seed not in scores},
        )
        for name, (scores, rest) in methods.items()
    ]
    return Benchmark.of("fake", "ε = 2", range(seeds), results)


def over(*scores, **rest):
    return dict(enumerate(scores)), rest


def by_policy(rows):
    return {row["policy"]: row for row in rows}


def test_the_list_of_methods_has_every_policy_once():
    assert set(EVERY) <= set(benchmark.COMPARED)
    assert len(set(benchmark.COMPARED)) == len(benchmark.COMPARED)


def test_all_methods_take_part_except_those_that_lack_a_setting(tiny):
    runs = benchmark.BenchmarkRuns.of(tiny, seeds=2)
    varying = {name for name, policy in EVERY.items() if policy.time_varying}
    assert {point.label for point in runs.points} == set(EVERY) - varying - {"threshold"}
    assert [point.values["seed"] for point in runs.points] == [3, 4] * (len(runs.points) // 2)
    assert set(runs.absent) == varying
    threshold = {"policy.name": "threshold", "policy.size": None, "policy.threshold": 0.5}
    assert "threshold" in {
        point.label for point in benchmark.BenchmarkRuns.of(tiny.override(threshold), seeds=1).points
    }
    changing = benchmark.BenchmarkRuns.of(tiny.override({"channel.coherence_rounds": 1}), seeds=1)
    assert varying <= {point.label for point in changing.points}
    own = benchmark.BenchmarkRuns.of(tiny.override({"policy.name": "json:dumps", "policy.size": None}), seeds=1)
    assert own.points[-1].label == "json:dumps"


@pytest.mark.parametrize("name", ["top_k", "uniform", "digital", "secure_aggregation"])
def test_a_benchmark_chooses_the_settings_of_a_method_by_its_plan(name):
    base = airfed.load(EXAMPLES / "private.toml").vary({"policy.name": name})
    chosen = benchmark.with_best_settings(base)
    plan, plain = chosen.plan(), base.plan()
    if plan.objective == "accuracy":
        assert plan.predicted_accuracy >= plain.predicted_accuracy - 1e-3
    else:
        assert plan.bound.total <= plain.bound.total * (1 + 2e-3)
    if name in ("top_k", "uniform"):
        every = [base.plan(size=size).predicted_accuracy for size in (100, 250, 500, 750, 900, 1000)]
        assert plan.predicted_accuracy >= max(every) - 1e-3
        assert plan.predicted_accuracy > plain.predicted_accuracy + 0.01  # half of the devices are not the best
    else:
        assert chosen.policy.options["bits"] in benchmark._BITS[name]
        assert plan.channel_uses <= plain.channel_uses
    assert benchmark.with_best_settings(chosen) == chosen  # given settings are kept
    (point,) = benchmark.BenchmarkRuns.of(base, seeds=1, policies=[name]).points
    assert point.scenario.policy == chosen.policy
    assert point.key == points.content_key(chosen)


def test_a_method_without_settings_or_plan_is_left_as_it_is(tiny):
    scenario = tiny.vary({"policy.name": "full"})
    assert benchmark.with_best_settings(scenario) is scenario
    short = {"link.bandwidth": 1.0, "budget.air_time": 1e-6}
    strict = tiny.override({"policy.size": None, "policy.name": "top_k", **short})
    assert benchmark.with_best_settings(strict) is strict


@pytest.mark.usefixtures("undrawn")
def test_the_adversary_of_several_antennas_is_part_of_the_budget(tiny):
    assert "against" not in benchmark.BenchmarkRuns.of(tiny, seeds=1).table([]).budget
    changes = {"channel": {"model": "rayleigh"}, "link.antennas": 2, "link.adversary": "combined"}
    several = benchmark.BenchmarkRuns.of(tiny.override(changes), seeds=1)
    assert several.table([]).budget.endswith("; privacy against a server that receives the combined signal only")


@pytest.mark.parametrize("package", ["pandas", "jinja2"])
def test_a_missing_package_for_tables_is_reported_before_anything_is_trained(tiny, tmp_path, monkeypatch, package):
    monkeypatch.setattr(_extras, "has", lambda name: name != package)
    with pytest.raises(_extras.MissingExtra, match=package):
        benchmark.run(tiny, tmp_path / "benchmark", seeds=1, policies=["full"])
    assert not (tmp_path / "benchmark").exists()


def test_every_method_is_trained_with_the_same_seeds(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(QuadraticLearning, "evaluate", _with_accuracy(QuadraticLearning.evaluate))
    chosen = ["top_k", "myopic", "full", "uniform", "optimal"]
    found = benchmark.run(tiny, tmp_path, seeds=3, policies=chosen)
    rows = by_policy(found.rows())
    assert set(rows) == set(chosen)
    assert all(row.keys() >= PROMISED for row in rows.values())
    assert {name: row["seeds"] for name, row in rows.items()} == {**dict.fromkeys(chosen, 3), "myopic": 0}
    assert rows["myopic"]["accuracy"] is None
    assert "unless channels are time-varying" in rows["myopic"]["note"]
    accuracies = [row["accuracy"] for row in found.rows() if row["accuracy"] is not None]
    assert accuracies == sorted(accuracies, reverse=True)
    # The same plan on the same draws gives the same bits: only the method differs.
    assert found.find("optimal").runs == found.find("full").runs
    for result in found.results:
        for seed, run in result.runs.items():
            alone = tiny.vary({"policy.name": result.policy, "seed": seed}).plan()
            assert (run["epsilon_total"], run["rounds"]) == (pytest.approx(alone.epsilon_total), alone.rounds)
            assert run["power_transmitted"] <= run["power_total"] * (1 + 1e-9)
            assert run["power_total"] == pytest.approx(alone.power_total)
    expected = results.estimate([found.find("top_k").runs[seed]["accuracy"] for seed in (3, 4, 5)])
    assert (rows["top_k"]["accuracy"], rows["top_k"]["accuracy_low"]) == (expected.mean, expected.low)


def _with_accuracy(evaluate):
    def evaluated(self, parameters):
        found = evaluate(self, parameters)
        return {**found, "accuracy": 1 / (1 + found["loss"])}

    return evaluated


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_benchmark_is_resumed_with_the_same_result_and_trains_nothing_twice(tiny, tmp_path, monkeypatch):
    chosen = ("optimal", "uniform")
    whole = benchmark.run(tiny, tmp_path / "whole", seeds=2, policies=chosen)
    out, runs = tmp_path / "parts", benchmark.BenchmarkRuns.of(tiny, seeds=2, policies=chosen)
    ended, half, *_ = runs.points
    sweep.run([ended], out)
    calls = iter([False] * 3)
    execute(half.scenario, out.resolve() / "runs" / half.key, stop=lambda: next(calls, True))
    begun, run_point = [], sweep.run_point
    monkeypatch.setattr(sweep, "run_point", lambda *task: (begun.append(task[2]), run_point(*task))[1])
    again = benchmark.run(tiny, out, seeds=2, policies=chosen)
    assert sorted(begun) == sorted(point.key for point in runs.points if point is not ended)
    assert again.to_json() == whole.to_json()
    assert (out / "benchmark.csv").read_bytes() == (tmp_path / "whole" / "benchmark.csv").read_bytes()
    begun.clear()
    more = benchmark.run(tiny, out, seeds=2, policies=[*chosen, "top_k"])  # a method added later has the same seeds
    assert len(begun) == 2
    assert [row for row in more.rows() if row["policy"] != "top_k"] == again.rows()
    with pytest.raises(RunError, match="is the benchmark of another scenario"):
        benchmark.run(tiny.override({"link.noise_std": 0.5}), out, seeds=2, policies=chosen)


@pytest.mark.usefixtures("undrawn")
def test_a_method_without_a_plan_is_a_row_with_the_reason(tiny, tmp_path):
    strongest = [tiny.override({"seed": seed}).problem().fleet.gain.max() for seed in (3, 4)]
    between = {"policy.name": "threshold", "policy.size": None, "policy.threshold": float(np.mean(strongest))}
    found = benchmark.run(tiny.override(between), tmp_path, seeds=2, policies=["threshold", "optimal"])
    row = by_policy(found.rows())["threshold"]
    lost = 3 + int(np.argmin(strongest))
    assert row["seeds"] == 1
    assert row["note"].startswith(f"Seed {lost}: No plan fits")
    assert not found.find("threshold").failed
    assert [result.policy for result in found.comparable] == ["optimal"]  # no other has all seeds
    found = benchmark.run(tiny.override({**between, "policy.threshold": 1e9}), tmp_path / "no", seeds=2)
    row = by_policy(found.rows())["threshold"]
    assert (row["loss"], row["seeds"], row["private"]) == (None, 0, None)
    assert row["note"].startswith("No plan fits")
    assert r"threshold & -- & --" in found.to_latex()


@pytest.mark.usefixtures("undrawn")
def test_a_failed_training_differs_from_a_missing_plan(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(QuadraticLearning, "evaluate", _broken)
    found = benchmark.run(tiny, tmp_path / "one", seeds=1, policies=["full"])
    assert found.results[0].failed
    file = tmp_path / "tiny.toml"
    file.write_text(tiny.to_toml())
    arguments = ("--policies", "full", "--seeds", "1", "--jobs", "1", "--json")
    assert main(["benchmark", str(file), "--out", str(tmp_path / "two"), *arguments]) == 2
    assert "broken" in json.loads(capsys.readouterr().out)[0]["note"]


def _broken(*arguments):
    raise ValueError("The task is broken.")


@pytest.mark.usefixtures("undrawn")
def test_expenses_come_from_the_ledger(tiny, tmp_path, monkeypatch):
    chosen = {"seeds": 1, "policies": ["optimal"]}
    before = benchmark.run(tiny, tmp_path, **chosen).rows()[0]
    monkeypatch.setattr(Ledger, "epsilon_total", 42.0)
    monkeypatch.setattr(Ledger, "power_planned", 43.0)
    after = benchmark.run(tiny, tmp_path, **chosen).rows()[0]
    assert (after["epsilon_total"], after["power_total"]) == (42.0, 43.0)
    assert before["epsilon_total"] == pytest.approx(tiny.vary({"policy.name": "optimal"}).plan().epsilon_total)


def test_the_gap_to_fedavg_is_paired_by_seed():
    found = fake_benchmark(
        {
            "fedavg": over(0.9, 0.5, 0.7, private=False),
            "optimal": over(0.8, 0.4, 0.6),
            "top_k": ({0: 0.7, 2: 0.6}, {}),
        }
    )
    rows = by_policy(found.rows())
    assert rows["fedavg"]["gap"] == 0
    assert rows["optimal"]["gap"] == pytest.approx(0.1)
    assert rows["top_k"]["gap"] == pytest.approx((0.2 + 0.1) / 2)  # not the difference of the means
    assert rows["fedavg"]["epsilon_total"] == math.inf
    assert json.loads(found.to_json())[0]["epsilon_total"] is None
    assert [result.policy for result in found.comparable] == ["optimal"]
    assert fake_benchmark({"optimal": over(0.8, 0.4, 0.6)}).rows()[0]["gap"] is None


@pytest.mark.parametrize(
    ("baseline", "sentence"),
    [
        (
            over(0.81, 0.61, 0.71),
            r"Better than airfed's plan \(optimal\): full, \+1\.00 points \(interval 1\.00 to 1\.00, paired over 3",
        ),
        (
            over(0.90, 0.50, 0.75),
            r"Not separated from airfed's plan \(optimal\): full, \+1\.67 points \(interval -2\d\.\d\d to 2\d\.",
        ),
        (
            over(0.70, 0.70, 0.65),
            r"Not separated from airfed's plan \(optimal\): full, -1\.67 points \(interval -2\d\.\d\d to 2\d\.",
        ),
        (
            over(0.80, 0.60, 0.70),
            r"Not separated from airfed's plan \(optimal\): full, 0\.00 points \(interval 0\.00 to 0\.00",
        ),
        (
            over(0.78, 0.58, 0.68),
            r"Worse than airfed's plan \(optimal\): full, -2\.00 points \(interval -2\.00 to -2\.00, paired over 3",
        ),
        (over(0.99, 0.99, 0.99, violations=["total_power"]), r"Best mean within the budgets: optimal, accuracy 70\.0%"),
        (over(0.99, 0.99, 0.99, private=False), r"Best mean within the budgets: optimal, accuracy 70\.0%"),
    ],
)
def test_a_verdict_separates_methods_only_if_the_interval_does(baseline, sentence):
    found = fake_benchmark({"optimal": over(0.8, 0.6, 0.7), "full": baseline})
    verdict = " ".join(found.verdict())
    assert re.search(sentence, verdict)
    assert ("Better" in verdict) == ("Better" in sentence)
    assert ("Worse" in str(found)) == ("Worse" in sentence)
    assert max(map(len, str(found).splitlines())) <= 80


def test_a_verdict_is_corrected_for_the_number_of_methods():
    small = (0.802, 0.605, 0.7025, 0.504)  # +0.2, +0.5, +0.25 and +0.4 points: p = 0.013
    own = over(0.8, 0.6, 0.7, 0.5)
    assert "Better than" in " ".join(fake_benchmark({"optimal": own, "full": over(*small)}, 4).verdict())
    others = {name: over(0.81, 0.57, 0.70, 0.51) for name in ("top_k", "uniform", "paper", "liu_simeone")}
    sentences = fake_benchmark({"optimal": own, "full": over(*small), **others}, 4).verdict()
    assert "Better than" not in " ".join(sentences)
    assert sentences[-1].endswith("(Holm, 95% for all together).")


def test_holm_is_the_step_down_procedure():
    rng = np.random.default_rng(0)
    for _ in range(200):
        size, count = int(rng.integers(2, 8)), int(rng.integers(1, 7))
        samples = {str(i): rng.normal(rng.choice([0.0, 1.0, 3.0]), 1.0, size) for i in range(count)}
        p = {name: stats.ttest_1samp(sample, 0.0).pvalue for name, sample in samples.items()}
        rejected = set()
        for rank, name in enumerate(sorted(p, key=p.get)):
            if p[name] >= 0.05 / (count - rank):
                break
            rejected.add(name)
        assert {name for name, found in results.holm(samples).items() if found.sign} == rejected


def test_one_seed_separates_no_methods():
    verdict = " ".join(fake_benchmark({"optimal": over(0.8), "full": over(0.9), "top_k": over(0.1)}, 1).verdict())
    assert (
        "Not separated from airfed's plan (optimal): full, +10.00 points (one seed, so no interval); top_k" in verdict
    )
    assert not re.search("Better|Worse", verdict)


def test_marks_are_explained():
    found = fake_benchmark({"cotaf": over(0.8, 0.6, private=False), "paper": over(0.5, 0.5, violations=["privacy"])}, 2)
    text = str(found)
    assert "cotaf†" in text
    assert "paper*" in text
    assert "† not private; * exceeds a limit" in " ".join(text.split())
    assert "No method has results within the budgets" in text


def test_the_csv_is_the_rows():
    found = fake_benchmark(
        {"fedavg": over(0.9, 0.5, private=False), "uniform": ({}, {}), "optimal": over(1 / 3, 0.7)}, 2
    )
    read = list(csv.DictReader(found.to_csv().splitlines()))
    rows = found.rows()
    assert len(read) == len(rows) == 3
    for cells, row in zip(read, rows, strict=True):
        assert cells == {name: "" if value is None else str(value) for name, value in row.items()}


def test_the_latex_is_well_formed():
    methods = {
        "fedavg": over(0.9, 0.5, private=False),
        "top_k": over(0.4, 0.5, power=123456.0),
        r"a\b&c:d%{~^": ({}, {}),
    }
    text = fake_benchmark(methods, 2).to_latex()
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrrrrr}"
    assert body[-1] == r"\end{tabular}"
    assert [line for line in body if line.startswith("\\") and line.endswith("rule")] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    rows = [line for line in body if line.endswith(r"\\")]
    assert len(rows) == 4
    for line in rows:
        bare = re.sub(r"\\[&%$#_{}]", "", line.removesuffix(r"\\"))  # what is escaped means nothing
        assert bare.count("&") == 6
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        assert not re.search(r"[%#~]", bare)
        assert not re.search(r"[_^]", re.sub(r"\$[^$]*\$", "", bare))
    assert r"\textbackslash b\&c:d\%\{\textasciitilde \textasciicircum" in text
    assert r"$6.17\cdot10^{4}$" in text
    tiny = fake_benchmark({"optimal": over(1.0, 1.0, accuracy=None, loss=3e-8)}, 2).to_latex()
    assert r"optimal & $3\cdot10^{-8}$ $\pm$0 &" in tiny
    assert r"fedavg$^{\dagger}$" in text


def test_figures_show_each_method_once_with_its_interval():
    rng = np.random.default_rng(3)
    methods = {
        name: over(
            *(0.8 + 0.02 * index % 0.1 + 0.01 * rng.standard_normal(3)),
            epsilon=3 + 0.1 * (index % 3),
            power=1.0 + index,
        )
        for index, name in enumerate(benchmark.COMPARED)
    }
    methods["fedavg"][1]["private"] = False
    methods["fedavg"][1]["power"] = 0.0
    found = fake_benchmark(methods)
    drawn = found.plot()
    assert list(drawn) == ["benchmark-privacy", "benchmark-power", "benchmark-air"]
    (axes,) = drawn["benchmark-privacy"].axes
    (wall,) = (line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":")
    marks = {container.get_label(): container for container in axes.containers}
    assert set(marks) == set(benchmark.COMPARED)
    assert len({(mark[0].get_marker(), mark[0].get_color()) for mark in marks.values()}) == len(
        marks
    )  # distinguishable
    assert {name for name, mark in marks.items() if mark[0].get_xdata()[0] > wall} == {"fedavg"}
    for row in found.rows():
        line, _, (bar,) = marks[row["policy"]].lines
        assert line.get_ydata()[0] == row["accuracy"]
        assert bar.get_segments()[0][:, 1] == pytest.approx([row["accuracy_low"], row["accuracy_high"]])
    assert "fedavg" in drawn["benchmark-power"].get_label()  # it spends no power


def test_a_method_at_chance_level_does_not_squeeze_the_others():
    methods = {"optimal": over(0.9, 0.91, 0.9), "full": over(0.85, 0.86, 0.84), "digital": over(0.1, 0.1, 0.1)}
    (axes,) = fake_benchmark(methods).plot()["benchmark-privacy"].axes
    assert axes.get_ylim()[0] > 0.75
    names = [container.get_label() for container in axes.containers]
    assert names == ["optimal", "full", "digital: 10.0%, outside the axis"]


def test_no_accuracy_is_beyond_its_range():
    methods = {"optimal": over(0.5, 0.5, 0.5), "full": over(0.0, 0.4, 0.8, epsilon=3.05)}
    (axes,) = fake_benchmark(methods).plot()["benchmark-privacy"].axes
    assert axes.get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize(("other", "kind"), [(2e-3, "linear"), (1e6, "log")])
def test_losses_that_differ_by_far_have_a_logarithmic_axis(other, kind):
    methods = {name: over(0.5, 0.5, accuracy=None, loss=loss) for name, loss in (("optimal", 1e-3), ("cotaf", other))}
    (axes,) = fake_benchmark(methods, 2).plot()["benchmark-privacy"].axes
    assert axes.get_yscale() == kind
    low, high = axes.get_ylim()
    assert all(low < loss < high for loss in (1e-3, other))


def test_the_command_prints_rows_and_leaves_files(tiny, tmp_path, capsys, monkeypatch):
    file, out = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(tiny.to_toml())
    command = ["benchmark", str(file), "--out", str(out), "--seeds", "2", "--policies", "optimal, top_k", "--jobs", "1"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["optimal", "top_k"]
    assert all(row.keys() >= PROMISED for row in rows)
    assert rows == json.loads((out / "benchmark.json").read_text())
    pictures = {
        f"benchmark-{name}.{ending}" for name in ("privacy", "power", "air") for ending in ("png", "pdf", "txt")
    }
    tables = {"benchmark.csv", "benchmark.json", "benchmark.tex", "points.csv", "rounds.csv"}
    assert pictures | tables <= {path.name for path in out.iterdir()}
    monkeypatch.setattr(Benchmark, "plot", lambda self: {})  # once is enough
    assert main([*command, "--format", "latex"]) == 0
    printed = capsys.readouterr()
    assert printed.out in (out / "benchmark.tex").read_text()
    assert "all finished" in printed.err
    assert "Best mean within the budgets: optimal" in printed.err
    again = airfed.benchmark(file, out, seeds=2, policies=["optimal", "top_k"], progress=False)
    assert json.loads(again.to_json()) == rows
    assert again._repr_html_().count("<table") == 1


def test_a_figure_of_a_benchmark_is_replaced_atomically(tmp_path, monkeypatch):
    found = fake_benchmark({"optimal": over(0.9, 0.8, 0.7), "full": over(0.6, 0.5, 0.4)})
    benchmark.write(found, [], tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert "benchmark-air.png" in before

    def cut_short(self, target, **options):
        with target.open("wb") if isinstance(target, Path) else contextlib.nullcontext(target) as stream:
            stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", cut_short)
    with pytest.raises(RunError, match=r"No space left on device\. The runs are kept"):
        benchmark.write(found, [], tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.toml"], "there is no such file"),
        (["--seeds", "0"], "seeds must be at least 1, got 0."),
        (["--seeds", "2.5"], "must be a whole number"),
        (["--policies", "optimal,nobody"], "got 'nobody'"),
        (["--policies", "myopic"], "unless channels are time-varying"),
        (["--policies", ""], "got ''"),
        (["--json", "--format", "csv"], "--json and --format exclude each other"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0."),
        (["--total", "-1"], "total must be"),
    ],
)
def test_a_mistake_is_one_sentence(tiny, tmp_path, capsys, arguments, sentence):
    file = tmp_path / "tiny.toml"
    file.write_text(tiny.to_toml())
    out = tmp_path / "out"
    given = arguments if arguments[0] == "missing.toml" else [str(file), *arguments]
    assert main(["benchmark", *given, "--out", str(out)]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_a_scenario_that_spends_no_privacy_has_no_default_total(tiny):
    with pytest.raises(InfeasibleError, match="--total"):
        benchmark.one_total(tiny.override({"budget.total_power": 1e-15}))


def test_a_benchmark_refuses_a_shared_ledger(tiny, tmp_path):
    charged = tiny.override(
        {"budget.shared_ledger": "shared.jsonl", "budget.scope": "total", "budget.formula": "exact"}
    )
    with pytest.raises(ValueError, match=r"must have no budget\.shared_ledger"):
        benchmark.run(charged, tmp_path)
