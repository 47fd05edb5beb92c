"""A plan: a table of received amplitudes, and everything that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from airfed import _validate, bounds
from airfed._extras import explained
from airfed.planning import limits, record
from airfed.planning.amplitudes import Amplitudes, RoundSequence
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import OVER_THE_AIR, Method, OverTheAir
from airfed.planning.surrogate import Average, Prediction
from airfed.privacy import classic_epsilon, classic_validity, compose, compose_all, gaussian_epsilon
from airfed.problem import Budget, InfeasibleError, Problem, Trust

Objective = Literal["bound", "measured"]

# How far above a limit a plan may lie before it counts as broken: rounding, nothing else.
FEASIBILITY_RTOL = 1e-12
# Figures of a plan lie in this range: nothing that is derived from them, an ε or a ratio of bounds, overflows.
SMALLEST_FIGURE, LARGEST_FIGURE = 1e-150, 1e150
_LONGEST_NOTE = 1000  # characters


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Which devices transmit, how strongly, and in how many rounds.

    In round i device k arrives with the amplitude a_ik when its update has the norm ϖ; a_ik = 0 means that it is not
    scheduled. All other figures are derived:

        for i in range(I):                                  # plan.sequence[i]
            K_i   = devices with a_ik > 0                   # .scheduled
            power = a_ik² / |h_ik|²                         # .power       [W] of each of them, at most
            D_i   = Σ_k a_ik                                # .signal.divisor: the mean has the weights a_ik/D_i
            μ_i   = 2 max_k a_ik f_ik / s_i                 # .mu          the round is μ_i-Gaussian-DP
            train E_i steps, clip to ϖ, transmit, receive (y·ϖ/D_i)

    `scheduled`, `alignment`, `power` and `mu_round` sum a plan up. Where rounds differ they are: the devices that are
    ever scheduled, the largest amplitude of all, the power of each device in its largest round, and the μ of the most
    exposed round. `epsilon_total` is that of the most exposed device.

    Args:
        problem: what the plan is about.
        policy: who made it.
        amplitudes: a_ik.
        method: how updates reach the receiver.
        objective: what it was chosen by: Theorem 1's "bound", or accuracy "measured" by pilots.
        average: of the models that the receiver dispatches: those of the second half of the rounds ("tail"), all with
            weights that fall with age ("exponential"), or the last alone ("none"). It costs neither power nor privacy.
        prediction: the accuracy that a surrogate expects, where one fits.
        lower_bound: no aligned plan within the same limits has a smaller `bound.total`; −inf where none is known.
        notes: remarks that a reader of the plan must know.

    Raises:
        ValueError: the table does not fit the problem.
        InfeasibleError: a figure is beyond what is accounted for, or the method makes no privacy claim here.

    >>> from airfed import Budget, Fleet, Learning, Link, plan
    >>> found = plan(Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0), link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0)), policy="full", rounds=4)
    >>> found.num_scheduled, found.local_steps, found.amplitude.shape, found.power_total <= 1000.0
    (3, (50, 50, 50, 50), (4, 3), True)
    >>> Plan.from_dict(found.problem, found.to_dict()).to_dict() == found.to_dict()
    True
    """

    problem: Problem
    policy: str
    amplitudes: Amplitudes
    method: Method = OVER_THE_AIR
    objective: Objective = "bound"
    average: Average = "none"
    prediction: Prediction | None = None
    lower_bound: float = -math.inf
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fleet = self.problem.fleet
        self.method.require_claim(self.problem)
        _validate.one_of(get_args(Average), average=self.average)
        bounds.local_steps(self.problem.learning.total_steps, self.rounds)  # raises where rounds is out of range
        if self.amplitudes.num_devices != fleet.num_devices:
            raise ValueError(f"Expected amplitudes of {fleet.num_devices} devices; got {self.amplitudes.num_devices}.")
        if fleet.combiner is None:
            raise ValueError("Expected a problem with a combiner: a plan is about the signal after combining.")
        if not all(isinstance(note, str) and len(note) <= _LONGEST_NOTE and note.isprintable() for note in self.notes):
            raise ValueError(f"Expected notes of at most {_LONGEST_NOTE} printable characters, got {self.notes!r:.80}.")
        if fleet.changes and len(fleet.gain) < self.rounds:
            raise ValueError(f"Expected gains of {self.rounds} rounds; there are {len(fleet.gain)}.")
        # Zeros and infinities must not be printed as results.
        figures = {"alignment": self.alignment, "mu_round": self.mu_round, "the bound": self.bound.total}
        if self.method.radio or self.power_total:
            figures["power_total"] = self.power_total
        for name, value in figures.items():
            if not SMALLEST_FIGURE <= value <= LARGEST_FIGURE:
                raise InfeasibleError(
                    f"No plan fits: {name} would be {value:.3g}, and figures below {SMALLEST_FIGURE:g} or above "
                    f"{LARGEST_FIGURE:g} are not accounted for."
                )
        totals = self.sequence.totals
        if totals.least_power < SMALLEST_FIGURE**2 and self.method.radio:
            raise InfeasibleError(
                f"No plan fits: device {totals.weakest} would transmit less than {SMALLEST_FIGURE**2:g} W."
            )

    # The table and its summaries

    @property
    def amplitude(self) -> Floats:
        """a_ik, (I, N), read-only; broadcast where rounds are alike."""
        return self.amplitudes.dense

    @property
    def rounds(self) -> int:
        """I."""
        return self.amplitudes.rounds

    @property
    def constant(self) -> bool:
        """Whether all rounds are alike: one table row, and gains that do not change."""
        return self.amplitudes.constant and not self.problem.fleet.changes

    @property
    def scheduled(self) -> Devices:
        """K, ascending device indices: those that are scheduled in at least one round."""
        return self.amplitudes.scheduled

    @property
    def num_scheduled(self) -> int:
        """|K|."""
        return self.scheduled.size

    @property
    def sizes(self) -> NDArray[np.intp]:
        """|K_i|, (I,)."""
        return self.amplitudes.sizes

    @cached_property
    def alignment(self) -> float:
        """θ = νϖ, the largest amplitude: that of all scheduled devices where they are aligned."""
        return float(self.amplitudes.level.max())

    @property
    def alignment_coefficient(self) -> float:
        """ν = θ/ϖ."""
        return self.alignment / self.clip_norm

    @property
    def clip_norm(self) -> float:
        """ϖ."""
        return self.problem.learning.clip_norm

    @cached_property
    def local_steps(self) -> tuple[int, ...]:
        """E_0..E_{I−1}, whole numbers that sum to T."""
        return bounds.local_steps(self.problem.learning.total_steps, self.rounds)

    @cached_property
    def sequence(self) -> RoundSequence:
        """The rounds one by one: the only source for code that handles a round."""
        return RoundSequence(self)

    @property
    def combiner(self) -> NDArray[np.complex128]:
        """f, (A,), of norm 1, or one for each round, (rounds, A)."""
        assert self.problem.fleet.combiner is not None  # as __post_init__ has checked
        return self.problem.fleet.combiner

    @property
    def gap(self) -> float:
        """How far the bound may be above the optimum, as a share of the lower bound; infinite without one."""
        return math.inf if self.lower_bound == -math.inf else self.bound.total / self.lower_bound - 1.0

    @property
    def predicted_accuracy(self) -> float | None:
        """The expected test accuracy, in 0..1, where a surrogate fits."""
        return None if self.prediction is None else self.prediction.accuracy

    # Learning

    @cached_property
    def bound(self) -> bounds.Bound:
        """Theorem 1, term by term."""
        return bounds.convex_gap(self.problem.learning, rounds=self.rounds, **self._errors)

    @cached_property
    def gradient_bound(self) -> bounds.Bound:
        """Theorem 2 (non-convex losses), term by term."""
        return bounds.mean_squared_gradient(self.problem.learning, rounds=self.rounds, **self._errors)

    @property
    def _errors(self) -> dict[str, Any]:
        totals = self.sequence.totals
        share = totals.noise_std / totals.divisor
        if self.constant:
            return {"shortfall": float(totals.shortfall[0]), "noise_share": float(share[0])}
        return {"shortfall": totals.shortfall, "noise_share": share}

    @property
    def noise_share(self) -> float:
        """The root mean square over the rounds of s_i/D_i: the noise per entry of the mean, as a share of ϖ."""
        share = self._errors["noise_share"]
        return share if self.constant else float(np.sqrt(np.mean(np.square(share))))

    @property
    def device_share(self) -> float:
        """The share of the devices' mean that the plan covers, averaged over rounds: |K|/N where it is aligned."""
        return 1.0 - float(np.mean(self._errors["shortfall"]))

    # Radio

    @cached_property
    def power(self) -> Floats:
        """φ_k P_k [W]: what each scheduled device transmits in its largest round, at most (‖g_k‖ = ϖ)."""
        power = self.sequence.totals.largest_power.view()
        power.flags.writeable = False
        return power

    @property
    def power_total(self) -> float:
        """[W] over all devices and rounds, at most."""
        return self.sequence.power_planned(self.rounds)  # [Yan23, (17)]

    @property
    def channel_uses(self) -> float:
        """Symbols that all rounds take on the air."""
        rounds = (0,) if self.constant else range(self.rounds)
        uses = [self.method.symbols(self.problem.at(i), self.amplitudes.devices(i), self.rounds) for i in rounds]
        return math.fsum(uses) * (self.rounds if self.constant else 1)

    @property
    def air_time(self) -> float | None:
        """Seconds that all rounds take on the air; None where the link's bandwidth is not known."""
        bandwidth = self.problem.link.bandwidth
        return None if bandwidth is None else self.channel_uses / bandwidth

    # Privacy

    @property
    def private(self) -> bool:
        """Whether the method has an ε at all; where not, the figures of privacy stand for infinity."""
        return self.method.private

    @property
    def spendable(self) -> Budget:
        """What the training is held to: the budget, less its privacy where the method has none."""
        budget = self.problem.budget
        return budget if self.private else replace(budget, epsilon=1e100, scope="round", formula="exact", spent=0.0)

    @cached_property
    def amplification(self) -> float:
        """max f_k: how much more strongly than planned an adversary may see a scheduled device; 1 with exact CSI."""
        rounds = (0,) if self.constant else range(self.rounds)
        return max(float(np.max(self.sequence.factors(self.amplitudes.devices(i), i))) for i in rounds)

    @cached_property
    def mu_round(self) -> float:
        """μ of the most exposed round: 2θ/σ (θ/σ to add or remove) where devices are aligned and channels known."""
        return float(self.sequence.mus.max())

    @cached_property
    def most_exposed(self) -> int:
        """The device whose privacy costs most over the training; of several the first."""
        return int(self.scheduled[np.argmax(self.sequence.totals.exposure)])

    @cached_property
    def mu_total(self) -> float:
        """√Σμ_i² over the rounds of the most exposed device; μ√I where all rounds are alike."""
        if self.constant:
            return compose(self.mu_round, self.rounds)
        return compose_all(self.sequence.mus[self.amplitudes.sends(self.most_exposed)])

    @cached_property
    def epsilon_round(self) -> float:
        """Exact ε of one round, the most exposed, at the budget's δ."""
        return gaussian_epsilon(self.mu_round, self.problem.budget.delta)

    @cached_property
    def epsilon_total(self) -> float:
        """Exact ε of the whole training, for the most exposed device, at the budget's δ."""
        return gaussian_epsilon(self.mu_total, self.problem.budget.delta)

    @property
    def epsilon_paper(self) -> float:
        """Lemma 1's figure for one round; `epsilon_paper_validity` says what it is worth."""
        return classic_epsilon(self.mu_round, self.problem.budget.delta)

    @property
    def epsilon_paper_validity(self) -> str:
        """Whether Lemma 1's figure is "proved", "unproven" (ε ≥ 1) or "unsafe" (below the truth)."""
        return classic_validity(self.epsilon_paper, self.problem.budget.delta)

    def against(self, trust: Trust) -> Plan:
        """Return the same plan with the μ and ε that hold against another adversary, if any are claimed."""
        return replace(self, problem=replace(self.problem, link=replace(self.problem.link, trust=trust)))

    # Limits

    @cached_property
    def limits(self) -> dict[Binding, float]:
        """The largest θ that each limit allows, if all amplitudes grew together."""
        return {name: self.alignment * room for name, room in self.method.headroom(self).items()}

    def growth_limits(self) -> dict[Binding, float]:
        """Return by which factor privacy, peak power, total power and batteries would let all amplitudes grow."""
        problem, budget = self.problem, self.problem.budget
        mu = self.mu_total if budget.scope == "total" else self.mu_round
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            found: dict[Binding, float] = {
                "privacy": limits.allowed_mu(budget) / mu,
                "peak_power": float(np.min(self.ceilings["peak_power"] / self.amplitudes.level)),
                "total_power": math.sqrt(budget.total_power / self.power_total),
            }
            if budget.device_power is not None:
                batteries = np.broadcast_to(budget.device_power, problem.fleet.num_devices)[self.scheduled]
                found["device_power"] = math.sqrt(float(np.min(batteries / self.sequence.device_power(self.rounds))))
        return found

    @cached_property
    def ceilings(self) -> dict[Binding, Floats]:
        """The largest θ_i that the limits on one round allow to the shape of that round, (I,) each."""
        problem, rows = self.problem, 1 if self.constant else self.rounds
        cap = limits.privacy_cap(problem)
        privacy, peak = np.empty(rows), np.empty(rows)
        for index in range(rows):
            devices = self.amplitudes.devices(index)
            share = np.asarray(self.amplitudes.shares(index)[devices], dtype=np.float64)
            privacy[index] = cap / float(np.max(share * self.sequence.factors(devices, index)))
            reach = problem.fleet.gain_in(index)[devices] * np.sqrt(problem.fleet.peak_power[devices])
            peak[index] = float(np.min(reach / share))
        shape = (self.rounds,)
        return {"privacy": np.broadcast_to(privacy, shape), "peak_power": np.broadcast_to(peak, shape)}

    @property
    def binding(self) -> Binding:
        """The limit that holds the amplitudes."""
        return min(self.limits, key=self.limits.__getitem__)

    @property
    def violations(self) -> tuple[Binding, ...]:
        """The limits that this plan breaks (only a policy that follows the print may have any)."""
        allowed = 1.0 + FEASIBILITY_RTOL
        return tuple(name for name, limit in self.limits.items() if self.alignment > limit * allowed)

    def flagged(self) -> Plan:
        """Return the plan with a note for each limit that it breaks."""
        broken = tuple(
            f"This plan breaks the {name} limit: θ = {self.alignment:.6g} where {self.limits[name]:.6g} is allowed."
            for name in self.violations
        )
        return replace(self, notes=(*self.notes, *broken)) if broken else self

    # Views

    def plot(self) -> Any:
        """Return a matplotlib figure: θ and the objective over the devices, and the bound over the rounds."""
        with explained():
            from airfed.plotting import figure  # upwards, when called (pyproject.toml lists these imports)

        return figure.plan_figure(self)

    def __repr__(self) -> str:
        return (
            f"Plan(policy={self.policy!r}, {self.num_scheduled} of {self.problem.fleet.num_devices} devices, "
            f"{self.rounds} rounds, θ={self.alignment:.4g},\n     binding={self.binding!r}, "
            f"power_total={self.power_total:.4g} W, bound={self.bound.total:.6g},\n     "
            f"epsilon_round={self.epsilon_round:.4g}, epsilon_total={self.epsilon_total:.4g})"
        )

    def __str__(self) -> str:
        from airfed.text import tables

        return tables.as_text(lambda console: tables.print_plan(console, "plan", self))

    def _repr_html_(self) -> str:
        from airfed.text import tables

        return tables.as_html(lambda console: tables.print_plan(console, "plan", self))

    @classmethod
    def from_dict(
        cls, problem: Problem, recorded: Mapping[str, Any], methods: Mapping[str, type[Method]] | None = None
    ) -> Plan:
        """Return the plan that `to_dict` has written down, about the same problem; nothing is solved again.

        Args:
            problem: what the plan is about.
            recorded: the plain values.
            methods: by name, those that a plan may have (`airfed.policies.METHODS`); over the air only by default.

        Raises:
            ValueError: the record is no plan about this problem, or a figure in it does not follow from it.
        """
        try:
            found = cls(**record.read(problem, recorded, methods or {OverTheAir.name: OverTheAir}))
        except (KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ValueError(f"Expected the record of a plan; {type(error).__name__} in it: {error}.") from None
        record.check(found, recorded)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, under the names of its attributes, ready for JSON."""
        return record.written(self)
