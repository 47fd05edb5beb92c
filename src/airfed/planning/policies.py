"""Who decides: one verb, `plan`, and one function per policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, convergence, seeds
from airfed.planning import limits, uncertain
from airfed.planning.paper import alternate
from airfed.planning.plan import Plan
from airfed.problem import InfeasibleError, Problem


def plan(
    problem: Problem,
    *,
    policy: str = "optimal",
    rounds: int | None = None,
    size: int | None = None,
    threshold: float | None = None,
    seed: int = 0,
) -> Plan:
    """Return the decision of a policy about a problem.

    Minimise Theorem 1's bound over the devices K, the alignment θ and the rounds I, subject to the privacy budget, the
    peak powers and the total power (P1). "optimal" solves that exactly; the others fix K by a rule of their own and
    take the best θ and I for it.

    Args:
        problem: the fleet, the link, the learning constants and the budgets.
        policy: "optimal", "paper" (Algorithms 1 and 2 as printed), "full" (every device), "uniform" (`size` devices at
            random), "top_k" (the `size` devices of largest gain), "threshold" (every gain of at least `threshold`).
        rounds: I, to fix it; otherwise every I in 1..T is considered.
        size: |K| of "uniform" and "top_k"; half the fleet unless given.
        threshold: smallest gain that "threshold" schedules.
        seed: of the stream that "uniform" draws from.

    Raises:
        InfeasibleError: no plan meets every limit.
        ValueError: an argument is out of range or does not belong to the policy.

    >>> from airfed import Budget, Fleet, Learning, Link, Problem
    >>> decision = plan(Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0),
    ...     link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0, formula="classic"),
    ... ))
    >>> decision.scheduled, decision.rounds, decision.binding
    (array([0, 1, 2]), 2, 'privacy')

    Implements [Yan23, P1].
    """
    if policy not in POLICIES:
        raise ValueError(f"Expected policy to be one of {', '.join(POLICIES)}; got {policy!r}.")
    if size is not None:
        _validate.positive_integer(size=size)
        if policy not in ("uniform", "top_k"):
            raise ValueError(f"Expected no size with policy={policy!r}: it decides the size itself.")
    if (threshold is not None) != (policy == "threshold"):
        raise ValueError(
            'Expected a threshold (policy.threshold in a scenario) with policy="threshold", and only there; '
            f"got threshold={threshold!r} with policy={policy!r}."
        )
    candidates = _candidate_rounds(problem, rounds)
    if policy == "optimal":
        return _optimal(problem, candidates)
    if policy == "paper":
        scheduled, alignment, chosen, notes = alternate(uncertain.trusting(problem), rounds=rounds)
        decision = Plan(
            problem=problem, policy=policy, scheduled=scheduled, alignment=alignment, rounds=chosen, notes=notes
        )
        return uncertain.backed_off(decision)
    devices = _RULES[policy](problem, size, threshold, seed)
    return _best_for_devices(problem, policy, devices, candidates)


class Settings(Protocol):
    """What a scenario's [policy] says."""

    @property
    def name(self) -> str: ...  # noqa: D102 - the names are `plan`'s
    @property
    def rounds(self) -> int | None: ...  # noqa: D102
    @property
    def size(self) -> int | None: ...  # noqa: D102
    @property
    def threshold(self) -> float | None: ...  # noqa: D102


def from_policy(problem: Problem, settings: Settings, *, seed: int) -> Plan:
    """Return the plan that a scenario's [policy] asks for."""
    return plan(
        problem,
        policy=settings.name,
        rounds=settings.rounds,
        size=settings.size,
        threshold=settings.threshold,
        seed=seed,
    )


def _candidate_rounds(problem: Problem, rounds: int | None) -> NDArray[np.int64]:
    total_steps = problem.learning.total_steps
    if rounds is None:
        return np.arange(1, total_steps + 1)
    convergence.local_steps(total_steps, rounds)  # raises where rounds is out of range
    return np.array([int(rounds)])


def _optimal(problem: Problem, rounds: NDArray[np.int64]) -> Plan:
    if uncertain.matters(problem):
        return uncertain.optimal(problem, rounds)
    choice = uncertain.search(problem, rounds, problem.fleet.peak_power)
    return Plan(
        problem=problem,
        policy="optimal",
        scheduled=choice.scheduled,
        alignment=choice.alignment,
        rounds=int(rounds[choice.round_index]),
    )


def _best_for_devices(problem: Problem, policy: str, scheduled: NDArray[np.intp], rounds: NDArray[np.int64]) -> Plan:
    learning = problem.learning
    theta = limits.largest_alignment(problem, scheduled, rounds)
    participation = convergence.participation_error(scheduled.size, problem.fleet.num_devices)
    with np.errstate(divide="ignore", over="ignore"):
        noise = 0.5 * learning.dimension * np.square(problem.link.noise_std / (scheduled.size * theta))
        objective = convergence.round_offsets(learning, rounds) + convergence.round_scales(learning, rounds) * (
            participation + noise
        )
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise InfeasibleError(
            "No plan fits: the limits leave so little signal that the bound is not a finite number "
            f"(the alignment would be {theta[best]:.3g})."
        )
    return Plan(
        problem=problem, policy=policy, scheduled=scheduled, alignment=float(theta[best]), rounds=int(rounds[best])
    )


def _full(problem: Problem, size: int | None, threshold: float | None, seed: int) -> NDArray[np.intp]:
    return np.arange(problem.fleet.num_devices)


def _uniform(problem: Problem, size: int | None, threshold: float | None, seed: int) -> NDArray[np.intp]:
    rng = seeds.stream(seed, "policy")
    return np.sort(rng.choice(problem.fleet.num_devices, _size(problem, size), replace=False))


def _top_k(problem: Problem, size: int | None, threshold: float | None, seed: int) -> NDArray[np.intp]:
    strongest = np.argsort(-problem.fleet.gain, kind="stable")
    return np.sort(strongest[: _size(problem, size)])


def _threshold(problem: Problem, size: int | None, threshold: float | None, seed: int) -> NDArray[np.intp]:
    assert threshold is not None  # `plan` has checked
    _validate.non_negative(threshold=threshold)
    heard = np.flatnonzero(problem.fleet.gain >= threshold)
    if not heard.size:
        raise InfeasibleError(
            f"No plan fits: the largest gain is {problem.fleet.gain.max():.4g} (threshold is {threshold:.4g})."
        )
    return heard


def _size(problem: Problem, size: int | None) -> int:
    num_devices = problem.fleet.num_devices
    if size is None:
        return (num_devices + 1) // 2
    if size > num_devices:
        raise ValueError(f"Expected size={size} <= num_devices={num_devices}.")
    return size


_Rule = Callable[[Problem, int | None, float | None, int], NDArray[np.intp]]
_RULES: Final[dict[str, _Rule]] = {"full": _full, "uniform": _uniform, "top_k": _top_k, "threshold": _threshold}
POLICIES: Final = ("optimal", "paper", *_RULES)
