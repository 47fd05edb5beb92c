"""What the page shows of a design: the plan, every schedule size, every number of rounds, and who is next in line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed import planning
from airfed.experiments.style import LIMIT_NAMES
from airfed.planning import Plan
from airfed.planning.exact import CandidateSpace
from airfed.planning.prices import NextDevice, next_device
from airfed.planning.uncertain import matters
from airfed.problem import Problem
from airfed.scenario import Scenario

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS: Final = 40  # points on the curve over I
FEWER_ROUNDS: Final = 16  # where limits differ by device, and a schedule takes longer to find


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The best bound for each number of rounds, term by term.

    Args:
        rounds: I, ascending.
        terms: the four terms of Theorem 1, each as long as `rounds`.
    """

    rounds: Integers
    terms: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """The bound."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Everything that the design section draws."""

    world: Scenario
    plan: Plan
    space: CandidateSpace
    curve: Curve
    next_device: NextDevice | None


def look(world: Scenario) -> View:
    """Return the view of a scenario.

    Raises:
        InfeasibleError: no plan meets every limit.
        ScenarioError: a length does not fit.
    """
    problem = world.problem()
    plan = planning.from_policy(problem, world.policy, seed=world.seed)
    most = MOST_ROUNDS if problem.fleet.equal_peak_power and not matters(problem) else FEWER_ROUNDS
    space = planning.candidates(plan)
    return View(
        world=world,
        plan=plan,
        space=space,
        curve=bound_curve(problem, shown_rounds(problem.learning.total_steps, plan.rounds, most)),
        next_device=next_device(plan),
    )


def decision(plan: Plan) -> str:
    """Return the decision in one sentence, privacy included."""
    few, many = min(plan.local_steps), max(plan.local_steps)
    steps = f"{few} {'step' if few == 1 else 'steps'}" if few == many else f"{few}-{many} steps"
    rounds = "round" if plan.rounds == 1 else "rounds"
    devices = f"{plan.num_scheduled} of {plan.problem.fleet.num_devices} devices"
    return (
        f"Schedule {devices}, {plan.rounds} {rounds} of {steps}; "
        f"{LIMIT_NAMES[plan.binding]} is the limit; "
        f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total."
    )


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
    if out.limit == "privacy":
        return f"Device {out.device} (|h| = {out.gain:.3g}) would fit without lowering θ; {effect}."
    return (
        f"{LIMIT_NAMES[out.limit].capitalize()} stops the next one: with device {out.device} (|h| = {out.gain:.3g}) "
        f"θ falls from {plan.alignment:.3g} to {out.alignment:.3g} and {effect}."
    )


def shown_rounds(total_steps: int, chosen: int, most: int = MOST_ROUNDS) -> Integers:
    """Return at most `most` numbers of rounds, evenly spread on a logarithmic scale, and the chosen one."""
    spread = np.geomspace(1, total_steps, min(total_steps, most)).round().astype(np.int64)
    return np.unique(np.append(spread, chosen))


def bound_curve(problem: Problem, rounds: Integers) -> Curve:
    """Return the smallest bound at each number of rounds, term by term.

    Raises:
        InfeasibleError: there is no plan at one of them.
    """
    bounds = [planning.plan(problem, rounds=int(number)).bound.terms for number in rounds]
    return Curve(rounds=rounds, terms={name: np.array([bound[name] for bound in bounds]) for name in bounds[0]})
