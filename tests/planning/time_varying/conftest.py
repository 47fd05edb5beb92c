"""Random instances for the time-varying planners."""

import numpy as np
import pytest

from airfed import Learning
from airfed.planning.time_varying.instance import Instance, spending


def _instance(rng, *, devices, rounds, decades=0.0, battery=None, exposure=None, gain=None, **learning):
    """A random instance in which each limit binds in a fair share of the draws.

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
    return Instance(
        gain=rng.rayleigh(np.sqrt(0.5), (rounds, devices)) + 0.02 if gain is None else gain,
        peak_power=power * (10 ** rng.uniform(-decades / 2, decades / 2, devices) if decades else np.ones(devices)),
        noise_weight=values["dimension"] * noise**2 / 2,
        learning=Learning(**values),
        cap=np.sqrt(power) * 10 ** rng.uniform(-1, 1),
        total_power=total,
        device_power=None if battery is None else np.full(devices, battery * total / devices),
        device_exposure=None if exposure is None else np.full(devices, exposure * total / devices),
    )


@pytest.fixture(scope="session")
def random_instance():
    return _instance


@pytest.fixture(scope="session")
def check_limits():
    """Every limit holds without tolerance, and the objective is that of Theorem 1's recursion."""

    def check(instance, sequence):
        rounds, theta, learning = sequence.rounds, sequence.amplitudes.level, instance.learning
        mask = sequence.amplitudes.dense > 0
        gain = instance.gain[:rounds]
        assert sequence.amplitudes.equal
        assert np.all(mask.any(axis=1))
        assert np.all(theta > 0)
        assert np.all(theta <= instance.cap)
        for i, scheduled in enumerate(map(np.flatnonzero, mask)):
            assert np.all(np.square(theta[i] / gain[i, scheduled]) <= instance.peak_power[scheduled])
        power, device_power, exposure = spending(gain, mask, theta)
        assert power.sum() <= instance.total_power
        assert sum(power.tolist()) <= instance.total_power
        assert device_power.sum() <= instance.total_power
        if instance.device_power is not None:
            assert np.all(device_power <= instance.device_power)
        if instance.device_exposure is not None:
            assert np.all(exposure <= instance.device_exposure)
        steps = np.full(rounds, learning.total_steps // rounds)
        steps[: learning.total_steps % rounds] += 1
        gap = learning.initial_gap
        for i, scheduled in enumerate(map(np.flatnonzero, mask)):
            noise = instance.noise_weight / (scheduled.size * theta[i]) ** 2
            error = 4 * (1 - scheduled.size / instance.num_devices) ** 2 + (steps[i] - 1) ** 2 + noise
            gap = learning.contraction * gap + instance.weight * error
        assert sequence.objective == pytest.approx(gap, rel=1e-9)

    return check
