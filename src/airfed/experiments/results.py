"""Records of a sweep's points on disk, tables of them, and means over seeds with their intervals.

`DIR/runs/KEY/` is the run directory of a point. `DIR/records/KEY.json` is its status, written last and atomically.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from airfed import _extras
from airfed._disk import write_atomic
from airfed.experiments.points import Point
from airfed.plotting.series import half_width
from airfed.training.directory import RunError
from airfed.training.formats import flat
from airfed.training.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

RECORD_FORMAT: Final = 1
ENDED: Final = ("finished", "exhausted", "diverged")  # points of any other status are run again
_PLAN: Final = ("num_devices", "num_scheduled", "rounds", "alignment", "clip_norm", "binding", "epsilon_round")
_SPENT: Final = ("power_planned_total", "power_transmitted_total")
_FINAL: Final = ("loss", "accuracy", "test_loss", "power_transmitted_total", "clipped_share", "averages")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The result of a point."""

    point: Point  # of the sweep
    status: str  # "finished", "exhausted", "diverged", "stopped" or "failed"
    message: str = ""  # the reason, unless finished
    seconds: float = 0.0  # wall time of all attempts
    run: Run | None = None  # if it has ended

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan of its run as plain values; empty without a run."""
        return {} if self.run is None else self.run.figures

    @property
    def rounds(self) -> Rows:
        """The rounds of its run."""
        return () if self.run is None else self.run.rounds

    @property
    def ended(self) -> bool:
        """Whether the point need not be run again."""
        return self.status in ENDED

    @property
    def final(self) -> Mapping[str, Any]:
        """The metrics of the last evaluated round, or of the last round, with the power of all rounds."""
        evaluated = [metrics for metrics in self.rounds if metrics["loss"] is not None]
        last = (evaluated or self.rounds or [{}])[-1]
        return {**last, **({name: self.rounds[-1].get(name) for name in _SPENT} if self.rounds else {})}

    def row(self) -> dict[str, Any]:
        """Return the point as one row of the tidy table, with the ε that the ledger charged."""
        return {
            "point": self.point.key,
            "label": self.point.label,
            **self.point.values,
            "status": self.status,
            **{name: self.plan.get(name) for name in _PLAN},
            "epsilon_total": None if self.run is None else self.run.ledger.epsilon_total,
            "power_total": self.plan.get("power_total"),
            "bound": self.plan.get("bound", {}).get("total"),
            **flat({name: self.final.get(name) for name in _FINAL}),
            "seconds": round(self.seconds, 3),
            "message": self.message,
        }

    def round_rows(self) -> list[dict[str, Any]]:
        """Return the rounds as rows of the table of rounds; `step` counts local steps from the start."""
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
    """Return the file with the status of a point."""
    return out / "records" / f"{key}.json"


def mark_path(out: Path, key: str) -> Path:
    """Return the file that exists while a point is running; a crash leaves it behind."""
    return out / "records" / f"{key}.begun"


def write(out: Path, key: str, *, status: str, message: str, seconds: float) -> None:
    """Write the status of a point, atomically."""
    file = record_path(out, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": RECORD_FORMAT, "key": key, "status": status, "message": message, "seconds": seconds}
    write_atomic(file, json.dumps(content).encode())


def peek(out: Path, key: str) -> dict[str, Any]:
    """Return the content of a point's record, unchecked; empty if it cannot be read."""
    try:
        return {**json.loads(record_path(out, key).read_bytes())}
    except (OSError, ValueError, TypeError):
        return {}


def read(out: Path, point: Point) -> Record | None:
    """Return the record of a point; None if there is none yet."""
    if point.problem:
        return Record(point=point, status="failed", message=point.problem)
    file = record_path(out, point.key)
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != RECORD_FORMAT:
            raise RunError(f"{file} must be a record of format {RECORD_FORMAT}; another version of airfed wrote it.")
        status, message, seconds = str(content["status"]), str(content["message"]), float(content["seconds"])
        if not 0 <= seconds < math.inf:
            raise ValueError("no duration")
    except FileNotFoundError:
        return None
    except RunError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"Cannot read {file}: it is damaged. To run the point again, remove it.") from None
    try:
        run = Run.open(run_path(out, point.key)).checked() if status in ENDED else None
    except ValueError as error:  # in the ledger, the scenario or the run
        raise RunError(str(error)) from None
    return Record(point=point, status=status, message=message, seconds=seconds, run=run)


