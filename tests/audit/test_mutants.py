"""Privacy bugs, planted one at a time in the real code: each is caught by the audit or by a named check.

A mutant is a function (monkeypatch) -> changes of the scenario. `AUDITED` maps each to the checks of the audit that
must fail; `CHECKED` are caught by a check of their own, which passes on sound code and fails on the mutant.
"""

import hashlib
import importlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from airfed import aircomp
from airfed.aircomp import AirCompRound, Superposition
from airfed.audit import Subject, audit
from airfed.audit.audit import SAMPLES
from airfed.baselines import ArtificialNoise, Digital, DPFedAvg, SecureAggregation
from airfed.learning.quadratic import QuadraticEngine
from airfed.planning import limits
from airfed.planning.amplitudes import Amplitudes, RoundSequence
from airfed.planning.plan import Plan
from airfed.privacy import chain, classic_epsilon, gaussian_epsilon
from airfed.privacy.exposure import Exposure
from airfed.privacy.ledger import Ledger, LedgerError, ParticipationMask
from airfed.problem import Budget
from airfed.scenario import Scenario
from airfed.training import charging, execution, formats, noise, recorder, setup
from airfed.training import loop as training
from airfed.training.directory import RunError
from airfed.training.execution import execute
from airfed.training.noise import SecureNoise, SeededNoise
from airfed.training.run import Run
from airfed.training.setup import QuadraticLearning

FAST = {"pairs": 240, "trials": 6000, "samples": 150_000}
DEFAULT_SAMPLES = {"samples": SAMPLES}
# At μ ≈ 0.75 a round an error of √2 takes some 1,500 trials per sign to prove.
HIGH_SNR = {"budget__epsilon": 12.0, "fleet__peak_power": 100.0, "budget__total_power": 1e5}
plan_module = importlib.import_module("airfed.planning.plan")  # the package has a function of that name
real_clip, real_draw, real_receive = aircomp.clip, SeededNoise.draw, Superposition.receive
real_plan = Scenario.plan


# Clipping -----------------------------------------------------------------------------------------------------------


def scaled(rows, norms, limit):
    long = norms > limit
    rows[long] *= (limit / norms[long])[:, None]
    return rows


def clip_per_layer(patch):
    def clip(updates, clip_norm):
        rows, norms = np.array(updates, np.float64, ndmin=2), real_clip(updates, clip_norm)[1]
        parts = np.array_split(rows, min(4, rows.shape[1]), axis=1)
        return np.concatenate([real_clip(part, clip_norm)[0] for part in parts], axis=1), norms

    patch.setattr(aircomp, "clip", clip)


def clip_per_step(patch):
    """Each of up to 20 steps was clipped, so the sum is left as it is."""

    def clip(updates, clip_norm):
        return real_clip(updates, 20 * clip_norm)

    patch.setattr(aircomp, "clip", clip)


def clip_after_averaging(patch):
    patch.setattr(aircomp, "clip", lambda updates, clip_norm: real_clip(updates, 100 * clip_norm))

    def receive(self, noise):
        aggregate = real_receive(self, noise)
        scale = self.aircomp.scheduled.size * self.aircomp.alignment_coefficient
        return replace(aggregate, estimate=real_clip(aggregate.received / scale, self.aircomp.clip_norm)[0][0])

    patch.setattr(Superposition, "receive", receive)


def clip_by_largest_entry(patch):
    def clip(updates, clip_norm):
        rows, norms = np.array(updates, np.float64, ndmin=2), real_clip(updates, clip_norm)[1]
        rows[np.isnan(norms)] = 0.0
        return scaled(rows, np.max(np.abs(rows), axis=1), clip_norm), norms

    patch.setattr(aircomp, "clip", clip)


def clip_lets_nan_through(patch):
    def clip(updates, clip_norm):
        rows, norms = np.array(updates, np.float64, ndmin=2), real_clip(updates, clip_norm)[1]
        bad = np.isnan(norms)
        rows = np.nan_to_num(rows, posinf=1.0, neginf=-1.0)  # the NaN is gone, the rest is as long as it was
        good, _ = real_clip(rows[~bad], clip_norm) if (~bad).any() else (rows[~bad], None)
        rows[~bad] = good
        return rows, norms

    patch.setattr(aircomp, "clip", clip)


def clip_hides_nan(patch):
    """The numbers are harmless, but the broken device is not reported."""

    def clip(updates, clip_norm):
        rows, norms = real_clip(updates, clip_norm)
        return rows, np.nan_to_num(norms)

    patch.setattr(aircomp, "clip", clip)


def clip_in_float32(patch):
    def clip(updates, clip_norm):
        rows, norms = np.array(updates, np.float64, ndmin=2), real_clip(updates, clip_norm)[1]
        rows[np.isnan(norms)] = 0.0
        short = rows.astype(np.float32)
        with np.errstate(over="ignore"):
            lengths = np.sqrt(np.sum(short * short, axis=1))
        lengths[~np.isfinite(lengths)] = norms[~np.isfinite(lengths)]
        factor = np.minimum(np.float32(1), np.float32(clip_norm) / np.maximum(lengths, np.float32(1e-30)))
        return (short * factor[:, None]).astype(np.float64), norms

    patch.setattr(aircomp, "clip", clip)


def clip_off(patch):
    patch.setattr(aircomp, "clip", lambda updates, clip_norm: real_clip(updates, 1e3 * clip_norm))


