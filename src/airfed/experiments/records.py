"""What a sweep leaves on disk, and how it is read back.

`DIR/runs/KEY/` is the run directory of a point, `DIR/records/KEY.json` says how it ended (written last, whole), and
`DIR/points` and `DIR/rounds` (.csv and .parquet) are the tidy tables: one row per point, one row per point and round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airfed import _extras
from airfed._disk import write_whole
from airfed.experiments.points import Point
from airfed.training import directory
from airfed.training.directory import RunError
from airfed.training.formats import flat
from airfed.training.run import Run

RECORD_FORMAT: Final = 1
ENDED: Final = ("finished", "exhausted", "diverged")  # nothing is left to do; anything else is run again
_PLAN: Final = (
    "num_devices",
    "num_scheduled",
    "rounds",
    "alignment",
    "clip_norm",
    "binding",
    "epsilon_round",
)
_SPENT: Final = ("power_planned_total", "power_transmitted_total")
_FINAL: Final = ("loss", "accuracy", "test_loss", "power_transmitted_total", "clipped_share")


@dataclass(frozen=True, kw_only=True)
class Record:
    """How a point ended.

    Args:
        point: which.
        status: "finished", "exhausted", "diverged", "stopped" or "failed".
        message: why, where it did not finish.
        seconds: of computing, all sittings together.
        run: what it has left, once nothing is left to do.
    """

    point: Point
    status: str
    message: str = ""
    seconds: float = 0.0
    run: Run | None = None

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan of its run as plain values; empty where there is none."""
        return {} if self.run is None else self.run.figures

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The rounds of its run."""
        return () if self.run is None else self.run.rounds

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ENDED

    @property
    def final(self) -> Mapping[str, Any]:
        """The metrics of the last round that was evaluated (of the last round, where none was); the power of all."""
        evaluated = [metrics for metrics in self.rounds if metrics["loss"] is not None]
        found = (evaluated or self.rounds or [{}])[-1]
        spent = {name: self.rounds[-1].get(name) for name in _SPENT} if self.rounds else {}
        return {**found, **spent}

    def row(self) -> dict[str, Any]:
        """Return the point as one row of the tidy table; its ε in total is what the ledger has charged."""
        bound = self.plan.get("bound", {})
        return {
            "point": self.point.key,
            "label": self.point.label,
            **self.point.values,
            "status": self.status,
            **{name: self.plan.get(name) for name in _PLAN},
            "epsilon_total": None if self.run is None else self.run.ledger.epsilon_total,
            "power_total": self.plan.get("power_total"),
            "bound": bound.get("total"),
            **flat({name: self.final.get(name) for name in (*_FINAL, "averages")}),
            "seconds": round(self.seconds, 3),
            "message": self.message,
        }

    def round_rows(self) -> list[dict[str, Any]]:
        """Return the rounds as rows of the long table; `step` counts local steps from the start."""
        rows, step = [], 0
        for metrics in self.rounds:
            step += metrics["steps"]
            head = {"point": self.point.key, "label": self.point.label, **self.point.values, "step": step}
            rows.append({**head, **flat(metrics)})
        return rows


def run_path(out: Path, key: str) -> Path:
    """Return the run directory of a point."""
    return out / "runs" / key


def record_path(out: Path, key: str) -> Path:
    """Return the file that says how a point ended."""
    return out / "records" / f"{key}.json"


def mark_path(out: Path, key: str) -> Path:
    """Return the file that is there while a point is under way; one that is left tells who was at it at a crash."""
    return out / "records" / f"{key}.begun"


def write(out: Path, key: str, *, status: str, message: str, seconds: float) -> None:
    """Write how a point ended, whole or not at all."""
    file = record_path(out, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": RECORD_FORMAT, "key": key, "status": status, "message": message, "seconds": seconds}
    write_whole(file, json.dumps(content).encode())


def peek(out: Path, key: str) -> dict[str, Any]:
    """Return what the record of a point says, unchecked; empty where it cannot be read."""
    try:
        return {**json.loads(record_path(out, key).read_bytes())}
    except (OSError, ValueError, TypeError):
        return {}


def read(out: Path, point: Point) -> Record | None:
    """Return the record of a point, or None where there is none yet.

    Raises:
        RunError: the record or its run is damaged, of another version, or lacks a column.
    """
    if point.problem:
        return Record(point=point, status="failed", message=point.problem)
    file = record_path(out, point.key)
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != RECORD_FORMAT:
            raise RunError(f"Expected a record of format {RECORD_FORMAT} in {file}; this one is of another version.")
        if not 0 <= float(content["seconds"]) < math.inf:
            raise ValueError("no duration")
        status, message, seconds = str(content["status"]), str(content["message"]), float(content["seconds"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"Cannot read {file}: it is damaged; remove it to have the point taken up again.") from None
    if status not in ENDED:
        return Record(point=point, status=status, message=message, seconds=seconds)
    try:
        run = Run.open(run_path(out, point.key)).checked()
    except ValueError as error:  # of the ledger, the scenario or the run
        raise RunError(str(error)) from None
    return Record(point=point, status=status, message=message, seconds=seconds, run=run)


def require(rows: Iterable[Mapping[str, Any]], columns: Iterable[str], source: Path | str) -> None:
    """Raise RunError where a row lacks a column; the sentence names both."""
    wanted = tuple(columns)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise RunError(f"Expected columns in line {number} of {source}; got {row!r}.")
        missing = [name for name in wanted if name not in row]
        if missing:
            raise RunError(f"Expected column {missing[0]!r} in line {number} of {source}; it has {', '.join(row)}.")


def write_tables(out: Path, records: Sequence[Record]) -> list[Path]:
    """Write the tidy tables as CSV and, where pyarrow is installed, as Parquet, and return the files.

    Raises:
        RunError: they cannot be written.
    """
    tables = {
        "points": [record.row() for record in records],
        "rounds": [row for record in records for row in record.round_rows()],
    }
    content = {out / f"{name}.csv": csv_text(rows).encode() for name, rows in tables.items()}
    if _extras.has("pyarrow"):
        content |= {out / f"{name}.parquet": parquet(rows) for name, rows in tables.items()}
    try:
        for file, whole in content.items():
            write_whole(file, whole)
    except OSError as error:
        raise RunError(
            f"Cannot write the tables to {out}: {error.strerror or error}. The runs are kept; the same command writes "
            "the tables once there is room."
        ) from None
    return list(content)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; lists and tables in a cell are written as JSON."""
    return directory.csv_text([{key: _cell(value) for key, value in row.items()} for row in rows])


def parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as a Parquet file; a column of mixed kinds is kept as text."""
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float}:
            kinds = {float} if len(kinds) > 1 else kinds
            values = [value if value is None else next(iter(kinds))(value) for value in values]
        elif len(kinds) > 1 or kinds & {list, dict, tuple}:
            values = [value if value is None else str(_cell(value)) for value in values]
        columns[name] = pyarrow.array(values)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue())


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value
