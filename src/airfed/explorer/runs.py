"""The runs section's content: a folder in, a list, curves and a ledger out. No NiceGUI here.

Run directories below one root are found, read, never written, never left. Whatever lies in one is somebody's file: a
run that cannot be read is listed as bad, with its sentence, and hides no other.
"""

from __future__ import annotations

import html
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from markupsafe import Markup

from airfed._disk import is_locked
from airfed.plotting import colours
from airfed.plotting.chart import Line
from airfed.plotting.drawings import drawing
from airfed.plotting.figure import svg
from airfed.plotting.training import training_chart
from airfed.privacy.ledger import Ledger
from airfed.text.phrases import ADVERSARIES, count, number, privacy_terms
from airfed.training.directory import RunDirectory, RunError, runs_below
from airfed.training.run import Run

_MOST_RUNS: Final = 500


@dataclass(frozen=True)
class Library:
    """The run directories below `root`."""

    root: Path

    def names(self) -> list[str]:
        """Return the paths of all runs below the root, the newest first, and of folders that cannot be looked into.

        Raises:
            OSError: the root cannot be listed.
        """
        found = sorted(runs_below(self.root, most=_MOST_RUNS), reverse=True)
        return [folder.relative_to(self.root).as_posix() for folder in sorted(found, key=_modified, reverse=True)]

    def read(self, name: str) -> Run:
        """Return a run, whatever state it is in.

        Raises:
            RunError: the name leads out of the root, there is no run, or it cannot be looked into.
        """
        root = self.root.resolve()
        folder = (root / name).resolve()
        if folder == root or not folder.is_relative_to(root):
            raise RunError(f"Expected a run below {self.root}, got {name!r}.")
        try:
            if RunDirectory(folder).exists:
                return Run.open(folder)
            os.listdir(folder)  # says why it cannot be looked into
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise RunError(f"Cannot read {name!r}: {error.strerror}.") from None
        raise RunError(f"Expected a run in {name!r}; there is none.")


def _modified(folder: Path) -> float:
    for name in ("metrics.jsonl", "run.json"):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


MOST_COMPARED: Final = 6
_MOST_ROWS: Final = 60


def curve_chart(runs: Mapping[str, Run], width: float, *, key: str, label: str, planned: str = "") -> str:
    """Return one metric of several runs over the rounds; `planned` names a second metric to draw dashed."""
    lines = []
    for metric, dash, weight in ((key, "solid", 1.0), (planned, "dash", 0.6)):
        for index, (name, run) in enumerate(runs.items() if metric else ()):
            rounds, values = run.series(metric)
            shown = name if metric == key else f"{name}, charged"
            lines.append(Line(x=rounds, y=values, name=shown, colour=colours.RUNS[index], dash=dash, weight=weight))
    last = max(run.rounds_planned for run in runs.values())
    over = "rounds charged" if key == "epsilon_total" else "round"
    chart = training_chart(key, lines, over=over, start=1, last=last, label=label)
    if chart is None:
        return f'<p class="quiet">{html.escape(label)}: nothing was recorded yet.</p>'
    return svg.render(chart, width, 196)


def run_legend(runs: Iterable[str]) -> str:
    """Return the key to the runs by their names, as HTML."""
    return svg.keyed(*(svg.line_key(name, colours.RUNS[index]) for index, name in enumerate(runs)))


def comparison_table(runs: Mapping[str, Run]) -> str:
    """Return the runs side by side as an HTML table."""
    head = ("run", "policy", "devices", "rounds", "accuracy", "loss", "ε in total", "W planned", "W transmitted")
    rows = "".join(_comparison_row(index, name, run) for index, (name, run) in enumerate(runs.items()))
    return _table(head, rows)