# Noise --------------------------------------------------------------------------------------------------------------


def drawing(patch, change):
    """Replace the seeded noise by change(noise, round, draw)."""

    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        values = real_draw(self, round_index, dimension, noise_std, transmission=transmission)
        return change(values, round_index, lambda index: real_draw(self, index, dimension, noise_std))

    patch.setattr(SeededNoise, "draw", draw)


def noise_missing(patch):
    drawing(patch, lambda values, index, draw: np.zeros_like(values))


def noise_halved_by_complex_convention(patch):
    drawing(patch, lambda values, index, draw: values / math.sqrt(2))


def noise_variance_for_deviation(patch):
    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        return real_draw(self, round_index, dimension, math.sqrt(noise_std), transmission=transmission)

    patch.setattr(SeededNoise, "draw", draw)


def noise_two_percent_small(patch):
    drawing(patch, lambda values, index, draw: 0.98 * values)


def noise_reused_across_rounds(patch):
    drawing(patch, lambda values, index, draw: draw(0))


def noise_reused_every_other_round(patch):
    drawing(patch, lambda values, index, draw: draw(index // 2))


def noise_reused_across_layers(patch):
    def repeated(values, index, draw):
        half = values.size // 2
        values[half : 2 * half] = values[:half]
        return values

    drawing(patch, repeated)


def coloured(patch, correlation, axis, lag=1, entries=slice(None)):
    """Filter the noise as it is received: z = a·e + b·(e `lag` before), over rounds or entries; its variance is σ²."""
    b = math.sin(math.asin(2 * correlation) / 2)  # a² + b² = 1 and ab = ρ
    a, before = math.sqrt(1 - b**2), {}

    def receive(self, noise):
        if axis == "entries":
            last = np.roll(noise, lag)
        else:
            last = before.setdefault(noise.size, [noise[::-1]] * lag)[-lag]
            before[noise.size] = [*before[noise.size], noise][-lag:]
        received = noise.copy()
        received[entries] = (a * noise + b * last)[entries]
        return real_receive(self, received)

    patch.setattr(Superposition, "receive", receive)


def noise_coloured_over_rounds(patch):
    coloured(patch, 0.16, "rounds")
    return {"audit": {"trials": 30_000}}


def noise_coloured_over_rounds_with_the_other_sign(patch):
    coloured(patch, -0.16, "rounds")
    return {"audit": {"trials": 30_000}}


def noise_faintly_coloured_over_rounds(patch):
    coloured(patch, 0.02, "rounds")
    return {"audit": DEFAULT_SAMPLES}


def noise_faintly_coloured_over_rounds_with_the_other_sign(patch):
    coloured(patch, -0.02, "rounds")
    return {"audit": DEFAULT_SAMPLES}


def noise_coloured_over_entries(patch):
    coloured(patch, 0.02, "entries")
    return {"audit": DEFAULT_SAMPLES}


def noise_coloured_over_entries_with_the_other_sign(patch):
    coloured(patch, -0.02, "entries")
    return {"audit": DEFAULT_SAMPLES}


def noise_coloured_over_three_rounds(patch):
    coloured(patch, -0.02, "rounds", lag=3)
    return {"audit": DEFAULT_SAMPLES}


def noise_coloured_over_a_hundred_entries(patch):
    coloured(patch, 0.02, "entries", lag=100)
    return {"audit": DEFAULT_SAMPLES}


def noise_coloured_in_a_thousandth_of_the_entries(patch):
    coloured(patch, 0.4, "rounds", entries=slice(1000, 1256))
    return {"audit": DEFAULT_SAMPLES}


def noise_with_a_period(patch):
    def receive(self, noise):
        cycle = np.random.default_rng(abs(hash(noise[0]))).normal(0.0, noise.std(), 500)
        return real_receive(self, math.sqrt(0.98) * noise + math.sqrt(0.02) * np.resize(cycle, noise.size))

    patch.setattr(Superposition, "receive", receive)
    return {"audit": DEFAULT_SAMPLES}


def noise_two_percent_small_in_one_round(patch):
    drawing(patch, lambda values, index, draw: 0.98 * values if index == 2 else values)
    return {"audit": DEFAULT_SAMPLES}


def noise_missing_in_one_worker(patch):
    def without(values, index, draw):
        parts = np.array_split(values, 16)
        parts[11][:] = 0.0
        return values

    drawing(patch, without)


def noise_missing_in_one_round(patch):
    drawing(patch, lambda values, index, draw: 1e-9 * values if index == 3 else values)


def noise_of_another_distribution(patch):
    def uniform(values, index, draw):
        rng = np.random.default_rng(abs(hash(values[0])))
        return rng.uniform(-1, 1, values.size) * math.sqrt(3) * 2.0  # the σ of the scenario is 2

    drawing(patch, uniform)


def noise_clipped(patch):
    drawing(patch, lambda values, index, draw: np.clip(values, -4.0, 4.0))


def noise_divided_by_answering_devices(patch):
    def receive(self, noise):
        return real_receive(self, noise * np.count_nonzero(self.arrived) / self.arrived.size)

    patch.setattr(Superposition, "receive", receive)


def key_without(patch, part):
    def key(signal):
        return noise.noise_key({name: digest for name, digest in signal.items() if name != part})

    patch.setattr(setup, "noise_key", key)


def noise_key_without_data(patch):
    key_without(patch, "data")


def noise_key_without_scenario(patch):
    key_without(patch, "scenario")


def noise_key_without_seed(patch):
    def source(scenario, signal):
        return SeededNoise(hashlib.sha256(b"always the same").digest())

    patch.setattr(setup, "noise_source", source)
    patch.setattr("airfed.audit.subject.noise_source", source)


def secure_noise_from_a_seed(patch):
    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        return np.random.default_rng(round_index).normal(0.0, noise_std, dimension)

    patch.setattr(SecureNoise, "draw", draw)
    return {"link__noise_source": "secure"}


def seeded_noise_called_secure(patch):
    patch.setattr(SeededNoise, "privacy", "secure")


# The air ------------------------------------------------------------------------------------------------------------


def divisor_of_answering_devices(patch):
    def receive(self, noise):
        aggregate = real_receive(self, noise)
        answered = max(1, int(np.count_nonzero(self.arrived)))
        return replace(aggregate, estimate=aggregate.estimate * self.arrived.size / answered)

    patch.setattr(Superposition, "receive", receive)


def devices_at_full_power(patch):
    real = AirCompRound.from_plan.__func__

    def from_plan(cls, plan, index=-1, **options):
        made = real(cls, plan, index, **options)
        peak = np.sqrt(plan.problem.fleet.peak_power[made.scheduled])
        factor = peak / made.transmit_amplitude
        return replace(
            made,
            transmit_amplitude=peak,
            coefficient=made.coefficient * factor,
            arrival=made.arrival * factor[:, None],
        )

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))


