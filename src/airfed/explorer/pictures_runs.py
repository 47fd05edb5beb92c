"""The pictures of runs: curves over the rounds, side by side, and the ledger as a table."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from airfed.privacy.ledger import Ledger
from airfed.running.run import Run
from airfed.showing import colours, svg
from airfed.showing.chart import Line
from airfed.showing.training import training_chart
from airfed.showing.words import ADVERSARIES, count, number, privacy_terms

MOST_COMPARED: Final = 6
_MOST_ROWS: Final = 60


def curves(runs: Mapping[str, Run], width: float, *, key: str, label: str, planned: str = "") -> str:
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
    against = f", against {ADVERSARIES[str(header['trust'])]}" if header.get("trust") in ADVERSARIES else ""
    terms = privacy_terms(float(header["delta"]), str(header["relation"]))
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
