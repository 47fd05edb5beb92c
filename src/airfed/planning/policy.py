"""What a policy is: a function from a problem to a decision, built in or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _usercode, _validate, convergence
from airfed.course import Course
from airfed.planning import combining, others, varying
from airfed.planning.completion import by_bound, by_response, expected, flagged
from airfed.planning.decision import Average, Decision
from airfed.planning.fading import Sequence
from airfed.planning.fading.plan import FadingPlan
from airfed.planning.plan import Plan
from airfed.planning.response import Response
from airfed.planning.uplink import ALIGNED, Uplink
from airfed.planning.varying import Draws
from airfed.problem import InfeasibleError, Problem


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may say to a policy; each policy takes those that its function names.

    Args:
        rounds: I, to fix it.
        size: how many devices to schedule.
        threshold: the smallest gain to schedule.
        seed: of the policy's own random stream.
        objective: what is best: the highest accuracy of a measured response, or None for the smallest bound.
        clip_norm: ϖ, to fix it where a response would choose it.
        average, growth, clip_decay: as in `Plan`, to fix them; otherwise a response chooses among what it has measured,
            and by the bound there is no average, and neither θ nor ϖ moves.
        power_share: as in `Plan`, of a plan by the bound.
        law: of gains that change: draws of them, (draws, rounds, N), or a function that makes some for the rounds to
            come, given the gains so far; None: all gains are known beforehand.
        round_index: i, to a policy that is asked in each round.
        options: whatever else the user's own policy takes, by name.
    """

    rounds: int | None = None
    size: int | None = None
    threshold: float | None = None
    seed: int = 0
    objective: Response | None = None
    clip_norm: float | None = None
    average: Average | None = None
    growth: float | None = None
    clip_decay: float | None = None
    power_share: float = 1.0
    law: Draws | None = None
    round_index: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def course(self) -> Course:
        """How θ and ϖ move over the rounds of a plan by the bound, as one value; a policy that names it is told."""
        growth, decay = (1.0 if value is None else value for value in (self.growth, self.clip_decay))
        return Course(growth=growth, clip_decay=decay, power_share=self.power_share)

    def fixed(self) -> Settings:
        """Return the settings with a response that knows of nothing but what they leave open.

        Raises:
            InfeasibleError: what they fix was not measured.
            ValueError: ϖ is fixed for a plan by the bound.
        """
        if self.objective is None:
            if self.clip_norm is not None:
                raise ValueError("Expected no clip_norm for a plan by the bound: it is the problem's.")
            return self
        response = self.objective.only(average=self.average, growth=self.growth, clip_decay=self.clip_decay)
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)
            response = response.at(self.clip_norm)
        return replace(self, objective=response, clip_norm=None)

    def given(self) -> dict[str, Any]:
        """Return the settings of one policy or another (not the rounds or the seed) that were given, by name."""
        named = {"size": self.size, "threshold": self.threshold}
        return {name: value for name, value in named.items() if value is not None} | dict(self.options)