def device_transmits_twice(patch):
    real = Superposition.add

    def add(self, devices, updates):
        before = self.signal.copy()
        real(self, devices, updates)
        self.signal += self.signal - before

    patch.setattr(Superposition, "add", add)


def summed_in_float32(patch):
    def quanta(self, contributions):
        total = np.add.reduce((contributions / self._quantum).astype(np.float32), axis=0)
        return total.astype(np.int64)

    patch.setattr(Superposition, "_quanta", quanta)


def channel_error_ignored(patch):
    patch.setattr(limits, "amplifications", lambda problem: np.ones(problem.fleet.num_devices))
    return {"channel__csi_error": 0.01}


def model_from_the_noiseless_signal(patch):
    def receive(self, noise):
        aggregate = real_receive(self, noise)
        scale = self.aircomp.scheduled.size * self.aircomp.alignment_coefficient
        return replace(aggregate, estimate=(aggregate.received - noise) / scale)

    patch.setattr(Superposition, "receive", receive)


# The shared ledger ----------------------------------------------------------------------------------------------------


def sensitivity_of_one_clip_norm(patch):
    patch.setattr(Budget, "sensitivity", property(lambda self: 1.0))


def round_epsilon_shown_as_total(patch):
    patch.setattr(Plan, "epsilon_total", property(lambda self: self.epsilon_round))
    return {"budget__scope": "round"}


def no_composition(patch):
    patch.setattr(plan_module, "compose", lambda mu, rounds: mu)
    return {"budget__scope": "round"}


def total_budget_spent_in_each_round(patch):
    real = limits.privacy_limits

    def per_round(problem, rounds, scheduled=None):
        return real(problem, np.ones_like(rounds), scheduled)

    patch.setattr(limits, "privacy_limits", per_round)


def classic_formula_above_its_range(patch):
    patch.setattr(plan_module, "gaussian_epsilon", classic_epsilon)
    return {"budget__scope": "round", "budget__epsilon": 60.0, "fleet__peak_power": 1e4, "budget__total_power": 1e9}


def epsilon_at_another_delta(patch):
    patch.setattr(plan_module, "gaussian_epsilon", lambda mu, delta: gaussian_epsilon(mu, 10 * delta))


def rounded_the_wrong_way(patch):
    real = limits.allowed_mu
    patch.setattr(limits, "allowed_mu", lambda budget: real(budget) * (1 + 1e-6))


def reported_epsilon_rounded_down(patch):
    patch.setattr(
        plan_module, "gaussian_epsilon", lambda mu, delta: math.floor(1e3 * gaussian_epsilon(mu, delta)) / 1e3
    )


# Rounds that differ ---------------------------------------------------------------------------------------------------

MOVING = {"policy__name": "liu_simeone", "learning__strong_convexity": 5.0}  # θ_i² ∝ 2^(i/2)


def planned_otherwise(patch, place):
    """The air of round i uses the θ of round place(i, I), while the recorder follows the plan."""
    real = AirCompRound.from_plan.__func__

    def from_plan(cls, plan, index=-1, **options):
        index, theta = range(plan.rounds)[index], np.array(plan.amplitudes.level)
        theta[index] = plan.amplitudes.level[place(index, plan.rounds)]
        return real(cls, replace(plan, amplitudes=replace(plan.amplitudes, level=theta)), index, **options)

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))
    return MOVING


def largest_theta_in_every_round(patch):
    return planned_otherwise(patch, lambda index, rounds: rounds - 1)


def theta_falls_instead(patch):
    return planned_otherwise(patch, lambda index, rounds: rounds - 1 - index)


def theta_of_the_next_round(patch):
    return planned_otherwise(patch, lambda index, rounds: min(index + 1, rounds - 1))


def receiver_takes_nu_of_the_last_round(patch):
    """Harmless to privacy, but the model does not follow from the recorded aggregate."""
    real = AirCompRound.from_plan.__func__

    def from_plan(cls, plan, index=-1, **options):
        nu = plan.sequence[-1].alignment_coefficient
        return replace(real(cls, plan, index, **options), alignment_coefficient=nu)

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))
    return MOVING


