"""All policies by name, and the verb `plan`: airfed's own policies and the baselines of other papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from airfed import _usercode, _validate, baselines, seeds
from airfed.planning import optimal, weighted
from airfed.planning.method import Method, OverTheAir
from airfed.planning.optimal import Aligned
from airfed.planning.paper import alternate
from airfed.planning.plan import Plan
from airfed.planning.policy import Policy, Settings
from airfed.planning.surrogate import Average, Surrogate
from airfed.planning.time_varying import planner as time_varying
from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.planner import Samples
from airfed.problem import InfeasibleError, Problem


@runtime_checkable
class Plannable(Protocol):
    """The interface of a scenario that `plan` uses."""

    def plan(self, problem: Problem | None = None, **changes: Any) -> Plan:
        """Return the plan, with changed keys of the scenario."""


def plan(
    problem: Problem | Plannable,
    *,
    policy: str | Callable[..., Any] | Policy | None = None,
    rounds: int | None = None,
    size: int | None = None,
    threshold: float | None = None,
    seed: int | None = None,
    objective: Surrogate | None = None,
    clip_norm: float | None = None,
    average: Average | None = None,
    samples: Samples | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a scenario, or of a `Problem` whose gains are all known.

    For a scenario this is `scenario.plan(...)`, the plan that `airfed plan` prints and `airfed run` executes; the
    arguments change keys of [policy] and the seed.

    For a problem, minimise Theorem 1's bound over the devices K, the alignment θ and the rounds I, subject to the
    privacy budget, the peak powers and the total power (P1). "optimal" solves P1 exactly, "weighted" the same over all
    amplitudes; the others choose K by a rule, and then the best θ and I.

    Args:
        problem: the fleet, the link, the learning constants and the budgets; or a scenario.
        policy: "optimal" (the default for a problem), "weighted", "paper" (Algorithms 1 and 2 as printed), "full"
            (every device), "uniform" (`size` devices at random), "top_k" (the `size` devices of largest gain),
            "threshold" (every gain of at least `threshold`); a baseline (`BASELINES`: "dp_fedavg", "digital", ...); or
            your own function from a `Problem` to devices or amplitudes (`planning.Policy`), or its name
            "module:callable".
        rounds: a fixed I; by default the best I in 1..T.
        size: |K| of "uniform" and "top_k"; half the fleet by default.
        threshold: smallest gain that "threshold" schedules.
        seed: of the random stream of "uniform", 0 by default; for a scenario also of its channel.
        objective: (problem only) an accuracy surrogate, to choose K, θ, I, ϖ and the average by expected accuracy; by
            default Theorem 1's bound, which does not determine ϖ.
        clip_norm: a fixed ϖ, with an objective.
        average: "tail" or "exponential" averaging of the models at the receiver, as in `Plan`.
        samples: (problem only) for a causal plan, which uses the gains of a round only from that round on: Monte Carlo
            samples of the gains, (samples, rounds, N), or a conditional sampler, a function from the gains so far,
            (i, N), to samples of the rest, (samples, R − i, N).
        options: further arguments of your own policy or of a baseline, by name.

    Raises:
        InfeasibleError: no plan meets every limit.
        ValueError: an argument is out of range or unknown to the policy.

    >>> from airfed import Budget, Fleet, Learning, Link, Problem
    >>> best = plan(Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0),
    ...     link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0, formula="classic"),
    ... ))
    >>> best.scheduled, best.rounds, best.binding
    (array([0, 1, 2]), 2, 'privacy')

    Implements [Yan23, P1].
    """
    given: dict[str, Any] = {"rounds": rounds, "size": size, "threshold": threshold}
    given |= {"clip_norm": clip_norm, "average": average}
    if isinstance(problem, Problem):
        if objective is not None and not isinstance(objective, Surrogate):
            raise ValueError(f"objective must be an accuracy surrogate or None (the bound), got {objective!r}.")
        if not (policy is None or isinstance(policy, str | Policy) or callable(policy)):
            raise ValueError(f"policy must be a name, a function or a Policy, got {policy!r}.")
        settings = Settings(seed=seed or 0, objective=objective, samples=samples, options=options or {}, **given)
        name = "optimal" if policy is None else policy
        rule = find(name) if isinstance(name, str) else name if isinstance(name, Policy) else Policy.from_function(name)
        return rule.plan(problem, settings)
    if not isinstance(problem, Plannable):
        raise TypeError(f"problem must be a Scenario or a Problem, got {type(problem).__name__}.")
    if objective is not None or samples is not None:
        raise ValueError("objective and samples cannot be given with a scenario: it has its own ([policy] objective).")
    return problem.plan(policy=policy, seed=seed, options=options, **given)


def find(name: str, folder: Path = Path()) -> Policy:
    """Return the policy of a name: a built-in one, or "module:callable", searched in `folder` first."""
    code = _usercode.named(name, builtin=EVERY, key="policy")
    return EVERY[name] if code is None else Policy(name=code.name, function=code, folder=folder)