def write_tables(out: Path, records: Sequence[Record]) -> list[Path]:
    """Write the tidy tables as CSV and, if pyarrow is installed, as Parquet; return the files."""
    tables = {
        "points": data_frame([record.row() for record in records]),
        "rounds": data_frame([row for record in records for row in record.round_rows()]),
    }
    content = {f"{name}.csv": table.to_csv(index=False).encode() for name, table in tables.items()}
    if _extras.has("pyarrow"):
        content |= {f"{name}.parquet": _parquet(table) for name, table in tables.items()}
    advice = "The runs are kept. Free some space and repeat the command to write the tables."
    return write_files("the tables", content.items(), out, advice)


def write_files(
    what: str, content: Iterable[tuple[str, bytes]], out: Path, advice: str = "The runs are kept."
) -> list[Path]:
    """Write files, given by name and content, each atomically, and return them."""
    try:
        files = {out / name: whole for name, whole in content}
        out.mkdir(parents=True, exist_ok=True)
        for file, whole in files.items():
            write_atomic(file, whole)
    except OSError as error:
        raise RunError(f"Cannot write {what} to {out}: {error.strerror or error}. {advice}") from None
    return list(files)


def data_frame(rows: Rows) -> DataFrame:
    """Return rows as a data frame of plain objects, so that CSV keeps all digits; lists and tables become JSON."""
    import pandas as pd

    cells = [
        {name: json.dumps(value) if isinstance(value, list | dict | tuple) else value for name, value in row.items()}
        for row in rows
    ]
    return pd.DataFrame(cells, dtype=object)


def _parquet(table: DataFrame) -> bytes:
    """Return the table as a Parquet file; a column of mixed types becomes text."""
    for name, column in table.items():
        kinds = {type(value) for value in column.dropna()}
        if len(kinds) > 1 and not kinds <= {int, float}:
            table[name] = column.map(str, na_action="ignore")
    return bytes(table.to_parquet(index=False))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its 95% interval over `count` seeds; with one seed the interval is infinite."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 or -1 if the interval lies above or below 0; 0 if it contains 0."""
        return int(self.low > 0) - int(self.high < 0)

    def __neg__(self) -> Estimate:
        return Estimate(mean=-self.mean, low=-self.high, high=-self.low, count=self.count)

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def estimate(values: ArrayLike, *, error: float = 0.05) -> Estimate:
    """Return the mean of independent values and its interval by Student's t, by default at 95%.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, low=-0.484..., high=4.484..., count=3)
    """
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    half = float(half_width(sample, error=error)) if sample.size > 1 else math.inf
    return Estimate(mean=mean, low=mean - half, high=mean + half, count=sample.size)


def holm(samples: Mapping[str, ArrayLike]) -> dict[str, Estimate]:
    """Return the mean of each sample with Holm's correction for several comparisons with 0.

    The probability that any interval excludes 0 although the true mean is 0 is at most 5%. The sample with the smallest
    p-value has an interval of error 5%/n, the next one 5%/(n − 1), until one contains 0; the rest have the error of
    that one.

    >>> [found.sign for found in holm({"a": [1.0, 1.1, 0.9], "b": [0.1, 1.0, 1.5]}).values()]
    [1, 0]
    """
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in samples.items()}
    found, remaining = dict[str, Estimate](), len(arrays)
    for name in sorted(arrays, key=lambda name: _p_value(arrays[name])):
        found[name] = estimate(arrays[name], error=0.05 / remaining)
        remaining -= bool(found[name].sign)
    return {name: found[name] for name in samples}


def _p_value(sample: NDArray[np.float64]) -> float:
    """Return the p-value of Student's t test of mean 0; 1 for a single value."""
    if sample.size < 2 or not sample.any():
        return 1.0
    with np.errstate(divide="ignore"):
        statistic = abs(sample.mean()) / (np.std(sample, ddof=1) / np.sqrt(sample.size))
    return float(2 * stdtr(sample.size - 1, -statistic))