def every_round_accounted_as_the_first(patch):
    real = RoundSequence.totals.func

    def totals(self):
        found = real(self)
        return found._replace(mu=np.full(found.mu.shape, found.mu[0]))

    patch.setattr(RoundSequence, "totals", property(totals))
    return MOVING


def total_of_the_first_round(patch):
    patch.setattr(plan_module, "compose_all", lambda mus: float(mus[0]) * math.sqrt(len(mus)))
    return MOVING


# Methods ------------------------------------------------------------------------------------------------------------

POWERFUL = {"fleet__peak_power": 100.0, "budget__total_power": 2e3}
HELD_BY_POWER = {"fleet__peak_power": 1.0, "budget__total_power": 50.0}  # the true ε is within the budget, too


def signalling(patch, method, change, policy, **changes):
    """Let the signal of a method be changed: change(signal, problem)."""
    real = method.signal

    def signal(self, problem, **figures):
        return change(real(self, problem, **figures), problem)

    patch.setattr(method, "signal", signal)
    return POWERFUL | {"policy__name": policy} | changes


def twice_hidden(signal, problem):
    return replace(signal, privacy_noise_std=2 * signal.privacy_noise_std)


def artificial_noise_hides_twice(patch):
    return signalling(patch, ArtificialNoise, twice_hidden, "artificial_noise", **HELD_BY_POWER)


def artificial_noise_hides_twice_in_time_varying_rounds(patch):
    return signalling(patch, ArtificialNoise, twice_hidden, "artificial_noise", channel__coherence_rounds=1)


def trusted_server_hides_twice(patch):
    return signalling(patch, DPFedAvg, twice_hidden, "dp_fedavg")


def secure_aggregation_hides_twice(patch):
    return signalling(patch, SecureAggregation, twice_hidden, "secure_aggregation")


def digital_uploads_hidden_by_the_noise_of_all(patch):
    """Claim μ of the sum although each upload is observed alone."""

    def change(signal, problem):
        return replace(signal, privacy_noise_std=signal.noise_std)

    return signalling(patch, Digital, change, "digital")


def digital_uploads_share_the_noise_of_one(patch):
    """The sum of all uploads has the noise that each of them should have."""

    def change(signal, problem):
        return replace(signal, noise_std=problem.link.noise_std)

    return signalling(patch, Digital, change, "digital")


def plan_counts_noise_twice(patch):
    """The signal is right, and the μ that the plan prints is half of what it shows."""
    real = RoundSequence._mu
    patch.setattr(RoundSequence, "_mu", lambda self, signal, *place: real(self, signal, *place) / 2)
    return POWERFUL | {"policy__name": "digital"}


def receiver_noise_for_artificial_noise(patch):
    """Draw noise of standard deviation σ where s is claimed."""

    def change(signal, problem):
        return replace(signal, noise_std=problem.link.noise_std)

    return signalling(patch, ArtificialNoise, change, "artificial_noise", **HELD_BY_POWER, learning__dimension=2)


def receiver_noise_for_artificial_noise_in_the_plan(patch):
    real = RoundSequence.signal

    def signal(self, index):
        return replace(real(self, index), noise_std=self._plan.problem.link.noise_std)

    patch.setattr(RoundSequence, "signal", signal)
    return POWERFUL | {"policy__name": "artificial_noise"}


def receiver_noise_for_artificial_noise_in_the_round_loop(patch):
    real = training.receive

    def receive(plan, superposition, noise, *recorder, **options):
        class Quiet:
            def draw(self, index, dimension, noise_std, *, transmission=""):
                return noise.draw(index, dimension, plan.problem.link.noise_std, transmission=transmission)

        return real(plan, superposition, Quiet(), *recorder, **options)

    patch.setattr(training, "receive", receive)
    patch.setattr(training, "_check_noise", lambda noise, noise_std: None)
    return POWERFUL | {"policy__name": "artificial_noise"}


def with_power(patch, factor):
    """Artificial noise of `factor` times the variance that its power gives it, drawn and claimed alike."""

    def change(signal, problem):
        sigma = problem.link.noise_std
        s = math.sqrt(sigma**2 + factor(problem) * (signal.noise_std**2 - sigma**2))
        return replace(signal, noise_std=s, privacy_noise_std=s)

    return signalling(patch, ArtificialNoise, change, "artificial_noise", **HELD_BY_POWER)


def artificial_noise_not_divided_by_the_dimension(patch):
    return with_power(patch, lambda problem: problem.learning.dimension)


def artificial_noise_of_complex_power(patch):
    return with_power(patch, lambda problem: 2.0)


# Devices of different amplitudes ------------------------------------------------------------------------------------

UNEQUAL = HIGH_SNR | {"policy__name": "threshold_power", "fleet__peak_power": 0.5, "budget__epsilon": 200.0}


def weak_device_at_full_amplitude(patch):
    """A device stays within the μ of the round and exceeds its own."""
    real = AirCompRound.from_plan.__func__

    def from_plan(cls, plan, index=-1, **options):
        made = real(cls, plan, index, **options)
        factor, received = np.ones(made.scheduled.size), np.abs(made.coefficient)
        factor[received.argmin()] = 0.999 * received.max() / received.min()
        changes = {name: getattr(made, name) * factor for name in ("transmit_amplitude", "coefficient")}
        return replace(made, **changes, arrival=made.arrival * factor[:, None])

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))
    return UNEQUAL


