"""Benchmarks of airfed's plans and the baselines: records of every training, page and pictures.

`python -m studies.benchmarks train [NAME ...]` trains what is missing in out/studies, one seed after the other, and
stores a row for each training in docs/studies/benchmarks.csv. `python -m studies.benchmarks page` writes page and
pictures from these records.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import airfed
from airfed.experiments.benchmark_table import Benchmark, MethodResult
from airfed.plotting.figure import encoded
from airfed.text.phrases import compact
from studies.markdown import markdown_table

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
RECORDS: Final = DOCS / "studies" / "benchmarks.csv"
PAGE: Final = RECORDS.with_suffix(".md")
_EXPENSES: Final = ("power_total", "power_transmitted", "channel_uses", "rounds", "num_scheduled")


@dataclass(frozen=True, kw_only=True)
class Study:
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
    "private": Study(
        file="private.toml",
        title="Strong privacy",
        about="1,000 devices with 4 images of `mnist-5k` each and the paper's CNN. The surrogate of Fashion-MNIST\n"
        "chooses rounds, clipping norm and average for every private method.",
        policies=_TRAINED,
        equal=("optimal", "threshold_power", "truncated_inversion", "full"),
    ),
    "paper": Study(
        file="paper.toml",
        title="The paper's scenario",
        about="100 devices with 40 images of `mnist-5k` each and the paper's CNN. The paper's ε per round is\n"
        "replaced by the total ε of full participation, the same for every method. The surrogate of Fashion-MNIST\n"
        "chooses rounds, clipping norm and average for every private method.",
        policies=(*_TRAINED, "optimal", "full", "top_k"),
        equal=("threshold_power",),
        changes={"policy.objective": "accuracy"},
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
    every = pd.concat([records()[lambda old: old["study"] != name], pd.DataFrame(rows)])
    every.assign(version=airfed.__version__).to_csv(RECORDS, index=False)


def records() -> pd.DataFrame:
    """Return the stored trainings."""
    if not RECORDS.exists():
        return pd.DataFrame({"study": []})
    return pd.read_csv(RECORDS, keep_default_na=False, na_values={"air_time": [""]})


def benchmark(name: str, found: pd.DataFrame) -> Benchmark:
    """Return a benchmark from its records, with the seeds that every method has."""
    own = found[found["study"] == name]
    shared = set.intersection(*(set(part["seed"]) for _, part in own.groupby("policy")))
    results = [
        MethodResult(policy=policy, runs={int(row["seed"]): _run(row) for row in _dicts(part, shared)}, reasons={})
        for policy, part in own.groupby("policy", sort=False)
    ]
    budget = STUDIES[name].scenario.budget
    allowed = (
        f"ε = {budget.epsilon:g} in total at δ = {budget.delta:g}, {budget.total_power:g} W over all devices and rounds"
    )
    return Benchmark.of(name, allowed, sorted(shared), results)


def _dicts(part: pd.DataFrame, shared: set[int]) -> list[dict[str, Any]]:
    return part[part["seed"].isin(shared)].to_dict("records")


def _run(row: dict[str, Any]) -> dict[str, Any]:
    missing = {"air_time": None} if pd.isna(row["air_time"]) else {}
    return {**row, **missing, "violations": row["violations"].split(), "private": str(row["private"]) == "True"}


def section(name: str, found: Benchmark) -> str:
    """Return the section of a benchmark in Markdown."""
    study, rows = STUDIES[name], found.rows()
    head = ["method", "accuracy", "ε in total", "W planned", "W sent", "symbols", "rounds", "devices"]
    cells = [head]
    for result, row in zip(found.results, rows, strict=True):
        label = f"`{result.policy}`{' ' + result.marks if result.marks else ''}"
        mean, half = row["accuracy"], row["accuracy_high"] - row["accuracy"]
        epsilon = f"{row['epsilon_total']:.2f}" if result.private else "∞"
        cells.append([label, f"{mean:.1%} ± {100 * half:.1f}", epsilon, *(compact(row[key], 4) for key in _EXPENSES)])
    return "\n".join(
        [
            f"## {study.title}\n",
            f"{study.about}\nBudget of every method: {found.budget}.\n{len(found.seeds)} paired seeds.\n"
            f"With each of them, {', '.join(f'`{policy}`' for policy in study.equal)}\n"
            f"{'has' if len(study.equal) == 1 else 'have'} the plan of `weighted` (amplitudes to 1e-12); they were not "
            "trained.\n",
            f"{markdown_table(cells)}\n",
            "".join(f"- {sentence}\n" for sentence in found.verdict()),
            f"![Accuracy over transmitted power: {study.title}](../images/benchmark-{name}.png)\n",
        ]
    )


def page(found: pd.DataFrame) -> str:
    """Return the page."""
    names = [name for name in STUDIES if (found["study"] == name).any()]
    return "\n".join(
        [
            "# Benchmarks of the methods\n",
            "This page compares airfed's plans with [baselines](../baselines.md) at the same total ε and power.\n"
            "`python -m studies.benchmarks train` trains, `python -m studies.benchmarks page` writes the page from\n"
            "`benchmarks.csv`, which has one row per training. Do not edit it.\n",
            "Accuracy is the mean over the seeds with half its 95% interval (Student's t). Intervals of differences\n"
            "to airfed's plan are paired by seed. † is not private. W are summed over devices and rounds, planned for\n"
            "the worst case. `dp_fedavg` has a trusted server and no radio, so it is not compared.\n",
            *(section(name, benchmark(name, found)) for name in names),
        ]
    )


def write() -> None:
    """Write page and pictures from the records."""
    found = records()
    PAGE.write_text(page(found), encoding="utf-8")
    for name in found["study"].unique():
        figures = benchmark(name, found).plot()
        (DOCS / "images" / f"benchmark-{name}.png").write_bytes(encoded(figures["benchmark-power"], "png"))


if __name__ == "__main__":
    if sys.argv[1] == "page":
        write()
    else:
        for each in sys.argv[2:] or STUDIES:
            train(each, Path("out/studies"))
