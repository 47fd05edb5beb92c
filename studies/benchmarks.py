"""Benchmarks of airfed's plans and the baselines: records of every training, tables and pictures.

`python -m studies.benchmarks train [NAME ...]` trains what is missing in out/studies, one seed after the other, and
stores a row for each training in docs/studies/benchmarks.csv. `python -m studies.benchmarks page` writes the results in
docs/baselines.md and their pictures from the records that are there.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import airfed
from airfed.experiments.benchmark_table import Benchmark, MethodResult
from airfed.plotting.figure import encoded
from airfed.text.phrases import compact, count
from studies import pilots
from studies.markdown import markdown_table

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
RECORDS: Final = DOCS / "studies" / "benchmarks.csv"
PAGE: Final = DOCS / "baselines.md"
RESULTS: Final = "## Results\n"  # the heading of the part of the page that is generated
_ABOUT: Final = (
    "`python -m studies.benchmarks train` trains these benchmarks. `python -m studies.benchmarks page` writes this "
    "section from `docs/studies/benchmarks.csv`, which has one row per training. Do not edit it. Accuracy is the mean "
    "over the seeds ± half its 95% interval (Student's t). Intervals of differences to airfed's plan are paired by "
    "seed. † is not private. W are summed over devices and rounds, planned for the worst case."
)
_EXPENSES: Final = ("power_total", "power_transmitted", "channel_uses", "rounds", "num_scheduled")


@dataclass(frozen=True, kw_only=True)
class BenchmarkStudy:
    """A scenario in which methods are compared."""

    file: str
    title: str
    about: str
    policies: tuple[str, ...]
    equal: tuple[str, ...] = ()  # methods with the plan of `weighted`, which are not trained
    changes: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 10

    @property
    def scenario(self) -> airfed.Scenario:
        """The scenario, with one total ε for all methods."""
        from airfed.experiments.benchmark import one_total

        return one_total(airfed.load(ROOT / "examples" / self.file).override(dict(self.changes)))

    def shares_its_plan(self, policy: str, seed: int) -> bool:
        """Return whether a method has the plan of `weighted`: the same rounds, norms and amplitudes to 1e-12."""
        scenario = self.scenario.override({"seed": seed})
        one, other = (scenario.override({"policy.name": name}).plan() for name in ("weighted", policy))
        settings = [(plan.local_steps, plan.clip_norm, plan.average) for plan in (one, other)]
        return settings[0] == settings[1] and np.allclose(one.amplitude, other.amplitude, rtol=1e-12, atol=0)


_TRAINED: Final = ("weighted", "liu_simeone", "paper", "secure_aggregation", "fedavg")
STUDIES: Final = {
    "private": BenchmarkStudy(
        file="private.toml",
        title="Strong privacy",
        about="1,000 devices with 4 images of `mnist-5k` each and the paper's CNN. The surrogate of Fashion-MNIST "
        "chooses rounds, clipping norm and average for every private method.",
        policies=_TRAINED,
        equal=("optimal", "threshold_power", "truncated_inversion", "full"),
    ),
    **{
        f"private-rate-{rate:g}": BenchmarkStudy(
            file="private.toml",
            title=f"Strong privacy, τ = {rate:g}",
            about="The same with another learning rate, and pilot runs with that rate.",
            policies=_TRAINED,
            changes={
                "learning.learning_rate": rate,
                "policy.surrogate": str(pilots.file(f"fashion-mnist-cnn-4-rate-{rate:g}")),
            },
        )
        for rate in (0.05, 0.2)
    },
    "paper": BenchmarkStudy(
        file="paper.toml",
        title="The paper's scenario",
        about="100 devices with 40 images of `mnist-5k` each and the paper's CNN. The paper's ε per round is "
        "replaced by the total ε of full participation, the same for every method. The surrogate of Fashion-MNIST "
        "chooses rounds, clipping norm and average for every private method.",
        policies=(*_TRAINED, "optimal", "full", "top_k"),
        equal=("threshold_power",),
        changes={"policy.objective": "accuracy"},
    ),
    "fading": BenchmarkStudy(
        file="fading.toml",
        title="Time-varying channels",
        about="The paper's fleet with Rayleigh gains drawn anew in each round, shadowing of 4 dB that all devices "
        "share for five rounds, and 300 W. Plans are causal and by the bound; the total ε is that of `full`.",
        policies=(*_TRAINED, "optimal", "myopic", "full", "threshold_power"),
    ),
    "dirichlet": BenchmarkStudy(
        file="paper.toml",
        title="Heterogeneous devices",
        about="The paper's scenario with a Dirichlet partition (0.3). No surrogate fits, so plans are by the bound; "
        "the total ε is that of full participation.",
        policies=(*_TRAINED, "optimal", "full"),
        equal=("threshold_power",),
        changes={"learning.partition": "dirichlet", "learning.alpha": 0.3, "policy.objective": "bound"},
    ),
}


def train(name: str, out: Path) -> None:
    """Train what is missing of a benchmark seed by seed, and replace its rows in the records after each."""
    study = STUDIES[name]
    last = {"run.evaluate_every": 200, "run.checkpoint_every": 200}  # the last round is always evaluated
    for seeds in range(1, study.seeds + 1):
        store(name, airfed.benchmark(study.scenario.override(last), out / name, seeds=seeds, policies=study.policies))


def store(name: str, found: Benchmark) -> None:
    """Replace the rows of a benchmark in the records."""
    rows = [
        {"study": name, "policy": result.policy, "seed": seed, **run, "violations": " ".join(run["violations"])}
        for result in found.results
        for seed, run in sorted(result.runs.items())
    ]
    new = pd.DataFrame(rows).assign(version=airfed.__version__)
    pd.concat([records()[lambda old: old["study"] != name], new]).to_csv(RECORDS, index=False)


def records() -> pd.DataFrame:
    """Return the stored trainings."""
    if not RECORDS.exists():
        return pd.DataFrame({"study": [], "version": []})
    return pd.read_csv(RECORDS, keep_default_na=False, na_values={"air_time": [""]})


def benchmark(name: str, found: pd.DataFrame) -> Benchmark:
    """Return a benchmark from its records, with the seeds that every method has."""
    own = found[found["study"] == name]
    shared = sorted(set.intersection(*(set(part["seed"]) for _, part in own.groupby("policy"))))
    results = [
        MethodResult(
            policy=policy,
            runs={int(row["seed"]): _run(row) for row in part[part["seed"].isin(shared)].to_dict("records")},
            reasons={},
        )
        for policy, part in own.groupby("policy", sort=False)
    ]
    budget = STUDIES[name].scenario.budget
    allowed = (
        f"ε = {budget.epsilon:g} in total at δ = {budget.delta:g}, {budget.total_power:g} W over all devices and rounds"
    )
    return Benchmark.of(name, allowed, shared, results)


def _run(row: dict[str, Any]) -> dict[str, Any]:
    missing = {"air_time": None} if pd.isna(row["air_time"]) else {}
    return {**row, **missing, "violations": row["violations"].split(), "private": str(row["private"]) == "True"}


def section(name: str, found: pd.DataFrame) -> str:
    """Return the section of a benchmark in Markdown."""
    study, table = STUDIES[name], benchmark(name, found)
    versions = sorted(set(found.loc[found["study"] == name, "version"]))
    seeds = f"{count(len(table.seeds), 'paired seed')} of {study.seeds} planned, by airfed {', '.join(versions)}."
    parts = [f"### {study.title}", _wrapped(f"{study.about} Budget of every method: {table.budget}. {seeds}")]
    if not table.seeds:
        return "\n\n".join([*parts, "No seed has been trained with every method."])
    if study.equal:
        names, has = ", ".join(f"`{policy}`" for policy in study.equal), "has" if len(study.equal) == 1 else "have"
        parts.append(_wrapped(f"With each seed, {names} {has} the plan of `weighted` (to 1e-12), so no training."))
    parts += [
        markdown_table(_cells(table)),
        "\n".join(_wrapped(f"- {sentence}", indent="  ") for sentence in table.verdict()),
        f"![Accuracy over transmitted power: {study.title}](images/benchmark-{name}.png)",
    ]
    return "\n\n".join(parts)


def _wrapped(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _cells(table: Benchmark) -> list[list[str]]:
    """Return the cells of the table of a benchmark, the headings first."""
    cells = [["method", "accuracy", "ε in total", "W planned", "W sent", "symbols", "rounds", "devices"]]
    for result, row in zip(table.results, table.rows(), strict=True):
        label = f"`{result.policy}`{' ' + result.marks if result.marks else ''}"
        half = "" if row["accuracy_high"] is None else f" ± {100 * (row['accuracy_high'] - row['accuracy']):.1f}"
        epsilon = f"{row['epsilon_total']:.2f}" if result.private else "∞"
        expenses = (compact(row[key], 4) for key in _EXPENSES)
        cells.append([label, f"{row['accuracy']:.1%}{half}", epsilon, *expenses])
    return cells


def page(found: pd.DataFrame) -> str:
    """Return the results as the last section of the page."""
    names = [name for name in STUDIES if (found["study"] == name).any()]
    missing = [STUDIES[name].title.lower() for name in STUDIES if name not in names]
    parts = [
        f"{RESULTS}\n" + _wrapped(_ABOUT),
        *(section(name, found) for name in names),
    ]
    if missing:
        parts.append(_wrapped(f"Not recorded: {', '.join(missing)}."))
    return "\n\n".join(parts) + "\n"


def write() -> None:
    """Write the results in the page and their pictures from the records."""
    found, (kept, heading, _) = records(), PAGE.read_text(encoding="utf-8").partition(RESULTS)
    if not heading:
        raise ValueError(f"{PAGE} must have the heading {RESULTS.strip()}.")
    PAGE.write_text(kept + page(found), encoding="utf-8")
    for name in found["study"].unique():
        if (table := benchmark(name, found)).seeds:
            picture = encoded(table.plot()["benchmark-power"], "png")
            (DOCS / "images" / f"benchmark-{name}.png").write_bytes(picture)


if __name__ == "__main__":
    if sys.argv[1] == "page":
        write()
    else:
        for each in sys.argv[2:] or STUDIES:
            train(each, Path("out/studies"))
