"""CIFAR-10: airfed, DP-FedAvg and FedAvg over ε, with two networks and two numbers of devices.

`python -m studies.cifar pilot` makes the surrogates that are missing in studies/surrogates, `... train [SETTING ...]`
trains what docs/studies/cifar.csv does not have, seed by seed, and `... page` writes docs/studies/cifar.md from it.

The devices share 40,000 training images. The other 10,000 are the proxy data of the pilot runs, so that no choice used
the devices' data. Pixels are standardised with the published mean and standard deviation of each channel.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import airfed
from airfed.experiments import sweep
from airfed.experiments.points import Point, content_key
from airfed.experiments.results import Estimate, Record, estimate, holm
from airfed.learning import data
from airfed.scenario import Scenario
from studies import pilots
from studies.markdown import markdown_table, recorded, wrapped

HERE: Final = Path(__file__).parent
RECORDS: Final = HERE.parent / "docs" / "studies" / "cifar.csv"
PAGE: Final = RECORDS.with_suffix(".md")
OUT: Final = Path("out/cifar")
EPSILONS: Final = (2.0, 8.0, 16.0)
METHODS: Final = ("weighted", "dp_fedavg")
DEVICES_IMAGES: Final = 40_000
_MEAN: Final = (0.4914, 0.4822, 0.4465)  # of the channels, as published
_STD: Final = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A network and a number of devices.

    Attributes:
        title: of the network.
        devices: their number.
        changes: keys of the scenario.
        seeds: how many are planned.
        pilots: the number of devices in a pilot run, and its grid.
    """

    title: str
    devices: int
    changes: dict[str, Any]
    seeds: int
    pilots: dict[str, Any]


_RESNET: Final = {"learning.network": None, "learning.model": "resnet:net", "learning.total_steps": 100}
_GRID: Final = {"rounds": (10, 20, 40, 100), "clip_norms": (1.0, 3.0, 10.0)}
_RESNET_GRID: Final = {"rounds": (10, 30, 100), "clip_norms": (1.0, 3.0, 10.0)}
_THOUSAND, _HUNDRED = {"noise": (0.001, 0.003, 0.01, 0.03, 0.1)}, {"noise": (0.003, 0.01, 0.03, 0.1, 0.3)}
SETTINGS: Final = {
    "small-1000": Setting(
        title="8c5-16c5",
        devices=1000,
        changes={"learning.batch_size": 8},
        seeds=10,
        pilots={"devices": 100, **_GRID, **_THOUSAND},
    ),
    "small-100": Setting(
        title="8c5-16c5",
        devices=100,
        changes={"learning.batch_size": 40},
        seeds=10,
        pilots={"devices": 20, **_GRID, **_HUNDRED},
    ),
    "resnet-1000": Setting(
        title="ResNet",
        devices=1000,
        changes={**_RESNET, "learning.batch_size": 4},
        seeds=3,
        pilots={"devices": 50, **_RESNET_GRID, **_THOUSAND},
    ),
    "resnet-100": Setting(
        title="ResNet",
        devices=100,
        changes={**_RESNET, "learning.batch_size": 16},
        seeds=3,
        pilots={"devices": 20, **_RESNET_GRID, **_HUNDRED},
    ),
}


@cache
def split(out: Path = OUT) -> tuple[Path, Path]:
    """Write the devices' part and the proxy part of CIFAR-10 as .npz files, unless they are there."""
    files = (out / "devices.npz").resolve(), (out / "proxy.npz").resolve()
    if not all(file.exists() for file in files):
        out.mkdir(parents=True, exist_ok=True)
        whole = data.load("cifar-10")
        mean, std = (np.reshape(np.array(each, np.float32), (1, 3, 1, 1)) for each in (_MEAN, _STD))
        images, test = (((each - mean) / std).astype(np.float16) for each in (whole.train_images, whole.test_images))
        for file, part in zip(files, (np.s_[:DEVICES_IMAGES], np.s_[DEVICES_IMAGES:]), strict=True):
            arrays = {"train_images": images[part], "train_labels": whole.train_labels[part]}
            np.savez(file, **arrays, test_images=test, test_labels=whole.test_labels)
    return files


def scenario_of(name: str, dataset: Path) -> Scenario:
    """Return the scenario of a setting."""
    setting = SETTINGS[name]
    changes = {"learning.dataset": str(dataset), "fleet.num_devices": setting.devices}
    return airfed.load(HERE / "cifar.toml").override(changes | setting.changes)


