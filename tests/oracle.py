"""An oracle: a plan's values from its dense table of amplitudes, without airfed's planning code."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq

from airfed.privacy import gaussian_epsilon
from airfed.privacy.gaussian import amplification

NOT_PRIVATE = ("fedavg", "cotaf")
NO_RADIO = ("fedavg", "dp_fedavg", "digital", "secure_aggregation")


def level(peak, budget, needed=0.0):
    """min(P, max(p, needed)) with the p that spends the budget."""
    if peak.sum() <= budget:
        return peak
    spent = lambda p: np.sum(np.minimum(peak, np.maximum(p, needed)))  # noqa: E731
    root = brentq(lambda p: spent(p) - budget, 0.0, peak.max(), xtol=1e-300, rtol=1e-14) if spent(0.0) < budget else 0.0
    return np.minimum(peak, np.maximum(root, needed))


def factors(problem, method, shape):
    """f_ik: how much more strongly than planned an adversary may see a device."""
    fleet, link = problem.fleet, problem.link
    if method in NOT_PRIVATE or method in NO_RADIO:
        return np.ones(shape)
    if fleet.antennas > 1 and link.adversary == "all_antennas":
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.linalg.norm(fleet.channel, axis=-1) / fleet.gain
    else:
        error = 0.0 if link.assume_perfect_csi else link.csi_error
        found = amplification(fleet.gain, nmse=error, failure=link.csi_failure)
    return np.broadcast_to(found[: shape[0]] if found.ndim == 2 else found, shape)


def values(plan):
    """Everything that a plan derives, from `plan.amplitude`, its problem and the name of its method."""
    problem, method, a = plan.problem, plan.method.name, np.array(plan.amplitude)
    fleet, learning, budget, sigma = problem.fleet, problem.learning, problem.budget, problem.link.noise_std
    rounds, number = a.shape
    on, steps = a > 0, np.full(rounds, learning.total_steps // rounds)
    steps[: learning.total_steps % rounds] += 1
    gain = np.broadcast_to(fleet.gain[:rounds] if fleet.gain.ndim == 2 else fleet.gain, a.shape)
    sensitivity, per_round = (2.0 if budget.adjacency == "replace_one" else 1.0), budget.total_power / rounds
    lower = sigma if method in NO_RADIO or problem.link.noise_std_lower is None else problem.link.noise_std_lower
    power, noise, hidden = np.zeros(a.shape), np.full(rounds, sigma), np.full(rounds, lower)
    for i, k in enumerate(on):
        if method not in NO_RADIO:
            power[i, k] = (a[i, k] / gain[i, k]) ** 2
        if method == "digital":
            power[i, k] = level(fleet.peak_power[k], per_round)
            step = 2 * (a[i].max() + 6 * sigma) / (2.0**plan.method.bits - 1)
            noise[i] = math.sqrt(k.sum() * (sigma**2 + step**2 / 12))
        elif method == "secure_aggregation":
            power[i, k] = level(fleet.peak_power[k], per_round)
            theta, d = a[i].max(), learning.dimension
            step = 12 * math.sqrt((k.sum() * theta) ** 2 / d + sigma**2) / 2.0**plan.method.bits
            noise[i] = math.sqrt(sigma**2 + k.sum() * step**2 / (4 * (1 - math.exp(-0.5))))
            hidden[i] = sigma / math.sqrt(1 + step / theta + (step / theta) ** 2 * (d / 4 + math.sqrt(d) / 2))
            hidden[i] /= 1 + (step / sigma) ** 2 / 23  # noise on a lattice
        elif method == "artificial_noise":
            needed = power[i, k].copy()
            power[i, k] = np.maximum(level(fleet.peak_power[k], per_round, needed), needed)
            added = np.sum(gain[i, k] ** 2 * (power[i, k] - needed)) / learning.dimension
            noise[i], hidden[i] = math.sqrt(sigma**2 + added), math.sqrt(lower**2 + added)
        elif method in NOT_PRIVATE:
            hidden[i] = sensitivity * a[i].max() / 1e9
            noise[i] = hidden[i] if method == "fedavg" else sigma
    divisor = a.sum(axis=1)
    weight = a / divisor[:, None]
    seen = np.where(on, a * np.where(on, factors(problem, method, a.shape), 1.0), 0.0)
    mu = sensitivity * seen.max(axis=1) / hidden
    shortfall, share = np.maximum(1 / number - weight, 0.0).sum(axis=1), noise / divisor
    errors = np.stack([4 * shortfall**2, (steps - 1.0) ** 2, 0.5 * learning.dimension * share**2], axis=1)
    terms = np.array([learning.initial_gap, 0.0, 0.0, 0.0])
    for error in errors:  # Theorem 1
        terms = (1 - learning.strong_convexity / learning.smoothness) * terms
        terms[1:] += learning.clip_norm**2 / learning.smoothness * error
    own = np.where(on, mu[:, None], 0.0)  # aligned devices are charged the largest μ of the round
    if method not in NOT_PRIVATE and np.any(on & (a != a.max(axis=1, keepdims=True))):
        own = sensitivity * seen / hidden[:, None]
    exposure = np.sum(own**2, axis=0)
    return SimpleNamespace(
        on=on, power=power, noise=noise, hidden=hidden, divisor=divisor, mu=mu, shortfall=shortfall, share=share,
        steps=steps, terms=terms, exposure=exposure, weight=weight, device_mu=own, mu_total=math.sqrt(exposure.max()),
        gradient=2 * learning.initial_gap / (learning.learning_rate * rounds)
        + 2 * learning.clip_norm**2 * errors.sum(axis=1).mean(),
    )  # fmt: skip


def check(plan):
    """Compare every derived value of a plan with the oracle's; return the oracle's."""
    true, close = values(plan), lambda value, rel=1e-11: pytest.approx(value, rel=rel, abs=1e-300)
    budget, number = plan.problem.budget, plan.problem.fleet.num_devices
    assert plan.amplitude.shape == (plan.rounds, number)
    assert plan.constant == (not plan.problem.fleet.time_varying and bool(np.all(plan.amplitude == plan.amplitude[0])))
    assert np.array_equal(plan.scheduled, np.flatnonzero(true.on.any(axis=0)))
    assert plan.num_scheduled == plan.scheduled.size
    assert np.array_equal(plan.sizes, true.on.sum(axis=1))
    assert np.array_equal(plan.local_steps, true.steps)
    assert np.array_equal(plan.amplitudes.level, plan.amplitude.max(axis=1))
    assert plan.alignment == plan.amplitude.max()
    assert plan.alignment_coefficient == plan.alignment / plan.problem.learning.clip_norm
    # power
    assert plan.sequence.powers == close(true.power.sum(axis=1))
    assert plan.power_total == close(true.power.sum())
    assert plan.power == close(true.power.max(axis=0)[plan.scheduled])
    assert plan.sequence.device_power(plan.rounds) == close(true.power.sum(axis=0)[plan.scheduled])
    half = plan.rounds // 2
    assert plan.sequence.power_planned(half) == close(true.power[:half].sum())
    assert plan.sequence.device_power(half) == close(true.power[:half].sum(axis=0)[plan.scheduled])
    # privacy
    assert plan.sequence.mus == close(true.mu)
    assert plan.mu_round == close(true.mu.max())
    assert plan.mu_total == close(true.mu_total)
    assert true.exposure[plan.most_exposed] == close(true.exposure.max())
    assert plan.sequence.exposures() == close(true.exposure[plan.scheduled])
    assert plan.device_mu == close(np.sqrt(true.exposure), 1e-12)
    assert np.all(plan.device_mu**2 >= true.exposure * (1 - 1e-15))
    assert plan.epsilon_round == gaussian_epsilon(plan.mu_round, budget.delta)
    assert plan.epsilon_total == gaussian_epsilon(plan.mu_total, budget.delta)
    # learning
    assert list(plan.bound.terms.values()) == pytest.approx(true.terms, rel=1e-9, abs=1e-14 * true.terms.sum())
    assert plan.bound.total == close(true.terms.sum(), 1e-9)
    assert plan.gradient_bound.total == close(true.gradient, 1e-9)
    assert plan.noise_share == close(math.sqrt(np.mean(true.share**2)))
    effective = 1 / (number * np.sum(true.weight**2, axis=1))
    assert plan.participation == pytest.approx(effective.mean(), rel=1e-11, abs=1e-12)
    # one round
    for i in {0, half, plan.rounds - 1}:
        entry, signal, k = plan.sequence[i], plan.sequence.signal(i), true.on[i]
        assert np.array_equal(entry.scheduled, np.flatnonzero(k))
        assert np.array_equal(entry.amplitude, plan.amplitude[i, k])
        assert (entry.index, entry.local_steps, entry.clip_norm) == (i, true.steps[i], plan.clip_norm)
        assert entry.power == close(true.power[i, k])
        assert entry.device_mu == close(true.device_mu[i, k], 1e-12)
        assert np.all(entry.device_mu >= true.device_mu[i, k] * (1 - 1e-15))
        assert (signal.divisor, signal.noise_std, signal.privacy_noise_std) == close(
            (true.divisor[i], true.noise[i], true.hidden[i])
        )
        assert signal.amplitude / signal.divisor == close(true.weight[i, k])
        assert signal.shortfall(number) == pytest.approx(true.shortfall[i], rel=1e-11, abs=1e-12)
        assert entry.epsilon == gaussian_epsilon(entry.mu, budget.delta)
    return true


def check_limits(plan, *, allowed):
    """Every limit holds, added up by the oracle; `allowed` is the μ that the budget allows."""
    true, budget, room = values(plan), plan.problem.budget, 1 + 1e-12
    if plan.method.name not in NO_RADIO or plan.method.name in ("digital", "secure_aggregation"):
        assert np.all(true.power <= plan.problem.fleet.peak_power * room)
        assert true.power.sum() <= budget.total_power * room
    if budget.device_power is not None:
        assert np.all(true.power.sum(axis=0) <= np.asarray(budget.device_power) * room)
    if plan.private:
        assert (true.mu_total if budget.scope == "total" else true.mu.max()) <= allowed * room
        spent = plan.epsilon_total if budget.scope == "total" else plan.epsilon_round
        assert (plan.epsilon_paper if budget.formula == "classic" else spent) <= budget.epsilon * room
    else:
        assert plan.mu_round == pytest.approx(1e9)
