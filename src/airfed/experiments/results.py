"""The final figures of every point in one small table: verdicts are taken from it, and it is kept beside the docs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airfed.experiments.records import csv_text, require
from airfed.experiments.statistics import estimate
from airfed.text.phrases import span
from airfed.training.directory import RunError

if TYPE_CHECKING:
    from airfed.experiments.figures import Studies

SETTINGS: Final = ("channel.minimum", "link.noise_std", "learning.clip_norm")  # that experiments vary
_NUMBERS: Final = ("accuracy", "loss", "test_loss", "alignment", "seconds", *SETTINGS)
_WHOLE: Final = ("seed", "num_devices", "num_scheduled", "rounds")
_TEXTS: Final = ("experiment", "dataset", "label", "status", "binding")
COLUMNS: Final = (*_TEXTS[:3], "seed", *SETTINGS, *_WHOLE[1:], *_TEXTS[3:], *_NUMBERS[:5])


@dataclass(frozen=True)
class Results:
    """One row per point that ended, at the seeds at which its whole experiment ended."""

    rows: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, found: Studies) -> Results:
        """Return the results of studies that were run (those that are only planned have none).

        A study with a grid of its own is left out: its figure's rows tell its places.
        """
        rows = []
        for name, study in found.items():
            if not study.records or any(variant.axes for variant in study.experiment.variants):
                continue
            try:
                seeds = study.seeds
            except RunError:  # its figure says why; the others' results stand
                continue
            for record in study.records:
                world = record.point.scenario
                if world is None or not record.ended or world.seed not in seeds:
                    continue
                rows.append(
                    {
                        "experiment": name,
                        "dataset": world.learning.dataset,
                        "label": record.point.label,
                        "seed": world.seed,
                        "channel.minimum": float(world.channel.minimum),
                        "link.noise_std": float(world.link.received_std),
                        "learning.clip_norm": float(world.learning.clip_norm),
                        **{key: record.plan[key] for key in ("num_devices", "num_scheduled", "rounds")},
                        "status": record.status,
                        "binding": record.plan["binding"],
                        **{key: record.final[key] for key in _NUMBERS[:3]},
                        "alignment": record.plan["alignment"],
                        "seconds": round(record.seconds, 1),
                    }
                )
        return cls(tuple(rows))

    @classmethod
    def from_csv(cls, text: str, source: str = "the table") -> Results:
        """Return the results that `to_csv` wrote.

        Raises:
            RunError: a column is missing or a cell is no number.
        """
        rows: list[dict[str, Any]] = [dict(row) for row in csv.DictReader(io.StringIO(text))]
        require(rows, COLUMNS, source)
        try:
            for row in rows:
                row.update({key: float(row[key]) for key in _NUMBERS})
                row.update({key: int(row[key]) for key in _WHOLE})
        except ValueError as error:
            raise RunError(f"Expected numbers in {source}; {error}.") from None
        return cls(tuple(rows))

    def to_csv(self) -> str:
        """Return the results as CSV, exact to the last bit."""
        return csv_text([{key: row[key] for key in COLUMNS} for row in self.rows])

    def of_experiment(self, name: str) -> Results:
        """Return the rows of one experiment."""
        return Results(tuple(row for row in self.rows if row["experiment"] == name))

    def values(self, column: str) -> list[Any]:
        """Return the different values of a column, in the order in which they appear."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def by_seed(self, column: str, **where: Any) -> dict[int, float]:
        """Return a column by seed, of the rows with these values ("__" stands for the dot in a key).

        Raises:
            RunError: there is no such row.
        """
        wanted = {key.replace("__", "."): value for key, value in where.items()}
        found = {
            row["seed"]: row[column] for row in self.rows if all(row[key] == value for key, value in wanted.items())
        }
        if not found:
            raise RunError(f"Expected records at {wanted}; there are none.")
        return dict(sorted(found.items()))


def final_table(results: Results) -> list[list[str]]:
    """Return the final figures of one experiment: header, then one row per design, means over seeds ± 95%."""
    names = dict(zip(SETTINGS, ("h_min", "σ", "ϖ"), strict=True))
    varied = [key for key in SETTINGS if len(results.values(key)) > 1 and _free(results, key)]
    table = [["design", *(names[key] for key in varied), "devices", "rounds", "accuracy [%]", "loss", "limit"]]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in results.rows:
        groups.setdefault((row["label"], *(row[key] for key in varied)), []).append(row)
    for (label, *places), rows in groups.items():
        limits = sorted({row["binding"].replace("_power", "") for row in rows})
        table.append(
            [
                label,
                *(f"{place:g}" for place in places),
                span([row["num_scheduled"] for row in rows]),
                span([row["rounds"] for row in rows]),
                interval([100 * row["accuracy"] for row in rows], ".1f"),
                interval([row["loss"] for row in rows], ".3g"),
                ", ".join(limits),
            ]
        )
    return table


def _free(results: Results, key: str) -> bool:
    """Whether a column varies within a design (and not merely from one design to another)."""
    places: dict[str, set[Any]] = {}
    for row in results.rows:
        places.setdefault(row["label"], set()).add(row[key])
    return any(len(values) > 1 for values in places.values())


def interval(values: Sequence[float], form: str) -> str:
    """Return mean ± half of the 95% interval."""
    found = estimate(values)
    return f"{found.mean:{form}}" + (f" ± {found.half_width:{form}}" if found.count > 1 else "")