def pilot(names: list[str], *, jobs: int = 2) -> None:
    """Make the surrogates of the settings that have none."""
    devices, proxy = split()
    for name in names:
        grid = {"dataset": str(proxy), **SETTINGS[name].pilots}
        pilots.fit(f"cifar-10-{name}", scenario_of(name, devices), OUT, jobs=jobs, **grid)


def points(name: str, seed: int) -> list[Point]:
    """Return the trainings of one seed: FedAvg, and each private method at each ε."""
    base = scenario_of(name, split()[0]).override({"seed": seed})
    private = {"policy.objective": "accuracy", "policy.surrogate": str(pilots.file(f"cifar-10-{name}"))}
    changes = [{"policy.name": "fedavg", "policy.objective": "bound"}]
    changes += [
        {"policy.name": method, "budget.epsilon": epsilon, **private} for epsilon in EPSILONS for method in METHODS
    ]
    found = []
    for each in changes:
        scenario = base.override(each)
        found.append(Point(label=each["policy.name"], values=each, scenario=scenario, key=content_key(scenario)))
    return found


def train(names: list[str], *, jobs: int = 2) -> None:
    """Train the seeds that are not recorded and write the records after each."""
    for seed in range(1, 1 + max(SETTINGS[name].seeds for name in names)):
        for name in (each for each in names if seed <= SETTINGS[each].seeds):
            known = rows()
            if not ((known["setting"] == name) & (known["seed"] == seed)).any():
                records = sweep.run(points(name, seed), OUT / "trainings", jobs=jobs)
                if not all(record.ended for record in records):
                    raise SystemExit(f"{name}, seed {seed}: {next(r.message for r in records if not r.ended)}")
                new = pd.DataFrame([_row(name, seed, record) for record in records])
                every = pd.concat([known, new]) if len(known) else new
                every.sort_values(["setting", "seed"], kind="stable").to_csv(RECORDS, index=False)


def _row(name: str, seed: int, record: Record) -> dict[str, Any]:
    plan = record.plan
    assert record.run is not None
    return {
        "setting": name,
        "method": record.point.label,
        "epsilon": record.point.values.get("budget.epsilon"),
        "seed": seed,
        **{key: plan[key] for key in ("dimension", "num_scheduled", "rounds", "clip_norm", "average", "binding")},
        "expected": plan["predicted_accuracy"],
        "epsilon_total": plan["epsilon_total"] if "budget.epsilon" in record.point.values else None,
        "accuracy": record.final["accuracy"] if record.status == "finished" else 0.1,  # diverged: chance level
        "seconds": round(record.seconds, 1),
        "version": record.run.manifest["airfed"],
    }


def rows() -> pd.DataFrame:
    """Return the recorded trainings."""
    return pd.read_csv(RECORDS) if RECORDS.exists() else pd.DataFrame({"setting": [], "seed": []})


def differences(found: pd.DataFrame) -> dict[tuple[str, float], Estimate]:
    """Return the differences of airfed and DP-FedAvg in points, by setting and ε, corrected by Holm's method."""
    by_seed = 100 * found.dropna(subset="epsilon").pivot_table(
        index="seed", columns=["setting", "epsilon", "method"], values="accuracy"
    )
    keys = dict.fromkeys(key[:2] for key in by_seed.columns)
    ours, other = METHODS
    return holm({key: (by_seed[(*key, ours)] - by_seed[(*key, other)]).dropna() for key in keys})


def table(found: pd.DataFrame) -> list[list[str]]:
    """Return the cells of the table, the headings first: a row for each setting and ε."""
    head = [
        "network",
        "N",
        "seeds of those planned",
        "FedAvg",
        "ε",
        "airfed",
        "DP-FedAvg",
        "airfed − DP-FedAvg",
        "expected, airfed",
    ]
    cells, gap = [head], differences(found)
    for name, setting in SETTINGS.items():
        own = found[found["setting"] == name].set_index("seed")
        if own.empty:
            continue
        fedavg = own[own["method"] == "fedavg"]["accuracy"]
        start = [
            f"{setting.title}, d = {own['dimension'].iloc[0]:,}",
            f"{setting.devices:,}",
            f"{len(fedavg)} of {setting.seeds}",
        ]
        start.append(_percent(fedavg))
        for epsilon in EPSILONS:
            at = own[own["epsilon"] == epsilon]
            ours, other = (at[at["method"] == method] for method in METHODS)
            expected = f"{ours['expected'].mean():.1%}" if ours["expected"].notna().all() else "none"
            reached = [_percent(each["accuracy"]) for each in (ours, other)]
            cells.append([*start, f"{epsilon:g}", *reached, str(gap[name, epsilon]), expected])
            start = [""] * len(start)
    return cells


