"""What a schedule leaves open: the largest feasible amplitudes, the best I and, by a surrogate, ϖ and the average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, bounds
from airfed.planning.amplitudes import Amplitudes, Devices
from airfed.planning.measured import best_design
from airfed.planning.method import OVER_THE_AIR, Errors, Method
from airfed.planning.plan import Plan
from airfed.planning.response import Response
from airfed.problem import InfeasibleError, Problem

Integers = NDArray[np.int64]


def by_bound(
    problem: Problem,
    policy: str,
    devices: Devices,
    *,
    rounds: Integers,
    method: Method = OVER_THE_AIR,
    alignment: float | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of the smallest bound for given devices, the same in all rounds.

    Args:
        problem: what the plan is about.
        policy: who makes it.
        devices: K, ascending.
        rounds: the numbers of rounds to choose from.
        method: how updates reach the receiver.
        alignment: θ of aligned devices, to fix it; the largest within every limit otherwise.
        notes: remarks for the plan.

    Raises:
        InfeasibleError: no number of rounds fits, or the bound is not a finite number.
    """
    found = _errors(problem, devices, in_time(problem, method, devices, rounds), method, alignment)
    with np.errstate(over="ignore"):
        error = bounds.participation_error(found.shortfall)
        error = error + bounds.noise_error(problem.learning, found.noise_share)
        objective = bounds.round_offsets(problem.learning, found.rounds)
        objective = objective + bounds.round_scales(problem.learning, found.rounds) * error
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise InfeasibleError(
            "No plan fits: the limits leave so little signal that the bound is not a finite number "
            f"(the alignment would be {found.level[best]:.3g})."
        )
    number = int(found.rounds[best])
    table = _table(problem, devices, method, number, alignment)
    return Plan(problem=problem, policy=policy, amplitudes=table, method=method, notes=notes).flagged()


def by_accuracy(
    problem: Problem,
    policy: str,
    devices: Devices,
    surrogate: Response,
    *,
    rounds: Integers,
    method: Method = OVER_THE_AIR,
    alignment: float | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of the highest expected accuracy for given devices, the same in all rounds.

    Args:
        problem, policy, devices, rounds, method, alignment, notes: as in `by_bound`; the problem's ϖ is not looked at.
        surrogate: what accuracy training gives.

    Raises:
        InfeasibleError: nothing lies within the surrogate's range.
    """
    rounds = surrogate.known(in_time(problem, method, devices, rounds))
    found = _errors(problem, devices, rounds, method, alignment)
    best = best_design(found.rounds, found.noise_share[:, None], 1.0 - found.shortfall[:, None], surrogate)
    number = int(found.rounds[best.place])
    plan = Plan(
        problem=replace(problem, learning=replace(problem.learning, clip_norm=best.clip_norm)),
        policy=policy,
        amplitudes=_table(problem, devices, method, number, alignment),
        method=method,
        objective="measured",
        average=best.average,
        notes=notes,
    )
    return predicted(plan, surrogate).flagged()


def expected(plan: Plan, surrogate: Response) -> Plan:
    """Return a plan with the ϖ and the average of the highest expected accuracy.

    Raises:
        InfeasibleError: it lies outside the surrogate's range.
    """
    noise, share = np.array([plan.noise_share]), np.array([plan.device_share])
    best = surrogate.best(rounds=np.array([plan.rounds]), noise=noise, share=share)
    if not np.isfinite(best.accuracy[0]):
        raise InfeasibleError(f"No plan fits: {surrogate.outside(noise, share)}")
    learning = replace(plan.problem.learning, clip_norm=float(best.clip_norm[0]))
    chosen = replace(
        plan,
        problem=replace(plan.problem, learning=learning),
        objective="measured",
        average=surrogate.averages[best.average[0]],
    )
    return predicted(chosen, surrogate)


def predicted(plan: Plan, surrogate: Response) -> Plan:
    """Return the plan with its expected accuracy; none outside the surrogate's range."""
    found = surrogate.prediction(
        rounds=plan.rounds,
        clip_norm=plan.clip_norm,
        noise=plan.noise_share,
        share=plan.device_share,
        average=plan.average,
    )
    return replace(plan, prediction=found)


def _errors(problem: Problem, devices: Devices, rounds: Integers, method: Method, alignment: float | None) -> Errors:
    if alignment is None:
        return method.errors(problem, devices, rounds)
    _validate.positive(alignment=alignment)
    theta = np.full(rounds.shape, float(alignment))
    missing = 1.0 - devices.size / problem.fleet.num_devices
    with np.errstate(divide="ignore", over="ignore"):
        noise = problem.link.noise_std / (devices.size * theta)
    return Errors(rounds, theta, noise, np.full(rounds.shape, missing))


def _table(problem: Problem, devices: Devices, method: Method, rounds: int, alignment: float | None) -> Amplitudes:
    num_devices = problem.fleet.num_devices
    if alignment is not None:
        return Amplitudes.aligned(devices, num_devices=num_devices, level=float(alignment), rounds=rounds)
    row = np.zeros(num_devices)
    row[devices] = method.amplitudes(problem, devices, rounds)
    return Amplitudes.of_table(row, rounds=rounds)


def in_time(problem: Problem, method: Method, devices: Devices, rounds: Integers) -> Integers:
    """Return those numbers of rounds that fit the time on the air.

    Raises:
        InfeasibleError: none does.
    """
    if problem.symbols == np.inf:
        return rounds
    uses = np.array([number * method.symbols(problem, devices, number) for number in rounds.tolist()])
    fits = uses <= problem.symbols
    if not fits.any():
        seconds = uses[0] / (problem.link.bandwidth or 1.0)
        raise InfeasibleError(
            f"No plan fits: rounds={rounds[0]} take {seconds:.4g} s on the air ({method.name}), and there are "
            f"{problem.budget.air_time:.4g} s (air_time)."
        )
    return np.asarray(rounds[fits])
