"""Adaptive clipping against fixed clipping norms at one total ε, over paired seeds.

`python -m studies.clipping train` trains what docs/studies/clipping.csv does not have yet; `... page` writes
docs/studies/clipping.md from it. A seed has the same channels, data and initial model for all variants. I and the
average of the models are those of the surrogate's plan, whose ϖ is the norm 1×; the adaptive variants start at a
tenth, once and ten times that norm.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import airfed
from airfed.plotting.series import half_width
from airfed.scenario import Scenario, load
from studies.markdown import markdown_table, recorded

ROOT: Final = Path(__file__).parent.parent
RECORDS: Final = ROOT / "docs" / "studies" / "clipping.csv"
PAGE: Final = RECORDS.with_suffix(".md")
MODELS: Final = ("logistic", "cnn")
SEEDS: Final = range(1, 11)
FIXED: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)  # times the surrogate's ϖ
ADAPTIVE: Final = (0.1, 1.0, 10.0)
_BASELINE: Final = ("fixed", 1.0)
_COLUMNS: Final = (
    *("model", "kind", "factor", "seed", "first_clip_norm", "last_clip_norm", "rounds", "accuracy"),
    *("epsilon_total", "power_total", "version"),
)


def variants() -> list[tuple[str, float]]:
    """Return kind and factor of every variant, the surrogate's own first."""
    return [_BASELINE, *(("adaptive", x) for x in ADAPTIVE), *(("fixed", x) for x in FIXED if x != 1.0)]


def scenario_of(model: str, kind: str, factor: float, seed: int) -> Scenario:
    """Return the scenario of a variant: examples/private.toml with the I, average and ϖ of the surrogate's plan."""
    base = load(ROOT / "examples" / "private.toml").override({"learning.model": model})
    chosen = base.plan()
    changes: dict[str, Any] = {
        "seed": seed,
        "policy.objective": "bound",
        "policy.rounds": chosen.rounds,
        "policy.average": chosen.average,
        "learning.clip_norm": factor * chosen.clip_norm,
        "run.evaluate_every": chosen.rounds,
        "run.checkpoint_every": chosen.rounds,
        "run.threads": 1,
    }
    return base.override(changes | ({"learning.adaptive_clipping": {}} if kind == "adaptive" else {}))


def train(models: tuple[str, ...] = MODELS) -> None:
    """Train the variants that are not recorded yet, seed by seed, and append a row for each."""
    known = {tuple(row[:4]) for row in rows().itertuples(index=False)}
    for model in models:
        for seed in SEEDS:
            for kind, factor in variants():
                if (model, kind, factor, seed) not in known:
                    _append(_trained(model, kind, factor, seed))


def _trained(model: str, kind: str, factor: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = airfed.run(scenario_of(model, kind, factor, seed), Path(folder) / "run")
        first = run.plan.clip_norm
        return {
            "model": model,
            "kind": kind,
            "factor": factor,
            "seed": seed,
            "first_clip_norm": first,
            "last_clip_norm": first if kind == "fixed" else float(run.rounds["clip_norm"][-1]),
            "rounds": run.plan.rounds,
            "accuracy": run.accuracy,
            "epsilon_total": run.ledger.epsilon_total,
            "power_total": run.plan.power_total,
            "version": airfed.__version__,
        }


def _append(row: dict[str, Any]) -> None:
    new = not RECORDS.exists()
    with RECORDS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def rows() -> pd.DataFrame:
    """Return the recorded trainings."""
    return pd.read_csv(RECORDS) if RECORDS.exists() else pd.DataFrame(columns=list(_COLUMNS))


def table(found: pd.DataFrame) -> str:
    """Return accuracy, and the paired difference to the surrogate's ϖ, of each variant with 95% intervals."""
    body = []
    by_seed = {key: part.set_index("seed")["accuracy"] for key, part in found.groupby(["kind", "factor"])}
    for kind, factor in sorted(by_seed, key=lambda key: (key[0] != "adaptive", key[1])):
        part = found[(found["kind"] == kind) & (found["factor"] == factor)]
        accuracy = by_seed[kind, factor]
        difference = (accuracy - by_seed[_BASELINE]).dropna()
        note = " (surrogate)" if (kind, factor) == _BASELINE else ""
        body.append(
            [
                f"{'adaptive, from' if kind == 'adaptive' else 'fixed at'} {part['first_clip_norm'].iloc[0]:g}{note}",
                f"{part['last_clip_norm'].median():.3g}",
                str(len(part)),
                _interval(accuracy.to_numpy()),
                "" if note else _interval(difference.to_numpy(), signed=True),
            ]
        )
    head = ["ϖ", "ϖ at the end", "seeds", "accuracy", "difference to the surrogate's ϖ"]
    return markdown_table([head, *body])


def _interval(values: np.ndarray[Any, np.dtype[np.float64]], *, signed: bool = False) -> str:
    mean = 100 * float(np.mean(values))
    text = f"{mean:+.1f}" if signed else f"{mean:.1f}"
    spread = f" ± {100 * float(half_width(values)):.1f}" if values.size > 1 else ""
    return f"{text}{spread} {'points' if signed else '%'}"


def page() -> str:
    """Return the page."""
    found = rows()
    parts = [
        "# Adaptive clipping: measurements\n",
        "This page compares [adaptive clipping](../privacy-math.md#adaptive-clipping) with fixed norms ϖ at the same\n"
        "total ε. `python -m studies.clipping page` writes it from `clipping.csv`. Do not edit it.\n",
        "The scenario is `examples/private.toml`: 1,000 devices with 4 images each, ε = 2 in total at δ = 1e-5,\n"
        "planned by the bound with I and the model average of the surrogate's plan. Seeds are paired: channels, data\n"
        "and initial model are the same for every ϖ. The intervals (95%, Student's t) are those of the mean; one seed\n"
        "has none. A difference whose interval contains 0 is not separated from 0. Models and seeds that are not\n"
        "listed were not trained.\n",
    ]
    for model in MODELS:
        own = found[found["model"] == model]
        if len(own):
            largest = own["epsilon_total"].max()
            parts.append(
                f"## Model `{model}`\n\n{table(own)}\n\n{own['rounds'].iloc[0]} rounds; {recorded(own)}; the largest ε "
                f"in total of any training is {largest:.4f}.\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1] == "page":
        PAGE.write_text(page(), encoding="utf-8")
    else:
        train(tuple(sys.argv[2:]) or MODELS)