def markdown(found: pd.DataFrame) -> str:
    """Return the page."""
    missing = [
        f"{each.title} with {each.devices:,} devices"
        for name, each in SETTINGS.items()
        if name not in set(found["setting"])
    ]
    parts = [
        "# CIFAR-10",
        "This page has the accuracy of airfed (`weighted`), DP-FedAvg with a trusted server and FedAvg on CIFAR-10. "
        "`python -m studies.cifar page` writes it from `cifar.csv` "
        f"({recorded(found, by='setting')}). Do not edit it.",
        "40,000 training images are distributed over the devices (IID), and accuracy is on the 10,000 test images. "
        "Pixels are standardised with the published mean and standard deviation of each channel. The "
        "other 10,000 training images are the proxy data of the pilot runs that choose rounds, clipping norm and "
        "average for both private methods, so that no choice used the devices' data. ε is device-level, in total, at "
        "δ = 1e-5. Gains are Rayleigh, not below 0.1, σ = 1, P_k = 1 W and P_tot = 1000 W. τ = 0.1 for all. "
        f"{_trainings(found)} "
        "Accuracies are means over paired seeds ± half the 95% interval (Student's t), in percent. Differences are in "
        "points; their intervals are corrected for the number of comparisons (Holm, 95% for all together).",
        markdown_table(table(found)),
        f"Chance level is 10%. {_reading(found)}",
        "Not shown: other values of τ and T, data augmentation, larger networks"
        + (f"; and not trained yet: {', '.join(missing)}." if missing else "."),
    ]
    return wrapped("\n\n".join(parts)) + "\n"


def _trainings(found: pd.DataFrame) -> str:
    """Return steps and batch size of each setting, in words."""
    kinds = []
    for name, setting in SETTINGS.items():
        if name in set(found["setting"]):
            steps = setting.changes.get("learning.total_steps", 200)
            batch, images = setting.changes["learning.batch_size"], DEVICES_IMAGES // setting.devices
            kinds.append(f"{setting.title}, N = {setting.devices:,}: T = {steps}, {batch} of {images} images per step")
    return f"Mini-batches ({'; '.join(kinds)})."


def _reading(found: pd.DataFrame) -> str:
    """Return what privacy costs against FedAvg, and whether DP-FedAvg differs, in words."""
    private = found[found["method"] == METHODS[0]]
    fedavg = found[found["method"] == "fedavg"].set_index(["setting", "seed"])["accuracy"]
    gap = {}
    for (name, epsilon), own in private.groupby(["setting", "epsilon"]):
        lost = (fedavg - own.set_index(["setting", "seed"])["accuracy"]).dropna()
        where = f"({SETTINGS[name].title}, N = {SETTINGS[name].devices:,}, ε = {epsilon:g})"
        gap[where] = 100 * float(lost.mean())
    least, most = min(gap, key=gap.__getitem__), max(gap, key=gap.__getitem__)
    return (
        f"Privacy costs airfed {gap[least]:.0f} {least} to {gap[most]:.0f} points {most} against FedAvg, on average. "
        f"{_separated(found)}"
    )


def _separated(found: pd.DataFrame) -> str:
    """Return how many differences of airfed and DP-FedAvg are shown, in words."""
    every = differences(found).values()
    shown = sum(each.sign != 0 for each in every)
    few = "No difference" if shown == 0 else f"A difference in {shown} of {len(every)} rows"
    return f"{few} between airfed and DP-FedAvg is shown."


def _percent(values: pd.Series) -> str:
    found = estimate(100 * values)
    return f"{found.mean:.1f}" + (f" ± {found.half_width:.1f}" if found.count > 1 else "")


def write(_: list[str]) -> None:
    """Write the page from the records."""
    PAGE.write_text(markdown(rows()), encoding="utf-8")


if __name__ == "__main__":
    {"pilot": pilot, "train": train, "page": write}[sys.argv[1]](sys.argv[2:] or list(SETTINGS))