def weak_device_at_full_amplitude_in_time_varying_rounds(patch):
    return weak_device_at_full_amplitude(patch) | {"channel__coherence_rounds": 1}


def devices_accounted_by_their_received_power(patch):
    real = RoundSequence.mu_shares
    patch.setattr(RoundSequence, "mu_shares", lambda self, index: real(self, index) ** 2)
    return UNEQUAL


def strongest_device_not_accounted_for(patch):
    """The total of the second most exposed device."""
    patch.setattr(Plan, "mu_total", property(lambda self: float(np.sort(self.device_mu)[-2])))
    return UNEQUAL | {"channel__coherence_rounds": 1}


# Many rounds --------------------------------------------------------------------------------------------------------

MANY = {"policy__rounds": 130, "learning__total_steps": 130, "learning__learning_rate": 0.01}


def repeating(patch, period, sign=1.0):
    def draw(self, round_index, dimension, noise_std, *, transmission=""):
        times, place = divmod(round_index, period)
        return sign**times * real_draw(self, place, dimension, noise_std, transmission=transmission)

    patch.setattr(SeededNoise, "draw", draw)
    return MANY


def noise_repeats_after_100_rounds(patch):
    return repeating(patch, 100)


def noise_repeats_after_57_rounds(patch):
    return repeating(patch, 57)


def noise_repeats_after_120_rounds_with_the_other_sign(patch):
    return repeating(patch, 120, -1.0)


def round_loop_repeats_noise_after_100_rounds(patch):
    real = training.receive

    def receive(plan, superposition, noise, *recorder, **options):
        class Repeated:
            def draw(self, index, *arguments, **more):
                return noise.draw(index % 100, *arguments, **more)

        return real(plan, superposition, Repeated(), *recorder, **options)

    patch.setattr(training, "receive", receive)
    return MANY


# Adaptive clipping ----------------------------------------------------------------------------------------------------

ADAPTIVE = {"learning__adaptive_clipping": {"share": 0.2}}
real_at = aircomp.AirComp.at


def indicator_not_charged(patch):
    """The update keeps the amplitude θ, and the indicator comes on top."""

    def at(self, index, clip_norm=None):
        made = real_at(self, index, clip_norm)
        more = math.hypot(1.0, made.indicator / made.clip_norm)
        return replace(made, coefficient=made.coefficient * more, arrival=made.arrival * more)

    patch.setattr(aircomp.AirComp, "at", at)
    return ADAPTIVE


def indicator_is_the_norm(patch):
    def indicators(self, norms):
        return self.indicator * np.minimum(np.nan_to_num(norms), 1e6 * self.clip_norm) / self.clip_norm

    patch.setattr(AirCompRound, "indicators", indicators)
    return ADAPTIVE


def indicator_of_zero_and_two(patch):
    """The same difference with replace-one adjacency, but a larger contribution and more power."""

    def indicators(self, norms):
        return 2 * self.indicator * (norms <= self.clip_norm)

    patch.setattr(AirCompRound, "indicators", indicators)
    return ADAPTIVE


def clip_norm_from_indicators_without_noise(patch):
    def receive(self, noise):
        return replace(real_receive(self, noise), unclipped=real_receive(self, 0 * noise).unclipped)

    patch.setattr(Superposition, "receive", receive)
    return ADAPTIVE


def indicator_without_noise(patch):
    def receive(self, noise):
        parts = noise.reshape(-1, self.entries).copy()
        parts[:, -1] = 0.0
        return real_receive(self, parts.ravel())

    patch.setattr(Superposition, "receive", receive)
    return ADAPTIVE


def amplitude_of_the_first_clip_norm(patch):
    """Updates are clipped to the new ϖ, but scaled by the old one."""

    def at(self, index, clip_norm=None):
        first, now = real_at(self, index), real_at(self, index, clip_norm)
        return replace(now, coefficient=first.coefficient, arrival=first.arrival)

    patch.setattr(aircomp.AirComp, "at", at)
    return ADAPTIVE


