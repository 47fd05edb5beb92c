"""The benchmarks on docs/baselines.md: the section follows from the records, also from a part of them."""

import numpy as np
import pandas as pd
import pytest

from studies import benchmarks

RUN = {
    **{"loss": 0.5, "epsilon_total": 2.0, "mu_total": 0.5, "power_total": 300.0, "power_transmitted": 280.0},
    **{"private": True, "channel_uses": 1.2e6, "air_time": None, "rounds": 56, "num_scheduled": 1000},
    **{"violations": "", "status": "finished", "version": "0.3.0"},
}
SPREAD = np.array([0.004, -0.003, 0.001, -0.002, 0.0])


def rows(study, policy, accuracy, **changes):
    """Return the records of a method, one for each seed."""
    common = {**RUN, "study": study, "policy": policy, **changes}
    return [{**common, "seed": seed, "accuracy": value} for seed, value in enumerate(accuracy)]


@pytest.fixture
def found():
    return pd.DataFrame(
        [
            *rows("private", "weighted", 0.8 + SPREAD),
            *rows("private", "liu_simeone", 0.801 + SPREAD[::-1]),
            *rows("private", "paper", 0.75 + SPREAD[::-1]),
            *rows("private", "secure_aggregation", 0.85 + SPREAD[::-1]),
            *rows("private", "fedavg", 0.93 + SPREAD, private=False, epsilon_total=np.inf),
        ]
    )


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """Return an empty copy of the docs, in which the study reads and writes."""
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(benchmarks, "DOCS", tmp_path)
    monkeypatch.setattr(benchmarks, "RECORDS", tmp_path / "benchmarks.csv")
    monkeypatch.setattr(benchmarks, "PAGE", tmp_path / "baselines.md")
    benchmarks.PAGE.write_text("# Baselines\n\n## Results\n\nold\n", encoding="utf-8")
    return tmp_path


def test_the_section_in_the_docs_is_that_of_the_records():
    found, text = benchmarks.records(), benchmarks.PAGE.read_text(encoding="utf-8")
    assert text.endswith("\n" + benchmarks.page(found))
    pictures = {path.name for path in (benchmarks.DOCS / "images").glob("benchmark-*.png")}
    assert pictures == {f"benchmark-{name}.png" for name in found["study"].unique()}


def test_a_verdict_separates_methods_only_if_the_interval_excludes_zero(found):
    text = " ".join(benchmarks.section("private", found).split())
    verdicts = {line.split(" airfed's plan")[0]: line for line in text.split(" - ")}
    assert "secure_aggregation, +5.00 points" in verdicts["Better than"]
    assert "liu_simeone, +0.10 points" in verdicts["Not separated from"]
    assert "paper, -5.00 points" in verdicts["Worse than"]
    assert "Holm" in text
    assert "| `secure_aggregation` | 85.0% ± 0.3 | 2.00 | 300 | 280 | 1.2e6 | 56 | 1000 |" in text
    assert "| `fedavg` † | 93.0% ± 0.3 | ∞ |" in text
    assert "5 paired seeds of 10 planned, by airfed 0.3.0." in text


def test_only_seeds_with_every_method_count(found):
    partly = found[(found["policy"] != "paper") | found["seed"].isin([0, 1, 4])]
    table = benchmarks.benchmark("private", partly)
    assert table.seeds == (0, 1, 4)
    assert all(set(result.runs) == {0, 1, 4} for result in table.results)
    assert "3 paired seeds of 10 planned" in benchmarks.section("private", partly)


def test_one_seed_has_no_interval_and_no_seed_no_table(found):
    one = benchmarks.section("private", found[found["seed"] == 0])
    assert "1 paired seed of 10 planned" in one
    assert "| 80.4% |" in one
    assert "Worse than" not in one
    none = benchmarks.section("private", found[(found["policy"] != "paper") ^ (found["seed"] == 0)])
    assert "0 paired seeds of 10 planned" in none
    assert none.endswith("No seed has been trained with every method.")


def test_studies_without_records_are_named(found):
    text = benchmarks.page(found)
    assert "### Strong privacy" in text
    assert "### The paper's scenario" not in text
    assert "Not recorded: " in text
    assert "the paper's scenario" in text.rpartition("Not recorded: ")[2]


def test_the_command_writes_section_and_pictures_twice_alike(found, docs):
    found.to_csv(benchmarks.RECORDS, index=False)
    for _ in range(2):
        benchmarks.write()
        text = benchmarks.PAGE.read_text(encoding="utf-8")
        assert text == "# Baselines\n\n" + benchmarks.page(benchmarks.records())
    assert (docs / "images" / "benchmark-private.png").stat().st_size > 10_000
    assert max(map(len, (line for line in text.splitlines() if not line.startswith(("|", "!"))))) <= 120


def test_storing_a_benchmark_keeps_the_other_records(found, docs):
    older = found.assign(study="paper", version="0.2.9")
    pd.concat([older, found]).to_csv(benchmarks.RECORDS, index=False)
    known = benchmarks.records()
    table = benchmarks.benchmark("private", known[known["seed"] < 2])
    benchmarks.store("private", table)
    again = benchmarks.records()
    assert again.groupby(["study", "version"]).size().to_dict() == {("paper", "0.2.9"): 25, ("private", "0.3.0"): 10}
    assert benchmarks.section("paper", again) == benchmarks.section("paper", known)


@pytest.mark.parametrize("name", [name for name, study in benchmarks.STUDIES.items() if study.equal])
def test_methods_that_are_not_trained_have_the_plan_of_weighted(name):
    study = benchmarks.STUDIES[name]
    assert all(study.shares_its_plan(policy, seed) for policy in study.equal for seed in range(study.seeds))
    assert not any(study.shares_its_plan(policy, seed=0) for policy in study.policies if policy != "weighted")


def test_the_readme_states_the_means_on_record(repository):
    rows = {each["policy"]: each for each in benchmarks.benchmark("private", benchmarks.records()).rows()}
    own, reference = rows["weighted"], rows["fedavg"]["accuracy"]
    half = own["accuracy_high"] - own["accuracy"]
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert own["seeds"] == 10
    assert f"has {own['accuracy']:.1%} ± {100 * half:.1f} (95% interval of the mean)" in text
    assert f"FedAvg without privacy {reference:.1%}" in text.replace("\n", " ")