def ledger_table(ledger: Ledger) -> str:
    """Return the latest rounds of a verified ledger as an HTML table."""
    rows, header = ledger.charges[-_MOST_ROWS:], ledger.header
    cut = f" The last {_MOST_ROWS} are shown." if ledger.rounds > len(rows) else ""
    against = f", against {ADVERSARIES[str(header['trust'])]}" if header.get("antennas", 1) > 1 else ""
    terms = privacy_terms(float(header["delta"]), header["relation"])
    summary = (
        f'<p class="sub">The chain of {count(ledger.rounds, "charge")} holds. ε = {number(ledger.epsilon_total, 4)} in '
        f"total at {html.escape(terms + against)}; {html.escape(str(header['privacy']))} noise.{cut}</p>"
    )
    body = "".join(
        "<tr>"
        + _cells(
            (
                row.round_index + 1,
                number(row.mu, 4),
                number(row.epsilon_round, 4),
                number(row.epsilon_total, 4),
                number(row.power_planned, 4),
                _figure(row.power_metered),
            )
        )
        + "</tr>"
        for row in reversed(rows)
    )
    return summary + _table(("round", "μ", "ε", "ε so far", "W charged", "W metered"), body)


def _comparison_row(index: int, name: str, run: Run) -> str:
    plan, ledger = run.figures, run.ledger
    cells = (
        plan["policy"],
        f"{plan['num_scheduled']} of {plan['num_devices']}",
        f"{len(run.rounds)} of {run.rounds_planned}",
        "" if run.accuracy is None else f"{run.accuracy:.1%}",
        _figure(run.last("loss")),
        _figure(ledger.epsilon_total),
        _figure(ledger.power_planned),
        _figure(run.last("power_transmitted_total")),
    )
    first = f'<td><i class="dot {colours.RUNS[index]}"></i>{html.escape(name)}</td>'
    return f"<tr>{first}{_cells(cells)}</tr>"


