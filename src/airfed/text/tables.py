"""Plans and runs as tables: text that fits 80 columns, and HTML for a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.planning import Plan
from airfed.planning.method import OVER_THE_AIR
from airfed.planning.policy import Sensitivities, next_device
from airfed.planning.surrogate import CHOSEN_ON_DATA
from airfed.problem import Adversary, InfeasibleError
from airfed.text import phrases
from airfed.text.output import HtmlConsole
from airfed.text.phrases import LIMITS, SCOPES, above, change_text, compact, span

Row = tuple[str, str, str]  # name, value, remark
_LARGE: Final = 10_000  # devices


def plain_table(*columns: str, left: Collection[str] = (), wrapped: Collection[str] = (), title: str = "") -> Table:
    """Return an empty table without lines: columns are aligned to the right and not broken, except those named."""
    shown = f"{title}\n" if title else None
    table = Table(title=shown, title_style="bold", title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        heading = escape(column)  # "air [s]" is no markup
        table.add_column(heading, justify="left" if column in left else "right", no_wrap=column not in wrapped)
    return table


def bound_basis(plan: Plan) -> str:
    """Return what the plan's bound says, in a sentence."""
    gap = plan.problem.learning.initial_gap
    if plan.objective == "accuracy":
        return "The plan was chosen by expected accuracy, not by this bound."
    if plan.bound.total > gap:
        return (
            f"The bound is above the initial gap, G = {gap:g}. It compares devices and amplitudes at a given number of "
            "rounds and clipping norm; it does not predict accuracy."
        )
    return f"Before training the gap is at most G = {gap:g}."


def print_sensitivities(console: Console, plan: Plan, found: Sensitivities | None) -> None:
    """Print what one more watt, unit of ε or device changes, in the quantity that the plan was chosen by."""
    for sentence in [] if found is None else sensitivity_sentences(found):
        console.print(sentence)
    added = None if plan.objective == "accuracy" else next_device(plan)
    if added is not None:
        lower = added.alignment < plan.alignment * (1 - 1e-9)
        effect = f"θ falls to {added.alignment:.3g}" if lower else "θ unchanged"
        change = change_text("bound", plan.bound.total, added.bound)
        console.print(f"One more device (device {added.device}, |h| = {added.gain:.3g}): {effect}, {change}.")


def sensitivity_sentences(found: Sensitivities) -> list[str]:
    """Return the change with more power, and with more ε, a sentence each."""
    sentences = []
    for unit, budget, *changed in (
        ("watt", "power", found.watt, found.double_power),
        ("unit of ε", "ε", found.epsilon, found.double_epsilon),
    ):
        one, two = (change_text(found.of, found.now, then) for then in changed)
        same = two.removeprefix("bound ").removeprefix("expected accuracy ")
        twice = f", or twice the {budget}: {one}" if one == two else f": {one}; twice the {budget}: {same}"
        sentences.append(f"One more {unit}{twice}.")
    return sentences


def print_plan(console: Console, name: str, plan: Plan) -> None:
    """Print the schedule, its limits, the bound, the power and the privacy."""
    console.print(f"[bold]{escape(name)}[/bold] · policy {escape(plan.policy)}")
    console.print(f"[bold]{phrases.schedule_sentence(plan)}[/bold]")
    sentences = phrases.method_sentence(plan), phrases.antennas_sentence(plan), phrases.network_sentence(plan)
    for sentence in filter(None, sentences):
        console.print(f"[bold]{escape(sentence)}[/bold]")
    console.print(f"[bold]{phrases.expected_accuracy(plan)}[/bold]\n" if plan.prediction else "")
    for note in filter(None, (*plan.notes, phrases.noise_warning(plan))):
        console.print(f"[bold red]! {escape(note)}[/bold red]\n")

    limits = "Limits on the received amplitude [√W]" if plan.constant else "Limits on θ [√W], rounds scaled alike"
    if plan.constant and not plan.amplitudes.equal:
        limits = "Limits on the largest amplitude [√W]"
    console.print(_grid(limits, "largest θ", _limit_rows(plan)), "")

    total = plan.bound.total
    labels = phrases.terms(plan)
    terms = [(labels[name], f"{value:.5g}", f"{value / total:.1%}") for name, value in plan.bound.terms.items()]
    terms.append(("total", f"{total:.5g}", "100.0%"))
    console.print(_grid("Bound on the optimality gap (Theorem 1)", "value", terms, "share"))
    for line in filter(None, (phrases.gap_sentence(plan), phrases.converse_sentence(plan))):
        console.print(line)
    console.print(bound_basis(plan), style="dim", end="\n\n")

    console.print(_grid("Power in the worst case", "W", _power_rows(plan)))
    for line in filter(None, (phrases.energy_sentence(plan), phrases.snr_sentence(plan), phrases.air_sentence(plan))):
        console.print(line, style="dim")
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
        console.print(f"[dim]earlier trainings spent μ = {budget.spent:.4g} of it; this plan uses the rest[/dim]")
    if (link := plan.problem.link).csi_error and link.assume_perfect_csi:
        console.print(
            f"[bold red]! Imperfect CSI with an NMSE of {link.csi_error:g} is not accounted for: the received "
            "amplitude may exceed θ, and ε does not hold.[/bold red]"
        )
    elif link.csi_error:
        console.print(
            f"[dim]imperfect CSI, NMSE {link.csi_error:g}: the received amplitude may be {plan.amplification:.4g} "
            f"times θ; ε accounts for it, except with probability {link.csi_failure:g}[/dim]"
        )
    if plan.method.analog and link.measured_noise:
        console.print(f"[dim]{phrases.measured_noise(link.measured_noise)}[/dim]")
    if plan.method.analog and plan.problem.shared_noise:
        console.print(f"[dim]{phrases.SHARED_NOISE}[/dim]")
    if sentence := phrases.step_size_sentence(plan):
        console.print(f"[dim]{sentence}[/dim]")


