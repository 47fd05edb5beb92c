"""Figures with meters: those behind a decision, and those of a round. No NiceGUI here."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from airfed.explorer.rounds import Rounds
from airfed.planning import Plan
from airfed.privacy import gaussian_epsilon
from airfed.showing.words import LIMITS, count, gap_sentence, number

_LEFT: Final = {  # of the budgets that cover the training, as `showing.fading.budgets_left` names them
    "total_power": ("Total power left", "after this round"),
    "privacy": ("Privacy left", "Σμ², most exposed"),
    "device_power": ("Battery left", "the emptiest"),
}


def plan_facts(plan: Plan) -> Markup:
    """Return the figures behind the decision; a meter shows the share of its budget that is used."""
    budget = plan.problem.budget
    spent = plan.power_total / budget.total_power
    peak = float((plan.power / plan.problem.fleet.peak_power[plan.scheduled]).max())
    covered = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
    counted = plan.epsilon_paper if budget.formula == "classic" else covered
    formula = " by Lemma 1" if budget.formula == "classic" else ""
    loss = counted / budget.epsilon
    blocks = [
        _quality(plan),
        ("ε per round, exact", number(plan.epsilon_round), f"μ = {number(plan.mu_round)}", None, ""),
        ("ε in total, exact", number(plan.epsilon_total), f"δ = {number(budget.delta)}", None, ""),
        (
            "Privacy budget used",
            f"{loss:.1%}",
            f"ε {number(counted)} of {number(budget.epsilon)}{formula}",
            loss,
            "privacy",
        ),
        (
            "Total power used",
            f"{spent:.1%}",
            f"{number(plan.power_total)} of {number(budget.total_power, 4)} W",
            spent,
            "total_power",
        ),
        ("Peak power used", f"{peak:.1%}", "of a device’s own", peak, "peak_power"),
    ]
    if "device_power" in plan.limits:
        used = (plan.alignment / plan.limits["device_power"]) ** 2
        blocks.append(("Battery used", f"{used:.1%}", "of the emptiest", used, "device_power"))
    return Markup("").join(fact(*block) for block in blocks)


def _quality(plan: Plan) -> tuple[str, str, str, float | None, str]:
    """What the plan was chosen by: the bound, or the accuracy to expect."""
    found = plan.prediction
    if found is not None and plan.objective == "measured":
        remark = f"{found.low:.0%} to {found.high:.0%}, ϖ = {number(plan.clip_norm)}"
        return "Expected accuracy", f"{found.accuracy:.1%}", remark, None, ""
    remark = f"any plan: ≥ {number(plan.lower_bound, 4)}" if gap_sentence(plan) else f"θ = {number(plan.alignment)}"
    remark = remark if found is None else f"expect {found.accuracy:.1%} accuracy"
    return "Bound on the gap", number(plan.bound.total, 4), remark, None, ""


def round_facts(rounds: Rounds, index: int) -> Markup:
    """Return the figures of a round; a meter shows θ as a share of what the limits on a round allow, or what is left.

    Args:
        rounds: of a plan.
        index: which one, from 0.
    """
    limit = min(rounds.ceilings, key=lambda name: float(rounds.ceilings[name][index]))
    theta, ceiling = float(rounds.alignments[index]), float(rounds.ceilings[limit][index])
    blocks: list[tuple[str, str, str, float | None, str]] = [
        (
            "Devices",
            f"{rounds.sizes[index]} of {rounds.num_devices}",
            count(rounds.local_steps[index], "local step"),
            None,
            "",
        ),
        ("θ", number(theta), f"≤ {number(ceiling)}, {LIMITS[limit]}", theta / ceiling, limit),
        (
            "Power",
            f"{number(float(rounds.powers[index]))} W",
            f"at most {number(float(rounds.largest[index]))} W each",
            None,
            "",
        ),
        ("ε of the round", number(gaussian_epsilon(float(rounds.mus[index]), rounds.delta)), "exact", None, ""),
    ]
    for name, (label, remark) in _LEFT.items():
        if name in rounds.left:
            share = float(rounds.left[name][index])
            blocks.append((label, f"{share:.1%}", remark, share, name))
    return Markup("").join(fact(*block) for block in blocks)


def fact(label: str, value: str, remark: str, share: float | None, limit: str) -> Markup:
    """Return a figure with its label; a meter shows a share, in the colour of a limit."""
    meter = Markup("")
    if share is not None:
        meter = Markup('<div class="meter lim-{}"><i style="width:{:.1f}%"></i></div>').format(
            limit, 100 * min(max(share, 0.0), 1.0)
        )
    block = Markup('<div class="fact"><small>{}</small><strong>{}</strong><em>{}</em>{}</div>')
    return block.format(label, value, remark, meter)
