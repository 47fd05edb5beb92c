"""Plans and runs as tables: text that fits 80 columns, and HTML for a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.planning import Plan
from airfed.planning.method import OVER_THE_AIR
from airfed.planning.policy import Sensitivities, next_device
from airfed.problem import InfeasibleError, Trust
from airfed.text import phrases
from airfed.text.output import HtmlConsole
from airfed.text.phrases import LIMITS, SCOPES, TERMS, VALIDITY, above, change_text, compact, devices_text, span

Row = tuple[str, str, str]  # of a table: what it is, its value, a remark
_LARGE: Final = 10_000  # devices


def plain_table(*columns: str, left: Collection[str] = (), wrapped: Collection[str] = (), title: str = "") -> Table:
    """Return an empty table without lines.

    Args:
        columns: their headings.
        left: which columns stand to the left; the others stand to the right.
        wrapped: in which columns lines may be broken.
        title: above the table, to the left.
    """
    shown = f"{title}\n" if title else None
    table = Table(title=shown, title_style="bold", title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        heading = escape(column)  # "air [s]" is no markup
        table.add_column(heading, justify="left" if column in left else "right", no_wrap=column not in wrapped)
    return table


def bound_basis(plan: Plan) -> str:
    """Return what the plan's bound is good for."""
    gap = plan.problem.learning.initial_gap
    if plan.objective == "measured":
        return "Chosen by expected accuracy, not by this bound."
    if plan.bound.total > gap:
        return f"The bound is above the initial gap, G = {gap:g}: it ranks designs only."
    return f"The gap before training is at most G = {gap:g}."


def print_sensitivities(console: Console, plan: Plan, found: Sensitivities | None) -> None:
    """Print what one more watt, unit of ε or device would buy, in terms of what the plan was chosen by."""
    if found is not None:
        console.print(_bought(found, "watt", "power", found.watt, found.double_power))
        console.print(_bought(found, "unit of ε", "ε", found.epsilon, found.double_epsilon))
    waiting = None if plan.objective == "measured" else next_device(plan)
    if waiting is not None:
        lower = waiting.alignment < plan.alignment * (1 - 1e-9)
        effect = f"θ falls to {waiting.alignment:.3g}" if lower else "θ unchanged"
        change = change_text("bound", plan.bound.total, waiting.bound)
        console.print(f"One more device (number {waiting.device}, |h| = {waiting.gain:.3g}): {effect}, {change}.")


def _bought(found: Sensitivities, unit: str, budget: str, more: float, double: float) -> str:
    one, two = (change_text(found.of, found.now, then) for then in (more, double))
    same = two.removeprefix("bound ").removeprefix("expected accuracy ")
    return f"More {budget}: {one}." if one == two else f"One more {unit}: {one}; twice the {budget}: {same}."


def print_plan(console: Console, name: str, plan: Plan) -> None:
    """Print the schedule, its limits, the bound, the power and the privacy."""
    console.print(f"[bold]{escape(name)}[/bold] · policy {escape(plan.policy)}")
    console.print(f"[bold]{phrases.decision_sentence(plan)}[/bold]")
    for said in filter(None, (phrases.method_sentence(plan), phrases.antennas_sentence(plan))):
        console.print(f"[bold]{said}[/bold]")
    console.print(f"[bold]{phrases.expectation(plan)}[/bold]\n" if plan.prediction else "")
    for note in filter(None, (*plan.notes, phrases.drowned_sentence(plan))):
        console.print(f"[bold red]! {escape(note)}[/bold red]\n")

    limits = "Limits on θ" if plan.constant else "Limits, if all θ grew together"
    console.print(_grid(limits, "largest θ", _limit_rows(plan)), "")

    total = plan.bound.total
    terms = [(TERMS[name], f"{value:.5g}", f"{value / total:.1%}") for name, value in plan.bound.terms.items()]
    terms.append(("total", f"{total:.5g}", "100.0%"))
    console.print(_grid("Bound on the gap (Theorem 1)", "value", terms, "share"))
    if gap := phrases.gap_sentence(plan):
        console.print(gap)
    console.print(bound_basis(plan), style="dim", end="\n\n")

    console.print(_grid("Power, worst case", "W", _power_rows(plan)))
    if on_air := phrases.air_sentence(plan):
        console.print(on_air, style="dim")
    console.print("")

    console.print(_grid("Privacy", "ε", _privacy_rows(plan)))
    if exposed := phrases.exposure_sentence(plan):
        console.print(exposed)
    budget = plan.problem.budget
    console.print(f"[dim]{phrases.privacy_basis(plan)}[/dim]")
    console.print(
        f"[dim]budget: ε = {budget.epsilon:g} for {SCOPES[budget.scope]}, by the {budget.formula} formula[/dim]"
    )
    if budget.spent:
        console.print(f"[dim]earlier trainings spent μ = {budget.spent:.4g} of it; this plan has the rest[/dim]")
    if plan.problem.link.estimation_error:
        console.print(_channel_basis(plan))
    learning = plan.problem.learning
    if abs(learning.learning_rate * learning.smoothness - 1) > 1e-9:
        console.print(
            f"[dim]The bound is proved for τ = 1/ζ; here τ = {learning.learning_rate:g} "
            f"and 1/ζ = {1 / learning.smoothness:g}.[/dim]"
        )


