"""Policies: functions from a problem to a schedule, built-in or user-defined; and sensitivities of a plan."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from airfed import _usercode, _validate, bounds
from airfed.planning import beamforming, limits
from airfed.planning.amplitudes import Amplitudes
from airfed.planning.method import OVER_THE_AIR, Method, thinned
from airfed.planning.optimal import Aligned, completed, in_time, with_best_clipping
from airfed.planning.plan import Plan
from airfed.planning.surrogate import Average, Surrogate
from airfed.planning.time_varying import planner as time_varying
from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.planner import Samples
from airfed.problem import InfeasibleError, Problem

CallMode = Literal["once", "per_round"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_RTOL: Final = 1e-9  # rounding of sums in a different order
_NOT_PRIVATE: Final = "Not private: no finite ε holds."
# airfed applies these settings itself; a policy may also take them.
_COMMON: Final = ("rounds", "seed", "objective", "samples", "round_index")


def once(function: _Function) -> _Function:
    """Declare that a policy is called once for the whole training, also for time-varying channels.

    It gets the problem with the gains of all rounds, and `samples` if it has that parameter, and returns a plan or
    amplitudes of all rounds, (I, N). Other policies are called in each round, with the gains of that round.

    >>> import airfed
    >>> from airfed.planning import once
    >>> @once
    ... def ten_rounds(problem):
    ...     return airfed.plan(problem, policy="full", rounds=10)
    >>> airfed.load("examples/paper.toml").plan(policy=ten_rounds).rounds
    10
    """
    function.called = "once"  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a policy; each policy takes those that are parameters of its function."""

    rounds: int | None = None  # I, to fix it
    size: int | None = None  # how many devices to schedule
    threshold: float | None = None  # the smallest gain to schedule
    seed: int = 0  # of the policy's random stream
    objective: Surrogate | None = None  # an accuracy surrogate; None: plan by the bound
    clip_norm: float | None = None  # ϖ, to fix it when a surrogate would choose it
    average: Average | None = None  # as in `Plan`, to fix it when a surrogate would choose it
    samples: Samples | None = None  # as in `airfed.plan`; None: all gains are known beforehand
    round_index: int = 0  # i, for a policy that is called in each round
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the policy, by name

    def fixed(self) -> Settings:
        """Return the settings with the surrogate restricted to the fixed clip_norm and average."""
        if self.objective is None:
            if self.clip_norm is not None:
                raise ValueError("clip_norm cannot be given for a plan by the bound, which uses the problem's.")
            return self
        surrogate = self.objective if self.average is None else self.objective.only(average=self.average)
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)
            surrogate = surrogate.at(self.clip_norm)
        return replace(self, objective=surrogate, clip_norm=None)

    def given(self) -> dict[str, Any]:
        """Return the given policy-specific settings (not the rounds or the seed) by name."""
        named = {"size": self.size, "threshold": self.threshold}
        return {name: value for name, value in named.items() if value is not None} | dict(self.options)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A rule that schedules devices.

    Its function takes a `Problem` and the settings in its signature. Called in each round, it returns the devices to
    schedule (indices or a boolean mask; airfed then chooses the largest feasible amplitudes and the best I), or their
    amplitudes a_k, (N,) floats. Called once, it may also return a `Method` (a baseline), a table of amplitudes (I, N),
    or a `Plan`.

    >>> from airfed.policies import POLICIES
    >>> sorted(POLICIES["uniform"].settings), sorted(POLICIES["full"].settings)
    (['round_index', 'seed', 'size'], [])
    """

    name: str  # in scenarios and records
    # the rule; or user code in a file, imported at each call
    function: Callable[..., Any] | _usercode.UserCode
    folder: Path = Path()  # the first folder in which user code is searched
    # whether a built-in policy is called once or in each round; user code declares it with `once`
    called: CallMode = "per_round"
    time_varying: bool = False  # whether it differs from "optimal" only for time-varying problems
    baseline: bool = False  # whether it is a method of another paper
    # for several antennas: the lower bound over all beamformers of a policy that does not align the devices
    lower_bound: Callable[[Problem], float] | None = None

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> Policy:
        """Return the policy of a user-defined function."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
        return cls(name=f"{module}:{name}", function=function)

    @cached_property
    def settings(self) -> frozenset[str]:
        """The names of the settings that the policy takes."""
        with self._loaded() as rule:
            return frozenset(rule.parameters)

    def digest(self) -> str:
        """Return the SHA-256 of the source files of user code; "" for any other policy."""
        if not isinstance(self.function, _usercode.UserCode):
            return ""
        with _usercode.opened(self.function, self.folder, role="policy") as code:
            return code.digest()

    def plan(self, problem: Problem, settings: Settings) -> Plan:
        """Return the policy's plan, completed and checked against every limit.

        Raises:
            InfeasibleError: no plan meets every limit.
            ValueError: a setting is missing or unknown, or user code returns no schedule.
        """
        _candidate_rounds(problem, settings.rounds)  # raises if rounds is out of range
        if problem.fleet.beamformer is None:
            if not problem.time_varying:
                plan = self._plan_with_beamformer(problem, settings)
                aligned = plan.method is OVER_THE_AIR and plan.amplitudes.constant and plan.amplitudes.equal
                if least := self.lower_bound or (beamforming.lower_bound if aligned else None):
                    by_bound = plan.objective == "bound"  # otherwise ϖ is another one
                    plan = replace(plan, lower_bound=least(problem) if by_bound else -math.inf)
                return plan
            return beamforming.noted(self.plan(beamforming.with_round_beamformers(problem), settings))
        with self._loaded() as rule:
            rule.check(self.name, settings)
            if problem.time_varying:
                return self._time_varying_plan(rule, problem, settings)
            settings = settings.fixed()
            answer = rule(problem, settings)
        return self._plan_of_table(problem, answer, settings) or self._plan_of_devices(problem, answer, settings)

    def _plan_of_table(self, problem: Problem, answer: Any, settings: Settings) -> Plan | None:
        """Return the plan of an answer with amplitudes of all rounds; None for any other answer."""
        if isinstance(answer, Solution):
            return self._checked_plan(problem, answer, settings)
        method: Method = OVER_THE_AIR
        notes: tuple[str, ...] = ()
        if isinstance(answer, Plan):
            method, notes, table = answer.method, answer.notes, answer.amplitudes
            settings = replace(settings, average=settings.average or answer.average)
        elif (rows := _array(answer)) is not None and rows.ndim == 2 and rows.dtype.kind == "f":
            table = Amplitudes.of_table(rows)
        else:
            return None
        if settings.rounds not in (None, table.rounds):
            raise ValueError(
                f"Policy {self.name!r} must return the fixed number of rounds, {settings.rounds}; got {table.rounds}."
            )
        return self._checked_plan(problem, Solution(table), settings, method=method, notes=notes)

    def _plan_of_devices(self, problem: Problem, answer: Any, settings: Settings) -> Plan:
        """Return the plan of an answer with the same devices in all rounds."""
        candidates, alignment = _candidate_rounds(problem, settings.rounds), None
        method = answer if isinstance(answer, Method) else OVER_THE_AIR
        notes: tuple[str, ...] = () if method.private else (_NOT_PRIVATE,)
        if isinstance(answer, Method):
            devices = method.schedule(problem)
        elif isinstance(answer, Aligned):
            devices, candidates, notes = answer.devices, np.array([answer.rounds]), (*notes, *answer.notes)
            alignment = answer.alignment
        else:
            devices = self._schedule_of(problem, answer)
            if devices.dtype == np.float64:
                fitting = in_time(problem, method, devices, candidates)
                return self._plan_of_amplitudes(problem, devices, fitting, settings)
        arguments: dict[str, Any] = {"rounds": candidates, "method": method, "alignment": alignment}
        if settings.objective is not None and method.private:
            try:
                return completed(problem, self.name, devices, **arguments, notes=notes, surrogate=settings.objective)
            except InfeasibleError as error:
                if not self.baseline:
                    raise
                # Baselines outside the surrogate's range are still shown.
                notes = (*notes, f"Planned by the bound: {str(error).removeprefix('No plan fits: ')}")
        plan = completed(problem, self.name, devices, **arguments, notes=notes)
        return plan if settings.average is None else replace(plan, average=settings.average)

    def _plan_of_amplitudes(
        self, problem: Problem, row: NDArray[Any], candidates: NDArray[np.int64], settings: Settings
    ) -> Plan:
        """Return the plan of given amplitudes with the best number of rounds, if possible within every limit."""
        plans, refused = [], ""
        for number in thinned(candidates, row.size).tolist():
            try:
                table = Amplitudes.of_table(row, rounds=number)
                plans.append(self._checked_plan(problem, Solution(table), settings))
            except InfeasibleError as error:
                refused = refused or str(error)
        if not plans:
            raise InfeasibleError(refused)
        return min(
            [plan for plan in plans if not plan.violations] or plans,
            key=lambda plan: plan.bound.total if settings.objective is None else -(plan.predicted_accuracy or 0.0),
        )

    def _plan_with_beamformer(self, problem: Problem, settings: Settings) -> Plan:
        """Return the plan for several antennas, with the best beamformer of the search."""

        def plan_for(fixed: Problem) -> Plan:
            return self.plan(fixed, settings)

        if self.baseline:  # slow to plan; most have full participation
            return beamforming.best_of_few(problem, (beamforming.aligned, beamforming.full), plan_for)
        if settings.objective is None:
            return beamforming.searched(problem, plan_for, least=self.lower_bound)
        by_bound = replace(settings, objective=None, clip_norm=None)
        return beamforming.best_of_few(problem, [lambda fixed: self.plan(fixed, by_bound)], plan_for)

    def _time_varying_plan(self, rule: _Rule, problem: Problem, settings: Settings) -> Plan:
        """Return the plan of a time-varying problem, in which rounds may differ."""
        for name in ("objective", "clip_norm"):
            if getattr(settings, name) is not None:
                raise ValueError(
                    f"{name} cannot be given with time-varying channels or batteries: rounds are planned by the bound."
                )
        if self.baseline and problem.all_antennas_seen:
            raise InfeasibleError(
                f"No plan fits: {self.name} has no time-varying plan against an adversary who observes all antennas "
                '(adversary = "all_antennas").'
            )
        if self.baseline and problem.fleet.antennas > 1 and settings.samples is not None:
            settings = replace(settings, samples=beamforming.effective_samples(problem, settings.samples))
        if settings.rounds is not None:
            needed = settings.rounds * problem.link.symbols(problem.learning.entries)
            problem.require_time(needed, f"rounds={settings.rounds} take")
        known: dict[str, Any] = {"rounds": settings.rounds, "samples": settings.samples}
        if rule.mode == "per_round":

            def schedule(this_round: Problem, index: int) -> NDArray[Any]:
                return self._schedule_of(this_round, rule(this_round, replace(settings, round_index=index)))

            return self._checked_plan(problem, time_varying.per_round(problem, schedule, **known), settings)
        answer = rule(problem, settings)
        if (plan := self._plan_of_table(problem, answer, settings)) is not None:
            return plan
        if isinstance(answer, Method):
            found = time_varying.per_round(problem, lambda this, _: answer.schedule(this), method=answer, **known)
            return self._checked_plan(problem, found, settings, method=answer)
        row = self._schedule_of(problem, answer)
        return self._checked_plan(problem, time_varying.per_round(problem, lambda this, _: row, **known), settings)

    def _checked_plan(
        self,
        problem: Problem,
        found: Solution,
        settings: Settings,
        *,
        method: Method = OVER_THE_AIR,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """Return the plan of given amplitudes, checked against the limits."""
        if not method.private and _NOT_PRIVATE not in notes:
            notes = (*notes, _NOT_PRIVATE)
        plan = Plan(
            problem=problem,
            policy=self.name,
            amplitudes=found.amplitudes,
            method=method,
            average=settings.average or "none",
            lower_bound=found.lower_bound,
            notes=notes,
        )
        if problem.symbols < np.inf:
            problem.require_time(plan.channel_uses, f"rounds={plan.rounds} take")
        if settings.objective is not None:
            plan = with_best_clipping(plan, settings.objective)
        if not plan.lower_bound <= plan.bound.total * (1 + _RTOL):
            raise ValueError(
                f"Policy {self.name!r} must return a lower_bound of at most the plan's bound, {plan.bound.total:.5g}; "
                f"got {plan.lower_bound:.5g}."
            )
        return plan.flagged()

    @contextmanager
    def _loaded(self) -> Iterator[_Rule]:
        """Yield the function, ready to be called; the folder of user code is importable within the context."""
        if isinstance(self.function, _usercode.UserCode):
            with _usercode.opened(self.function, self.folder, role="policy") as code:
                yield self._rule(code.function, code.call, own=True)
        else:
            yield self._rule(self.function, self.function, own=":" in self.name)

    def _rule(self, function: Callable[..., Any], call: Callable[..., Any], *, own: bool) -> _Rule:
        """Return the function with its parameters after the problem, without *args and **kwargs."""
        named = list(inspect.signature(function).parameters.items())[1:]
        parameters = {name: each for name, each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        return _Rule(function=call, parameters=parameters, mode=getattr(function, "called", self.called), own=own)

    def _schedule_of(self, problem: Problem, answer: Any) -> NDArray[Any]:
        """Return K as ascending indices, or a_k of every device as floats."""
        num_devices = problem.fleet.num_devices
        expected = f"Policy {self.name!r} must return distinct device indices from 0 to {num_devices - 1}"
        devices = _array(answer)
        if devices is None:
            raise ValueError(f"{expected}; got {type(answer).__name__}.")
        amplitudes = devices.dtype.kind == "f" and devices.shape == (num_devices,)
        if devices.dtype == bool and devices.shape == (num_devices,):
            devices = np.flatnonzero(devices)
        if devices.size == 0 or (amplitudes and not devices.any()):
            raise InfeasibleError(f"No plan fits: policy {self.name!r} schedules no device.")
        if amplitudes:
            return np.asarray(devices, dtype=np.float64)
        if isinstance(answer, Plan) or (devices.ndim == 2 and devices.dtype.kind == "f"):
            raise ValueError(f"{expected}; to return all rounds at once, declare it with airfed.planning.once.")
        if devices.ndim != 1 or devices.dtype.kind not in "iu":
            raise ValueError(f"{expected}, or {num_devices} amplitudes; got {devices.dtype} of shape {devices.shape}.")
        devices = np.sort(devices)
        if devices[0] < 0 or devices[-1] >= num_devices or np.any(devices[1:] == devices[:-1]):
            raise ValueError(f"{expected}; got indices from {devices[0]} to {devices[-1]}, or duplicates.")
        return devices.astype(np.intp, copy=False)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """The function of a policy, ready to be called."""

    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]  # without the first, the problem
    mode: CallMode
    own: bool  # whether it is user code

    def __call__(self, problem: Problem, settings: Settings) -> Any:
        """Call the function; user code gets a copy, so that it cannot change the problem."""
        if self.own:
            problem = copy.deepcopy(problem)
            for value in vars(problem.fleet).values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # as in the original
        known = settings.given() | {name: getattr(settings, name) for name in _COMMON}
        answer = self.function(problem, **{name: value for name, value in known.items() if name in self.parameters})
        method = answer.method if isinstance(answer, Plan) else answer
        if self.own and isinstance(method, Method) and not type(method).__module__.startswith("airfed."):
            raise ValueError(f"A policy must return a method of airfed, got {type(method).__name__}.")
        return answer

    def check(self, policy: str, settings: Settings) -> None:
        """Raise ValueError if a setting is unknown to the policy, or a required one is missing."""
        given = settings.given()
        if settings.size is not None:
            _validate.positive_integer(size=settings.size)
        for name in given:
            if name in _COMMON:
                raise ValueError(f"The option {name} has the name of a setting. Choose another name.")
            if name not in self.parameters:
                taken = ", ".join(sorted(set(self.parameters) - set(_COMMON))) or "no settings"
                raise ValueError(f"policy={policy!r} has no setting {name}: it takes {taken}.")
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and name not in (*given, *_COMMON):
                where = name if name in ("size", "threshold") else f"options.{name}"
                raise ValueError(f"policy={policy!r} needs a value of {name} (policy.{where} in a scenario).")


def _array(answer: Any) -> NDArray[Any] | None:
    """Return an answer as an array; None for ragged lists and tensors that cannot be converted."""
    try:
        return np.asarray(answer)
    except (ValueError, TypeError, RuntimeError):
        return None


def _candidate_rounds(problem: Problem, rounds: int | None) -> NDArray[np.int64]:
    if rounds is None:
        return np.arange(1, problem.learning.total_steps + 1)
    bounds.local_steps(problem.learning.total_steps, rounds)  # raises if rounds is out of range
    return np.array([int(rounds)])


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """Bound or expected accuracy with larger budgets."""

    of: Literal["bound", "accuracy"]  # the quantity; "accuracy" for a plan with that objective
    now: float
    watt: float  # with 1 W more total power
    epsilon: float  # with ε + 1
    double_power: float
    double_epsilon: float
    binding: str  # the limit that binds now


@dataclass(frozen=True, kw_only=True)
class NextDevice:
    """The strongest device that is not scheduled, and the plan if it joined."""

    device: int
    gain: float  # |h|
    limit: str  # the limit that would bind θ if it joined
    alignment: float  # θ if it joined
    bound: float  # the bound if it joined


def sensitivities(problem: Problem, planner: Callable[[Problem], Plan]) -> Sensitivities:
    """Return the sensitivity of a policy to the power and privacy budgets; a chosen beamformer is kept."""
    epsilon, power = problem.budget.epsilon, problem.budget.total_power
    now = planner(problem)
    by_accuracy = now.objective == "accuracy" and now.predicted_accuracy is not None

    def value(plan: Plan) -> float:
        if not by_accuracy:
            return plan.bound.total
        return math.nan if plan.predicted_accuracy is None else plan.predicted_accuracy

    def at(loss: float, watts: float) -> float:
        return value(planner(with_budgets(problem, epsilon=loss, total_power=watts)))

    return Sensitivities(
        of="accuracy" if by_accuracy else "bound",
        now=value(now),
        watt=at(epsilon, power + 1.0),
        epsilon=at(epsilon + 1.0, power),
        double_power=at(epsilon, 2 * power),
        double_epsilon=at(2 * epsilon, power),
        binding=now.binding,
    )


def with_budgets(problem: Problem, *, epsilon: float, total_power: float) -> Problem:
    """Return the problem with other budgets."""
    return replace(problem, budget=replace(problem.budget, epsilon=epsilon, total_power=total_power))


def next_device(plan: Plan) -> NextDevice | None:
    """Return the strongest unscheduled device of an aligned plan of equal rounds, and θ and the bound if it joined."""
    problem = plan.problem
    if problem.time_varying or not plan.amplitudes.equal or not plan.constant:
        return None
    gain = problem.fleet.gain.copy()
    gain[plan.scheduled] = 0.0
    device = int(np.argmax(gain))
    if gain[device] == 0.0:
        return None
    joined = np.sort(np.append(plan.scheduled, device))
    allowed = limits.alignment_limits(problem, joined, plan.rounds)
    limit = min(allowed, key=allowed.__getitem__)
    bound = bounds.convex_gap(
        problem.learning,
        rounds=plan.rounds,
        shortfall=1.0 - joined.size / problem.fleet.num_devices,
        noise_share=problem.update_noise_std / (joined.size * allowed[limit]),
    ).total
    bound = bound if math.isfinite(bound) else math.inf
    return NextDevice(device=device, gain=float(gain[device]), limit=limit, alignment=allowed[limit], bound=bound)