_RTOL: Final = 1e-9  # sums that are added up in another order
# A policy need not take these: airfed heeds them itself.
_FOR_ALL: Final = ("rounds", "seed", "objective", "course", "law", "round_index")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Who decides.

    Args:
        name: how a scenario and a record call it.
        function: from a `Problem`, and those settings that it names as parameters, to device indices or a `Decision`;
            for the user's own code in a file, what is to be imported each time that it is asked.
        folder: where the user's code is looked for first.
        for_varying: whether it is "optimal" itself but where gains change or devices have batteries.
        rival: whether it is a scheme of the field's, of another way over the air or none.

    >>> from airfed.planning import POLICIES
    >>> sorted(POLICIES["uniform"].settings), sorted(POLICIES["full"].settings)
    (['round_index', 'seed', 'size'], [])
    """

    name: str
    function: Callable[..., Any] | _usercode.UserCode
    folder: Path = Path()
    for_varying: bool = False
    rival: bool = False

    @classmethod
    def own(cls, function: Callable[..., Any]) -> Policy:
        """Return the policy that a function of the user's is."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
        return cls(name=f"{module}:{name}", function=function)

    @cached_property
    def settings(self) -> frozenset[str]:
        """The names of the settings that the policy takes."""
        with self._opened() as (_, parameters):
            return frozenset(parameters)

    def digest(self) -> str:
        """Return the SHA-256 of the sources of the user's own code in a file; "" for any other policy."""
        if not isinstance(self.function, _usercode.UserCode):
            return ""
        with _usercode.opened(self.function, self.folder, role="policy") as code:
            return code.digest()

    def plan(self, problem: Problem, settings: Settings) -> Plan:
        """Return the plan about a problem: what the policy decides, completed and checked against every limit.

        Raises:
            InfeasibleError: no plan meets every limit.
            ValueError: a setting is missing or not the policy's, or what the user's own code returns is no decision.
        """
        candidates = _candidate_rounds(problem, settings.rounds)
        if problem.fleet.antennas > 1 and problem.fleet.combiner is None:
            if not problem.varies:
                return self._combined(problem, settings)
            return combining.noted(self._varying(combining.in_rounds(problem), settings))
        if problem.varies:
            return self._varying(problem, settings)
        settings = settings.fixed()
        with self._opened() as (ask, parameters):
            self._check(settings, parameters)
            decided = ask(problem, settings)
        if isinstance(decided, Sequence):
            return self._sequence(problem, decided, settings)
        scheduled, decision = self._devices_of(problem, decided)
        if decision.rounds is not None:
            candidates = _candidate_rounds(problem, decision.rounds)
        if settings.objective is not None and decision.uplink.predictable:
            try:
                return by_response(problem, decision, scheduled, candidates, settings.objective, self.name)
            except InfeasibleError as error:
                if not self.rival:
                    raise
                # A rival that nobody would measure for is still to be seen.
                decision = replace(decision, notes=(*decision.notes, f"Planned by the bound: {_reason(error)}"))
        plan = by_bound(problem, decision, scheduled, candidates, settings.course, self.name)
        return plan if settings.average is None else replace(plan, average=settings.average)

    def _combined(self, problem: Problem, settings: Settings) -> Plan:
        """The plan of several antennas, with the combiner that goes best with it."""

        def judge(there: Problem) -> Plan:
            return self.plan(there, settings)

        if self.rival:  # asking it takes long; most of them have everybody send
            return combining.judged(problem, (combining.aligned, combining.everybody), judge)
        if settings.objective is None:
            return combining.planned(problem, judge)
        by_bound = replace(settings, objective=None, clip_norm=None)
        return combining.judged(problem, [lambda there: self.plan(there, by_bound)], judge)

    def _varying(self, problem: Problem, settings: Settings) -> FadingPlan:
        """The plan where gains change or devices have batteries: a decision for each round."""
        for name, nothing in (("objective", None), ("clip_norm", None), ("growth", 1.0), ("clip_decay", 1.0)):
            if getattr(settings, name) not in (None, nothing):
                raise ValueError(
                    f"Expected no {name} where gains change or devices have batteries: each round is decided on its "
                    "own, by the bound."
                )
        notes: tuple[str, ...] = ()
        uplink = ALIGNED
        if self.rival and problem.seen_by_all:
            raise InfeasibleError(
                f"No plan fits: {self.name} is not planned for round by round where every antenna is seen "
                '(trust = "radio").'
            )
        if self.rival and problem.fleet.antennas > 1 and settings.law is not None:
            settings = replace(settings, law=combining.heard_law(settings.law))
        if settings.rounds is not None and settings.rounds > problem.most_rounds:
            raise InfeasibleError(
                f"No plan fits: rounds={settings.rounds} take longer on the air than the {problem.budget.air_time:g} s "
                "that there are (air_time)."
            )
        with self._opened() as (ask, parameters):
            self._check(settings, parameters)
            if "law" in parameters:
                decided = ask(problem, settings)
            else:

                def asked(there: Problem, index: int) -> tuple[NDArray[np.intp], Decision]:
                    return self._devices_of(there, ask(there, replace(settings, round_index=index)))

                first = asked(problem.at(0), 0)[1]
                notes, uplink = first.notes, first.uplink
                per_round = varying.per_round if uplink == ALIGNED else others.per_round
                decided = per_round(problem, asked, first=first, rounds=settings.rounds, law=settings.law)
        return self._sequence(problem, decided, settings, notes=notes, uplink=uplink)

    def _sequence(
        self,
        problem: Problem,
        decided: Any,
        settings: Settings,
        *,
        notes: tuple[str, ...] = (),
        uplink: Uplink = ALIGNED,
    ) -> FadingPlan:
        """The plan of a decision for each round."""
        if not isinstance(decided, Sequence):
            raise ValueError(f"Expected policy {self.name!r} to return a Sequence; got {type(decided).__name__}.")
        average = settings.average or "none"
        plan = FadingPlan.of(problem, self.name, decided, notes=notes, average=average, uplink=uplink)
        if settings.objective is not None:
            plan = expected(plan, settings.objective)
        if not plan.lower_bound <= plan.bound.total * (1 + _RTOL):
            raise ValueError(
                f"Expected policy {self.name!r} to return a lower_bound <= the plan's bound, {plan.bound.total:.5g}; "
                f"got {plan.lower_bound:.5g}."
            )
        return flagged(plan)

    def _devices_of(self, problem: Problem, decided: Any) -> tuple[NDArray[np.intp], Decision]:
        """K and the decision about one channel."""
        decision = decided if isinstance(decided, Decision) else Decision(scheduled=decided)
        return self._devices(problem, decision.scheduled), decision

    @contextmanager
    def _opened(self) -> Iterator[tuple[Callable[[Problem, Settings], Any], dict[str, inspect.Parameter]]]:
        """What asks the function, which is told the settings that it names, and those settings.

        The folder of the user's own code is importable within the context.
        """
        if isinstance(self.function, _usercode.UserCode):
            with _usercode.opened(self.function, self.folder, role="policy") as code:
                parameters = _parameters(code.function)
                yield partial(_answer, code.call, parameters), parameters
        else:
            parameters = _parameters(self.function)
            yield partial(_answer, self.function, parameters), parameters

    def _check(self, settings: Settings, parameters: Mapping[str, inspect.Parameter]) -> None:
        given = settings.given()
        if settings.size is not None:
            _validate.positive_integer(size=settings.size)
        for name in given:
            if name in _FOR_ALL:
                raise ValueError(f"Expected no option {name}: it would be overruled; choose another name.")
            if name not in parameters:
                taken = ", ".join(sorted(set(parameters) - set(_FOR_ALL))) or "no settings"
                raise ValueError(f"Expected no {name} with policy={self.name!r}: it takes {taken}.")
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and name not in (*given, *_FOR_ALL):
                where = name if name in ("size", "threshold") else f"options.{name}"
                raise ValueError(
                    f"Expected a value of {name} (policy.{where} in a scenario) with policy={self.name!r}."
                )

    def _devices(self, problem: Problem, scheduled: ArrayLike) -> NDArray[np.intp]:
        """K, ascending, each device once."""
        num_devices = problem.fleet.num_devices
        expected = f"Expected policy {self.name!r} to return device indices from 0 to {num_devices - 1}, each once"
        try:
            devices = np.asarray(scheduled)
        except (ValueError, TypeError, RuntimeError):  # ragged lists, tensors that are no plain numbers
            raise ValueError(f"{expected}; got {type(scheduled).__name__}.") from None
        if devices.dtype == bool and devices.shape == (num_devices,):
            devices = np.flatnonzero(devices)
        if devices.size == 0:
            raise InfeasibleError(f"No plan fits: policy {self.name!r} schedules no device.")
        if devices.ndim != 1 or devices.dtype.kind not in "iu":
            raise ValueError(f"{expected}; got {devices.dtype} of shape {devices.shape}.")
        devices = np.sort(devices)
        if devices[0] < 0 or devices[-1] >= num_devices or np.any(devices[1:] == devices[:-1]):
            raise ValueError(f"{expected}; got indices from {devices[0]} to {devices[-1]}, or one twice.")
        return devices.astype(np.intp, copy=False)


def _answer(function: Callable[..., Any], names: Collection[str], problem: Problem, settings: Settings) -> Any:
    known = settings.given() | {name: getattr(settings, name) for name in _FOR_ALL}
    return function(problem, **{name: value for name, value in known.items() if name in names})


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters after the first, which is the problem; *args and **kwargs name no setting."""
    named = list(inspect.signature(function).parameters.items())[1:]
    return {name: each for name, each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def _reason(error: InfeasibleError) -> str:
    return str(error).removeprefix("No plan fits: ")


def _candidate_rounds(problem: Problem, rounds: int | None) -> NDArray[np.int64]:
    if rounds is None:
        return np.arange(1, problem.learning.total_steps + 1)
    convergence.local_steps(problem.learning.total_steps, rounds)  # raises where rounds is out of range
    return np.array([int(rounds)])
