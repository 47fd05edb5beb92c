"""What the page shows of a design: the plan, every schedule size, every number of rounds, and who is next in line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airfed import planning
from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.planning.prices import NextDevice, next_device
from airfed.scenario import Scenario
from airfed.showing.plans import Curve, Expectation, accuracy_curve, bound_curve
from airfed.showing.words import LIMITS, against, decision_sentence


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Everything that the design section draws."""

    world: Scenario
    plan: Plan
    space: CandidateSpace
    curve: Curve
    accuracy: Expectation | None
    next_device: NextDevice | None


def decide(world: Scenario) -> Plan:
    """Return the plan of a scenario, with what a response expects of it.

    Raises:
        InfeasibleError: no plan meets every limit.
        ScenarioError: a length does not fit.
    """
    plan, response = world.plan(), world.response
    return plan if response is None else planning.predicted(plan, response)


def look(world: Scenario, plan: Plan | None = None) -> View:
    """Return the view of a scenario whose rounds are alike.

    Args:
        world: the scenario.
        plan: its plan, where it is there already.

    Raises:
        InfeasibleError, ScenarioError: as in `decide`.
    """
    plan = decide(world) if plan is None else plan
    problem, accuracy = plan.problem, None
    if plan.objective == "measured" and (response := world.response) is not None:
        accuracy = accuracy_curve(problem, response, plan.rounds)
    space = planning.candidates(plan)
    return View(
        world=world,
        plan=plan,
        space=space,
        curve=bound_curve(problem, plan.rounds),
        accuracy=accuracy,
        next_device=next_device(plan),
    )


def decision(plan: Plan) -> str:
    """Return the decision in one sentence, with privacy and, of several antennas, whom it is claimed against."""
    budgets = f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total{against(plan)}."
    return f"{decision_sentence(plan).removesuffix('.')}; {budgets}"


def waiting(view: View) -> str:
    """Return who is next in line and what keeps that device out, in one sentence."""
    plan, out = view.plan, view.next_device
    if out is None:
        silent = int(np.count_nonzero(plan.problem.fleet.gain == 0))
        if plan.num_scheduled + silent == plan.problem.fleet.num_devices:
            return "Every device that can be heard transmits."
        return "No further device can be heard."
    change = out.bound / plan.bound.total - 1
    size = f"{abs(change):.1%}" if abs(change) >= 0.0005 else "less than 0.1%"
    effect = f"the bound would {'rise' if change > 0 else 'fall'} by {size}"
    if out.alignment >= plan.alignment * (1 - 1e-9):
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}."
    return (
        f"{LIMITS[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    )
