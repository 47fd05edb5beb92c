"""The progress line of a run, in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from airfed.planning import Plan


class LiveLine:
    """Shows round, loss, accuracy, ε so far, power so far and the time left, from `begin` on."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.tasks:
            self._progress.stop()

    def begin(self, plan: Plan, first_round: int) -> None:
        """Show the line, from `first_round` on."""
        rounds, self._private = plan.rounds, plan.private
        self._task = self._progress.add_task("", total=rounds, completed=first_round)
        self._progress.start()

    def update(self, record: dict[str, Any]) -> None:
        """Show a finished round, a line of `metrics.jsonl`."""
        spent = "ε {:.3g}" if self._private else "ε ∞"
        keys = {"loss": "loss {:.3f}", "accuracy": "acc {:.1%}", "epsilon_total": spent}
        keys["power_transmitted_total"] = "{:.3g} W"
        shown = [form.format(record[key]) for key, form in keys.items() if record[key] is not None]
        self._progress.update(self._task, completed=record["round"] + 1, description=" · ".join(shown))
