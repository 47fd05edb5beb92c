"""Who decides: one verb, `plan`, and one function per policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed import _usercode, _validate, seeds
from airfed.planning import measured, uncertain, varying
from airfed.planning.decision import Average, Decision
from airfed.planning.fading import Sequence
from airfed.planning.paper import alternate
from airfed.planning.plan import Plan
from airfed.planning.policy import Policy, Settings
from airfed.planning.response import Response
from airfed.planning.rivals import SCHEMES
from airfed.planning.varying import Draws
from airfed.problem import InfeasibleError, Problem


def plan(
    problem: Problem,
    *,
    policy: str | Callable[..., Any] | Policy = "optimal",
    rounds: int | None = None,
    size: int | None = None,
    threshold: float | None = None,
    seed: int = 0,
    objective: Response | None = None,
    clip_norm: float | None = None,
    average: Average | None = None,
    law: Draws | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the decision of a policy about a problem.

    Minimise Theorem 1's bound over the devices K, the alignment θ and the rounds I, subject to the privacy budget, the
    peak powers and the total power (P1). "optimal" solves that exactly; the others fix K by a rule of their own and
    take the best θ and I for it.

    Args:
        problem: the fleet, the link, the learning constants and the budgets.
        policy: "optimal", "paper" (Algorithms 1 and 2 as printed), "full" (every device), "uniform" (`size` devices at
            random), "top_k" (the `size` devices of largest gain), "threshold" (every gain of at least `threshold`);
            a scheme of the field's (`RIVALS`: "central", "digital", "truncated", ...); or your own: a function from a
            `Problem` to device indices or a `Decision`, or "module:callable".
        rounds: I, to fix it; otherwise every I in 1..T is considered.
        size: |K| of "uniform" and "top_k"; half the fleet unless given.
        threshold: smallest gain that "threshold" schedules.
        seed: of the stream that "uniform" draws from.
        objective: a measured response, to choose K, θ, I, ϖ and the average together by the accuracy that it
            expects; otherwise Theorem 1's bound decides, which says nothing of ϖ.
        clip_norm: ϖ, to fix it where an objective would choose it.
        average: "tail" or "exponential" to have the receiver average the models, as in `Plan`.
        law: of gains that change, for decisions that know the gains of a round only when it comes: draws of them,
            (draws, rounds, N), or a function from the gains so far, (i, N), to draws of the rest, (draws, R − i, N).
        options: what else your own policy, or a rival, takes, by name.

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
    if not isinstance(policy, Policy):
        policy = find(policy) if isinstance(policy, str) else Policy.own(policy)
    settings = Settings(
        rounds=rounds,
        size=size,
        threshold=threshold,
        seed=seed,
        objective=objective,
        clip_norm=clip_norm,
        average=average,
        law=law,
        options=options or {},
    )
    return policy.plan(problem, settings)


def find(name: str, folder: Path = Path()) -> Policy:
    """Return the policy of a name: a built-in one, or the user's "module:callable".

    Args:
        name: as in a scenario.
        folder: the scenario's, where the user's code is looked for first.

    Raises:
        ValueError: it is neither.
    """
    code = _usercode.named(name, builtin=EVERY, key="policy")
    return EVERY[name] if code is None else Policy(name=code.name, function=code, folder=folder)


def _optimal(
    problem: Problem, *, rounds: int | None, objective: Response | None, law: Draws | None = None
) -> Decision | Sequence:
    if problem.varies:
        return varying.optimal(problem, rounds=rounds, law=law)
    every = np.arange(1, problem.most_rounds + 1) if rounds is None else np.array([int(rounds)])
    if objective is None:
        return uncertain.optimal(problem, every)
    scheduled, chosen = measured.optimal(problem, every, objective)
    return Decision(scheduled=scheduled, rounds=chosen)


def _clairvoyant(
    problem: Problem, *, rounds: int | None, objective: Response | None, law: Draws | None = None
) -> Decision | Sequence:
    return _optimal(problem, rounds=rounds, objective=objective)


def _myopic(
    problem: Problem, *, rounds: int | None, objective: Response | None, law: Draws | None = None
) -> Decision | Sequence:
    if problem.varies:
        return varying.equal_shares(problem, rounds=rounds, law=law)
    return _optimal(problem, rounds=rounds, objective=objective)


def _paper(problem: Problem, *, rounds: int | None, law: Draws | None = None) -> Decision | Sequence:
    if problem.varies:
        mean, most = varying.mean_problem(problem, law), len(varying.gains_of(problem))
        one = _paper(mean, rounds=rounds)
        assert isinstance(one, Decision)
        if rounds is None and one.rounds is not None and one.rounds > most:  # of a trace that is shorter
            one = _paper(mean, rounds=most)
            assert isinstance(one, Decision)
        devices = np.asarray(one.scheduled)
        fixed = Decision(scheduled=devices, rounds=one.rounds)
        return varying.per_round(problem, lambda there, index: (devices, fixed), first=fixed, rounds=rounds, law=law)
    decision = alternate(uncertain.trusting(problem), rounds=rounds)
    return uncertain.backed_off(problem, decision)


def _full(problem: Problem) -> NDArray[np.intp]:
    return np.arange(problem.fleet.num_devices)


def _uniform(problem: Problem, *, size: int | None = None, seed: int, round_index: int = 0) -> NDArray[np.intp]:
    rng = seeds.stream(seed, "policy", *([round_index] if round_index else []))
    return rng.choice(problem.fleet.num_devices, _size(problem, size), replace=False)


def _top_k(problem: Problem, *, size: int | None = None) -> NDArray[np.intp]:
    strongest = np.argsort(-problem.fleet.gain, kind="stable")
    return strongest[: _size(problem, size)]


def _threshold(problem: Problem, *, threshold: float) -> NDArray[np.intp]:
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


_BUILT_IN = (_optimal, _paper, _full, _uniform, _top_k, _threshold)
_FOR_VARYING = (_clairvoyant, _myopic)
POLICIES: Final = {
    each.__name__[1:]: Policy(name=each.__name__[1:], function=each, for_varying=each in _FOR_VARYING)
    for each in (*_BUILT_IN, *_FOR_VARYING)
}
"""airfed's own policies by their names in scenarios."""
RIVALS: Final = {each.__name__: Policy(name=each.__name__, function=each, rival=True) for each in SCHEMES}
"""The schemes of the field that airfed is compared with, by their names in scenarios."""
EVERY: Final = POLICIES | RIVALS
"""Every built-in policy by its name in scenarios."""