def print_comparison(console: Console, name: str, plans: Mapping[str, Plan], failures: Mapping[str, str]) -> None:
    """Print the policies side by side, the optimum first."""
    best, timed = plans["optimal"], _timed(plans)
    console.print(f"[bold]{escape(name)}[/bold] · {phrases.decision_sentence(best)}\n")
    _print_policies(console, plans, failures)
    measured = any(plan.prediction for plan in plans.values())
    column = (
        "expected: test accuracy, by the surrogate" if measured else "above: how far the bound is above the optimum's"
    )
    said = [bound_basis(best), f"{column}; W: worst case, all devices and rounds;"]
    if best.problem.link.bandwidth:
        said.append("s: seconds on the air, all rounds;")
    epsilon = "of all rounds" if timed else "of each round and of all"
    if not best.constant:
        said.append(f"devices: in the smallest and the largest round;{'' if timed else ' θ: in the largest;'}")
        epsilon = "of the most exposed device" if timed else "of the most exposed round and of the most exposed device"
    for each in (*said, f"ε: exact, {epsilon}, {phrases.privacy_basis(best)}"):
        console.print(each, style="dim")


def print_equal_total(console: Console, epsilon: float, plans: Mapping[str, Plan], failures: Mapping[str, str]) -> None:
    """Print the policies once more, each planned for the same ε in total."""
    console.print("")
    _print_policies(console, plans, failures, f"At most ε = {compact(epsilon, 3)} in total for each of them")


def _print_policies(console: Console, plans: Mapping[str, Plan], failures: Mapping[str, str], title: str = "") -> None:
    best, link = plans["optimal"].bound.total, plans["optimal"].problem.link
    measured = any(plan.prediction for plan in plans.values())
    timed = _timed(plans)
    figures: list[tuple[str, Callable[[Plan], str]]] = [
        ("devices", _devices),
        ("rounds", lambda plan: f"{plan.rounds}"),
        *([] if timed else [("θ", lambda plan: compact(plan.alignment, 3))]),
        ("bound", lambda plan: compact(plan.bound.total, 4)),
        ("expected", lambda plan: "?" if plan.prediction is None else f"{plan.prediction.accuracy:.1%}")
        if measured
        else ("above", lambda plan: above(plan.bound.total / best - 1)),
        ("W", lambda plan: compact(plan.power_total, 4)),
        *([] if timed else [("ε each", lambda plan: _epsilon(plan, plan.epsilon_round))]),
        ("ε all", lambda plan: _epsilon(plan, plan.epsilon_total)),
        *([("symbols", lambda plan: compact(plan.channel_uses, 3))] if timed and not link.bandwidth else []),
        *([("s", lambda plan: compact(plan.air_time or 0.0, 3))] if timed and link.bandwidth else []),
    ]
    table = plain_table("policy", *(name for name, _ in figures), "limit", left=("policy", "limit"), title=title)
    for policy, plan in plans.items():
        table.add_row(
            policy + ("*" if plan.violations else ""),
            *(figure(plan) for _, figure in figures),
            LIMITS[plan.binding].removesuffix(" power").removeprefix("a ") if plan.private else "",
            style="bold" if policy == "optimal" else "",
        )
    unbounded = console.options.update(max_width=10_000)
    if console.measure(table, options=unbounded).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)
    for policy, reason in failures.items():
        console.print(f"{policy}: {escape(reason)}")
    for policy, plan in plans.items():
        if plan.violations:
            console.print(f"[red]* {policy}: {escape(' '.join(plan.notes))}[/red]")


def _timed(plans: Mapping[str, Plan]) -> bool:
    """Whether symbols or seconds replace θ and ε per round; over the air, symbols are proportional to the rounds."""
    return any(plan.problem.link.bandwidth or plan.method != OVER_THE_AIR for plan in plans.values())


def _devices(plan: Plan) -> str:
    """How many devices are scheduled; a range in large fleets in thousands, so that the column stays narrow."""
    if plan.sizes.max() >= _LARGE and plan.sizes.min() < plan.sizes.max():
        return f"{span(np.round(plan.sizes / 1000), 'k-')}k"
    return devices_text(plan, "-")


def _epsilon(plan: Plan, epsilon: float) -> str:
    return compact(epsilon, 3) if plan.private else "∞"


