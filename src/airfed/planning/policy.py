"""What a policy is: a function from a problem to a decision, built in or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airfed import _usercode, _validate, convergence
from airfed.course import Course
from airfed.planning import limits
from airfed.planning.plan import FEASIBILITY_RTOL, Average, Plan
from airfed.planning.response import Response
from airfed.problem import InfeasibleError, Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """What a policy decides. Whatever it leaves open airfed chooses: the largest feasible θ, the best I and ϖ.

    Args:
        scheduled: K, device indices in any order, or one truth value per device.
        alignment: θ, where the policy wants another than the largest that every limit allows.
        rounds: I, where the policy wants another than the best one.
        notes: remarks that a reader of the plan must know.

    >>> def strongest_three(problem):
    ...     return Decision(scheduled=problem.fleet.gain.argsort()[-3:], rounds=10)
    >>> from airfed import load, plan
    >>> plan(load("examples/paper.toml").problem(), policy=strongest_three).num_scheduled
    3
    """

    scheduled: ArrayLike
    alignment: float | None = None
    rounds: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # What a record cannot hold must be told now: later a training would be charged that nobody can read.
        if not isinstance(self.notes, tuple | list) or not all(map(_is_note, self.notes)):
            raise ValueError(
                f"Expected notes to be texts of at most {_LONGEST_NOTE} characters, got {self.notes!r:.80}."
            )
        object.__setattr__(self, "notes", tuple(self.notes))


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
        average: what the receiver does with the models, as in `Plan`.
        growth, clip_decay, power_share: how θ and ϖ move over the rounds, as in `Plan`.
        options: whatever else the user's own policy takes, by name.
    """

    rounds: int | None = None
    size: int | None = None
    threshold: float | None = None
    seed: int = 0
    objective: Response | None = None
    clip_norm: float | None = None
    average: Average = "none"
    growth: float = 1.0
    clip_decay: float = 1.0
    power_share: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def course(self) -> Course:
        """How θ and ϖ move over the rounds, as one value; a policy that names it is told."""
        return Course(growth=self.growth, clip_decay=self.clip_decay, power_share=self.power_share)

    def given(self) -> dict[str, Any]:
        """Return the settings of one policy or another (not the rounds or the seed) that were given, by name."""
        named = {"size": self.size, "threshold": self.threshold}
        return {name: value for name, value in named.items() if value is not None} | dict(self.options)


_LONGEST_NOTE: Final = 1000  # characters
_FOR_ALL: Final = (
    "rounds",
    "seed",
    "objective",
    "course",
)  # settings that a policy need not take: airfed heeds them itself


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Who decides.

    Args:
        name: how a scenario and a record call it.
        function: from a `Problem`, and those settings that it names as parameters, to device indices or a `Decision`;
            for the user's own code in a file, what is to be imported each time that it is asked.
        folder: where the user's code is looked for first.

    >>> from airfed.planning import POLICIES
    >>> sorted(POLICIES["uniform"].settings), sorted(POLICIES["full"].settings)
    (['seed', 'size'], [])
    """

    name: str
    function: Callable[..., Any] | _usercode.UserCode
    folder: Path = Path()

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
        if settings.clip_norm is not None:
            if settings.objective is None:
                raise ValueError("Expected no clip_norm for a plan by the bound: it is the problem's.")
            _validate.positive(clip_norm=settings.clip_norm)
            settings = replace(settings, objective=settings.objective.at(settings.clip_norm), clip_norm=None)
        with self._opened() as (decide, parameters):
            self._check(settings, parameters)
            known = settings.given() | {name: getattr(settings, name) for name in _FOR_ALL}
            decided = decide(problem, **{name: value for name, value in known.items() if name in parameters})
        decision = decided if isinstance(decided, Decision) else Decision(scheduled=decided)
        scheduled = self._devices(problem, decision.scheduled)
        if decision.rounds is not None:
            candidates = _candidate_rounds(problem, decision.rounds)
        plan = _completed(problem, self.name, decision, scheduled, candidates, settings)
        return plan if settings.average == plan.average else replace(plan, average=settings.average)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Callable[..., Any], dict[str, inspect.Parameter]]]:
        """The function and its settings; the folder of the user's own code is importable within the context."""
        if not isinstance(self.function, _usercode.UserCode):
            yield self.function, _parameters(self.function)
            return
        with _usercode.opened(self.function, self.folder, role="policy") as code:
            yield code.call, _parameters(code.function)

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


