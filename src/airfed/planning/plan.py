"""A plan: a table of received amplitudes, and all quantities derived from it."""

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
from airfed.planning import converse, limits, record
from airfed.planning.amplitudes import Amplitudes, RoundSequence
from airfed.planning.limits import Binding, Devices, Floats
from airfed.planning.method import OVER_THE_AIR, Method, OverTheAir, effective_participation
from airfed.planning.surrogate import Average, NetworkAccuracy, Prediction
from airfed.privacy import classic_epsilon, classic_validity, compose, compose_all, gaussian_epsilon
from airfed.privacy.exposure import Exposure
from airfed.privacy.gaussian import gaussian_epsilons
from airfed.problem import Adversary, Budget, InfeasibleError, Problem

Objective = Literal["bound", "accuracy"]

# Relative excess over a limit that counts as rounding.
FEASIBILITY_RTOL = 1e-12
# Values of a plan lie in this range, so that no derived ε or ratio of bounds overflows.
SMALLEST_FIGURE, LARGEST_FIGURE = 1e-150, 1e150
_LONGEST_NOTE = 1000  # characters


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Which devices transmit, how strongly, and in how many rounds.

    In round i the update of device k, at norm ϖ, has the received amplitude a_ik; a_ik = 0 means that the device is not
    scheduled. All other values are derived:

        for i in range(I):                                  # plan.sequence[i]
            K_i   = devices with a_ik > 0                   # .scheduled
            power = a_ik² / |h_ik|²                         # .power       [W] of each of them, at most
            D_i   = Σ_k a_ik                                # .signal.divisor: the mean has the weights a_ik/D_i
            μ_ik  = 2 a_ik f_ik / s_i                       # .device_mu   the round is μ_ik-Gaussian-DP for device k
            μ_i   = max_k μ_ik                              # .mu          charged to all if the plan is aligned
            train E_i steps, clip to ϖ, transmit, receive (y·ϖ/D_i)

    `scheduled`, `alignment`, `power` and `mu_round` summarise the rounds: the devices scheduled in any round, the
    largest amplitude, the largest power of each device, and the largest μ. `epsilon_total` is that of the most exposed
    device, `device_epsilon` that of each device.

    No plan of the same kind within the same limits can have a `bound.total` below `lower_bound`: for the policy
    "weighted" no plan of any amplitudes, for the others no aligned plan; of equal rounds, if channels are constant and
    there are no batteries.

    Raises:
        ValueError: the table does not fit the problem.
        InfeasibleError: a value is out of range, or the method makes no privacy claim for this problem.

    >>> from airfed import Budget, Fleet, Learning, Link, plan
    >>> result = plan(Problem(
    ...     fleet=Fleet(gain=[0.2, 0.5, 1.1], peak_power=1.0), link=Link(noise_std=0.1),
    ...     learning=Learning(dimension=21840, total_steps=200, clip_norm=1.0, learning_rate=0.1,
    ...                       smoothness=10.0, strong_convexity=0.1, initial_gap=2.3),
    ...     budget=Budget(epsilon=2.0, delta=1e-3, total_power=1000.0)), policy="full", rounds=4)
    >>> result.num_scheduled, result.local_steps, result.amplitude.shape, result.power_total <= 1000.0
    (3, (50, 50, 50, 50), (4, 3), True)
    >>> Plan.from_dict(result.problem, result.to_dict()).to_dict() == result.to_dict()
    True
    """

    problem: Problem
    policy: str  # the name of the policy
    amplitudes: Amplitudes  # a_ik
    method: Method = OVER_THE_AIR
    objective: Objective = "bound"  # or the "accuracy" that a surrogate expects
    average: Average = "none"  # of the models at the receiver; it costs neither power nor privacy
    prediction: Prediction | None = None  # the accuracy that a surrogate expects, if one applies
    networks: tuple[NetworkAccuracy, ...] = ()  # a scenario's candidates with their expected accuracy, best first
    lower_bound: float = -math.inf  # −inf if unknown
    notes: tuple[str, ...] = ()  # remarks for the reader of the plan

    def __post_init__(self) -> None:
        fleet = self.problem.fleet
        self.method.require_claim(self.problem)
        if self.problem.learning.adaptive_clipping is not None and not self.method.adaptive_clipping:
            raise InfeasibleError(f"No plan fits: {self.method.name} cannot send the indicator of adaptive_clipping.")
        _validate.one_of(get_args(Average), average=self.average)
        _validate.one_of(get_args(Objective), objective=self.objective)
        bounds.local_steps(self.problem.learning.total_steps, self.rounds)  # raises if rounds is out of range
        if self.amplitudes.num_devices != fleet.num_devices:
            raise ValueError(f"amplitudes must have {fleet.num_devices} devices, got {self.amplitudes.num_devices}.")
        if fleet.beamformer is None:
            raise ValueError("This problem has no beamformer yet. Give one, or use airfed.plan, which chooses it.")
        if not all(isinstance(note, str) and len(note) <= _LONGEST_NOTE and note.isprintable() for note in self.notes):
            raise ValueError(f"notes must have at most {_LONGEST_NOTE} printable characters, got {self.notes!r:.80}.")
        if fleet.time_varying and len(fleet.gain) < self.rounds:
            raise ValueError(f"gain must have {self.rounds} rounds as the plan, got {len(fleet.gain)}.")
        # Zeros and infinities are not results.
        values = {"alignment": self.alignment, "mu_round": self.mu_round, "the bound": self.bound.total}
        if self.method.analog or self.power_total:
            values["power_total"] = self.power_total
        for name, value in values.items():
            if not SMALLEST_FIGURE <= value <= LARGEST_FIGURE:
                raise InfeasibleError(
                    f"No plan fits: {name} would be {value:.3g}, outside the supported range from "
                    f"{SMALLEST_FIGURE:g} to {LARGEST_FIGURE:g}."
                )
        totals = self.sequence.totals
        if totals.least_power < SMALLEST_FIGURE**2 and self.method.analog:
            raise InfeasibleError(
                f"No plan fits: device {totals.weakest} would transmit less than {SMALLEST_FIGURE**2:g} W."
            )

    # The table and its summaries

    @property
    def amplitude(self) -> Floats:
        """a_ik, (I, N), read-only; one row is broadcast if all rounds are equal."""
        return self.amplitudes.dense

    @property
    def rounds(self) -> int:
        """I."""
        return self.amplitudes.rounds

    @property
    def constant(self) -> bool:
        """Whether all rounds are equal: one row of amplitudes, and constant gains."""
        return self.amplitudes.constant and not self.problem.fleet.time_varying

    @property
    def scheduled(self) -> Devices:
        """K, the indices of the devices scheduled in at least one round, ascending."""
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
        """θ = νϖ, the largest amplitude; for aligned devices the amplitude of all."""
        return float(self.amplitudes.level.max())

    @property
    def alignment_coefficient(self) -> float:
        """ν = θ/ϖ."""
        return self.alignment / self.clip_norm

    @property
    def clip_norm(self) -> float:
        """ϖ; with adaptive clipping that of the first round, with which the bound counts."""
        return self.problem.learning.clip_norm

    @cached_property
    def local_steps(self) -> tuple[int, ...]:
        """E_0..E_{I−1}, integers that sum to T."""
        return bounds.local_steps(self.problem.learning.total_steps, self.rounds)

    @cached_property
    def sequence(self) -> RoundSequence:
        """The rounds one by one."""
        return RoundSequence(self)

    @property
    def beamformer(self) -> NDArray[np.complex128]:
        """f, (A,), of norm 1, or one for each round, (rounds, A)."""
        assert self.problem.fleet.beamformer is not None  # checked in __post_init__
        return self.problem.fleet.beamformer

    @property
    def gap(self) -> float:
        """`bound.total`/`lower_bound` − 1, at least the distance to the best plan of this kind; infinite if unknown."""
        return math.inf if self.lower_bound == -math.inf else self.bound.total / self.lower_bound - 1.0

    @property
    def predicted_accuracy(self) -> float | None:
        """The expected test accuracy, in 0..1; None without an applicable surrogate."""
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
        """The root mean square of s_i/D_i over the rounds: the noise per entry of the mean, relative to ϖ."""
        share = self._errors["noise_share"]
        return share if self.constant else float(np.sqrt(np.mean(np.square(share))))

    @cached_property
    def noise_floor(self) -> float | None:
        """What no linear method over the air can beat: its least `noise_share` in as many rounds; None for others."""
        return converse.least_noise(self.problem, self.rounds) if self.method.analog and self.private else None

    @property
    def participation(self) -> float:
        """The effective participation ratio 1/(NΣw²), w = a/D, averaged over the rounds: |K|/N for aligned devices."""
        if self.amplitudes.equal:
            return 1.0 - float(np.mean(self._errors["shortfall"]))
        return float(np.mean(effective_participation(self.amplitudes.share)))

    # Radio

    @cached_property
    def power(self) -> Floats:
        """φ_k P_k [W]: the largest transmit power of each scheduled device over the rounds, for ‖g_k‖ = ϖ."""
        power = self.sequence.totals.largest_power.view()
        power.flags.writeable = False
        return power

    @property
    def power_total(self) -> float:
        """Transmit power [W], summed over devices and rounds, for ‖g_k‖ = ϖ."""
        return self.sequence.power_planned(self.rounds)  # [Yan23, (17)]

    @property
    def channel_uses(self) -> float:
        """The number of symbols of all rounds."""
        rounds = (0,) if self.constant else range(self.rounds)
        uses = [self.method.symbols(self.problem.at(i), self.amplitudes.devices(i), self.rounds) for i in rounds]
        return math.fsum(uses) * (self.rounds if self.constant else 1)

    @property
    def air_time(self) -> float | None:
        """The air time of all rounds [s]; None without a bandwidth."""
        bandwidth = self.problem.link.bandwidth
        return None if bandwidth is None else self.channel_uses / bandwidth

    @cached_property
    def snr_per_upload_db(self) -> float | None:
        """a_ik²/σ² [dB], the received SNR of an upload: median device, median round; None without AirComp."""
        if not self.method.analog:
            return None
        table = self.amplitudes
        share = 1.0 if table.equal else np.array([np.median(row[row > 0]) for row in table.share])
        return 20.0 * math.log10(float(np.median(table.level * share)) / self.problem.link.noise_std)

    @property
    def snr_per_symbol_db(self) -> float | None:
        """a_ik²/(dσ²) [dB]: the received power of a symbol over the noise in the dimensions that it uses."""
        upload = self.snr_per_upload_db
        return None if upload is None else upload - 10.0 * math.log10(self.problem.learning.entries)

    @property
    def energy(self) -> Floats | None:
        """`power`/B [J]: the largest energy of each device in a round; None without a bandwidth or AirComp."""
        bandwidth = self.problem.link.bandwidth
        return None if bandwidth is None or not self.method.analog else self.power / bandwidth

    @property
    def energy_total(self) -> float | None:
        """Transmit energy [J], summed over devices and rounds, for ‖g_k‖ = ϖ; None as for `energy`."""
        bandwidth = self.problem.link.bandwidth
        return None if bandwidth is None or not self.method.analog else self.power_total / bandwidth

    # Privacy

    @property
    def private(self) -> bool:
        """Whether the method is differentially private; if not, μ and ε represent infinity."""
        return self.method.private

    @property
    def enforced_budget(self) -> Budget:
        """The budget that the ledger enforces; without its privacy budget if the method is not private."""
        budget = self.problem.budget
        return budget if self.private else replace(budget, epsilon=1e100, scope="round", formula="exact", spent=0.0)

    @cached_property
    def amplification(self) -> float:
        """max f_k: the largest ratio of the amplitude that the adversary may observe to a_ik; 1 with perfect CSI."""
        rounds = (0,) if self.constant else range(self.rounds)
        return max(float(np.max(self.sequence.factors(self.amplitudes.devices(i), i))) for i in rounds)

    @cached_property
    def mu_round(self) -> float:
        """The largest μ of a round; 2θ/σ (θ/σ for add-remove) for aligned devices and perfect CSI."""
        return float(self.sequence.mus.max())

    @cached_property
    def most_exposed(self) -> int:
        """The device of the largest total privacy loss; ties go to the lowest index."""
        return int(self.scheduled[np.argmax(self.sequence.totals.exposure)])

    @property
    def equal_mu(self) -> bool:
        """Whether all devices scheduled in a round are charged the same μ: the plan is aligned, or not private."""
        return self.amplitudes.equal or not self.private

    @cached_property
    def mu_total(self) -> float:
        """√Σμ_ik² over the rounds of the most exposed device; μ√I if all rounds are equal."""
        if self.constant:
            return compose(self.mu_round, self.rounds)
        if self.equal_mu:
            return compose_all(self.sequence.mus[self.amplitudes.rounds_of(self.most_exposed)])
        return float(self.device_mu.max())

    @cached_property
    def device_mu(self) -> Floats:
        """√Σμ_ik² over the rounds of each device, (N,), rounded up; 0 if it is never scheduled."""
        if self.constant:
            found = np.zeros(self.problem.fleet.num_devices)
            share = self.sequence.mu_shares(0) * (1 + 2.0**-51)  # above the rounding of the products
            found[self.scheduled] = np.minimum(self.mu_total * share, self.mu_total)
        else:
            spent, size = Exposure(), self.problem.fleet.num_devices
            for index, mu in enumerate(self.sequence.mus.tolist()):
                spent = spent.plus_shares(mu, self.amplitudes.devices(index), self.sequence.mu_shares(index), size)
            found = spent.mus()
        found.flags.writeable = False
        return found

    @property
    def device_epsilon(self) -> Floats:
        """Exact ε of the whole training for each device, (N,), at the budget's δ; slow for many different μ."""
        return gaussian_epsilons(self.device_mu, self.problem.budget.delta)

    @cached_property
    def epsilon_round(self) -> float:
        """Exact ε of the round of the largest μ, at the budget's δ."""
        return gaussian_epsilon(self.mu_round, self.problem.budget.delta)

    @cached_property
    def epsilon_total(self) -> float:
        """Exact ε of the whole training for the most exposed device, at the budget's δ."""
        return gaussian_epsilon(self.mu_total, self.problem.budget.delta)

    @property
    def epsilon_paper(self) -> float:
        """ε of one round by Lemma 1; see `epsilon_paper_validity`."""
        return classic_epsilon(self.mu_round, self.problem.budget.delta)

    @property
    def epsilon_paper_validity(self) -> str:
        """Whether Lemma 1's ε is "proved", "unproven" (ε ≥ 1) or "unsafe" (below the exact ε)."""
        return classic_validity(self.epsilon_paper, self.problem.budget.delta)

    def against(self, adversary: Adversary) -> Plan:
        """Return the same plan with the μ and ε against another adversary."""
        return replace(self, problem=replace(self.problem, link=replace(self.problem.link, adversary=adversary)))

    # Limits

    @cached_property
    def limits(self) -> dict[Binding, float]:
        """The largest θ under each limit if all amplitudes are scaled together."""
        return {name: self.alignment * room for name, room in self.method.headroom(self).items()}

    def growth_limits(self) -> dict[Binding, float]:
        """Return the largest factor on all amplitudes under privacy, peak power, total power and batteries."""
        problem, budget = self.problem, self.problem.budget
        mu = self.mu_total if budget.scope == "total" else self.mu_round
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            found: dict[Binding, float] = {
                "privacy": limits.allowed_mu(budget) / mu,
                "peak_power": float(np.min(self.round_limits["peak_power"] / self.amplitudes.level)),
                "total_power": math.sqrt(budget.total_power / self.power_total),
            }
            if budget.device_power is not None:
                batteries = np.broadcast_to(budget.device_power, problem.fleet.num_devices)[self.scheduled]
                found["device_power"] = math.sqrt(float(np.min(batteries / self.sequence.device_power(self.rounds))))
        return found

    @cached_property
    def round_limits(self) -> dict[Binding, Floats]:
        """The largest θ_i under the limits on one round, at fixed a_ik/θ_i, (I,) each."""
        problem, rows = self.problem, 1 if self.constant else self.rounds
        cap = limits.privacy_cap(problem, analog=self.method.analog)
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
        """The limit that binds; `limits` shows whether others bind as well."""
        return min(self.limits, key=self.limits.__getitem__)

    @property
    def violations(self) -> tuple[Binding, ...]:
        """The limits that this plan violates; possible for "paper" and for amplitudes of user-defined policies."""
        allowed = 1.0 + FEASIBILITY_RTOL
        return tuple(name for name, limit in self.limits.items() if self.alignment > limit * allowed)

    def flagged(self) -> Plan:
        """Return the plan with a note for each violated limit."""
        broken = tuple(
            f"This plan violates the {name} limit: θ = {self.alignment:.6g} exceeds {self.limits[name]:.6g}."
            for name in self.violations
        )
        return replace(self, notes=(*self.notes, *broken)) if broken else self

    # Views

    def plot(self) -> Any:
        """Return a matplotlib figure: θ and the objective over the devices, and the bound over the rounds."""
        with explained():
            from airfed.plotting import figure  # imported when called; pyproject.toml lists these exceptions

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
        """Return the plan from the output of `to_dict` and its problem, without solving again.

        Args:
            problem: the problem of the plan.
            recorded: the plain values.
            methods: the accepted methods by name (`airfed.policies.METHODS`); by default only over the air.

        Raises:
            ValueError: the record does not fit the problem, or its values are inconsistent.
        """
        try:
            found = cls(**record.read(problem, recorded, methods or {OverTheAir.name: OverTheAir}))
            record.check(found, recorded)
        except (KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ValueError(f"This is not the record of a plan: {type(error).__name__}, {error}.") from None
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, under the names of its attributes, ready for JSON."""
        return record.written(self)