def print_comparison(console: Console, name: str, plans: Mapping[str, Plan], failures: Mapping[str, str]) -> None:
    """Print the policies side by side, by expected accuracy where there is one, and what the columns mean."""
    best, timed = plans["optimal"], _timed(plans)
    console.print(f"[bold]{escape(name)}[/bold] · {len(plans)} policies on one channel realisation\n")
    _print_policies(console, plans, failures)
    every, predicted = plans.values(), [plan.prediction is not None for plan in plans.values()]
    optimal = "the smallest bound of Theorem 1 among the scenario's aligned plans"
    if best.objective == "accuracy":
        optimal = "the highest expected accuracy among the scenario's aligned plans"
    elif best.problem.time_varying or best.problem.fleet.antennas > 1:
        optimal = "an aligned plan with a small bound of Theorem 1, not proved to be the smallest"
    score = "above: how far the bound is above that of optimal."
    if any(predicted):
        unknown = "" if all(predicted) else " (?: not covered)"
        score = f"expected: test accuracy by the accuracy surrogate{unknown}; the highest is first."
    third = "θ: the largest received amplitude [√W]."
    if timed:
        seconds = "s: air time of all rounds in seconds."
        third = seconds if best.problem.link.bandwidth else "symbols: channel uses of all rounds."
    exposed = "" if best.constant and all(plan.equal_mu for plan in every) else ", of the most exposed device"
    if not best.constant and not timed:
        exposed = f", of the most exposed round and{exposed[1:]}"
    empty = "" if all(plan.private for plan in every) else "; empty: the method is not private (ε = ∞)"
    lines = (
        f"optimal: {optimal}.",
        "weighted: as optimal, and also over plans whose devices are not aligned." if "weighted" in plans else "",
        bound_basis(best),
        score,
        "W: power in the worst case, summed over devices and rounds.",
        third,
        "" if best.constant else "devices: in the smallest and the largest round.",
        f"{'' if timed else 'ε/round, '}ε total: exact{exposed}, {phrases.privacy_basis(best)}.",
        f"limit: the first constraint that binds (peak and total are powers){empty}.",
    )
    for line in filter(None, lines):
        console.print(line, style="dim")


def print_equal_total(
    console: Console, epsilon: float, plans: Mapping[str, Plan], failures: Mapping[str, str], *, source: str
) -> None:
    """Print the policies once more, each planned for the same ε in total, and the source of that ε."""
    budget = f"ε = {compact(epsilon, 3)} in total"
    console.print(
        f"\nPolicies with more rounds can spend more total ε. Below, each private one has at most {budget}, {source}.\n"
    )
    _print_policies(console, plans, failures, f"At most {budget} for every policy")


def _print_policies(console: Console, plans: Mapping[str, Plan], failures: Mapping[str, str], title: str = "") -> None:
    rows = policy_rows(plans)
    table = plain_table(*rows[0], left=("policy", "limit"), title=title)
    marked = next(iter(plans)) if "expected" in rows[0] else "optimal"
    for policy, row in zip(plans, rows, strict=True):
        table.add_row(*row.values(), style="bold" if policy == marked else "")
    unbounded = console.options.update(max_width=10_000)
    if console.measure(table, options=unbounded).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)
    for policy, reason in failures.items():
        console.print(f"{policy}: {escape(reason)}")
    for policy, plan in plans.items():
        if plan.violations:
            console.print(f"[red]* {policy}: {escape(' '.join(plan.notes))}[/red]")
    if any(CHOSEN_ON_DATA in plan.notes for plan in plans.values()):
        console.print(f"[red]! {CHOSEN_ON_DATA}[/red]")