def _is_note(note: Any) -> bool:
    """Whether a remark is a text that can be written down and read again."""
    return isinstance(note, str) and len(note) <= _LONGEST_NOTE and note.isprintable()


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters after the first, which is the problem; *args and **kwargs name no setting."""
    named = list(inspect.signature(function).parameters.items())[1:]
    return {name: each for name, each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def _candidate_rounds(problem: Problem, rounds: int | None) -> NDArray[np.int64]:
    total_steps = problem.learning.total_steps
    if rounds is None:
        return np.arange(1, total_steps + 1)
    convergence.local_steps(total_steps, rounds)  # raises where rounds is out of range
    return np.array([int(rounds)])


def _completed(
    problem: Problem,
    policy: str,
    decision: Decision,
    scheduled: NDArray[np.intp],
    rounds: NDArray[np.int64],
    settings: Settings,
) -> Plan:
    """The decision with the largest feasible θ and the best of the given numbers of rounds, where it left them open."""
    response, course = settings.objective, settings.course
    if response is not None:
        rounds = response.known(rounds)
    if decision.alignment is None:
        theta = limits.largest_alignment(
            problem, scheduled, rounds, crest=course.crests(rounds), power_share=course.power_share
        )
    else:
        _validate.positive(alignment=decision.alignment)
        theta = np.full(rounds.shape, float(decision.alignment))
    best, clip_norm = _best_rounds(problem, scheduled, theta, rounds, response, course)
    if clip_norm != problem.learning.clip_norm:
        problem = replace(problem, learning=replace(problem.learning, clip_norm=clip_norm))
    completed = Plan(
        problem=problem,
        policy=policy,
        scheduled=scheduled,
        alignment=float(theta[best]),
        rounds=int(rounds[best]),
        notes=decision.notes,
        objective="bound" if response is None else "measured",
        growth=course.growth,
        clip_decay=course.clip_decay,
        power_share=course.power_share,
    )
    if response is not None:
        completed = predicted(completed, response)
    broken = tuple(
        f"This plan breaks the {name} limit: θ = {theta[best]:.6g} where {completed.limits[name]:.6g} is allowed."
        for name in completed.violations
    )
    return replace(completed, notes=(*decision.notes, *broken)) if broken else completed


def predicted(plan: Plan, response: Response) -> Plan:
    """Return the plan with the accuracy that a response expects of it; none outside of what was measured."""
    found = response.prediction(
        rounds=plan.rounds,
        clip_norm=plan.clip_norm,
        noise=plan.noise_share,
        share=plan.num_scheduled / plan.problem.fleet.num_devices,
    )
    return replace(plan, prediction=found)


def _best_rounds(
    problem: Problem,
    scheduled: NDArray[np.intp],
    theta: NDArray[np.float64],
    rounds: NDArray[np.int64],
    response: Response | None,
    course: Course,
) -> tuple[int, float]:
    """The index of the best number of rounds, among those whose θ is feasible if there are any, and its ϖ."""
    size, num_devices, learning = scheduled.size, problem.fleet.num_devices, problem.learning
    clip_norm, crest = np.full(rounds.shape, learning.clip_norm), course.crests(rounds)
    with np.errstate(divide="ignore", over="ignore"):
        noise = problem.link.noise_std / (size * theta)
        if response is None:
            weight = 0.5 * learning.dimension * convergence.noise_factors(learning, rounds, course)
            error = convergence.participation_error(size, num_devices) + weight * np.square(noise)
            objective = convergence.round_offsets(learning, rounds, course)
            objective += convergence.round_scales(learning, rounds, course) * error
        else:
            noise = noise * crest  # that of θ_rms
            accuracy, clip_norm = response.best(rounds=rounds, noise=noise, share=size / num_devices)
            objective = -accuracy
    if rounds.size > 1:
        most = limits.largest_alignment(problem, scheduled, rounds, crest=crest, power_share=course.power_share)
        feasible = theta <= most * (1 + FEASIBILITY_RTOL)
        objective[~feasible & feasible.any()] = np.inf
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise InfeasibleError(
            "No plan fits: the limits leave so little signal that the bound is not a finite number "
            f"(the alignment would be {theta[best]:.3g})."
            if response is None
            else f"No plan fits: {response.too_noisy(float(noise.min()))}"
        )
    return best, float(clip_norm[best])