def compare(
    problem: Problem, settings: Settings, *, policies: Iterable[Policy] | None = None
) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return the plan of every policy, by default airfed's own, and the error message of each infeasible one.

    Each policy gets the settings that it takes; the default of "threshold" is the mean gain.
    """
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    threshold = float(problem.fleet.gain.mean()) if settings.threshold is None else settings.threshold
    for policy in POLICIES.values() if policies is None else policies:
        if policy.time_varying and not problem.time_varying:
            continue
        taken = policy.settings
        own = replace(
            settings,
            size=settings.size if "size" in taken else None,
            threshold=threshold if "threshold" in taken else None,
            options={name: value for name, value in settings.options.items() if name in taken},
        )
        try:
            plans[policy.name] = policy.plan(problem, own)
        except InfeasibleError as error:
            reasons[policy.name] = str(error)
    return plans, reasons


def _optimal(
    problem: Problem, *, rounds: int | None, objective: Surrogate | None, samples: Samples | None
) -> Aligned | Solution:
    if problem.time_varying:
        return time_varying.optimal(problem, rounds=rounds, samples=samples)
    every = problem.round_candidates(rounds)
    return (
        optimal.joint_optimum(problem, every) if objective is None else optimal.most_accurate(problem, every, objective)
    )


def _weighted(
    problem: Problem, *, rounds: int | None, objective: Surrogate | None, samples: Samples | None
) -> Solution:
    if problem.time_varying:
        from airfed.planning.time_varying import weighted as time_varying_weighted  # lazy: it imports scipy.optimize

        return time_varying_weighted.weighted(problem, rounds=rounds, samples=samples)
    every = problem.round_candidates(rounds)
    return weighted.weighted(problem, every) if objective is None else weighted.most_accurate(problem, every, objective)


def _clairvoyant(problem: Problem, *, rounds: int | None, objective: Surrogate | None) -> Aligned | Solution:
    return _optimal(problem, rounds=rounds, objective=objective, samples=None)


def _myopic(
    problem: Problem, *, rounds: int | None, objective: Surrogate | None, samples: Samples | None
) -> Aligned | Solution:
    if problem.time_varying:
        return time_varying.equal_shares(problem, rounds=rounds, samples=samples)
    return _optimal(problem, rounds=rounds, objective=objective, samples=None)


def _paper(problem: Problem, *, rounds: int | None, samples: Samples | None) -> Aligned | Solution:
    if not problem.time_varying:
        return optimal.backed_off(problem, alternate(optimal.assuming_perfect_csi(problem), rounds=rounds))
    mean, most = time_varying.mean_problem(problem, samples), len(time_varying.gains_of(problem))
    one = alternate(optimal.assuming_perfect_csi(mean), rounds=rounds)
    if rounds is None and one.rounds > most:  # a trace may be shorter
        one = alternate(optimal.assuming_perfect_csi(mean), rounds=most)
    return time_varying.per_round(problem, lambda this, _: one.devices, rounds=one.rounds)


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
    above = np.flatnonzero(problem.fleet.gain >= threshold)
    if not above.size:
        raise InfeasibleError(
            f"No plan fits: the largest gain is {problem.fleet.gain.max():.4g} (threshold is {threshold:.4g})."
        )
    return above


def _size(problem: Problem, size: int | None) -> int:
    num_devices = problem.fleet.num_devices
    if size is None:
        return (num_devices + 1) // 2
    if size > num_devices:
        raise ValueError(f"size must be at most num_devices, {num_devices}; got {size}.")
    return size


def _cotaf(problem: Problem, *, clipped: bool = False) -> Method | NDArray[np.intp]:
    _validate.flag(clipped=clipped)
    return _full(problem) if clipped else baselines.Cotaf()


_BASELINES: Final[dict[str, Callable[..., Any]]] = {
    "fedavg": lambda problem: baselines.FedAvg(),
    "dp_fedavg": lambda problem: baselines.DPFedAvg(),
    "secure_aggregation": lambda problem, *, bits=20, access="tdma": baselines.SecureAggregation(
        bits=bits, access=access
    ),
    "digital": lambda problem, *, bits=8, access="tdma": baselines.Digital(bits=bits, access=access),
    "truncated_inversion": baselines.truncated_inversion,
    "threshold_power": lambda problem: baselines.ThresholdPower(),
    "liu_simeone": baselines.liu_simeone,
    "artificial_noise": lambda problem: baselines.ArtificialNoise(),
    "cotaf": _cotaf,
}
POLICIES: Final = {
    policy.name: policy
    for policy in (
        Policy(name="weighted", function=_weighted, called="once", lower_bound=weighted.lower_bound),
        Policy(name="optimal", function=_optimal, called="once"),
        Policy(name="paper", function=_paper, called="once"),
        Policy(name="full", function=_full),
        Policy(name="uniform", function=_uniform),
        Policy(name="top_k", function=_top_k),
        Policy(name="threshold", function=_threshold),
        Policy(name="clairvoyant", function=_clairvoyant, called="once", time_varying=True),
        Policy(name="myopic", function=_myopic, called="once", time_varying=True),
    )
}
"""airfed's own policies by their names in scenarios."""
BASELINES: Final = {
    name: Policy(name=name, function=rule, called="once", baseline=True) for name, rule in _BASELINES.items()
}
"""The methods of other papers, by their names in scenarios."""
EVERY: Final = POLICIES | BASELINES
"""Every built-in policy by its name in scenarios."""
METHODS: Final[Mapping[str, type[Method]]] = {
    method.name: method
    for method in (
        *(OverTheAir, baselines.FedAvg, baselines.DPFedAvg, baselines.Digital, baselines.TruncatedInversion),
        *(baselines.ThresholdPower, baselines.ArtificialNoise, baselines.Cotaf, baselines.SecureAggregation),
    )
}
"""Every method by its name in records."""
