"""The pictures of runs: curves over the rounds, side by side, and the ledger as a table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

import numpy as np

from airfed.explorer import svg
from airfed.explorer.records import Record, Spending
from airfed.explorer.svg import Area, Scale, number
from airfed.explorer.theme import RUN_COLOURS

MOST_COMPARED: Final = len(RUN_COLOURS)
_MOST_ROWS: Final = 60


def curves(records: Sequence[Record], width: float, *, key: str, label: str, planned: str = "") -> str:
    """Return one metric of several runs over the rounds; `planned` names a second metric to draw dashed."""
    height = 196.0
    area = Area(left=50, top=24, right=width - 8, bottom=height - 40)
    lines = [(index, "series", *record.series(key)) for index, record in enumerate(records)]
    if planned:
        lines += [(index, "series planned", *record.series(planned)) for index, record in enumerate(records)]
    values = [value for _, _, _, ys in lines for value in ys if np.isfinite(value)]
    if not values:
        return f'<p class="quiet">{html.escape(label)}: nothing was recorded yet.</p>'
    last = max([record.rounds_planned for record in records] + [r for _, _, rounds, _ in lines for r in rounds] + [2])
    top = 1.0 if key == "accuracy" else 1.08 * max(values)
    xs = Scale(low=1, high=last, start=area.left, end=area.right)
    ys = Scale(low=0.0, high=top if top > 0 else 1.0, start=area.bottom, end=area.top)
    parts = [svg.left_axis(ys, area, label), svg.bottom_axis(xs, area, "round", most=6)]
    for index, css, rounds, measured in lines:
        if len(rounds) == 1:
            x, y = xs.at(rounds[0]), ys.at(measured[0])
            parts.append(svg.segment(x - 2, y, x + 2, y, f"{css} run-{index}"))
        elif rounds:
            parts.append(svg.line(xs(rounds), ys(measured), f"{css} run-{index}"))
    return svg.document(width, height, f"{label} over the rounds", *parts)


def run_legend(records: Sequence[Record]) -> str:
    """Return the key to the runs, as HTML."""
    items = [
        f'<span class="key"><i class="line run-{index}"></i>{html.escape(record.name)}</span>'
        for index, record in enumerate(records)
    ]
    return f'<div class="legend">{"".join(items)}</div>'


def comparison_table(records: Sequence[Record]) -> str:
    """Return the runs side by side as an HTML table."""
    head = ("run", "policy", "devices", "rounds", "accuracy", "loss", "ε in total", "W planned", "W transmitted")
    rows = "".join(_comparison_row(index, record) for index, record in enumerate(records))
    return _table(head, rows)


def ledger_table(spending: Spending) -> str:
    """Return the latest rounds of a ledger as an HTML table, and whether its chain of hashes holds."""
    if not spending.verified:
        return f'<p class="note">{html.escape(spending.problem)}</p>'
    rows, header = spending.charges[-_MOST_ROWS:], spending.header
    total = rows[-1].epsilon_total if rows else 0.0
    cut = f" The last {_MOST_ROWS} are shown." if len(spending.charges) > len(rows) else ""
    summary = (
        f'<p class="sub">The chain of {len(spending.charges)} charges holds. ε = {number(total, 4)} in total at '
        f"δ = {number(float(header['delta']))}, unit: device, neighbours: {html.escape(str(header['relation']))}; "
        f"{html.escape(str(header['privacy']))} noise.{cut}</p>"
    )
    body = "".join(
        f"<tr><td>{row.round_index + 1}</td><td>{number(row.mu, 4)}</td><td>{number(row.epsilon_round, 4)}</td>"
        f"<td>{number(row.epsilon_total, 4)}</td><td>{number(row.power_planned, 4)}</td>"
        f"<td>{_figure(row.power_metered)}</td></tr>"
        for row in reversed(rows)
    )
    return summary + _table(("round", "μ", "ε", "ε so far", "W charged", "W metered"), body)


def _comparison_row(index: int, record: Record) -> str:
    plan = record.plan
    scheduled = f"{plan.get('num_scheduled', '?')} of {plan.get('num_devices', '?')}"
    accuracy = record.last("accuracy")
    cells = (
        html.escape(str(plan.get("policy", ""))),
        scheduled,
        f"{len(record.metrics)} of {record.rounds_planned}",
        "" if accuracy is None else f"{accuracy:.1%}",
        _figure(record.last("loss")),
        _figure(record.last("epsilon_total")),
        _figure(record.last("power_planned_total")),
        _figure(record.last("power_transmitted_total")),
    )
    name = f'<td><i class="dot run-{index}"></i>{html.escape(record.name)}</td>'
    return f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(head: Sequence[str], rows: str) -> str:
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        f'<div class="scroll"><table class="plain-table"><thead><tr>{names}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _figure(value: float | None) -> str:
    return "" if value is None else number(value, 4)
