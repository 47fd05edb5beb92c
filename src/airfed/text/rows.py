"""The figures of a plan as rows of tables: what it is, its value, a remark."""

from __future__ import annotations

import numpy as np

from airfed.planning import Plan
from airfed.problem import InfeasibleError, Trust
from airfed.text.phrases import LIMITS, VALIDITY

Row = tuple[str, str, str]


def limit_rows(plan: Plan) -> list[Row]:
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


def power_rows(plan: Plan) -> list[Row]:
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


def privacy_rows(plan: Plan) -> list[Row]:
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
