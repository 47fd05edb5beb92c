"""The trainings of the regret study as rows, from records or from a CSV file. One row is one training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airfed.experiments import points
from airfed.experiments.results import Record
from airfed.learning import data
from airfed.planning.surrogate import Surrogate, load_surrogate
from airfed.scenario import Scenario
from airfed.scenario.learning_section import data_source, shipped
from airfed.training.directory import RunError

if TYPE_CHECKING:
    from airfed.experiments.figures import Studies, Study

SCENARIOS: Final = tuple(
    f"regret-{name}" for name in ("paper", "fashion", "hundred", "unlike", "little-power", "much-power")
)
_TEXTS: Final = ("scenario", "about", "partition", "label", "average", "binding", "status", "version")
_WHOLE: Final = ("seed", "rounds", "num_scheduled")
_NUMBERS: Final = ("clip_norm", "noise", "accuracy", "predicted", "predicted_low", "predicted_high", "seconds")
COLUMNS: Final = (*_TEXTS[:4], "seed", *_WHOLE[1:], *_NUMBERS[:2], *_TEXTS[4:], *_NUMBERS[2:])
OPTION: Final = "accuracy_"  # prefix of the accuracy with each average of models


def rows(found: Studies) -> list[dict[str, Any]]:
    """Return one row per training of every scenario, at the seeds at which all of its trainings ended.

    A training that diverged has the accuracy of chance level, 1/classes.

    Raises:
        RunError: a scenario has no such seed; the message is that of a missing point.
    """
    return [
        _row(title, record)
        for title in SCENARIOS
        for seeds in (_seeds(found[title]),)
        for record in found[title].records
        if record.point.values["seed"] in seeds
    ]


def other_surrogate(name: str) -> tuple[Surrogate, int]:
    """Return the surrogate of another data set that the variant "transfer" names, and the number of devices."""
    experiment = points.load(Path(__file__).parent.parent / "experiments" / f"regret-{name}.toml")
    (transfer,) = (each for each in experiment.variants if each.label == "transfer")
    surrogate = str(transfer.changes["policy.surrogate"])
    known = shipped()
    found = known[surrogate] if surrogate in known else load_surrogate(experiment.base.folder / surrogate)
    return found, experiment.base.num_devices


def typed(texts: Iterable[Mapping[str, str]], source: str = "the table") -> list[dict[str, Any]]:
    """Return the rows of a CSV file with numbers converted.

    Raises:
        RunError: a value is no number.
    """
    found: list[dict[str, Any]] = [dict(row) for row in texts]
    try:
        for row in found:
            row.update({key: int(row[key]) for key in _WHOLE})
            numbers = [key for key in row if key in _NUMBERS or key.startswith(OPTION)]
            row.update({key: float(row[key]) if row[key] else None for key in numbers})
    except ValueError as error:
        raise RunError(f"Values of {source} must be numbers: {error}.") from None
    return found


def _seeds(study: Study) -> set[int]:
    """Return the seeds for which every training of a scenario finished or diverged."""
    missing = [record for record in study.records if record.status not in ("finished", "diverged")]
    seeds = {int(record.point.values["seed"]) for record in study.records}
    complete = seeds - {int(record.point.values["seed"]) for record in missing}
    if not complete:
        reason = missing[0].message or missing[0].status if missing else "no run exists"
        raise RunError(f"No seed of {study.experiment.name} is complete: {reason}")
    return complete


def _row(title: str, record: Record) -> dict[str, Any]:
    scenario, plan = record.point.scenario, record.plan
    assert scenario is not None  # the point has ended
    assert record.run is not None
    finished = record.status == "finished"
    chance = {} if finished else {"accuracy": _chance_level(scenario)}
    final = {**record.final, **chance}
    options = {name: figures["accuracy"] if finished else final["accuracy"] for name, figures in _averages(record)}
    accuracy, low, high = _prediction(plan)
    return {
        "scenario": title.removeprefix("regret-"),
        "about": about(scenario),
        "partition": scenario.learning.partition,
        "label": record.point.label,
        "seed": scenario.seed,
        "rounds": plan["rounds"],
        "num_scheduled": plan["num_scheduled"],
        "clip_norm": plan["clip_norm"],
        "noise": scenario.link.received_std / (plan["num_scheduled"] * plan["alignment"]),
        "average": plan["average"],
        "binding": plan["binding"],
        "status": record.status,
        "accuracy": final["accuracy"],
        "predicted": accuracy,
        "predicted_low": low,
        "predicted_high": high,
        "seconds": round(record.seconds, 1),
        "version": record.run.manifest["airfed"],
        **{OPTION + name: value for name, value in options.items()},
    }


def about(scenario: Scenario) -> str:
    """Return a scenario in a few words."""
    learning, budget = scenario.learning, scenario.budget
    model = {"cnn": "CNN"}.get(learning.model, learning.model_title)
    images = f" ({learning.images} images)" if learning.images else ""
    partition = f", {learning.partition} {learning.alpha:g}" if learning.partition == "dirichlet" else ""
    scope = "in each round" if budget.scope == "round" else "in total"
    return (
        f"{model}, {learning.dataset}{images}{partition}, T = {learning.total_steps}, N = {scenario.num_devices}, "
        f"ε = {budget.epsilon:g} {scope}, P_tot = {budget.total_power:g} W, σ = {scenario.link.received_std:g}"
    )


def _averages(record: Record) -> Iterable[tuple[str, Mapping[str, float]]]:
    """Return the metrics of each average of models, if the run has recorded all of them."""
    return (record.final.get("averages") or {}).items()


def _prediction(plan: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return the expected accuracy and its interval, if a surrogate fits."""
    found, interval = plan.get("predicted_accuracy"), plan.get("predicted_interval")
    if found is None or interval is None:
        return None, None, None
    return round(found, 5), round(interval[0], 5), round(interval[1], 5)


def _chance_level(scenario: Scenario) -> float:
    return 1.0 / data.load(data_source(scenario)).classes
