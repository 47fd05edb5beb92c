"""What the page shows of a design: the plan, every schedule size, every number of rounds, and who is next in line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed import planning
from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.planning.sensitivities import NextDevice, next_device
from airfed.scenario import Scenario
from airfed.showing.chart import Chart
from airfed.showing.plans import over_rounds
from airfed.showing.words import LIMITS, against, decision_sentence


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Everything that the design section draws of a plan whose rounds are alike."""

    plan: Plan
    space: CandidateSpace
    rounds: Chart
    next_device: NextDevice | None


def look(world: Scenario, plan: Plan | None = None) -> View:
    """Return the view of a scenario whose rounds are alike.

    Args:
        world: the scenario.
        plan: its plan, if it was made already.

    Raises:
        InfeasibleError: no plan meets every limit.
        ScenarioError: a length does not fit.
    """
    plan = world.plan() if plan is None else plan
    return View(
        plan=plan,
        space=planning.candidates(plan),
        rounds=over_rounds(plan, world.response),
        next_device=next_device(plan),
    )


def decision(plan: Plan) -> str:
    """Return the schedule in one sentence, with its privacy and, with several antennas, the adversary."""
    budgets = f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total{against(plan)}."
    return f"{decision_sentence(plan).removesuffix('.')}; {budgets}"


def waiting(view: View) -> str:
    """Return the next device and what keeps it out, in one sentence."""
    plan, out = view.plan, view.next_device
    if out is None:
        unreachable = int(np.count_nonzero(plan.problem.fleet.gain == 0))
        if plan.num_scheduled + unreachable == plan.problem.fleet.num_devices:
            return "Every reachable device transmits."
        return "No further device is reachable."
    change = out.bound / plan.bound.total - 1
    size = f"{abs(change):.1%}" if abs(change) >= 0.0005 else "less than 0.1%"
    effect = f"the bound would {'rise' if change > 0 else 'fall'} by {size}"
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}."
    return (
        f"{LIMITS[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    )
