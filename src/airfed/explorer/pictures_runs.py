"""The pictures of runs: curves over the rounds, side by side, and the ledger as a table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

import numpy as np

from airfed.explorer.records import Record, Spending
from airfed.showing import colours, svg
from airfed.showing.chart import Line
from airfed.showing.training import training_chart
from airfed.showing.words import number

MOST_COMPARED: Final = 6
_MOST_ROWS: Final = 60


def curves(records: Sequence[Record], width: float, *, key: str, label: str, planned: str = "") -> str:
    """Return one metric of several runs over the rounds; `planned` names a second metric to draw dashed."""
    lines = []
    for metric, dash, weight in ((key, "solid", 1.0), (planned, "dash", 0.6)):
        for index, record in enumerate(records if metric else ()):
            rounds, values = (np.array(part, dtype=np.float64) for part in record.series(metric))
            name = record.name if metric == key else f"{record.name}, charged"
            colour = colours.RUNS[index]
            lines.append(Line(x=rounds, y=values, name=name, colour=colour, dash=dash, weight=weight))
    last = max(record.rounds_planned for record in records)
    chart = training_chart(key, lines, over="round", start=1, last=last, label=label)
    if chart is None:
        return f'<p class="quiet">{html.escape(label)}: nothing was recorded yet.</p>'
    return svg.render(chart, width, 196)


def run_legend(records: Sequence[Record]) -> str:
    """Return the key to the runs, as HTML."""
    return svg.keyed(*(svg.line_key(record.name, colours.RUNS[index]) for index, record in enumerate(records)))


def comparison_table(records: Sequence[Record]) -> str:
    """Return the runs side by side as an HTML table."""
    head = ("run", "policy", "devices", "rounds", "accuracy", "loss", "ε in total", "W planned", "W transmitted")
    rows = "".join(_comparison_row(index, record) for index, record in enumerate(records))
    return _table(head, rows)


def ledger_table(spending: Spending) -> str:
    """Return the latest rounds of a ledger as an HTML table, and whether its chain of hashes holds."""
    if not spending.verified:
        return f'<p class="note">{html.escape(spending.problem)}</p>'
    chained = f"{len(spending.charges)} charge{'' if len(spending.charges) == 1 else 's'}"
    rows, header = spending.charges[-_MOST_ROWS:], spending.header
    total = rows[-1].epsilon_total if rows else 0.0
    cut = f" The last {_MOST_ROWS} are shown." if len(spending.charges) > len(rows) else ""
    summary = (
        f'<p class="sub">The chain of {chained} holds. ε = {number(total, 4)} in total at '
        f"δ = {number(float(header['delta']))}, unit: device, neighbours: {html.escape(str(header['relation']))}; "
        f"{html.escape(str(header['privacy']))} noise.{cut}</p>"
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


def _comparison_row(index: int, record: Record) -> str:
    plan, accuracy = record.plan, record.last("accuracy")
    cells = (
        plan.get("policy", ""),
        f"{plan.get('num_scheduled', '?')} of {plan.get('num_devices', '?')}",
        f"{len(record.metrics)} of {record.rounds_planned}",
        "" if accuracy is None else f"{accuracy:.1%}",
        _figure(record.last("loss")),
        _figure(record.last("epsilon_total")),
        _figure(record.last("power_planned_total")),
        _figure(record.last("power_transmitted_total")),
    )
    name = f'<td><i class="dot {colours.RUNS[index]}"></i>{html.escape(record.name)}</td>'
    return f"<tr>{name}{_cells(cells)}</tr>"


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