def _channel_basis(plan: Plan) -> str:
    link = plan.problem.link
    if link.trust_estimates:
        return (
            f"[bold red]! Imperfect CSI with an NMSE of {link.estimation_error:g} is not accounted for: devices may "
            "arrive stronger than θ, and ε does not hold.[/bold red]"
        )
    return (
        f"[dim]imperfect CSI, NMSE {link.estimation_error:g}: a device may arrive {plan.amplification:.4g} "
        f"times stronger; accounted for, except with probability {link.estimation_failure:g}[/dim]"
    )


def _limit_rows(plan: Plan) -> list[Row]:
    """Return the largest θ that each limit allows, and the plan's own: one, or where rounds differ their range."""
    rows = [
        (LIMITS[limit], _figure(value), "broken" if limit in plan.violations else "binds" * (limit == plan.binding))
        for limit, value in plan.limits.items()
    ]
    level = plan.amplitudes.level
    chosen = {"chosen": plan.alignment}
    if _figure(level.min()) != _figure(level.max()):
        chosen = {"chosen, largest": level.max(), "chosen, median": np.median(level), "chosen, smallest": level.min()}
    rows += [(name, _figure(theta), f"ν = θ/ϖ = {theta / plan.clip_norm:.5g}") for name, theta in chosen.items()]
    return rows


def _power_rows(plan: Plan) -> list[Row]:
    """Return the power [W] of single devices and of all, in the worst case, and its share of peaks and batteries."""
    fleet, budget, all_devices = plan.problem.fleet, plan.problem.budget, plan.power_total
    if not all_devices:
        return [("all devices, all rounds", _figure(0.0), "no radio")]
    total = plan.sequence.device_power(plan.rounds)
    most = int(plan.power.argmax())
    peak = f"{100 * plan.power[most] / fleet.peak_power[plan.scheduled[most]]:.3g}% of peak"
    rows = [
        ("one device in one round, at most", _figure(plan.power[most]), f"device {plan.scheduled[most]}, {peak}"),
        ("one device in all rounds, at most", _figure(total.max()), f"device {plan.scheduled[total.argmax()]}"),
        ("one device in all rounds, median", _figure(np.median(total)), "of scheduled devices"),
    ]
    if budget.device_power is not None:
        batteries = np.broadcast_to(budget.device_power, fleet.num_devices)[plan.scheduled]
        used = total / batteries
        worst = int(used.argmax())
        share = f"{used[worst]:.1%} of {batteries[worst]:g} W"
        rows.append((f"emptiest battery, of device {plan.scheduled[worst]}", _figure(total[worst]), share))
    share = f"{all_devices / budget.total_power:.1%} of {budget.total_power:g} W"
    return [*rows, ("all devices, all rounds", _figure(all_devices), share)]


def _privacy_rows(plan: Plan) -> list[Row]:
    """Return ε of one round and of all."""
    if not plan.private:
        return [("none: the method has no ε", "∞", "")]
    if plan.constant:
        one, sum_of = "one round", "μ√I"
        all_of_them = "the only round" if plan.rounds == 1 else f"all {plan.rounds} rounds"
    else:
        one, all_of_them, sum_of = "most exposed round", "most exposed device, its rounds", "√Σμ²"
    rows = [
        (f"Lemma 1, {one}", _figure(plan.epsilon_paper), VALIDITY[plan.epsilon_paper_validity]),
        (f"exact, {one}", _figure(plan.epsilon_round), f"μ = {plan.mu_round:.5g}"),
        (f"exact, {all_of_them}", _figure(plan.epsilon_total), f"{sum_of} = {plan.mu_total:.5g}"),
    ]
    if plan.problem.fleet.antennas > 1:
        trust: Trust = "combiner" if plan.problem.link.trust == "radio" else "radio"
        who = "if all antennas' signals were kept" if trust == "radio" else "if one combined signal were kept"
        try:
            other = plan.against(trust)
        except InfeasibleError:
            rows.append((f"the same, {who}", "∞", "nothing is claimed"))
        else:
            rows.append((f"the same, {who}", _figure(other.epsilon_total), f"{sum_of} = {other.mu_total:.5g}"))
    return rows


def _figure(value: np.floating | float) -> str:
    return f"{value:.5g}"


def _grid(title: str, value: str, rows: Iterable[Row], remark: str = "") -> Table:
    table = plain_table()
    table.add_column(title, min_width=38, no_wrap=True)
    table.add_column(value, justify="right", min_width=10, no_wrap=True)
    table.add_column(remark)
    for row in rows:
        table.add_row(*row)
    return table


def as_text(show: Callable[[Console], None]) -> str:
    """Return what `show` prints on a console of 80 columns, as plain text."""
    console = Console(file=io.StringIO(), width=80, highlight=False, color_system=None)
    with console.capture() as captured:
        show(console)
    return captured.get().rstrip()


def as_html(show: Callable[[Console], None]) -> str:
    """Return what `show` prints as HTML for a notebook: tables as tables, everything else as paragraphs."""
    page = HtmlConsole()
    show(page)
    return page.html()
