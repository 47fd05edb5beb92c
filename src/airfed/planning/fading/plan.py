"""A plan whose rounds differ in their devices, and everything that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from airfed import convergence
from airfed.planning import limits
from airfed.planning._equal import Floats
from airfed.planning.fading._cells import Bools
from airfed.planning.fading.rounds import VaryingSequence
from airfed.planning.fading.sequence import Sequence
from airfed.planning.limits import Binding
from airfed.planning.plan import Plan
from airfed.planning.uplink import ALIGNED, Uplink, Uploads
from airfed.privacy import compose_all
from airfed.privacy.members import Members
from airfed.problem import Problem

_AS_GOOD: Final = 1e-9  # limits as close to each other as this bind together: they differ by rounding only
# Of limits that bind together, the one that ties the rounds to each other is named.
_FIRST: Final = ("total_power", "device_power", "privacy", "peak_power")


@dataclass(frozen=True, kw_only=True, eq=False)
class FadingPlan(Plan):
    """A decision for each round, about a problem whose gains change or whose devices have batteries.

    What one number says of a constant plan is here: `scheduled`, everybody who ever transmits; `alignment`, the largest
    θ_i; `power`, what each of them transmits in its largest round; `mu_round`, that of the most exposed round;
    `mu_total` and `epsilon_total`, those of the most exposed device, which counts the rounds it transmits in;
    `limits`, the largest `alignment` if all θ_i grew together.

    Args:
        member: who is in K_i, (I, N).
        alignments: θ_i, (I,).
        lower_bound: no plan has a smaller `bound.total`; −inf where none is known.

    Raises:
        ValueError: as in `Plan`, or a round has no device or no positive θ, or θ, ϖ or power are to follow a course.
    """

    member: Bools
    alignments: Floats
    lower_bound: float = -math.inf

    @classmethod
    def of(
        cls,
        problem: Problem,
        policy: str,
        found: Sequence,
        *,
        notes: tuple[str, ...] = (),
        average: Any = "none",
        uplink: Uplink = ALIGNED,
    ) -> FadingPlan:
        """Return the plan of a sequence.

        Args:
            problem: what was decided about.
            policy: who decided.
            found: the decisions.
            notes, average, uplink: as in `Plan`.

        Raises:
            ValueError: it has no rounds, or its arrays are none of rounds and devices.
        """
        member, theta = np.asarray(found.member, dtype=np.bool_), np.asarray(found.alignment, dtype=np.float64)
        if member.ndim != 2 or theta.ndim != 1 or not theta.size:
            raise ValueError(
                f"Expected member of shape (rounds, devices) and alignment (rounds,), of one round or more; got "
                f"{member.shape} and {theta.shape}."
            )
        return cls(
            problem=problem,
            policy=policy,
            scheduled=np.flatnonzero(member.any(axis=0)),
            alignment=float(theta.max()),
            rounds=theta.size,
            member=member,
            alignments=theta,
            lower_bound=found.lower_bound,
            notes=notes,
            average=average,
            uplink=uplink,
        )

    def __post_init__(self) -> None:
        member, theta = np.array(self.member, dtype=np.bool_), np.array(self.alignments, dtype=np.float64)
        shape = (self.rounds, self.problem.fleet.num_devices)
        if member.shape != shape or theta.shape != shape[:1] or not member.any(axis=1).all():
            raise ValueError(
                f"Expected one device or more of {shape[1]} and an alignment in each of {shape[0]} rounds."
            )
        if self.problem.fleet.changes and len(self.problem.fleet.gain) < self.rounds:
            raise ValueError(f"Expected gains of {self.rounds} rounds; there are {len(self.problem.fleet.gain)}.")
        if not (np.all(theta > 0) and theta.max() == self.alignment):
            raise ValueError("Expected every alignment of a round > 0, and the largest of them as the plan's.")
        if not np.array_equal(np.flatnonzero(member.any(axis=0)), self.scheduled):
            raise ValueError("Expected everybody who ever transmits as scheduled.")
        if (self.growth, self.clip_decay, self.power_share) != (1.0, 1.0, 1.0):
            raise ValueError("Expected growth, clip_decay and power_share of 1 where each round is decided on its own.")
        for array, name in ((member, "member"), (theta, "alignments")):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        super().__post_init__()

    def of_rounds(self, places: NDArray[np.intp], devices: NDArray[np.intp] | None = None) -> FadingPlan:
        """Return the plan of some of its rounds only, and of some devices, which may occur several times.

        Args:
            places: which rounds, in their order.
            devices: who; everybody unless told. Each of them must transmit in one of the rounds or more.
        """
        fleet = self.problem.fleet
        who = np.arange(fleet.num_devices) if devices is None else devices
        learning = replace(self.problem.learning, total_steps=max(self.problem.learning.total_steps, places.size))
        member, theta = self.member[np.ix_(places, who)], self.alignments[places]
        return replace(
            self,
            problem=replace(
                self.problem,
                fleet=fleet.part(who, places),
                learning=learning,
                budget=replace(self.problem.budget, device_power=None),
            ),
            rounds=places.size,
            member=member,
            alignments=theta,
            alignment=float(theta.max()),
            scheduled=np.flatnonzero(member.any(axis=0)),
            lower_bound=-math.inf,
        )

    @property
    def constant(self) -> bool:
        """Whether all rounds are alike; here they are not."""
        return False

    @cached_property
    def sizes(self) -> Any:
        """|K_i|, (I,)."""
        return np.count_nonzero(self.member, axis=1)

    @property
    def noise_share(self) -> float:
        """The root of the mean of (σ/(|K_i|θ_i))²: the noise per coordinate of the recovered mean, as a share of ϖ."""
        if self.uplink == ALIGNED:
            share = self.problem.link.noise_std / (self.sizes * self.alignments)
        else:
            share = np.array([each.noise_share for each in self._all_uploads])
        return float(np.sqrt(np.mean(np.square(share))))

    @property
    def device_share(self) -> float:
        """The mean of |K_i|/N; where devices do not arrive alike, the share of the mean that they make up."""
        if self.uplink == ALIGNED:
            return float(np.mean(self.sizes)) / self.problem.fleet.num_devices
        return 1.0 - float(np.mean([each.missing for each in self._all_uploads]))

    @property
    def channel_uses(self) -> float:
        """Symbols that all rounds take on the air."""
        return float(sum(each.channel_uses for each in self._all_uploads))

    def uploads_in(self, index: int) -> Uploads:
        """Return how the uploads of round i arrive, and what they cost."""
        return self.sequence.uploads(range(self.rounds)[index])

    @property
    def _all_uploads(self) -> Iterator[Uploads]:
        return map(self.sequence.uploads, range(self.rounds))

    @cached_property
    def sequence(self) -> VaryingSequence:  # type: ignore[override]
        """What is decided about each round: the only source for whoever handles one."""
        return VaryingSequence(
            problem=self.problem,
            uplink=self.uplink,
            member=self.member,
            scheduled=self.scheduled,
            local_steps=self.local_steps,
            alignments=self.alignments,
            clip_norms=np.broadcast_to(np.float64(self.clip_norm), (self.rounds,)),
            mus=self._mus,
            delta=self.problem.budget.delta,
        )

    @property
    def _mus(self) -> Floats:
        """μ_i, (I,)."""
        sensitivity, fleet = self.problem.budget.sensitivity, self.problem.fleet
        if self.uplink == ALIGNED:
            return np.asarray(sensitivity * (self.alignments * self._amplifications) / self.problem.link.noise_std)
        hidden = []
        for index, on in enumerate(self.member):
            gain, peak, theta = fleet.gain_in(index)[on], fleet.peak_power[on], float(self.alignments[index])
            hidden.append(self.uplink.uploads(self.problem, gain, peak, theta, self.rounds).hidden_by)
        return np.asarray(sensitivity * (self.alignments * self._amplifications) / np.array(hidden))

    @cached_property
    def bound(self) -> convergence.Bound:
        """Theorem 1 for this decision, term by term."""
        return convergence.sequence_gap(self.problem.learning, **self._rounds)

    @cached_property
    def gradient_bound(self) -> convergence.Bound:
        """Theorem 2 for this decision (non-convex losses), term by term."""
        return convergence.sequence_squared_gradient(self.problem.learning, **self._rounds)

    @property
    def _rounds(self) -> dict[str, Any]:
        """What the bounds are told: of other schemes, as many devices and such θ as lead to their errors."""
        size, theta = self.sizes, self.alignments
        noise_std: Any = self.problem.link.noise_std
        if self.uplink != ALIGNED:
            every = list(self._all_uploads)
            size = np.array([(1.0 - each.missing) * self.problem.fleet.num_devices for each in every])
            theta = np.array([each.divisor for each in every]) / size
            noise_std = np.array([each.noise_std for each in every])
        return {
            "num_scheduled": size,
            "num_devices": self.problem.fleet.num_devices,
            "alignment": theta,
            "noise_std": noise_std,
        }

    @cached_property
    def power(self) -> Floats:
        """[W] that each scheduled device transmits in its largest round, at most (‖g_k‖ = ϖ)."""
        power = self.sequence.largest_power()
        power.flags.writeable = False
        return power

    @cached_property
    def limits(self) -> dict[Binding, float]:
        """The largest θ that each limit would allow, if all θ_i grew together."""
        problem, theta = self.problem, self.alignment
        if self.uplink != ALIGNED:
            return self._other_limits()
        allowed = limits.allowed_mu(problem.budget)
        with np.errstate(divide="ignore"):
            found: dict[Binding, float] = {
                "privacy": theta * allowed / (self.mu_total if problem.budget.scope == "total" else self.mu_round),
                "peak_power": theta * float(np.min(self.ceilings["peak_power"] / self.alignments)),
                "total_power": theta * math.sqrt(problem.budget.total_power / self.power_total),
            }
        if problem.budget.device_power is not None:
            batteries = np.broadcast_to(problem.budget.device_power, problem.fleet.num_devices)[self.scheduled]
            found["device_power"] = theta * math.sqrt(
                float(np.min(batteries / self.sequence.device_power(self.rounds)))
            )
        return found

    def _other_limits(self) -> dict[Binding, float]:
        """As `limits`, of another scheme, each round of which has an equal share of every budget."""
        room: dict[Binding, float] = {}
        for index, on in enumerate(self.member):
            each = self.uplink.limits(self.problem.at(index), np.flatnonzero(on), self.rounds)
            for name, largest in each.items():
                room[name] = min(room.get(name, math.inf), largest / float(self.alignments[index]))
        return {name: self.alignment * more for name, more in room.items()}

    @cached_property
    def ceilings(self) -> dict[Binding, Floats]:
        """The largest θ_i that the limits on one round allow to K_i, (I,) each."""
        problem = self.problem
        root = np.sqrt(problem.fleet.peak_power)
        peak = [float(np.min((problem.fleet.gain_in(index) * root)[on])) for index, on in enumerate(self.member)]
        mu = limits.allowed_mu(problem.budget)
        cap = problem.link.noise_std * mu / problem.budget.sensitivity / self._amplifications
        return {"privacy": cap, "peak_power": np.array(peak)}

    @property
    def binding(self) -> Binding:
        """The limit that holds the plan."""
        edge = min(self.limits.values()) * (1 + _AS_GOOD)
        return next(name for name in _FIRST if self.limits.get(name, math.inf) <= edge)

    @cached_property
    def _amplifications(self) -> Floats:
        """max f_k over K_i, (I,): how much stronger than θ_i a device may arrive."""
        if self.uplink != ALIGNED:
            found = (
                self.uplink.amplification(self.problem.at(index), np.flatnonzero(on))
                for index, on in enumerate(self.member)
            )
            return np.array(list(found))
        factors = limits.amplifications(self.problem)
        if factors.ndim == 1:
            factors = np.broadcast_to(factors, self.member.shape)
        return np.asarray(np.max(factors[: self.rounds], axis=1, where=self.member, initial=1.0))

    @cached_property
    def amplification(self) -> float:
        """max f_k over all rounds; 1 where the channels are known."""
        return float(self._amplifications.max())

    @property
    def mu_round(self) -> float:
        """The largest μ_i."""
        return float(self.sequence.mus.max())

    @cached_property
    def most_exposed(self) -> int:
        """The device whose privacy costs most over the training; of several the first."""
        return int(self.scheduled[np.argmax(self.sequence.exposures())])

    @cached_property
    def mu_total(self) -> float:
        """√Σμ_i² over the rounds of the most exposed device."""
        return compose_all(self.sequence.mus[self.member[:, self.most_exposed]])

    @classmethod
    def _recorded(cls, problem: Problem, recorded: Mapping[str, Any], **values: Any) -> Self:
        rounds = recorded["sequence"]
        member = np.zeros((len(rounds), problem.fleet.num_devices), dtype=np.bool_)
        for row, entry in zip(member, rounds, strict=True):
            row[Members.parse(entry["members"], row.size).devices] = True
        theta = np.array([entry["alignment"] for entry in rounds])
        lower = recorded.get("lower_bound")
        return cls(
            problem=problem,
            member=member,
            alignments=theta,
            lower_bound=-math.inf if lower is None else lower,
            **values,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, under the names of its attributes, ready for JSON."""
        rounds = [
            {
                "members": Members.of(entry.scheduled, self.problem.fleet.num_devices).text,
                "num_scheduled": entry.scheduled.size,
                "alignment": entry.alignment,
                "local_steps": entry.local_steps,
                "power": entry.power_planned,
                "mu": entry.mu,
            }
            for entry in self.sequence
        ]
        lower = None if self.lower_bound == -math.inf else self.lower_bound
        return super().to_dict() | {"lower_bound": lower, "most_exposed": self.most_exposed, "sequence": rounds}
