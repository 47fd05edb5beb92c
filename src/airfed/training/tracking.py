"""The records of a run for TensorBoard, to follow it while it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from airfed import _extras
from airfed.scenario import Scenario
from airfed.training.directory import RunDirectory

FOLDER: Final = "tensorboard"
"""In the run directory."""


def check(scenario: Scenario) -> None:
    """Raise where a scenario asks for a log that cannot be written here.

    Raises:
        MissingExtra: a package is not installed.
    """
    if scenario.run.log:
        _extras.require("tensorboardX")


class Tracking:
    """Writes each record where the scenario wants it; called with what `metrics.jsonl` has got.

    The log holds what the records hold and nothing else, so that a private record gives a private log. It is begun
    with the first round of each life of a run, from all records that count by then: after a resume no round is twice
    in it, and none is missing.

    Args:
        scenario: its `run.log` says what is written.
        directory: of the run.
    """

    def __init__(self, scenario: Scenario, directory: RunDirectory) -> None:
        self._wanted, self._directory = bool(scenario.run.log), directory
        self._writer: Any = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Write one record, or all if it is the first."""
        if not self._wanted:
            return
        records = [record] if self._writer is not None else self._begin()
        for each in records:
            for tag, value in scalars(each):
                self._writer.add_scalar(tag, value, each["round"] + 1)
        self._writer.flush()

    def close(self) -> None:
        """End the log."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self) -> list[dict[str, Any]]:
        from tensorboardX import SummaryWriter

        folder = self._directory.file(FOLDER)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder), write_to_disk=True)
        return self._directory.read_metrics()


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the figures of a record, each with its tag; what a record leaves out has none.

    >>> list(scalars({"round": 3, "loss": None, "averages": {"tail": {"accuracy": 0.5}}}))
    [('averages/tail/accuracy', 0.5)]
    """
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif value is not None and name != "round":
            yield prefix + name, float(value)
