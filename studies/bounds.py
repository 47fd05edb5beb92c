"""Bounds and measurements: trainings compared with the bounds of Theorems 1 and 2.

For each model the constants are calibrated, the step size is set to τ = 1/ζ (for which the theorems are proved), and
the optimal devices train over the air in a given number of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import bounds
from airfed.experiments.calibrate import Calibration, calibrate, mean_update, training_loss
from airfed.planning import Plan
from airfed.scenario import Scenario
from airfed.text.phrases import TERMS
from airfed.training.loop import federated_averaging
from airfed.training.setup import ImageTask, prepare

MODELS: Final = ("logistic", "cnn")
_EVERY: Final = 5  # local steps between two measurements, at least
_WHY: Final = {  # where the theorems are loose
    "participation": "as if each unscheduled device had an update of norm ϖ opposite to the others",
    "local_drift": "as if every local step moved by the full norm ϖ in the worst direction",
    "noise": "charged at the largest curvature ζ in each of the d coordinates",
}
_SHARES: Final = {name: f"{name}_share" for name in _WHY}  # columns


def measure(scenario: Scenario, *, rounds: Sequence[int]) -> list[dict[str, Any]]:
    """Return, for both models and each I, the measured quantity and its bound over the rounds.

    Args:
        scenario: the scenario; its model, step size and constants are replaced.
        rounds: values of I.
    """
    rows = []
    for model in MODELS:
        start = scenario.override({"learning.model": model, "learning.network": None, "learning.dimension": None})
        constants = calibrate(start)
        fitted = constants.apply(start).override({"learning.learning_rate": 1.0 / constants.smoothness})
        for number in rounds:
            rows += _run(fitted.override({"policy.rounds": number}), constants)
    return rows


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how loose each bound is, one sentence per model and I, from the rows of `measure` or their CSV."""
    found = []
    for (model, rounds), row in _last(rows).items():
        measured, bound = float(row["measured"]), float(row["bound"])
        theorem = "Theorem 1" if model == "logistic" else "Theorem 2"
        constants = (
            f"ζ = {float(row['smoothness']):.3g}, ϱ = {float(row['strong_convexity']):.2g}, "
            f"G = {float(row['initial_gap']):.3g}, τ = 1/ζ"
        )
        found.append(
            f"**{model}, I = {rounds}** ({row['num_scheduled']} devices; {constants}): after all rounds the "
            f"{row['quantity']} is {measured:.3g}; {theorem} allows {bound:.3g}, {bound / measured:,.0f} times as much."
            f" Of that bound, {_parts(row)}."
        )
    return found


def _parts(row: Mapping[str, Any]) -> str:
    """Return the terms that are at least a tenth of a bound, the largest first, with the reasons."""
    shares = sorted(((float(row[column]), name) for name, column in _SHARES.items()), reverse=True)
    return "; ".join(f"{share:.0%} is {TERMS[name]} ({_WHY[name]})" for share, name in shares if share >= 0.1)


def ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the ratio of the bound to the measurement after all rounds, in a few words."""
    return ", ".join(
        f"{model} {float(row['bound']) / float(row['measured']):,.0f} times at I = {rounds}"
        for (model, rounds), row in _last(rows).items()
    )


def gap_bounds(plan: Plan) -> list[float]:
    """Return the bound of Theorem 1 after each round of a plan (the last is `plan.bound.total`).

    Implements [Yan23, Thm 1], as the recursion behind it.
    """
    learning = plan.problem.learning
    gap, found = learning.initial_gap, []
    for error in _errors(plan).tolist():
        gap = learning.contraction * gap + learning.clip_norm**2 / learning.smoothness * error  # [Yan23, Thm 1]
        found.append(gap)
    return found


def gradient_bounds(plan: Plan) -> list[float]:
    """Return the bound of Theorem 2 on the mean squared gradient over the first i rounds, for each i.

    Implements [Yan23, Thm 2].
    """
    learning = plan.problem.learning
    counts = np.arange(1, plan.rounds + 1)
    start = 2 * learning.initial_gap / (learning.learning_rate * counts)
    return list(start + 2 * learning.clip_norm**2 * np.cumsum(_errors(plan)) / counts)  # [Yan23, Thm 2]


def _errors(plan: Plan) -> NDArray[np.float64]:
    """Return the error of each round, (I,): participation, local drift and noise."""
    totals = plan.sequence.totals
    noise = bounds.noise_error(plan.problem.learning, totals.noise_std / totals.divisor)
    drift = np.square(np.array(plan.local_steps) - 1.0)
    return np.asarray(bounds.participation_error(totals.shortfall) + drift + noise)


def _last(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {(str(row["model"]), int(row["rounds"])): row for row in rows}


def _run(scenario: Scenario, constants: Calibration) -> list[dict[str, Any]]:
    setup = prepare(scenario)
    task, plan = setup.task, setup.plan
    assert isinstance(task, ImageTask)
    convex = scenario.learning.model == "logistic"
    limits = gap_bounds(plan) if convex else gradient_bounds(plan)
    final = plan.bound if convex else plan.gradient_bound
    every = max(1, _EVERY * plan.rounds // scenario.learning.total_steps)
    rows, squares, steps = [], [], 0
    before = task.initial_parameters
    try:
        rounds = federated_averaging(plan, setup.aircomp, task.engine, setup.noise, parameters=before)
        for done in rounds:
            steps += done.steps
            seen = done.index % every == every - 1 or done.index + 1 == plan.rounds
            if not convex and (done.index % every == 0):
                squares.append(float(np.sum(np.square(mean_update(task, before)))))  # at m^i, as the theorem has it
            before = done.parameters
            if not seen:
                continue
            measured = training_loss(task, done.parameters) - constants.optimum if convex else float(np.mean(squares))
            rows.append(
                {
                    "model": scenario.learning.model,
                    "quantity": "gap L(m) − L*" if convex else "mean squared gradient",
                    "rounds": plan.rounds,
                    "round": done.index + 1,
                    "step": steps,
                    "measured": measured,
                    "bound": float(limits[done.index]),
                    "num_scheduled": plan.num_scheduled,
                    "smoothness": constants.smoothness,
                    "strong_convexity": constants.strong_convexity,
                    "initial_gap": constants.initial_gap,
                    **{column: final.terms[name] / final.total for name, column in _SHARES.items()},
                }
            )
    finally:
        task.engine.close()
    return rows
