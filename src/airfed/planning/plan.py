"""The decision, and everything that follows from it.

A `Plan` holds who transmits, how strongly and in how many rounds. Transmit powers, privacy and the bound are derived
from it: nobody passes σ or ε beside a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, convergence
from airfed._upstairs import upstairs
from airfed.planning import reach, record
from airfed.planning.decision import Average
from airfed.planning.limits import Binding
from airfed.planning.response import Prediction
from airfed.planning.sequence import RoundSequence
from airfed.planning.uplink import ALIGNED, Uplink, Uploads
from airfed.privacy import classic_epsilon, classic_validity, compose, gaussian_epsilon
from airfed.problem import Budget, InfeasibleError, Problem, Trust

Objective = Literal["bound", "measured"]

# How far above a limit a plan may lie before it counts as broken: rounding, nothing else.
FEASIBILITY_RTOL = 1e-12
# What a decision leads to lies in this range: nothing that is derived from it, an ε or a ratio of bounds, overflows.
SMALLEST_FIGURE, LARGEST_FIGURE = 1e-150, 1e150


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A decision about one problem.

    Args:
        problem: what was decided about.
        policy: who decided.
        scheduled: K, device indices in the order of `fleet.gain`, ascending.
        alignment: θ = νϖ, the amplitude with which every scheduled device arrives at full norm.
        rounds: I.
        notes: remarks of the policy that a reader of the plan must know.
        objective: what it was chosen by: Theorem 1's "bound", or a "measured" response.
        average: of the models that the receiver hands out: those of the second half of the rounds ("tail"), all with
            weights that fall with age ("exponential"), or the last alone ("none"). It works on what was received, and
            costs neither power nor privacy.
        prediction: the accuracy that a response expects of it, if one was asked.
        uplink: how the updates reach the receiver: aligned over the air, or by a scheme that this is compared with.

    `sequence` is what is decided about each round; the other figures sum it up.

    Raises:
        ValueError: the devices are not ascending indices into the fleet, θ is not positive, or I is not in 1..T.
        InfeasibleError: the bound, θ, μ or the total power is below 1e-150 or above 1e150, a device's power is below
            1e-300 W, or the method makes no privacy claim under the budget's adjacency or against the link's adversary.

    >>> from airfed import Budget, Fleet, Learning, Link, plan
    >>> decision = plan(Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0), link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0)), policy="full", rounds=4)
    >>> decision.num_scheduled, decision.local_steps, decision.power_total <= 1000.0
    (3, (50, 50, 50, 50), True)
    >>> Plan.from_dict(decision.problem, decision.to_dict()).to_dict() == decision.to_dict()
    True
    """

    problem: Problem
    policy: str
    scheduled: NDArray[np.intp]
    alignment: float
    rounds: int
    notes: tuple[str, ...] = ()
    objective: Objective = "bound"
    average: Average = "none"
    prediction: Prediction | None = None
    uplink: Uplink = ALIGNED

    def __post_init__(self) -> None:
        _validate.positive(alignment=self.alignment)
        self.uplink.require_claim(self.problem)
        _validate.one_of(get_args(Average), average=self.average)
        convergence.local_steps(self.problem.learning.total_steps, self.rounds)  # raises where rounds is out of range
        if self.problem.fleet.antennas > 1 and self.problem.fleet.combiner is None:
            raise ValueError("Expected a problem with a combiner: of several antennas, a plan is about what it hears.")
        if self.problem.fleet.changes and self.constant:
            raise ValueError("Expected a decision for each round where gains change.")
        devices, num_devices = np.array(self.scheduled), self.problem.fleet.num_devices
        if devices.ndim != 1 or devices.dtype.kind not in "iu" or not devices.size:
            raise ValueError(f"Expected scheduled to be a list of device indices, got {self.scheduled!r}.")
        if devices[0] < 0 or devices[-1] >= num_devices or np.any(devices[1:] <= devices[:-1]):
            raise ValueError(f"Expected scheduled to be ascending indices from 0 to {num_devices - 1}, each once.")
        devices = devices.astype(np.intp, copy=False)
        devices.flags.writeable = False
        object.__setattr__(self, "scheduled", devices)
        object.__setattr__(self, "alignment", float(self.alignment))
        object.__setattr__(self, "rounds", int(self.rounds))
        self._require_figures()

    def _require_figures(self) -> None:
        """Raise unless every figure is one: a plan must not print zeros, infinities or the edge of float64 as facts."""
        figures = {
            "alignment": self.alignment,
            "power_total": self.power_total,
            "mu_round": self.mu_round,
            "the bound": self.bound.total,
        }
        if not self.uplink.on_air:
            del figures["power_total"]
        for name, value in figures.items():
            if not SMALLEST_FIGURE <= value <= LARGEST_FIGURE:
                raise InfeasibleError(
                    f"No plan fits: {name} would be {value:.3g}, and figures below {SMALLEST_FIGURE:g} or above "
                    f"{LARGEST_FIGURE:g} are not accounted for."
                )
        weakest, power = self.sequence.least_power()
        if power < SMALLEST_FIGURE**2 and self.uplink.needs_everybody:
            raise InfeasibleError(f"No plan fits: device {weakest} would transmit less than {SMALLEST_FIGURE**2:g} W.")

    @property
    def num_scheduled(self) -> int:
        """|K|."""
        return self.scheduled.size

    @property
    def combiner(self) -> NDArray[np.complex128] | None:
        """f, (A,), of norm 1, or one for each round, (rounds, A); None with one antenna."""
        return self.problem.fleet.combiner

    @cached_property
    def lower_bound(self) -> float:
        """No aligned plan within the limits has a smaller `bound.total`, whatever its combiner is.

        −inf where none is known: with one antenna, and of other schemes, which are not held by the same limits.
        """
        if self.combiner is None or self.uplink != ALIGNED:
            return -math.inf
        return reach.lower_bound(self.problem)

    @property
    def gap(self) -> float:
        """How far the bound may be above the optimum, as a share of the lower bound; infinite without one."""
        return math.inf if self.lower_bound == -math.inf else self.bound.total / self.lower_bound - 1.0

    def against(self, trust: Trust) -> Plan:
        """Return the plan as seen by another adversary: the same decision, with its μ and ε.

        Raises:
            InfeasibleError: against that adversary the scheme claims nothing (artificial noise, every antenna seen).
        """
        return replace(self, problem=replace(self.problem, link=replace(self.problem.link, trust=trust)))

    @property
    def clip_norm(self) -> float:
        """ϖ."""
        return self.problem.learning.clip_norm

    @property
    def constant(self) -> bool:
        """Whether all rounds are alike."""
        return True

    @cached_property
    def sequence(self) -> RoundSequence:
        """What is decided about each round: the only source for whoever handles one."""
        return RoundSequence(
            scheduled=self.scheduled,
            local_steps=self.local_steps,
            alignment=self.alignment,
            clip_norm=self.clip_norm,
            mu=self.mu_round,
            power=self.power,
            delta=self.problem.budget.delta,
        )

    @property
    def predicted_accuracy(self) -> float | None:
        """The test accuracy to expect, in 0..1, where a response was asked."""
        return None if self.prediction is None else self.prediction.accuracy

    @cached_property
    def uploads(self) -> Uploads:
        """How the uploads of a round arrive, and what they cost."""
        fleet = self.problem.fleet
        gain, peak = fleet.gain[self.scheduled], fleet.peak_power[self.scheduled]
        return self.uplink.uploads(self.problem, gain, peak, self.alignment, self.rounds)

    def uploads_in(self, index: int) -> Uploads:
        """Return how the uploads of round i arrive, and what they cost."""
        return self.uploads

    def noise_std_in(self, index: int) -> float:
        """Return the standard deviation, per entry, of the noise in what is received in round i."""
        return self.problem.link.noise_std if self.uplink == ALIGNED else self.uploads_in(index).noise_std

    @property
    def spendable(self) -> Budget:
        """What the training is held to: the budget, less its privacy where the scheme has none."""
        budget = self.problem.budget
        return budget if self.private else replace(budget, epsilon=1e100, scope="round", formula="exact", spent=0.0)

    @property
    def private(self) -> bool:
        """Whether the scheme has an ε at all; where not, the figures of privacy stand for infinity."""
        return self.uplink.private

    @property
    def noise_share(self) -> float:
        """σ/(|K|θ): the noise per coordinate of the recovered mean, as a share of ϖ."""
        return self.uploads.noise_share

    @property
    def device_share(self) -> float:
        """|K|/N; where devices arrive with different strengths, the share of the mean that they make up."""
        return (
            self.num_scheduled / self.problem.fleet.num_devices if self.uplink == ALIGNED else 1 - self.uploads.missing
        )

    @property
    def channel_uses(self) -> float:
        """Symbols that all rounds take on the air."""
        return self.rounds * self.uploads.channel_uses

    @property
    def air_time(self) -> float | None:
        """Seconds that all rounds take on the air; None where the link's bandwidth is not known."""
        bandwidth = self.problem.link.bandwidth
        return None if bandwidth is None else self.channel_uses / bandwidth

    @property
    def alignment_coefficient(self) -> float:
        """ν = θ/ϖ, of the last round."""
        return self.sequence[-1].alignment_coefficient

    @cached_property
    def local_steps(self) -> tuple[int, ...]:
        """E_0..E_{I−1}, whole numbers that sum to T."""
        return convergence.local_steps(self.problem.learning.total_steps, self.rounds)

    @cached_property
    def bound(self) -> convergence.Bound:
        """Theorem 1 for this decision, term by term."""
        return convergence.convex_gap(self.problem.learning, rounds=self.rounds, **self._decision)

    @cached_property
    def gradient_bound(self) -> convergence.Bound:
        """Theorem 2 for this decision (non-convex losses), term by term."""
        return convergence.mean_squared_gradient(self.problem.learning, rounds=self.rounds, **self._decision)

    @property
    def _decision(self) -> dict[str, Any]:
        """What the bounds are told: of other schemes, as many devices and such a θ as lead to their errors."""
        size: float = self.num_scheduled
        if self.uplink != ALIGNED:
            size = self.device_share * self.problem.fleet.num_devices
        return {
            "num_scheduled": size,
            "num_devices": self.problem.fleet.num_devices,
            "alignment": self.alignment if self.uplink == ALIGNED else self.uploads.divisor / size,
            "noise_std": self.uploads.noise_std,
        }

    @cached_property
    def power(self) -> NDArray[np.float64]:
        """φ_k P_k [W]: what each scheduled device transmits per round, at most (‖g_k‖ = ϖ)."""
        power = self.uploads.power  # [Yan23, (16)]
        power.flags.writeable = False
        return power

    @property
    def power_total(self) -> float:
        """[W] over all devices and rounds, at most."""
        with np.errstate(over="ignore"):
            return self.sequence.power_planned(self.rounds)  # [Yan23, (17)]

    @cached_property
    def limits(self) -> dict[Binding, float]:
        """The largest θ that each limit allows to this set of devices in this many rounds."""
        return self.uplink.limits(self.problem, self.scheduled, self.rounds)

    @property
    def binding(self) -> Binding:
        """The limit that holds θ."""
        return min(self.limits, key=self.limits.__getitem__)

    @property
    def violations(self) -> tuple[Binding, ...]:
        """The limits that this plan breaks (only a policy that follows the print may have any)."""
        allowed = 1.0 + FEASIBILITY_RTOL
        return tuple(name for name, limit in self.limits.items() if self.alignment > limit * allowed)

    @cached_property
    def amplification(self) -> float:
        """max f_k over K: how much stronger than θ a device may arrive; 1 where the channels are known."""
        return self.uplink.amplification(self.problem, self.scheduled)

    @property
    def mu_round(self) -> float:
        """μ = 2θ/σ (θ/σ for add or remove), times `amplification`: one round is μ-Gaussian-DP."""
        return self.problem.budget.sensitivity * (self.alignment * self.amplification) / self.uploads.hidden_by

    @cached_property
    def mu_total(self) -> float:
        """μ√I: the whole training."""
        return compose(self.mu_round, self.rounds)

    @cached_property
    def epsilon_round(self) -> float:
        """Exact ε of one round at the budget's δ."""
        return gaussian_epsilon(self.mu_round, self.problem.budget.delta)

    @cached_property
    def epsilon_total(self) -> float:
        """Exact ε of the whole training at the budget's δ."""
        return gaussian_epsilon(self.mu_total, self.problem.budget.delta)

    @property
    def epsilon_paper(self) -> float:
        """Lemma 1's figure for one round; `epsilon_paper_validity` says what it is worth."""
        return classic_epsilon(self.mu_round, self.problem.budget.delta)

    @property
    def epsilon_paper_validity(self) -> str:
        """Whether Lemma 1's figure is "proved", "unproven" (ε ≥ 1) or "unsafe" (below the truth)."""
        return classic_validity(self.epsilon_paper, self.problem.budget.delta)

    def plot(self) -> Any:
        """Return a matplotlib figure: θ and the objective over the devices, and the bound over the rounds."""
        return upstairs("showing.files").plan_figure(self)

    def __str__(self) -> str:
        return str(upstairs("showing.tables").plan_text(self))

    def _repr_html_(self) -> str:
        return str(upstairs("showing.tables").plan_html(self))

    @classmethod
    def from_dict(cls, problem: Problem, recorded: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` has written down, about the same problem; nothing is solved again.

        Args:
            problem: what was decided about.
            recorded: the plain values.

        Raises:
            ValueError: what is written down is no plan about this problem, or a figure in it does not follow from it.
        """
        decision = cls._recorded(record.decided_about(problem, recorded), recorded, **record.values(recorded))
        record.check(decision, recorded)
        return decision

    @classmethod
    def _recorded(cls, problem: Problem, recorded: Mapping[str, Any], **values: Any) -> Self:
        """The plan of the values that every kind has; other kinds find more of them in the record."""
        return cls(problem=problem, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, under the names of its attributes, ready for JSON."""
        return record.written(self)
