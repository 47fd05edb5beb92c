"""Choice of the network: each candidate, and the one that the plan takes, over ε with paired seeds.

`python -m studies networks` trains every candidate at every ε with the seeds that docs/studies/networks.csv does not
have, one seed after the other, and writes the records and the page. Seeds count only if all their trainings have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pandas as pd

import airfed
from airfed.experiments import sweep
from airfed.experiments.points import Point, content_key
from airfed.experiments.results import Estimate, Record, estimate
from airfed.scenario import Scenario
from studies.markdown import markdown_table, recorded

SCENARIO: Final = Path(__file__).with_name("networks.toml")
DOCS: Final = Path(__file__).parent.parent / "docs" / "studies"
RECORDS, PAGE = DOCS / "networks.csv", DOCS / "networks.md"
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS: Final = 10
PAPER: Final = "cnn"


def points(scenario: Scenario, seed: int) -> list[Point]:
    """Return the trainings of one seed: every candidate at every ε."""
    found = []
    for epsilon in EPSILONS:
        for each in scenario.override({"seed": seed, "budget.epsilon": epsilon}).candidates:
            values = {"budget.epsilon": epsilon, "seed": seed}
            label = each.learning.model_title
            found.append(Point(label=label, values=values, scenario=each, key=content_key(each)))
    return found


def train(out: Path, *, seeds: int = SEEDS, jobs: int = 1, stop: Callable[[], bool] = lambda: False) -> None:
    """Train the seeds that are not recorded and write the records and the page after each."""
    scenario, known = airfed.load(SCENARIO), pd.read_csv(RECORDS)
    for seed in sorted(set(range(seeds)) - set(known["seed"])):
        wanted = points(scenario, seed)
        records = sweep.run(wanted, out, jobs=jobs, stop=stop)
        new = pd.DataFrame([_row(record) for record in records if record.ended])
        known = complete(pd.concat([known, new]).sort_values("seed", kind="stable"), trainings=len(wanted))
        write(known)
        if stop():
            return


def complete(found: pd.DataFrame, *, trainings: int) -> pd.DataFrame:
    """Return the rows of the seeds whose trainings have all ended."""
    if found.empty:
        return found
    return found[found.groupby("seed")["seed"].transform("size") == trainings].reset_index(drop=True)


def _row(record: Record) -> dict[str, Any]:
    plan, values = record.plan, record.point.values
    return {
        "epsilon": values["budget.epsilon"],
        "network": record.point.label,
        "dimension": plan["dimension"],
        "seed": values["seed"],
        **{name: plan[name] for name in ("rounds", "clip_norm", "average", "epsilon_total")},
        "expected": round(plan["predicted_accuracy"], 6),
        "accuracy": record.final["accuracy"] if record.status == "finished" else 0.1,  # diverged: chance level
        "version": airfed.__version__,
    }


def chosen(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the network that the plan takes: the highest expected accuracy at each ε and seed."""
    return found.loc[found.groupby(["epsilon", "seed"])["expected"].idxmax()]


def best_single(found: pd.DataFrame) -> str:
    """Return the network with the highest mean accuracy over all ε and seeds, which is known afterwards only."""
    return str(found.groupby("network")["accuracy"].mean().idxmax())


def markdown(found: pd.DataFrame) -> str:
    """Return the page."""
    single, seeds = best_single(found), found["seed"].nunique()
    sizes = found.drop_duplicates("network").set_index("network")["dimension"].sort_values(ascending=False)
    titles = [f"{_short(name)}, d = {size:,}" for name, size in sizes.items()]
    head = ["ε", *titles, "chosen by the plan", "accuracy of the chosen", "chosen − CNN", f"chosen − {_short(single)}"]
    cells, taken = [head], chosen(found)
    for epsilon in sorted(found["epsilon"].unique()):
        own, picked = found[found["epsilon"] == epsilon], taken[taken["epsilon"] == epsilon]
        each = {name: own[own["network"] == name].set_index("seed")["accuracy"] for name in sizes.index}
        reached = picked.set_index("seed")["accuracy"]
        names = picked["network"].value_counts()
        cells.append(
            [
                f"{epsilon:g}",
                *(_percent(estimate(each[name])) for name in sizes.index),
                ", ".join(f"{_short(name)} ({count} of {seeds})" for name, count in names.items()),
                _percent(estimate(reached)),
                *(_points(estimate(reached - each[other])) for other in (PAPER, single)),
            ]
        )
    every = taken.set_index(["epsilon", "seed"])["accuracy"]
    gains = {
        name: estimate(
            (every - found[found["network"] == name].set_index(["epsilon", "seed"])["accuracy"]).groupby("seed").mean()
        )
        for name in (PAPER, single)
    }
    error = (taken["accuracy"] - taken["expected"]).mean()
    return "\n".join(
        [
            "# Choice of the network",
            "",
            "This page compares candidate networks in the scenario of `examples/private.toml` (1,000 devices with four",
            "images of `mnist-5k` each, δ = 1e-5 for the whole training), and the one that the plan takes",
            "([candidates](../howto/model.md#several-candidates)). `python -m studies networks` trains the missing",
            "runs and writes the page and `networks.csv`. Do not edit it.",
            "",
            "A network is named by its layers: 6c5-12c5 has convolutions with 6 and 12 channels and 5×5 kernels.",
            "Every network is trained with its own plan: rounds, clipping norm and average with the highest expected",
            "accuracy. The surrogate comes from pilot runs on Fashion-MNIST, so no choice used the devices' data.",
            f"Test accuracy over paired seeds (the same channels and data; {recorded(found)}), mean",
            "and 95% interval by Student's t:",
            "",
            markdown_table(cells),
            "",
            f"Over all ε, the chosen network is {_points(gains[PAPER])} points above the paper's CNN and",
            f"{_points(gains[single])} points above {_short(single)}, the best fixed network, which is known only",
            f"after all trainings (means over ε, intervals over seeds).\n{_separated(gains[PAPER])}",
            f"Measured minus expected accuracy of the chosen network is {100 * error:+.1f} points on average:",
            "Fashion-MNIST has another level than MNIST. Use such a surrogate to choose, not to predict.",
            "",
            *_limits(found, taken),
        ]
    )


def _limits(found: pd.DataFrame, taken: pd.DataFrame) -> list[str]:
    """Return what the records do not show, as a list in Markdown."""
    seeds, names = found["seed"].nunique(), taken["network"].unique()
    lines = ["Not shown:", ""]
    if seeds < SEEDS:
        lines.append(f"- More than {seeds} of the {SEEDS} planned seeds: the others were not trained yet.")
    if len(names) == 1:
        lines.append(f"- A choice that depends on ε: the plan took {_short(names[0])} in every training.")
    return [*lines, "- Other data sets, other numbers of images per device, and networks outside the list.", ""]


def write(found: pd.DataFrame) -> None:
    """Write the records and the page."""
    found.to_csv(RECORDS, index=False)
    PAGE.write_text(markdown(pd.read_csv(RECORDS)), encoding="utf-8")


def _short(name: str) -> str:
    return "CNN" if name == PAPER else name.removeprefix("network ")


def _separated(found: Estimate) -> str:
    both = found.count > 1 and found.low <= 0 <= found.high
    return "The seeds so far do not separate the chosen network from the CNN." if both else ""


def _percent(found: Estimate) -> str:
    return f"{found.mean:.1%}" + (f" ± {100 * found.half_width:.1f}" if found.count > 1 else "")


def _points(found: Estimate) -> str:
    interval = f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]" if found.count > 1 else ""
    return f"{100 * found.mean:+.1f}{interval}"