def policy_rows(plans: Mapping[str, Plan]) -> list[dict[str, str]]:
    """Return the comparison of policies, a row each: its cells by column."""
    optimal, timed = plans["optimal"], _timed(plans)
    score = "expected" if any(plan.prediction for plan in plans.values()) else "above"
    time = "s" if optimal.problem.link.bandwidth else "symbols"
    columns = ("policy", "devices", "rounds", "θ", "bound", score, "W", "ε/round", "ε total", time, "limit")
    shown = [column for column in columns if column not in (("θ", "ε/round") if timed else (time,))]
    rows = []
    for policy, plan in plans.items():
        cells = {
            "policy": policy + ("*" if plan.violations else ""),
            "devices": _devices(plan),
            "rounds": f"{plan.rounds}",
            "θ": compact(plan.alignment, 3),
            "bound": compact(plan.bound.total, 4),
            "expected": "?" if plan.prediction is None else f"{plan.prediction.accuracy:.1%}",
            "above": above(plan.bound.total / optimal.bound.total - 1),
            "W": compact(plan.power_total, 4),
            "ε/round": compact(plan.epsilon_round, 3) if plan.private else "∞",
            "ε total": compact(plan.epsilon_total, 3) if plan.private else "∞",
            "symbols": compact(plan.channel_uses, 3),
            "s": compact(plan.air_time or 0.0, 3),
            "limit": LIMITS[plan.binding].removesuffix(" power").removeprefix("a ") if plan.private else "",
        }
        rows.append({column: cells[column] for column in shown})
    return rows


def _timed(plans: Mapping[str, Plan]) -> bool:
    """Return whether symbols or seconds replace θ and ε per round; over the air they only repeat the rounds."""
    return any(plan.problem.link.bandwidth or plan.method != OVER_THE_AIR for plan in plans.values())


def _devices(plan: Plan) -> str:
    """Return the number of scheduled devices; a range in large fleets is in thousands, for a narrow column."""
    if plan.sizes.max() >= _LARGE and plan.sizes.min() < plan.sizes.max():
        return f"{span(np.round(plan.sizes / 1000), 'k-')}k"
    return span(plan.sizes, "-")


def _limit_rows(plan: Plan) -> list[Row]:
    """Return the largest θ that each limit allows, and the θ of the plan (the range where rounds or devices differ)."""
    bind = phrases.binding(plan)
    rows = [
        (LIMITS[limit], _figure(value), "exceeded" if limit in plan.violations else "binds" * (limit in bind))
        for limit, value in plan.limits.items()
    ]
    level = plan.amplitudes.level if plan.amplitudes.equal or not plan.constant else plan.amplitudes.received(0)
    thetas = {"this plan": plan.alignment}
    if _figure(level.min()) != _figure(level.max()):
        thetas = {"largest": level.max(), "median": np.median(level), "smallest": level.min()}
        thetas = {f"this plan, {name}": theta for name, theta in thetas.items()}
    rows += [(name, _figure(theta), f"ν = θ/ϖ = {theta / plan.clip_norm:.5g}") for name, theta in thetas.items()]
    return rows


def _power_rows(plan: Plan) -> list[Row]:
    """Return the power [W] of single devices and in total, with its share of the limits."""
    fleet, budget, all_devices = plan.problem.fleet, plan.problem.budget, plan.power_total
    if not all_devices:
        return [("sum over devices and rounds", _figure(0.0), "no radio")]
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
        rows.append((f"most used battery, of device {plan.scheduled[worst]}", _figure(total[worst]), share))
    share = f"{all_devices / budget.total_power:.1%} of {budget.total_power:g} W (budget)"
    return [*rows, ("sum over devices and rounds", _figure(all_devices), share)]


def _privacy_rows(plan: Plan) -> list[Row]:
    """Return ε per round and in total."""
    if not plan.private:
        return [("none: the method is not private", "∞", "")]
    one, total = "per round", f"in total ({phrases.count(plan.rounds, 'round')})"
    if not plan.constant:
        one = "most exposed round"
    if not (plan.constant and plan.equal_mu):
        total = "in total, most exposed device"
    rows = [
        (f"Lemma 1, {one}", _figure(plan.epsilon_paper), phrases.VALIDITY[plan.epsilon_paper_validity]),
        (f"exact, {one}", _figure(plan.epsilon_round), f"μ = {plan.mu_round:.5g}"),
        (f"exact, {total}", _figure(plan.epsilon_total), f"μ in total = {plan.mu_total:.5g}"),
    ]
    if plan.problem.fleet.antennas > 1:
        adversary: Adversary = "combined" if plan.problem.link.adversary == "all_antennas" else "all_antennas"
        signals = "all antennas' signals" if adversary == "all_antennas" else "the combined signal"
        epsilon, remark = "∞", "no claim"
        with suppress(InfeasibleError):
            other = plan.against(adversary)
            epsilon, remark = _figure(other.epsilon_total), f"μ in total = {other.mu_total:.5g}"
        rows.append((f"in total, against {signals}", epsilon, remark))
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
    """Return the output of `show` on a console of 80 columns, as plain text."""
    console = Console(file=io.StringIO(), width=80, highlight=False, color_system=None)
    with console.capture() as captured:
        show(console)
    return captured.get().rstrip()


def as_html(show: Callable[[Console], None]) -> str:
    """Return the output of `show` as HTML for a notebook: tables as tables, texts as paragraphs."""
    page = HtmlConsole()
    show(page)
    return page.html()