AUDITED = {
    indicator_not_charged: {"accounting", "sensitivity", "contribution", "round loop"},
    indicator_is_the_norm: {"sensitivity", "contribution"},
    indicator_of_zero_and_two: {"contribution"},
    clip_norm_from_indicators_without_noise: {"release"},
    indicator_without_noise: {"noise in every part"},
    amplitude_of_the_first_clip_norm: {"sensitivity", "contribution"},
    weak_device_at_full_amplitude: {"accounting", "sensitivity", "contribution", "round loop", "canaries"},
    weak_device_at_full_amplitude_in_time_varying_rounds: {"accounting", "sensitivity", "contribution", "round loop"},
    devices_accounted_by_their_received_power: {"accounting", "sensitivity", "contribution", "round loop", "canaries"},
    strongest_device_not_accounted_for: {"accounting"},
    artificial_noise_hides_twice: {"accounting", "sensitivity", "contribution", "round loop", "canaries"},
    artificial_noise_hides_twice_in_time_varying_rounds: {"accounting", "sensitivity", "contribution", "round loop"},
    trusted_server_hides_twice: {"accounting", "sensitivity", "contribution", "round loop", "canaries"},
    secure_aggregation_hides_twice: {"accounting", "sensitivity", "contribution", "round loop", "canaries"},
    digital_uploads_hidden_by_the_noise_of_all: {"accounting", "sensitivity", "contribution", "canaries"},
    digital_uploads_share_the_noise_of_one: {"accounting", "sensitivity", "contribution", "canaries"},
    plan_counts_noise_twice: {"accounting", "sensitivity", "contribution", "canaries"},
    receiver_noise_for_artificial_noise: {"accounting", "sensitivity", "contribution", "round loop"},
    receiver_noise_for_artificial_noise_in_the_plan: {"accounting", "sensitivity", "contribution", "canaries"},
    receiver_noise_for_artificial_noise_in_the_round_loop: {"noise scale", "noise distribution", "canaries"},
    artificial_noise_not_divided_by_the_dimension: {"noise power"},
    artificial_noise_of_complex_power: {"noise power"},
    noise_repeats_after_100_rounds: {"noise used once"},
    noise_repeats_after_57_rounds: {"noise used once"},
    noise_repeats_after_120_rounds_with_the_other_sign: {"noise used once"},
    round_loop_repeats_noise_after_100_rounds: {"noise used once"},
    clip_per_layer: {"sensitivity", "contribution"},
    clip_per_step: {"sensitivity", "contribution", "round loop", "canaries"},
    clip_after_averaging: {"sensitivity", "contribution"},
    clip_by_largest_entry: {"sensitivity", "contribution"},
    clip_lets_nan_through: {"contribution"},
    clip_hides_nan: {"bad updates"},
    clip_in_float32: {"contribution"},
    clip_off: {"sensitivity", "contribution", "canaries"},
    noise_missing: {"round loop", "canaries", "noise scale"},
    noise_halved_by_complex_convention: {"noise scale", "noise distribution", "canaries"},
    noise_variance_for_deviation: {"noise scale", "canaries"},
    noise_two_percent_small: {"noise scale"},
    noise_reused_across_rounds: {"noise correlation", "noise used once", "noise key"},
    noise_reused_every_other_round: {"noise correlation", "noise used once"},
    noise_reused_across_layers: {"noise correlation", "noise used once"},
    noise_coloured_over_rounds: {"noise autocorrelation", "trajectory"},
    noise_coloured_over_rounds_with_the_other_sign: {"noise autocorrelation", "trajectory"},
    noise_faintly_coloured_over_rounds: {"noise autocorrelation"},
    noise_faintly_coloured_over_rounds_with_the_other_sign: {"noise autocorrelation"},
    noise_coloured_over_entries: {"noise autocorrelation"},
    noise_coloured_over_entries_with_the_other_sign: {"noise autocorrelation"},
    noise_coloured_over_three_rounds: {"noise autocorrelation"},
    noise_coloured_over_a_hundred_entries: {"noise autocorrelation"},
    noise_coloured_in_a_thousandth_of_the_entries: {"noise autocorrelation"},
    noise_with_a_period: {"noise autocorrelation"},
    noise_two_percent_small_in_one_round: {"noise in every part"},
    noise_missing_in_one_worker: {"noise in every part"},
    noise_missing_in_one_round: {"noise in every part"},
    noise_of_another_distribution: {"noise distribution"},
    noise_clipped: {"noise distribution"},
    noise_divided_by_answering_devices: {"canaries", "trajectory"},
    noise_key_without_data: {"noise key"},
    noise_key_without_scenario: {"noise key"},
    noise_key_without_seed: {"noise key"},
    secure_noise_from_a_seed: {"noise key"},
    seeded_noise_called_secure: {"noise key"},
    divisor_of_answering_devices: {"divisor"},
    devices_at_full_power: {"sensitivity", "canaries"},
    device_transmits_twice: {"sensitivity", "round loop", "canaries"},
    summed_in_float32: {"order"},
    channel_error_ignored: {"sensitivity", "contribution"},
    model_from_the_noiseless_signal: {"release"},
    sensitivity_of_one_clip_norm: {"sensitivity", "accounting", "canaries"},
    round_epsilon_shown_as_total: {"accounting", "trajectory"},
    no_composition: {"accounting", "trajectory"},
    total_budget_spent_in_each_round: {"accounting"},
    classic_formula_above_its_range: {"accounting"},
    epsilon_at_another_delta: {"accounting"},
    rounded_the_wrong_way: {"accounting"},
    reported_epsilon_rounded_down: {"accounting"},
    largest_theta_in_every_round: {"sensitivity", "contribution", "round loop", "trajectory"},
    theta_falls_instead: {"sensitivity", "contribution", "round loop"},
    theta_of_the_next_round: {"sensitivity", "contribution", "round loop"},
    receiver_takes_nu_of_the_last_round: {"release"},
    every_round_accounted_as_the_first: {"sensitivity", "round loop", "accounting"},
    total_of_the_first_round: {"accounting", "trajectory"},
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", AUDITED, ids=lambda mutant: mutant.__name__)
def test_the_audit_catches(mutant, make_scenario, monkeypatch):
    changes = HIGH_SNR | (mutant(monkeypatch) or {})
    effort = FAST | changes.pop("audit", {})
    found = audit(Subject.of(make_scenario(**changes)), **effort)
    assert found.verdict == "fail"
    assert {check.name for check in found.failures} >= AUDITED[mutant], found.failures


# Caught by a check of their own ---------------------------------------------------------------------------------------


def charged_before_transmission(make_scenario, path, patch):
    """A round that fails while it is transmitted is in the ledger."""

    real = QuadraticEngine.updates

    def updates(self, parameters, devices, *, steps, round_index):
        if round_index == setup.PROBE_ROUND:
            return real(self, parameters, devices, steps=steps, round_index=round_index)
        raise KeyboardInterrupt

    patch.setattr(QuadraticEngine, "updates", updates)
    with pytest.raises(KeyboardInterrupt):
        execute(make_scenario(), path)
    assert Ledger.load(path / "ledger.jsonl").rounds == 1


def charged_too_late(patch):
    real = Ledger.charge

    def late(self, *arguments, **figures):
        self.header["owed"] = (arguments, figures)

    def settle(self, round_index, power):
        arguments, figures = self.header.pop("owed")
        real(self, *arguments, **figures)

    patch.setattr(Ledger, "charge", late)
    patch.setattr(Ledger, "settle", settle)


def repeated_round_charged(make_scenario, path, patch):
    """With fresh noise a repeated round costs again."""
    scenario = make_scenario(link__noise_source="secure", run__checkpoint_every=100, budget__scope="round")
    received = []

    def receive(self, noise):
        received.append(noise)
        return real_receive(self, noise)

    patch.setattr(Superposition, "receive", receive)
    asked = iter([False] * 9 + [True] * 100)
    execute(scenario, path, stop=lambda: next(asked))
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    execute(scenario, path, resume=True)
    run = Run.open(path).checked()
    assert len(run.rounds) < len(received) <= run.ledger.rounds


def repeated_round_for_free(patch):
    patch.setattr(SecureNoise, "repeatable", True)


def changed_data_refused(make_scenario, path, patch):
    """A run on other data is not resumed."""
    execute(make_scenario(), path)
    patch.setattr(QuadraticLearning, "data_digest", property(lambda self: "other"))
    with pytest.raises(RunError, match="data"):
        execute(make_scenario(), path, resume=True)


def changed_data_accepted(patch):
    patch.setattr(recorder, "_check_same", lambda *arguments: None)


def edits_detected(make_scenario, path, patch):
    """An edited ledger is refused."""
    execute(make_scenario(), path)
    file = path / "ledger.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"devices": 6', b'"devices": 1', 1))
    with pytest.raises(LedgerError, match="line 2 or a line before it was changed"):
        Run.open(path).checked()


def chain_without_content(patch):
    patch.setattr(chain, "_link", lambda previous, body: hashlib.sha256(previous.encode()).hexdigest())


def total_is_that_of_the_plan(make_scenario, path, patch):
    """The ledger of a finished run holds ε of the whole training."""
    outcome = execute(make_scenario(), path)
    lines = map(json.loads, (path / "ledger.jsonl").read_text().splitlines())
    *_, last = (line for line in lines if "epsilon_total" in line)
    assert last["epsilon_total"] == outcome.setup.plan.epsilon_total == outcome.records[-1]["epsilon_total"]
    assert last["epsilon_total"] > 2 * last["epsilon_round"]


def ledger_totals_one_round(patch):
    patch.setattr(Ledger, "_enter", lambda self, charge, after: self.charges.append(charge))


def budget_stops_the_run(make_scenario, path, patch):
    """A plan with too many rounds is stopped by the ledger."""
    real = execution.prepare

    def longer(scenario, *, spent):
        setup = real(scenario, spent=spent)
        level = np.full(setup.plan.rounds + 2, setup.plan.alignment)
        return replace(setup, plan=replace(setup.plan, amplitudes=replace(setup.plan.amplitudes, level=level)))

    patch.setattr(execution, "prepare", longer)
    outcome = execute(make_scenario(), path)
    assert outcome.status == "exhausted"
    assert outcome.records[-1]["epsilon_total"] <= 3.0


def budget_never_checked(patch):
    patch.setattr(Ledger, "check", lambda self, budget, **figures: None)


def plan_is_blind_to_data(make_scenario, path, patch):
    """Two data sets on the same channels: the same plan, to the byte."""
    plans = []
    for shift in (0.0, 100.0):
        real = QuadraticEngine.updates

        def updates(self, *arguments, real=real, shift=shift, **named):
            for devices, rows in real(self, *arguments, **named):
                yield devices, rows * (1 + shift * (devices % 2))[:, None]

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(QuadraticEngine, "updates", updates)
            plans.append(json.dumps(setup.prepare(make_scenario()).plan.to_dict()))
    assert plans[0] == plans[1]


def schedule_by_gradient_norm(patch):
    real = setup.build_task

    def peeking(scenario):
        task = real(scenario)
        ((devices, rows),) = task.engine.updates(
            task.initial_parameters, np.arange(scenario.num_devices), steps=1, round_index=0
        )
        best = devices[np.argsort(-np.linalg.norm(rows, axis=1))[:3]]

        def by_norm(self, problem):
            plan = real_plan(self, problem)
            table = Amplitudes.aligned(best, num_devices=6, level=plan.alignment, rounds=plan.rounds)
            return replace(plan, amplitudes=table)

        patch.setattr(Scenario, "plan", by_norm)
        return task

    patch.setattr(setup, "build_task", peeking)


def clip_norm_from_the_data(patch):
    real = setup.build_task

    def peeking(scenario):
        task = real(scenario)
        ((_, rows),) = task.engine.updates(
            task.initial_parameters, np.arange(scenario.num_devices), steps=1, round_index=0
        )
        median = float(np.median(np.linalg.norm(rows, axis=1)))

        def scaled_to_data(self, problem):
            return real_plan(self, replace(problem, learning=replace(problem.learning, clip_norm=median)))

        patch.setattr(Scenario, "plan", scaled_to_data)
        return task

    patch.setattr(setup, "build_task", peeking)


def noise_is_checked_in_every_round(make_scenario, path, patch):
    """The round loop refuses noise of another size than planned."""

    def halved(self, round_index, dimension, noise_std, *, transmission=""):
        return real_draw(self, round_index, dimension, noise_std) / math.sqrt(2)

    patch.setattr(SeededNoise, "draw", halved)
    with pytest.raises(training.NoiseFault, match=r"has 0\.[45]"):
        execute(make_scenario(learning__dimension=3000), path)


def noise_never_checked(patch):
    patch.setattr(training, "_check_noise", lambda noise, noise_std: None)


def private_record_is_private(make_scenario, path, patch):
    """A private record has no figure without noise on it."""
    outcome = execute(make_scenario(run__record="private"), path)
    assert all(record["update_norm_max"] is None for record in outcome.records)


def norms_in_the_private_record(patch):
    patch.setattr(formats, "UNNOISED", ("loss", "power_transmitted", "power_transmitted_total"))


def each_device_pays_for_its_own_rounds(make_scenario, path, patch):
    """Where rounds may differ in their devices, a device is charged for those in which it transmits, and no other."""

    def mask(plan, index):
        return ParticipationMask.of(plan.sequence[index].scheduled, plan.problem.fleet.num_devices)

    patch.setattr(charging, "participation_mask", mask)
    plan = execute(make_scenario(policy__name="uniform", policy__size=3), path).setup.plan
    expected = np.zeros(6)
    expected[plan.scheduled] = plan.mu_total
    np.testing.assert_allclose(Run.open(path).checked().ledger.device_mus(), expected, rtol=1e-14)


def charged_to(patch, change):
    """Charge change(devices, round) instead of the devices that transmit."""
    real = Ledger.charge

    def charge(self, index, *, devices, mask, **figures):
        other = ParticipationMask.of(change(mask.devices, index), mask.num_devices)
        return real(self, index, devices=other.count, mask=other, **figures)

    patch.setattr(Ledger, "charge", charge)


def inactive_device_charged(patch):
    charged_to(patch, lambda devices, index: np.union1d(devices, [index % 6]))


def device_not_charged_for_a_round(patch):
    charged_to(patch, lambda devices, index: devices[1:] if index == 5 else devices)


def charges_of_another_device(patch):
    charged_to(patch, lambda devices, index: (devices + 1) % 6)


def exposure_of_the_latest_round_only(patch):
    real = Exposure.plus
    patch.setattr(Exposure, "plus", lambda self, mu, mask=None: real(Exposure(), mu, mask))


def exposure_divided_among_the_devices(patch):
    real = Exposure.plus

    def plus(self, mu, mask=None):
        return real(self, mu if mask is None else mu / math.sqrt(mask.count), mask)

    patch.setattr(Exposure, "plus", plus)


CHECKED = {
    inactive_device_charged: each_device_pays_for_its_own_rounds,
    device_not_charged_for_a_round: each_device_pays_for_its_own_rounds,
    charges_of_another_device: each_device_pays_for_its_own_rounds,
    exposure_of_the_latest_round_only: each_device_pays_for_its_own_rounds,
    exposure_divided_among_the_devices: each_device_pays_for_its_own_rounds,
    charged_too_late: charged_before_transmission,
    repeated_round_for_free: repeated_round_charged,
    changed_data_accepted: changed_data_refused,
    chain_without_content: edits_detected,
    ledger_totals_one_round: total_is_that_of_the_plan,
    budget_never_checked: budget_stops_the_run,
    schedule_by_gradient_norm: plan_is_blind_to_data,
    clip_norm_from_the_data: plan_is_blind_to_data,
    noise_never_checked: noise_is_checked_in_every_round,
    norms_in_the_private_record: private_record_is_private,
}


@pytest.mark.parametrize("check", list(dict.fromkeys(CHECKED.values())), ids=lambda check: check.__name__)
def test_sound_code_passes_the_check(check, make_scenario, tmp_path, monkeypatch):
    check(make_scenario, tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("mutant", CHECKED, ids=lambda mutant: mutant.__name__)
def test_a_check_catches(mutant, make_scenario, tmp_path, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, LedgerError)):
        CHECKED[mutant](make_scenario, tmp_path / "run", monkeypatch)


def test_there_are_enough_mutants():
    assert len(AUDITED) + len(CHECKED) >= 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *({"seed": seed} for seed in range(3)),
        MANY,
        *(ADAPTIVE | {"budget__adjacency": adjacency} for adjacency in ("replace_one", "add_remove")),
        ADAPTIVE | {"link__antennas": 3},
        ADAPTIVE | {"channel__coherence_rounds": 1},
        UNEQUAL,
        UNEQUAL | {"channel__coherence_rounds": 1},
        *(
            POWERFUL | {"policy__name": name} | moving
            for name in (
                "artificial_noise",
                "dp_fedavg",
                "digital",
                "secure_aggregation",
                "threshold_power",
                "truncated_inversion",
                "liu_simeone",
            )
            for moving in ({}, {"channel__coherence_rounds": 1})
        ),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_no_mutant_no_alarm(make_scenario, changes):
    found = audit(Subject.of(make_scenario(**HIGH_SNR | changes)), **FAST)
    assert found.verdict == "pass", found.failures
