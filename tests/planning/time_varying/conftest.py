"""Worlds whose channels change."""

import numpy as np
import pytest
from airfed.planning.time_varying.world import World

from airfed import Learning
from airfed.planning.time_varying.solution import spending


def _world(rng, *, devices, rounds, decades=0.0, battery=None, exposure=None, gain=None, **learning):
    """A random world in which each limit binds in a fair share of the draws.

    Args:
        decades: spread of the peak powers; 0 for equal ones.
        battery, exposure: the devices' own budgets, as a share of what they might spend; None: none.
    """
    smoothness = 10 ** rng.uniform(-1, 2)
    values = {
        "dimension": int(10 ** rng.uniform(0, 4)),
        "total_steps": int(rounds * rng.integers(1, 4)),
        "clip_norm": 10 ** rng.uniform(-1, 1),
        "learning_rate": 1 / smoothness,
        "smoothness": smoothness,
        "strong_convexity": smoothness * 10 ** rng.uniform(-4, 0),
        "initial_gap": 10 ** rng.uniform(-2, 2),
    } | learning
    power = 10 ** rng.uniform(-1, 1)
    noise = devices * 10 ** rng.uniform(-1.5, 0.5) / np.sqrt(values["dimension"])
    total = power * devices * rounds * 10 ** rng.uniform(-2.5, 0)
    return World(
        gain=rng.rayleigh(np.sqrt(0.5), (rounds, devices)) + 0.02 if gain is None else gain,
        peak_power=power * 10 ** rng.uniform(-decades / 2, decades / 2, devices) if decades else power,
        noise_std=noise,
        learning=Learning(**values),
        cap=np.sqrt(power) * 10 ** rng.uniform(-1, 1),
        total_power=total,
        device_power=None if battery is None else battery * total / devices,
        device_exposure=None if exposure is None else exposure * total / devices,
    )


@pytest.fixture(scope="session")
def random_world():
    return _world


@pytest.fixture(scope="session")
def check_limits():
    """Every limit holds, not by rounding either, and the objective is that of Theorem 1's recursion."""

    def check(world, sequence):
        rounds, theta, learning = sequence.rounds, sequence.amplitudes.level, world.learning
        member = sequence.amplitudes.dense > 0
        gain = world.gain[:rounds]
        assert sequence.amplitudes.equal
        assert np.all(member.any(axis=1))
        assert np.all(theta > 0)
        assert np.all(theta <= world.cap)
        for i, scheduled in enumerate(map(np.flatnonzero, member)):
            assert np.all(np.square(theta[i] / gain[i, scheduled]) <= world.peak_power[scheduled])
        power, device_power, exposure = spending(gain, member, theta)
        assert power.sum() <= world.total_power
        assert sum(power.tolist()) <= world.total_power
        assert device_power.sum() <= world.total_power
        if world.device_power is not None:
            assert np.all(device_power <= world.device_power)
        if world.device_exposure is not None:
            assert np.all(exposure <= world.device_exposure)
        steps = np.full(rounds, learning.total_steps // rounds)
        steps[: learning.total_steps % rounds] += 1
        gap = learning.initial_gap
        for i, scheduled in enumerate(map(np.flatnonzero, member)):
            noise = learning.dimension * world.noise_std**2 / (2 * (scheduled.size * theta[i]) ** 2)
            error = 4 * (1 - scheduled.size / world.num_devices) ** 2 + (steps[i] - 1) ** 2 + noise
            gap = learning.contraction * gap + world.weight * error
        assert sequence.objective == pytest.approx(gap, rel=1e-9)

    return check
