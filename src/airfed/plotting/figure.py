"""Figures with matplotlib: functions that draw into axes, sheets of panels for files, and SVG for the report.

A figure's settings are its label (`Figure.set_label`): they become a text file beside the picture.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from airfed import planning
from airfed._disk import write_atomic
from airfed.planning import Plan, Surrogate
from airfed.planning.exact import CandidateSpace
from airfed.plotting import colours, series
from airfed.plotting.colours import PALETTE
from airfed.plotting.series import Curve, Expectation, Floats, Series
from airfed.text.phrases import BOUND, LIMITS, TERMS, count, number, span
from airfed.training.run import Run

__all__ = ["PAGE_INCHES", "STYLE", "Axes", "Figure", "mpl"]

Draw = Callable[[Axes], None]
PAGE_INCHES: Final = 7.16  # both columns of an IEEE paper
STYLE: Final[dict[Any, Any]] = {  # matplotlib types its keys as one long Literal
    "font.size": 8,
    "axes.titlesize": "medium",
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), "small"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
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
_ON_PAGE: Final = {  # for an SVG on a page: a point is a pixel, and the page's colours replace these
    **STYLE,
    "font.size": 12.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colours.PAGE["muted"][0]),
    "axes.edgecolor": colours.PAGE["faint"][0],
    "grid.color": colours.PAGE["grid"][0],
    "axes.spines.left": False,
    "figure.dpi": 72,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
}
_numbers: Final = ticker.FuncFormatter(lambda value, _: number(value))
_percent: Final = ticker.FuncFormatter(lambda share, _: f"{number(100 * share)}%")
_PHONE: Final = 330  # pixels
_LIGHTER: Final = {  # redundant parts of an SVG that matplotlib writes, and digits that no screen resolves
    r"<!--.*?-->": "",
    r"<defs>\s*<style.*?</defs>": "",
    r'<g id="[^"]*"': "<g",
    r"(?<=\d\.\d\d)\d+(?=[^<>]*>)": "",
    r"font: ([\d.]+px) [^;\"]*": r"font-size:\1",
    r"(?<=[;:]) (?=[^<>]*>)": "",
    r"\s*\n\s*": " ",
    r"(?<=>) (?=<)": "",
}
MAP: Final = "transmit power of each device in each round"
_MOST_BARS: Final = 200  # more would be narrower than a pixel
_MOST_HOVERED: Final = 60  # columns of a chart that show values on hover; more are too narrow to point at
_FEW: Final = 3  # so many points need no logarithmic axis
_MOST_TIMES: Final = 5.0  # bars above so many times the median are outside the axis, as is such a budget


def plot_alignment(axes: Axes, plan: Plan, space: CandidateSpace) -> None:
    """Draw the largest θ and its three limits over |K| (the upper half of the paper's Fig. 2)."""
    theta = np.where(space.alignment > 0, space.alignment, np.nan)
    axes.fill_between(space.size, np.nanmin(theta, initial=np.inf) / 1.5, theta, color=PALETTE["lit"], alpha=0.08, lw=0)
    for name, curve in series.limit_curves(plan, space).items():
        axes.plot(space.size, curve, "--", color=PALETTE[f"lim-{name}"], label=LIMITS[name], lw=1.2)
    aligned = "" if plan.amplitudes.equal else ", aligned plans"
    axes.plot(space.size, theta, color=PALETTE["ink"], label=f"largest θ{aligned}")
    _mark(axes, plan.num_scheduled, plan.alignment)
    _sizes(axes, space)
    axes.set_ylabel("alignment θ")
    log_axis(axes, "y", *series.positive_range(theta, 1.5, 3.0))


def plot_objective(axes: Axes, plan: Plan, space: CandidateSpace) -> None:
    """Draw the objective Ψ over |K| at the plan's rounds (the lower half of the paper's Fig. 2)."""
    axes.plot(space.size, space.objective, color=PALETTE["ink"], label="_ objective Ψ")
    _mark(axes, plan.num_scheduled, series.own_objective(plan))
    _sizes(axes, space)
    axes.set_ylabel(f"objective Ψ at I = {plan.rounds}")
    log_axis(axes, "y", *series.objective_range(plan, space))


def plot_over_rounds(axes: Axes, plan: Plan, curve: Curve | Expectation) -> None:
    """Draw the bound by its terms, or the expected accuracy, over the number of rounds, and mark the chosen number."""
    x = curve.rounds.astype(np.float64)
    if isinstance(curve, Expectation):
        lit = PALETTE["lit"]
        axes.fill_between(x, curve.low, curve.high, color=lit, alpha=0.18, lw=0, label="interval, nominal 90%")
        axes.plot(x, curve.accuracy, color=PALETTE["ink"], label="expected")
        chosen = plan.predicted_accuracy
        axes.set(ylabel="expected test accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(_percent)
    else:
        floor = np.zeros(x.size)
        for name, label in TERMS.items():
            top = floor + curve.terms[name]
            axes.fill_between(x, floor, top, color=PALETTE[f"term-{name}"], alpha=0.86, lw=0, label=label)
            _hidden(axes, label, curve.terms[name], x)
            floor = top
        axes.plot(x, curve.total, color=PALETTE["ink"], lw=0.9, label="_ bound")
        chosen = plan.bound.total
        axes.set(ylabel="bound on the gap", ylim=(0, curve.top(chosen)))
        axes.yaxis.set_major_formatter(_numbers)
    axes.axvline(plan.rounds, color=PALETTE["ink"], lw=0.8, ls=":")
    if chosen is not None:
        _mark(axes, plan.rounds, chosen)
    axes.set_xlabel("aggregation rounds I")
    ends = float(x[0]), max(float(x[-1]), float(x[0]) + 1)
    if x.size > _FEW:
        log_axis(axes, "x", *ends)
    else:
        axes.set_xlim(*ends)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(_FEW, integer=True))


def plot_devices(axes: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    """Draw the planned and the transmitted power of each scheduled device (`Run.devices`), strongest channel first."""
    rows = sorted(rows, key=lambda row: -row["gain"])
    rows = rows[:: -(-len(rows) // _MOST_BARS)]
    for name in ("device", "gain"):
        _hidden(axes, name, np.array([row[name] for row in rows]))
    _bars(axes, np.array([row["power_planned"] for row in rows]), "planned, worst case [W]", "out")
    _bars(axes, np.array([row["power_transmitted"] for row in rows]), "transmitted [W]", "lit")
    axes.set(xlabel="scheduled devices, strongest channel first", xlim=(0.5, len(rows) + 0.5))


def _sizes(axes: Axes, space: CandidateSpace) -> None:
    axes.set(xlabel="scheduled devices |K|", xlim=(1, max(int(space.size[-1]), 2)))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def plot_power_map(axes: Axes, plan: Plan) -> None:
    """Draw the power of devices (most often scheduled at the bottom) over the rounds; a cell may be a mean."""
    num_devices = plan.problem.fleet.num_devices
    shares, tall, wide = series.power_shares(plan)
    cells = axes.imshow(
        shares,
        cmap=LinearSegmentedColormap.from_list("", [to_rgba(PALETTE["lim-peak_power"], a) for a in (0.25, 1.0)]),
        vmin=0,
        extent=(0.5, 0.5 + wide * shares.shape[1], 0.5, 0.5 + tall * shares.shape[0]),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )
    shared = [count(tall, "device")] * (tall > 1) + [count(wide, "round")] * (wide > 1)
    label = "power / peak power (blank: not scheduled)" + f", mean of {' × '.join(shared)}" * bool(shared)
    key = axes.figure.colorbar(cells, ax=axes, location="bottom", aspect=40, pad=0.02, label=label, format=_percent)
    key.outline.set_visible(False)
    _hidden(axes, "devices", plan.sizes)
    _hidden(axes, "θ", plan.amplitudes.level)
    _hidden(axes, "W", plan.sequence.powers)
    axes.set(xlabel="round", xlim=(0.5, plan.rounds + 0.5))
    axes.set(ylabel="devices, most often scheduled first", ylim=(0.5, num_devices + 0.5))
    axes.grid(visible=False)


def plot_levels(axes: Axes, plan: Plan) -> None:
    """Draw θ over the rounds with its limits by privacy and by the peak powers of each round's devices."""
    lines = series.level_lines(plan, most=plan.rounds)
    _plot_lines(axes, lines)
    axes.set(xlabel="round", ylabel="alignment θ", xlim=(0.5, plan.rounds + 0.5))
    log_axis(axes, "y", *series.positive_range([line.y for line in lines], 1.1, 1.1))


def plot_sizes(axes: Axes, plan: Plan) -> None:
    """Draw the number of scheduled devices in each round, and the size of the fleet."""
    num_devices = plan.problem.fleet.num_devices
    _bars(axes, plan.sizes, "scheduled devices", "lit")
    _level(axes, num_devices, "fleet", "ink")
    axes.set(xlabel="round", ylabel="devices |K|", xlim=(0.5, plan.rounds + 0.5), ylim=(0, 1.15 * num_devices))


def plot_budgets(axes: Axes, plan: Plan) -> None:
    """Draw the remaining share of each budget of the whole training after every round."""
    lines = series.budget_lines(plan)
    _plot_lines(axes, lines)
    lowest = min(float(line.y.min()) for line in lines)
    axes.set(xlabel="round", ylabel="remaining share", xlim=(0, plan.rounds), ylim=(min(0.0, lowest), 1.05))
    axes.yaxis.set_major_formatter(_percent)


def plan_panels(plan: Plan, curve: Curve | Expectation | None) -> dict[str, Draw]:
    """Return the charts of a plan by title: over devices and rounds (`curve`), or round by round."""
    if series.round_by_round(plan):
        return {
            MAP: partial(plot_power_map, plan=plan),
            "θ in each round, and its limits": partial(plot_levels, plan=plan),
            "devices in each round": partial(plot_sizes, plan=plan),
            "remaining budgets after each round": partial(plot_budgets, plan=plan),
        }
    space = planning.candidates(plan)
    panels: dict[str, Draw] = {
        "θ over the number of devices": partial(plot_alignment, plan=plan, space=space),
        "objective over the number of devices": partial(plot_objective, plan=plan, space=space),
    }
    if curve is not None:
        objective = "expected accuracy" if isinstance(curve, Expectation) else "bound"
        panels[f"{objective} over the number of rounds"] = partial(plot_over_rounds, plan=plan, curve=curve)
    return panels


def plot_metric(axes: Axes, runs: Sequence[Run], metric: str) -> None:
    """Draw a metric of runs over their training; its title is `series.metric_title`."""
    lines, budget = series.over_training(runs, metric), series.common_budget(runs, metric)
    _plot_lines(axes, lines)
    if seeds := [line.seeds for line in lines if line.spread is not None]:
        axes.fill_between([], [], color=PALETTE["out"], lw=0, label=f"95% interval of the mean ({span(seeds)} seeds)")
    if any(not line.listed for line in lines):
        axes.plot([], [], color=PALETTE["ink"], ls="dotted", lw=1.3, label="planned")
    largest = max(float(np.nanmax(line.y)) for line in lines)
    if budget is not None and budget <= _MOST_TIMES * largest:
        _level(axes, budget, "budget", "warn")
    elif budget is not None:
        note_outside(axes, [f"budget: {number(budget)}"], y=0.03)
    by_step = metric in ("accuracy", "loss")
    last = max(float(line.x.max()) for line in lines)
    axes.set_xlim(0 if by_step else min(1.0, last - 1), last)
    axes.set_xlabel("local steps" if by_step else "rounds charged" if metric == "epsilon_total" else "rounds")
    axes.set_ylim(bottom=min(0.0, *(float(np.nanmin(line.y)) for line in lines)))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(_numbers)
    if metric == "accuracy":
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(_percent)


def plot_roc(axes: Axes, audit: Mapping[str, Any], *, quantiles: bool) -> None:
    """Draw the attack's ROC curve and the claimed limit Φ(Φ⁻¹(α) + μ); the claim excludes the shaded region."""
    mu, lower = audit["mu_claimed"], audit["mu_lower"]
    false, true = (np.asarray(audit["roc"][f"{which}_positive"], dtype=np.float64) for which in ("false", "true"))
    x = np.linspace(-2.6, 2.6, 2) if quantiles else np.linspace(1e-6, 1 - 1e-6, 2001)
    claim = x + mu if quantiles else ndtr(ndtri(x) + mu)
    top = 2.6 + mu if quantiles else 1.0
    axes.fill_between(x, claim, top, color=PALETTE["lim-privacy"], alpha=0.25, lw=0, label="excluded by the claim")
    axes.plot(x, claim, color=PALETTE["lim-privacy"], label=f"claimed, μ = {mu:.4g}")
    axes.plot(x, x, ls=":", lw=0.9, color=PALETTE["term-initial_gap"], label="chance level")
    if false.size:
        if quantiles:
            inside = (false > 0) & (false < 1) & (true > 0) & (true < 1)
            false, true = ndtri(false[inside]), ndtri(true[inside])
        attack = "attack" if lower is None else f"attack, μ ≥ {lower:.4g} (99% confidence)"
        axes.plot(false, true, color=PALETTE["ink"], label=attack)
    form = "Φ⁻¹({} positive rate)" if quantiles else "{} positive rate"
    axes.set(xlabel=form.format("false"), ylabel=form.format("true"), xlim=(x[0], x[-1]), ylim=(x[0], top))


def plan_figure(plan: Plan, *, surrogate: Surrogate | None = None) -> Figure:
    """Return the paper's Fig. 2 for this plan with the bound (or expected accuracy) over I, or its charts by round."""
    if series.round_by_round(plan):
        return _sheet(plan_panels(plan, None), height=6.2, mosaic=("ab", "ac", "ad"))
    return _sheet(plan_panels(plan, series.over_rounds(plan, surrogate)), height=5.0, mosaic=("ac", "bc"))


def runs_figure(runs: Sequence[Run]) -> Figure:
    """Return accuracy and loss, ε, power and an adaptive clipping norm of runs over their training."""
    panels = run_panels(runs)
    mosaic = ("ab", "cd", "ee")[: len(panels) // 2 + len(panels) % 2] if len(panels) > 3 else ("abc"[: len(panels)],)
    return _sheet(panels, height=2.6 * len(mosaic) + 0.3, mosaic=mosaic)


def run_panels(runs: Sequence[Run]) -> dict[str, Draw]:
    """Return the charts of runs by title; metrics that no run has are omitted."""
    metrics = ("accuracy", "loss", "epsilon_total", "power_transmitted_total", "clip_norm")
    return {
        series.metric_title(runs, metric): partial(plot_metric, runs=runs, metric=metric)
        for metric in metrics
        if series.over_training(runs, metric)
    }


def roc_figure(audit: Mapping[str, Any]) -> Figure:
    """Return the picture of an audit, given as `airfed audit --json` prints it."""
    title = f"{audit['scenario']}: attack on one round, {audit['verdict']}"
    panels = {title: partial(plot_roc, audit=audit, quantiles=False)}
    return _sheet({**panels, "in normal quantiles": partial(plot_roc, audit=audit, quantiles=True)}, height=3.5)


def plot_comparison(axes: Axes, plans: Mapping[str, Plan]) -> None:
    """Draw the bound of each policy, split into its terms, as bars."""
    names, left = [plain(name) for name in plans], np.zeros(len(plans))
    for term, label in TERMS.items():
        values = np.array([plan.bound.terms[term] for plan in plans.values()])
        axes.barh(names, values, left=left, color=PALETTE[f"term-{term}"], label=label, height=0.65)
        left += values
    shown = left <= _MOST_TIMES * np.quantile(left, 0.5, method="lower")
    edge = 1.42 * float(left[shown].max())
    for row, plan in enumerate(plans.values()):
        text = f" {span(plan.sizes)} devices, {count(plan.rounds, 'round')}"
        look: dict[str, Any] = {"va": "center", "fontsize": 7}
        if not shown[row]:
            text = f"{text}; bound {number(float(left[row]), 4)}, outside the axis "
            look |= {"ha": "right", "bbox": {"color": "white", "alpha": 0.85, "pad": 1}}
        axes.annotate(text, (min(float(left[row]), edge), row), **look)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel=BOUND, xlim=(0, edge))


def comparison_figure(plans: Mapping[str, Plan]) -> Figure:
    """Return the bounds of policies side by side."""
    return _sheet({"": partial(plot_comparison, plans=plans)}, height=0.27 * len(plans) + 0.9, mosaic=["a"])


def note_outside(axes: Axes, values: Sequence[str], *, y: float = 0.97) -> None:
    """Write which values are outside the axis, inside the axes."""
    text = plain("\n".join(f"{value}, outside the axis" for value in values))
    axes.text(0.98, y, text, transform=axes.transAxes, fontsize="small", ha="right", va="top" if y > 0.5 else "bottom")


def _sheet(panels: Mapping[str, Draw], *, height: float, mosaic: Sequence[str] = ("ab",)) -> Figure:
    """Return charts on one page: a letter for each in the rows of `mosaic`, with one legend above them."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
        drawn = figure.subplot_mosaic([list(row) for row in mosaic])
        for letter, (title, draw) in zip("abcd", panels.items(), strict=False):
            draw(drawn[letter])
            drawn[letter].set_title(textwrap.fill(plain(title), 110 // len(mosaic[0])), loc="left")
        _legend(figure, list(drawn.values()))
    return figure


def check_name(path: Path) -> None:
    """Raise a ValueError unless the name ends in a picture format."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"A picture name must end in .png, .pdf or .svg, got {path.name}.")


def save(figure: Figure, path: Path) -> None:
    """Write the figure, and its label, if any, as NAME.txt beside it, each file atomically, or raise a ValueError."""
    check_name(path)
    try:
        write_atomic(path, encoded(figure, path.suffix[1:].lower()))
        if label := str(figure.get_label()):
            write_atomic(path.with_suffix(".txt"), f"{label}\n".encode())
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {error.strerror}.") from None


def encoded(figure: Figure, ending: str) -> bytes:
    """Return the content of a picture file; the ending of its name is "png", "pdf" or "svg"."""
    content = io.BytesIO()
    figure.savefig(content, format=ending)
    return content.getvalue()


def pictures(name: str, figure: Figure) -> dict[str, bytes]:
    """Return the content of NAME.png, NAME.pdf and NAME.txt, which has the figure's settings."""
    drawn = {f"{name}.{ending}": encoded(figure, ending) for ending in ("png", "pdf")}
    return {**drawn, f"{name}.txt": f"{figure.get_label()}\n".encode()}


def plain(text: str) -> str:
    """Return text that matplotlib takes literally: no formula after a dollar, no hidden label after an underscore."""
    return (f" {text}" if text.startswith("_") else text).replace("$", r"\$")


def svg(draw: Draw, title: str, *, height: float, salt: str) -> str:
    """Return a chart as SVG for a page, with its colours and values on hover; `salt` makes its ids unique."""
    with mpl.rc_context({**_ON_PAGE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(_PHONE / 72, height / 72), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        _legend(figure, [axes])
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True)
    body = content.getvalue()
    body = body[body.index("</metadata>") + 11 : body.rindex("</svg>")]
    for pattern, kept in _LIGHTER.items():
        body = re.sub(pattern, kept, body, flags=re.DOTALL)
    body = re.sub(r"(?<=:)#[0-9a-f]{6}", lambda found: colours.VARIABLES.get(found[0], found[0]), body)
    return (
        f'<svg class="chart" viewBox="0 0 {_PHONE} {height:g}" width="{_PHONE}" height="{height:g}" role="img" '
        f'aria-label="{html.escape(title)}">{body}{_hover(axes, height)}</svg>'
    )


def _hover(axes: Axes, height: float) -> str:
    """Return invisible columns over the axes, one around each x, whose titles are all named values there."""
    texts: dict[float, list[str]] = {}
    percent = axes.yaxis.get_major_formatter() is _percent
    for name, x, y in _named(axes):
        for at, value in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(value):
                texts.setdefault(at, []).append(f"{name}: {f'{value:.1%}' if percent else number(value, 4)}")
    low, high = axes.get_xlim()
    columns = np.array(sorted(at for at in texts if low <= at <= high))
    columns = columns[series.thin(columns.size, most=_MOST_HOVERED)] if columns.size else columns
    middle = axes.transData.transform(np.column_stack([columns, np.full(columns.size, axes.get_ylim()[0])]))[:, 0]
    box = axes.bbox
    edges = [box.x0, *((a + b) / 2 for a, b in pairwise(middle.tolist())), box.x1]
    return "".join(
        f'<rect class="hover" x="{a:.1f}" y="{height - box.y1:.1f}" width="{b - a:.1f}" height="{box.height:.1f}">'
        f"<title>{html.escape(chr(10).join([f'{axes.get_xlabel()}: {number(at, 4)}', *texts[at]]))}</title></rect>"
        for at, (a, b) in zip(columns.tolist(), pairwise(edges), strict=False)
    )


def _named(axes: Axes) -> list[tuple[str, Floats, Floats]]:
    """Return name, x and y of every named line; the legend omits names that start with "_ "."""
    lines = []
    for line in axes.lines:
        name = str(line.get_label())
        if name.startswith("_ ") or not name.startswith("_"):
            x, y = np.asarray(line.get_xydata(), dtype=np.float64).T
            lines.append((name.removeprefix("_ ").replace(r"\$", "$"), x, y))
    return lines


def _plot_lines(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw lines with their 95% bands; the legend omits those that are not listed."""
    for line in lines:
        label, lw = (plain(line.name), None) if line.listed else (f"_ {line.name}", 1.3)
        marker = "o" if np.isfinite(line.y).sum() == 1 else None  # a single value is a line without length
        axes.plot(line.x, line.y, label=label, color=PALETTE[line.colour], ls=line.dash, marker=marker, ms=3, lw=lw)
        if line.spread is not None:
            low, high = line.y - line.spread, line.y + line.spread
            axes.fill_between(line.x, low, high, color=PALETTE[line.colour], alpha=0.15, lw=0)


def _hidden(axes: Axes, name: str, y: NDArray[Any], x: Floats | None = None) -> None:
    """Add values that appear on hover only, by default at 1, 2, ..."""
    x = np.arange(1.0, y.size + 1) if x is None else x
    axes.add_artist(Line2D(x, y, label=f"_ {name}", visible=False))  # not plot(): the axes need not cover them


def _bars(axes: Axes, values: NDArray[Any], name: str, colour: str) -> None:
    axes.stairs(values, np.arange(values.size + 1) + 0.5, fill=True, color=PALETTE[colour], label=name)
    _hidden(axes, name, values)
    axes.grid(axis="x", visible=False)


def _level(axes: Axes, at: float, name: str, colour: str) -> None:
    axes.axhline(at, color=PALETTE[colour], lw=1, ls="--")
    on_axis = axes.get_yaxis_transform()
    axes.annotate(name, (1, at), xycoords=on_axis, ha="right", va="bottom", fontsize="small", color=PALETTE[colour])


def _mark(axes: Axes, x: float, y: float) -> None:
    axes.plot(x, y, "*", color=PALETTE["lit"], label="chosen", mec="#ffffff", mew=0.5, ms=12, zorder=5, clip_on=False)


def log_axis(axes: Axes, name: str, low: float, high: float) -> None:
    """Make an axis logarithmic, with ticks at round numbers."""
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis, ratio = getattr(axes, f"{name}axis"), high / low
    log = ticker.LogLocator(subs=(1, 2, 5) if ratio < 300 else (1, 3) if ratio < 1e4 else (1,), numticks=7)
    axis.set_major_locator(log if ratio > 5 else ticker.MaxNLocator(5))
    axis.set_major_formatter(_numbers)
    axis.set_minor_locator(ticker.NullLocator())


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Add one legend above all panels, each name once, in as many columns as fit."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    if entries:
        widest = 0.83 * mpl.rcParams["font.size"] * (0.6 * max(map(len, entries)) + 5)
        columns = min(len(entries), int(72 * figure.get_figwidth() / widest)) or 1
        figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns)
