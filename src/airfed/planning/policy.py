"""What a policy is: a function from a problem to a schedule, built in or the user's own; and its sensitivities."""

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
from airfed.planning.optimal import Aligned, completed, expected, in_time
from airfed.planning.plan import Plan
from airfed.planning.surrogate import Average, Response
from airfed.planning.time_varying import planner as time_varying
from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.planner import Samples
from airfed.problem import InfeasibleError, Problem

Asked = Literal["once", "per_round"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_RTOL: Final = 1e-9  # sums that are added up in another order
_NOT_PRIVATE: Final = "Not private: its ε stands for infinity."
# A policy need not take these: airfed heeds them itself.
_FOR_ALL: Final = ("rounds", "seed", "objective", "samples", "round_index")


def once(function: _Function) -> _Function:
    """Declare that a policy is asked once for the whole training, also where channels vary.

    It sees the problem with the gains of all rounds, and `samples` if it names that parameter; it returns a plan, or
    amplitudes of all rounds, (I, N). A policy without this is asked in each round, with the gains of that round.

    >>> import airfed
    >>> from airfed.planning import once
    >>> @once
    ... def ten_rounds(problem):
    ...     return airfed.plan(problem, policy="full", rounds=10)
    >>> airfed.load("examples/paper.toml").plan(policy=ten_rounds).rounds
    10
    """
    function.asked = "once"  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may say to a policy; each policy takes those that its function names."""

    rounds: int | None = None  # I, to fix it
    size: int | None = None  # how many devices to schedule
    threshold: float | None = None  # the smallest gain to schedule
    seed: int = 0  # of the policy's own random stream
    objective: Response | None = None  # an accuracy surrogate to plan by, or None for the smallest bound
    clip_norm: float | None = None  # ϖ, to fix it where a surrogate would choose it
    average: Average | None = None  # as in `Plan`, to fix it where a surrogate would choose it
    samples: Samples | None = None  # as in `airfed.plan`; None: all gains are known beforehand
    round_index: int = 0  # i, for a policy that is asked in each round
    options: Mapping[str, Any] = field(default_factory=dict)  # whatever else the user's own policy takes, by name

    def fixed(self) -> Settings:
        """Return the settings with a surrogate restricted to what they leave open."""
        if self.objective is None:
            if self.clip_norm is not None:
                raise ValueError("Expected no clip_norm for a plan by the bound: it is the problem's.")
            return self
        surrogate = self.objective if self.average is None else self.objective.only(average=self.average)
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)
            surrogate = surrogate.at(self.clip_norm)
        return replace(self, objective=surrogate, clip_norm=None)

    def given(self) -> dict[str, Any]:
        """Return the settings of one policy or another (not the rounds or the seed) that were given, by name."""
        named = {"size": self.size, "threshold": self.threshold}
        return {name: value for name, value in named.items() if value is not None} | dict(self.options)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A rule that schedules devices.

    Its function takes a `Problem` and those settings that it names as parameters. Asked in each round, it returns the
    devices to schedule (indices, or one truth value per device; airfed then chooses the largest feasible amplitudes and
    the best I), or their amplitudes a_k, (N,) floats. Asked once, it may also return a `Method` (a baseline), a table
    of amplitudes (I, N), or a `Plan`.

    >>> from airfed.policies import POLICIES
    >>> sorted(POLICIES["uniform"].settings), sorted(POLICIES["full"].settings)
    (['round_index', 'seed', 'size'], [])
    """

    name: str  # as in a scenario and a record
    # the rule; for the user's own code in a file, what is to be imported each time that it is asked
    function: Callable[..., Any] | _usercode.UserCode
    folder: Path = Path()  # where the user's code is looked for first
    # whether a built-in policy is asked once, or in each round; a function of the user's declares it with `once`
    asked: Asked = "per_round"
    time_varying: bool = False  # whether it differs from "optimal" only where channels vary or devices have batteries
    baseline: bool = False  # whether it is the method of another paper

    @classmethod
    def own(cls, function: Callable[..., Any]) -> Policy:
        """Return the policy that a function of the user's is."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
        return cls(name=f"{module}:{name}", function=function)

    @cached_property
    def settings(self) -> frozenset[str]:
        """The names of the settings that the policy takes."""
        with self._opened() as asked:
            return frozenset(asked.parameters)

    def digest(self) -> str:
        """Return the SHA-256 of the sources of the user's own code in a file; "" for any other policy."""
        if not isinstance(self.function, _usercode.UserCode):
            return ""
        with _usercode.opened(self.function, self.folder, role="policy") as code:
            return code.digest()

    def plan(self, problem: Problem, settings: Settings) -> Plan:
        """Return the policy's plan, completed and checked against every limit.

        Raises:
            InfeasibleError: no plan meets every limit.
            ValueError: a setting is missing or not the policy's, or the user's own code returns no schedule.
        """
        _candidate_rounds(problem, settings.rounds)  # raises where rounds is out of range
        if problem.fleet.combiner is None:
            if not problem.varies:
                plan = self._combined(problem, settings)
                aligned = plan.method is OVER_THE_AIR and plan.amplitudes.constant and plan.amplitudes.equal
                return replace(plan, lower_bound=beamforming.lower_bound(problem)) if aligned else plan
            return beamforming.noted(self.plan(beamforming.in_rounds(problem), settings))
        with self._opened() as asked:
            asked.check(self.name, settings)
            if problem.varies:
                return self._varying(asked, problem, settings)
            settings = settings.fixed()
            answer = asked(problem, settings)
        return self._decided(problem, answer, settings) or self._completed(problem, answer, settings)

    def _decided(self, problem: Problem, answer: Any, settings: Settings) -> Plan | None:
        """The plan of an answer that leaves nothing open; None for any other."""
        if isinstance(answer, Solution):
            return self._solved(problem, answer, settings)
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
                f"Expected policy {self.name!r} to return rounds={settings.rounds}, as fixed; got {table.rounds}."
            )
        return self._solved(problem, Solution(table), settings, method=method, notes=notes)

    def _completed(self, problem: Problem, answer: Any, settings: Settings) -> Plan:
        """The plan of devices that are the same in all rounds."""
        candidates, alignment = _candidate_rounds(problem, settings.rounds), None
        method = answer if isinstance(answer, Method) else OVER_THE_AIR
        notes: tuple[str, ...] = () if method.private else (_NOT_PRIVATE,)
        if isinstance(answer, Method):
            devices = method.schedule(problem)
        elif isinstance(answer, Aligned):
            devices, candidates, notes = answer.devices, np.array([answer.rounds]), (*notes, *answer.notes)
            alignment = answer.alignment
        else:
            devices = row = self._row(problem, answer)
            if row.dtype == np.float64:
                return self._received(problem, row, in_time(problem, method, row, candidates), settings)
        open_: dict[str, Any] = {"rounds": candidates, "method": method, "alignment": alignment}
        if settings.objective is not None and method.private:
            try:
                return completed(problem, self.name, devices, **open_, notes=notes, surrogate=settings.objective)
            except InfeasibleError as error:
                if not self.baseline:
                    raise
                # Baselines outside the surrogate's range are still shown.
                notes = (*notes, f"Planned by the bound: {str(error).removeprefix('No plan fits: ')}")
        plan = completed(problem, self.name, devices, **open_, notes=notes)
        return plan if settings.average is None else replace(plan, average=settings.average)

    def _received(self, problem: Problem, row: NDArray[Any], candidates: NDArray[np.int64], settings: Settings) -> Plan:
        """The plan of given amplitudes: of the numbers of rounds that keep every limit, if there are any, the best."""
        plans, refused = [], ""
        for number in thinned(candidates, row.size).tolist():
            try:
                table = Amplitudes.of_table(row, rounds=number)
                plans.append(self._solved(problem, Solution(table), settings))
            except InfeasibleError as error:
                refused = refused or str(error)
        if not plans:
            raise InfeasibleError(refused)
        return min(
            [plan for plan in plans if not plan.violations] or plans,
            key=lambda plan: plan.bound.total if settings.objective is None else -(plan.predicted_accuracy or 0.0),
        )

    def _combined(self, problem: Problem, settings: Settings) -> Plan:
        """The plan of several antennas, with the combiner that goes best with it."""

        def judge(there: Problem) -> Plan:
            return self.plan(there, settings)

        if self.baseline:  # asking it takes long; most of them have full participation
            return beamforming.judged(problem, (beamforming.aligned, beamforming.full), judge)
        if settings.objective is None:
            return beamforming.planned(problem, judge)
        by_bound = replace(settings, objective=None, clip_norm=None)
        return beamforming.judged(problem, [lambda there: self.plan(there, by_bound)], judge)

    def _varying(self, asked: _Asked, problem: Problem, settings: Settings) -> Plan:
        """The plan where channels vary or devices have batteries: rounds may differ."""
        for name in ("objective", "clip_norm"):
            if getattr(settings, name) is not None:
                raise ValueError(
                    f"Expected no {name} where channels vary or devices have batteries: each round is planned by the "
                    "bound."
                )
        if self.baseline and problem.seen_by_all:
            raise InfeasibleError(
                f"No plan fits: {self.name} is not planned round by round where every antenna is seen "
                '(trust = "radio").'
            )
        if self.baseline and problem.fleet.antennas > 1 and settings.samples is not None:
            settings = replace(settings, samples=beamforming.combined_samples(settings.samples))
        if settings.rounds is not None and settings.rounds > problem.most_rounds:
            raise InfeasibleError(
                f"No plan fits: rounds={settings.rounds} take longer on the air than the {problem.budget.air_time:g} s "
                "that there are (air_time)."
            )
        known: dict[str, Any] = {"rounds": settings.rounds, "samples": settings.samples}
        if asked.mode == "per_round":

            def decide(there: Problem, index: int) -> NDArray[Any]:
                return self._row(there, asked(there, replace(settings, round_index=index)))

            return self._solved(problem, time_varying.per_round(problem, decide, **known), settings)
        answer = asked(problem, settings)
        if (decided := self._decided(problem, answer, settings)) is not None:
            return decided
        if isinstance(answer, Method):
            found = time_varying.per_round(problem, lambda there, _: answer.schedule(there), method=answer, **known)
            return self._solved(problem, found, settings, method=answer)
        row = self._row(problem, answer)
        return self._solved(problem, time_varying.per_round(problem, lambda there, _: row, **known), settings)

    def _solved(
        self,
        problem: Problem,
        found: Solution,
        settings: Settings,
        *,
        method: Method = OVER_THE_AIR,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """The plan of amplitudes that leave nothing open."""
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
        if problem.symbols < np.inf and plan.channel_uses > problem.symbols:
            raise InfeasibleError(
                f"No plan fits: rounds={plan.rounds} take {plan.air_time:.4g} s on the air, and there are "
                f"{problem.budget.air_time:.4g} s (air_time)."
            )
        if settings.objective is not None:
            plan = expected(plan, settings.objective)
        if not plan.lower_bound <= plan.bound.total * (1 + _RTOL):
            raise ValueError(
                f"Expected policy {self.name!r} to return a lower_bound <= the plan's bound, {plan.bound.total:.5g}; "
                f"got {plan.lower_bound:.5g}."
            )
        return plan.flagged()

    @contextmanager
    def _opened(self) -> Iterator[_Asked]:
        """The function, ready to be asked; the folder of the user's own code is importable within the context."""
        if isinstance(self.function, _usercode.UserCode):
            with _usercode.opened(self.function, self.folder, role="policy") as code:
                yield self._ready(code.function, code.call, own=True)
        else:
            yield self._ready(self.function, self.function, own=":" in self.name)

    def _ready(self, function: Callable[..., Any], call: Callable[..., Any], *, own: bool) -> _Asked:
        """The function with its parameters after the first, the problem; *args and **kwargs name no setting."""
        named = list(inspect.signature(function).parameters.items())[1:]
        parameters = {name: each for name, each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        return _Asked(function=call, parameters=parameters, mode=getattr(function, "asked", self.asked), own=own)

    def _row(self, problem: Problem, answer: Any) -> NDArray[Any]:
        """K, ascending, each device once; or a_k of every device, as floats."""
        num_devices = problem.fleet.num_devices
        expected = f"Expected policy {self.name!r} to return device indices from 0 to {num_devices - 1}, each once"
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
            raise ValueError(f"{expected}; all rounds at once need airfed.planning.once.")
        if devices.ndim != 1 or devices.dtype.kind not in "iu":
            raise ValueError(f"{expected}, or {num_devices} amplitudes; got {devices.dtype} of shape {devices.shape}.")
        devices = np.sort(devices)
        if devices[0] < 0 or devices[-1] >= num_devices or np.any(devices[1:] == devices[:-1]):
            raise ValueError(f"{expected}; got indices from {devices[0]} to {devices[-1]}, or one twice.")
        return devices.astype(np.intp, copy=False)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A function of a policy, ready to be asked."""

    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]  # those after the first, which is the problem
    mode: Asked
    own: bool  # whether it is the user's

    def __call__(self, problem: Problem, settings: Settings) -> Any:
        """Ask; the user's own code gets a copy, so that the plan is about the problem as it was."""
        if self.own:
            problem = copy.deepcopy(problem)
            for value in vars(problem.fleet).values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # as they were
        known = settings.given() | {name: getattr(settings, name) for name in _FOR_ALL}
        answer = self.function(problem, **{name: value for name, value in known.items() if name in self.parameters})
        method = answer.method if isinstance(answer, Plan) else answer
        if self.own and isinstance(method, Method) and not type(method).__module__.startswith("airfed."):
            raise ValueError(
                f"Expected a method of airfed's from a policy: it cannot account for {type(method).__name__}."
            )
        return answer

    def check(self, policy: str, settings: Settings) -> None:
        """Raise ValueError where a setting is not the policy's, or one that it needs is missing."""
        given = settings.given()
        if settings.size is not None:
            _validate.positive_integer(size=settings.size)
        for name in given:
            if name in _FOR_ALL:
                raise ValueError(f"Expected no option {name}: it would be overruled; choose another name.")
            if name not in self.parameters:
                taken = ", ".join(sorted(set(self.parameters) - set(_FOR_ALL))) or "no settings"
                raise ValueError(f"Expected no {name} with policy={policy!r}: it takes {taken}.")
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and name not in (*given, *_FOR_ALL):
                where = name if name in ("size", "threshold") else f"options.{name}"
                raise ValueError(f"Expected a value of {name} (policy.{where} in a scenario) with policy={policy!r}.")


def _array(answer: Any) -> NDArray[Any] | None:
    """An answer as an array; None for ragged lists, and tensors that are no plain numbers."""
    try:
        return np.asarray(answer)
    except (ValueError, TypeError, RuntimeError):
        return None


def _candidate_rounds(problem: Problem, rounds: int | None) -> NDArray[np.int64]:
    if rounds is None:
        return np.arange(1, problem.learning.total_steps + 1)
    bounds.local_steps(problem.learning.total_steps, rounds)  # raises where rounds is out of range
    return np.array([int(rounds)])


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """What a little more of a budget buys."""

    of: Literal["bound", "accuracy"]  # what the figures are; the latter of a plan that was chosen by it
    now: float
    watt: float  # with one watt more in total
    epsilon: float  # with ε one higher
    double_power: float
    double_epsilon: float
    binding: str  # the present limit


@dataclass(frozen=True, kw_only=True)
class NextDevice:
    """The strongest device that is not scheduled, and what keeps it out."""

    device: int
    gain: float  # |h|
    limit: str  # the limit that would hold θ if it joined
    alignment: float  # that θ
    bound: float  # the bound if it joined


def sensitivities(problem: Problem, planner: Callable[[Problem], Plan]) -> Sensitivities:
    """Return what one more watt and one more unit of ε buy a policy; a beamformer that is chosen stays."""
    epsilon, power = problem.budget.epsilon, problem.budget.total_power
    now = planner(problem)
    by_accuracy = now.objective == "measured" and now.predicted_accuracy is not None

    def figure(plan: Plan) -> float:
        if not by_accuracy:
            return plan.bound.total
        return math.nan if plan.predicted_accuracy is None else plan.predicted_accuracy

    def at(loss: float, watts: float) -> float:
        return figure(planner(with_budgets(problem, epsilon=loss, total_power=watts)))

    return Sensitivities(
        of="accuracy" if by_accuracy else "bound",
        now=figure(now),
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
    """Return the strongest device that an aligned plan of equal rounds leaves out, and θ and the bound if it joins."""
    problem = plan.problem
    if problem.varies or not plan.amplitudes.equal or not plan.constant:
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
        noise_share=problem.link.noise_std / (joined.size * allowed[limit]),
    ).total
    bound = bound if math.isfinite(bound) else math.inf
    return NextDevice(device=device, gain=float(gain[device]), limit=limit, alignment=allowed[limit], bound=bound)
