"""The figures of a plan as rows of tables: what it is, its value, a remark."""

from __future__ import annotations

import numpy as np

from airfed.planning import FadingPlan, Plan
from airfed.problem import InfeasibleError, Trust
from airfed.showing.words import LIMITS, VALIDITY

Row = tuple[str, str, str]


def limit_rows(plan: Plan) -> list[Row]:
    """Return the largest θ that each limit allows, and what was chosen."""
    rows = [
        (LIMITS[limit], _figure(value), "broken" if limit in plan.violations else "binds" * (limit == plan.binding))
        for limit, value in plan.limits.items()
    ]
    if not isinstance(plan, FadingPlan) or _figure(plan.alignments.min()) == _figure(plan.alignment):
        return [*rows, ("chosen", _figure(plan.alignment), f"ν = θ/ϖ = {plan.alignment_coefficient:.5g}")]
    chosen = {"chosen, largest": plan.alignments.max(), "chosen, median": np.median(plan.alignments)}
    chosen["chosen, smallest"] = plan.alignments.min()
    return [
        *rows,
        *((name, _figure(theta), f"ν = θ/ϖ = {theta / plan.clip_norm:.5g}") for name, theta in chosen.items()),
    ]


def power_rows(plan: Plan) -> list[Row]:
    """Return the power [W] of single devices and of all, in the worst case."""
    budget = plan.problem.budget
    if isinstance(plan, FadingPlan):
        rows = _device_rows(plan)
    else:
        rows = [
            ("weakest scheduled device, per round", _figure(plan.power.max()), ""),
            ("strongest scheduled device, per round", _figure(plan.power.min()), ""),
        ]
    total = plan.power_total
    share = f"{total / budget.total_power:.1%} of {budget.total_power:g} W" if total else "no radio"
    return [*rows, ("all devices, all rounds", _figure(total), share)]


def _device_rows(plan: FadingPlan) -> list[Row]:
    """What single devices transmit where rounds differ, and what that is of their batteries."""
    fleet, total = plan.problem.fleet, plan.sequence.device_power(plan.rounds)
    loudest = plan.scheduled[plan.power.argmax()]
    peak = f"{100 * plan.power.max() / fleet.peak_power[loudest]:.3g}% of peak"
    rows = [
        ("one device in one round, at most", _figure(plan.power.max()), f"device {loudest}, {peak}"),
        ("one device in all rounds, at most", _figure(total.max()), f"device {plan.scheduled[total.argmax()]}"),
        ("one device in all rounds, median", _figure(float(np.median(total))), "of those that send"),
    ]
    if plan.problem.budget.device_power is not None:
        batteries = np.broadcast_to(plan.problem.budget.device_power, fleet.num_devices)[plan.scheduled]
        used = total / batteries
        worst = int(used.argmax())
        share = f"{used[worst]:.1%} of {batteries[worst]:g} W"
        rows.append((f"emptiest battery, of device {plan.scheduled[worst]}", _figure(total[worst]), share))
    return rows


def privacy_rows(plan: Plan) -> list[Row]:
    """Return ε of one round and of all."""
    if not plan.private:
        return [("none: the scheme has no ε", "∞", "")]
    if isinstance(plan, FadingPlan):
        one, all_of_them, sum_of = "most exposed round", "most exposed device, its rounds", "√Σμ²"
    else:
        one, sum_of = "one round", "μ√I"
        all_of_them = "the only round" if plan.rounds == 1 else f"all {plan.rounds} rounds"
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


def _figure(value: float) -> str:
    return f"{value:.5g}"
