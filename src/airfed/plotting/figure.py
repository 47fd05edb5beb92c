"""Charts for files, drawn by matplotlib, fit for a two-column paper."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.figure import Figure

from airfed._disk import write_whole
from airfed.plotting.chart import Axis, Band, Cells, Chart, Columns, Line, Mark, Part
from airfed.plotting.colours import PALETTE

__all__ = [
    "PAGE_INCHES",
    "STYLE",
    "Axes",
    "Figure",
    "check_name",
    "draw",
    "encoded",
    "key",
    "mpl",
    "plain",
    "save",
    "sheet",
    "write_note",
]

PAGE_INCHES: Final = 7.16  # both columns of an IEEE paper
STYLE: Final[dict[Any, Any]] = {  # matplotlib types its keys as one long Literal
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # editable text in the PDF
}
_DASHES: Final[dict[str, Any]] = {
    "solid": "-",
    "dash": "--",
    "dashdot": "-.",
    "dot": (0, (1, 1)),
    "longdash": (0, (8, 2)),
}


def sheet(
    charts: Sequence[Chart],
    *,
    height: float,
    places: Sequence[str] = (),
    widths: Sequence[float] | None = None,
    note: str = "",
    titles: bool = False,
) -> Figure:
    """Return charts on one page, with one legend above them.

    Args:
        charts: what is drawn.
        height: of the page [inch].
        places: the rows of the page, a letter for each chart ("ac", "bc" puts a above b, and c beside both); by default
            one row.
        widths: of the columns, relative to each other.
        note: what is printed under it.
        titles: whether each chart carries its title.
    """
    names = [chr(ord("a") + index) for index in range(len(charts))]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
        panels = figure.subplot_mosaic([list(row) for row in places or ["".join(names)]], width_ratios=widths)
        for name, chart in zip(names, charts, strict=True):
            draw(panels[name], chart)
            if titles:
                panels[name].set_title(plain(chart.title), loc="left")
        key(figure, list(panels.values()))
        if note:
            write_note(figure, note)
    return figure


def draw(axes: Axes, chart: Chart) -> None:
    """Draw a chart into existing axes."""
    for part in chart.parts:
        _part(axes, part)
    _name(axes.xaxis, chart.x, most=6)
    _name(axes.yaxis, chart.y, most=6)
    axes.set_xlim(chart.x.low, chart.x.high)
    axes.set_ylim(chart.y.low, chart.y.high)


def key(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend above all panels, each name once."""
    found = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found.update(dict(zip(labels, handles, strict=True)))
    if not found:
        return
    wide = sum(len(label) + 12 for label in found) > 130  # characters, the sample lines included: what a page holds
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside upper center",
        ncols=min(len(found), 5 if max(map(len, found)) < 20 else 3) if wide else len(found),
        handlelength=3,
    )


def write_note(figure: Figure, note: str) -> None:
    """Print the settings under the figure."""
    lines = [line for part in note.splitlines() for line in textwrap.wrap(part, 158)]
    text = plain("\n".join(lines))
    figure.supxlabel(text, x=0.01, ha="left", fontsize=6, color="#444444", linespacing=1.35)


def check_name(path: Path) -> None:
    """Raise a ValueError unless the name ends in a picture format."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"Expected a picture name ending in .png, .pdf or .svg, got {path.name}.")


def save(figure: Figure, path: Path) -> None:
    """Write the figure, whole or not at all; the ending of the name decides the format.

    Raises:
        ValueError: the ending is no picture format, or the file cannot be written.
    """
    check_name(path)
    try:
        write_whole(path, encoded(figure, path.suffix[1:].lower()))
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {error.strerror}.") from None


def encoded(figure: Figure, ending: str) -> bytes:
    """Return the content of a picture file; the ending of its name is "png", "pdf" or "svg"."""
    content = io.BytesIO()
    figure.savefig(content, format=ending)
    return content.getvalue()


def plain(text: str) -> str:
    """Return text that matplotlib takes literally: a dollar opens no formula, an underscore hides no legend."""
    return (f" {text}" if text.startswith("_") else text).replace("$", r"\$")


def _part(axes: Axes, part: Part) -> None:
    if isinstance(part, Mark):
        axes.plot(part.x, part.y, "*", color=PALETTE["lit"], ms=11, zorder=5, ls="", label=plain(part.name))
        return
    colour = PALETTE[part.colour]
    label = plain(part.name) if part.name else None
    if isinstance(part, Line):
        label = label if part.listed else None
        shown = {"color": colour, "ls": _DASHES[part.dash], "lw": 1.3 * part.weight, "zorder": 2 + part.weight}
        if part.spread is not None and part.points:
            axes.errorbar(part.x, part.y, part.spread, label=label, marker="o", ms=3, capsize=2, **shown)
            return
        lone = np.isfinite(part.y).sum() == 1  # a lone value would be a line without length
        axes.plot(part.x, part.y, label=label, marker="o" if part.points or lone else None, ms=3, **shown)
        if part.spread is not None:
            axes.fill_between(part.x, part.y - part.spread, part.y + part.spread, color=colour, alpha=0.13, lw=0)
    elif isinstance(part, Band):
        axes.fill_between(part.x, part.low, part.high, color=colour, alpha=part.opacity, lw=0, label=label)
    elif isinstance(part, Cells):
        _cells(axes, part)
    elif isinstance(part, Columns):
        axes.bar(part.x, part.y, 0.72, color=colour, label=label)
    elif part.upright:
        axes.axvline(part.at, color=colour, lw=0.8, ls=":")
    else:
        axes.axhline(part.at, color=colour, lw=1, ls="--")
        place = axes.get_yaxis_transform()
        axes.annotate(label or "", (1, part.at), xycoords=place, ha="right", va="bottom", fontsize=7, color=colour)


def _cells(axes: Axes, part: Cells) -> None:
    """Draw a grid of cells, and the key to its shades under it."""
    own = np.array(to_rgb(PALETTE[part.colour]))
    shades = [tuple(1 - opacity * (1 - own)) for opacity in part.opacities]
    rows, columns = part.values.shape
    mesh = axes.pcolormesh(
        part.corner[0] + part.size[0] * np.arange(columns + 1),
        part.corner[1] + part.size[1] * np.arange(rows + 1),
        np.ma.masked_less(part.shades, 0),
        cmap=ListedColormap(shades),
        norm=BoundaryNorm(np.arange(len(shades) + 1) - 0.5, len(shades)),
    )
    key = axes.figure.colorbar(mesh, ax=axes, location="bottom", aspect=40, pad=0.02, ticks=range(len(shades)))
    key.ax.set_xticklabels([plain(part.text(place)) for place in range(len(shades))])
    key.set_label(plain(part.name))
    key.outline.set_visible(False)
    key.ax.tick_params(length=0)
    axes.grid(visible=False)


def _name(drawn: Any, axis: Axis, *, most: int) -> None:
    """Give one axis of matplotlib the scale, the ticks and the label of ours."""
    bend = {"functions": (np.sqrt, np.square)} if axis.kind == "root" else {}
    getattr(drawn.axes, f"set_{drawn.axis_name}scale")("function" if axis.kind == "root" else axis.kind, **bend)
    ticks = axis.ticks(most)
    drawn.set_ticks(ticks, labels=[axis.text(tick) for tick in ticks])
    drawn.set_ticks([], minor=True)
    drawn.set_label_text(plain(axis.label))