def _table(head: Sequence[str], rows: str) -> str:
    names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    return (
        f'<div class="scroll"><table class="plain-table"><thead><tr>{names}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(values: Sequence[object]) -> str:
    """Table cells; what comes from a record is text, whatever it says."""
    return "".join(f"<td>{html.escape(str(value))}</td>" for value in values)


def _figure(value: float | None) -> str:
    return "" if value is None else number(value, 4)


State = Literal["training", "done", "stopped", "bad"]
Stamp = tuple[tuple[str, int, int], ...]

CHARTS: Final = (
    ("accuracy", "test accuracy", ""),
    ("loss", "training loss", ""),
    ("epsilon_total", "ε spent so far", ""),
    ("power_transmitted_total", "W transmitted so far (dashed: charged)", "power_planned_total"),
)
_MOST_LISTED: Final = 100
_MOST_BYTES: Final = 64_000_000  # of one file
_PATIENCE: Final = 5.0  # seconds for reading all runs
_READ: Final = ("run.json", "plan.json", "metrics.jsonl", "ledger.jsonl", "scenario.toml", "devices.csv")
_WATCHED: Final = (*_READ, "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run in the list: its name, a line about it, how far it is, and whether it can go on."""

    name: str
    text: str
    state: State
    done: int = 0
    planned: int = 0
    resumable: bool = False


@dataclass(frozen=True, kw_only=True)
class Details:
    """The ticked runs: curves, side by side, and the ledger of the first."""

    legend: Markup
    curves: tuple[Markup, ...]
    comparison: Markup
    ledger_of: str
    ledger: Markup


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the section shows.

    Args:
        stamps: what the files looked like.
        entries: the list, the newest first.
        details: of the ticked runs, None where none can be shown.
        problem: why the list is not complete.
    """

    stamps: tuple[tuple[str, Stamp], ...]
    entries: tuple[Entry, ...]
    details: Details | None
    problem: str = ""


def read(
    root: Path,
    ticked: tuple[str, ...] | None,
    width: float,
    seen: tuple[tuple[str, Stamp], ...] | None,
) -> Runs | None:
    """Return the runs below a folder; None where nothing has changed.

    Args:
        root: the folder.
        ticked: runs to show in detail; None takes the newest that can be read.
        width: of a chart [px].
        seen: the `stamps` of the last answer, None to have one in any case.
    """
    library = Library(root)
    try:
        names, problem = library.names()[:_MOST_LISTED], ""
    except OSError as error:
        names, problem = [], f"Cannot list {root}: {error.strerror}."
    stamps = tuple((name, _stamp(root / name)) for name in names)
    if stamps == seen:
        return None
    entries: list[Entry] = []
    good: dict[str, Run] = {}
    end = time.monotonic() + _PATIENCE
    for name, stamp in stamps:
        run = None
        if time.monotonic() > end:
            entry = Entry(name=name, text="Not read: the runs before it took too long.", state="bad")
        else:
            entry, run = _entry(root, name, stamp)
        entries.append(entry)
        if run is not None:
            good[name] = run
    if ticked is None:
        ticked = tuple(good)[:1]
    chosen = {name: good[name] for name in ticked if name in good}
    details = _details(chosen, width) if chosen else None
    return Runs(stamps=stamps, entries=tuple(entries), details=details, problem=problem)


def _stamp(folder: Path) -> Stamp:
    found = []
    for name in _WATCHED:
        try:
            status = (folder / name).lstat()
        except OSError:
            continue
        found.append((name if stat.S_ISREG(status.st_mode) else f"!{name}", status.st_mtime_ns, status.st_size))
    return (*found, (".lock", int(is_locked(folder / ".lock")), 0))


def _entry(root: Path, name: str, stamp: Stamp) -> tuple[Entry, Run | None]:
    """The run's line in the list, and the run where it can be shown."""
    try:
        _check_files(stamp)
        run = _read(root, name, stamp)
        if run.errors:
            repairable = not run.running and not run.finished and "--resume" in run.problem
            return Entry(name=name, text=run.problem, state="bad", resumable=repairable), None
        _details({name: run}, 400.0)  # what cannot be drawn is found here, and spoils no comparison
    except (ValueError, OSError, ArithmeticError, LookupError) as error:
        return Entry(name=name, text=_damage(error), state="bad"), None
    state: State = "training" if run.running else "done" if run.finished else "stopped"
    done, planned = len(run.rounds), run.rounds_planned
    text = f"{run.figures['policy']} · {done} of {count(planned, 'round')} · {state}"
    text += "" if run.accuracy is None else f", {run.accuracy:.1%}"
    return Entry(name=name, text=text, state=state, done=done, planned=planned, resumable=state == "stopped"), run


def _check_files(stamp: Stamp) -> None:
    """Raise for what must not even be opened: a pipe would be waited for, and a huge file fills the memory."""
    for file, _, size in stamp:
        if file.startswith("!"):
            raise ValueError(f"Expected {file[1:]} to be a file; it is none.")
        if size > _MOST_BYTES and file in _READ:
            raise ValueError(f"Expected {file} of at most {_MOST_BYTES // 10**6} MB, got {size / 1e6:.0f} MB.")


def _details(chosen: Mapping[str, Run], width: float) -> Details:
    curves, comparison = _draw(chosen, width)
    first = next(iter(chosen))
    return Details(
        legend=drawing(run_legend(chosen)),
        curves=curves,
        comparison=comparison,
        ledger_of=first,
        ledger=drawing(ledger_table(chosen[first].ledger)),
    )


def _draw(runs: Mapping[str, Run], width: float) -> tuple[tuple[Markup, ...], Markup]:
    curves = tuple(
        drawing(curve_chart(runs, width, key=key, label=label, planned=planned)) for key, label, planned in CHARTS
    )
    return curves, drawing(comparison_table(runs))


@lru_cache(maxsize=_MOST_LISTED)
def _read(root: Path, name: str, stamp: Stamp) -> Run:
    return Library(root).read(name)


def _damage(error: Exception) -> str:
    """The sentence of an error; errors of Python itself say too little to a reader."""
    if isinstance(error, ValueError) and str(error):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"Cannot read it: {error.strerror}."
    return f"Its figures cannot be drawn ({type(error).__name__})."
