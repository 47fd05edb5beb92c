"""One catalogue of problems, for all policies and baselines."""

from functools import partial
from itertools import product

import numpy as np

import airfed
from airfed import Budget, Fleet, Learning, Link, Problem
from airfed.policies import POLICIES

# The values of (ε, δ) are few on purpose: the exact inversion is remembered per budget, so that thousands of plans are
# cheap.
PRIVACY = [(0.3, 1e-5), (1.0, 1e-3), (5.0, 1e-3), (20.0, 1e-2)]
FORMULAS = [("round", "classic"), ("round", "exact"), ("total", "exact")]
REPLACE_ONLY = {
    "artificial_noise": "a removed device also removes its noise",
    "secure_aggregation": "a removed device also removes its noise",
    "digital": "an absent device is visible",
}
_LINK = (
    "bandwidth",
    "iq",
    "noise_std_lower",
    "noise_failure",
    "noise_covariance",
    "csi_error",
    "csi_failure",
    "assume_perfect_csi",
    "adversary",
    "beamforming",
)


def gains(seed, *shape):
    return np.maximum(np.random.default_rng(seed).rayleigh(np.sqrt(0.5), shape), 0.1)


def channels(seed, *shape):
    parts = np.random.default_rng(seed).normal(0.0, np.sqrt(0.5), (2, *shape))
    return parts[0] + 1j * parts[1]


def make(gain=None, *, channel=None, power=1.0, noise=0.3, dimension=50, steps=8, clip=2.0, convexity=1.0, **rest):
    """A problem of eight devices; `rest` are fields of the link and of the budget, or rate, smoothness and gap."""
    rate, smoothness, gap = (rest.pop(*each) for each in (("rate", 0.1), ("smoothness", 10.0), ("gap", 2.3)))
    link = {name: rest.pop(name) for name in _LINK if name in rest}
    received = {"channel": channel} if channel is not None else {"gain": gains(0, 8) if gain is None else gain}
    return Problem(
        fleet=Fleet(**received, peak_power=power),
        link=Link(noise_std=noise, **link),
        learning=Learning(
            **{"dimension": dimension, "total_steps": steps, "clip_norm": clip, "learning_rate": rate},
            **{"smoothness": smoothness, "strong_convexity": convexity, "initial_gap": gap},
        ),
        budget=Budget(**{"epsilon": 5.0, "delta": 1e-3, "total_power": 18.0} | rest),
    )


def random(rng, *, devices=None, total_steps=None, decades=0.0, gain=None, **budget):
    """A problem in which each of the three limits binds in a fair share of the draws.

    Args:
        decades: spread of the peak powers; 0 for equal ones.
    """
    if gain is None:
        gain = rng.rayleigh(np.sqrt(0.5), devices or int(rng.integers(1, 13))) + 0.02
    steps = total_steps or int(rng.integers(1, 25))
    power = 10 ** rng.uniform(-1, 1)
    epsilon, delta = PRIVACY[rng.integers(len(PRIVACY))]
    smoothness = 10 ** rng.uniform(-1, 2)
    return Problem(
        fleet=Fleet(
            gain=gain, peak_power=power * 10 ** rng.uniform(-decades / 2, decades / 2, len(gain)) if decades else power
        ),
        link=Link(noise_std=10 ** rng.uniform(-2, 1)),
        learning=Learning(
            dimension=int(10 ** rng.uniform(0, 5)),
            total_steps=steps,
            clip_norm=10 ** rng.uniform(-1, 1),
            learning_rate=1 / smoothness,
            smoothness=smoothness,
            strong_convexity=smoothness * 10 ** rng.uniform(-4, 0),
            initial_gap=10 ** rng.uniform(-2, 2),
        ),
        budget=Budget(
            **{"epsilon": epsilon, "delta": delta, "scope": "round"} | budget,
            total_power=power * len(gain) * steps * 10 ** rng.uniform(-3, 0.5),
        ),
    )


_TOTAL = {"scope": "total", "epsilon": 8.0}
BUDGETS = {
    "round": {},
    "classic": {"formula": "classic"},
    "total": _TOTAL,
    "little power": {"total_power": 3.0},
    "add-remove": _TOTAL | {"adjacency": "add_remove"},
    "unequal peaks": {"power": np.geomspace(0.2, 2.0, 8)},
    "imperfect CSI": {"csi_error": 0.01},
    "imperfect CSI total": {"csi_error": 0.01, "scope": "total", "epsilon": 20.0, "adjacency": "add_remove"},
    "assumed perfect CSI": {"csi_error": 0.01, "assume_perfect_csi": True},
    "measured noise": {"noise_std_lower": 0.2},
    "measured noise total": _TOTAL | {"noise_std_lower": 0.25, "noise_failure": 1e-3, "total_power": 1e3},
    "air time": {"bandwidth": 50.0, "air_time": 3.5},
}
BATTERIES = {
    "battery": {"device_power": 0.6},
    "battery total": _TOTAL | {"device_power": [0.5, 2.0] * 4},
}
ANTENNAS = {
    f"{adversary} {name}": given | {"adversary": adversary}
    for adversary, (name, given) in product(
        ("all_antennas", "combined"), (("round", {}), ("total", _TOTAL | {"epsilon": 20.0}))
    )
}


def _static(given, seed):
    return make(gains((seed, 1), 8), **given)


def _varying(given, seed):
    return make(gains((seed, 2), 8, 8), **given)


def _antennas(given, seed, rounds=()):
    return make(channel=channels((seed, 3), *rounds, 4, 2), steps=4, **given)


def _random(given, seed):
    return random(np.random.default_rng([seed, *map(ord, str(given))]), **given)


CATALOGUE = {
    **{f"static/{name}": partial(_static, given) for name, given in (BUDGETS | BATTERIES).items()},
    **{f"varying/{name}": partial(_varying, given) for name, given in (BUDGETS | BATTERIES).items()},
    **{f"antennas/{name}": partial(_antennas, given) for name, given in ANTENNAS.items()},
    **{f"varying antennas/{name}": partial(_antennas, given, rounds=(4,)) for name, given in ANTENNAS.items()},
    **{
        f"random/{scope} {formula} {adjacency} {decades:g}": partial(
            _random, {"scope": scope, "formula": formula, "adjacency": adjacency, "decades": decades}
        )
        for (scope, formula), adjacency, decades in product(FORMULAS, ("replace_one", "add_remove"), (0.0, 2.0))
    },
}
"""Problems by name, each a function of a seed."""


def samples(problem, *, draws=3):
    """Monte Carlo samples for a time-varying problem."""
    return (gains if problem.fleet.antennas == 1 else channels)(77, draws, *problem.fleet.drawn.shape)


def planned(problem, policy="optimal", **options):
    """The plan of any policy; "threshold" schedules the stronger half of the first round, by default."""
    if policy == "threshold":
        options = {"threshold": float(np.median(problem.fleet.gain_in(0)))} | options
    return airfed.plan(problem, policy=policy, **options)


def refusal(policy, name):
    """Part of the message with which a policy refuses a problem of the catalogue; "" if it has a plan."""
    family, _, kind = name.partition("/")
    if policy in POLICIES or ":" in policy:
        return ""
    if policy == "artificial_noise" and kind.startswith("imperfect"):
        return "perfect CSI"
    if policy in REPLACE_ONLY and any(word in kind for word in ("add-remove", "add_remove", "imperfect CSI total")):
        return REPLACE_ONLY[policy]
    if kind.startswith("battery") and not (policy == "liu_simeone" and kind == "battery"):
        return "device_power"
    if kind.startswith("all_antennas") and family == "varying antennas":
        return "observes all antennas"
    if policy == "artificial_noise" and kind.startswith("all_antennas"):
        return "artificial noise"
    if policy in ("digital", "secure_aggregation") and kind == "air time":
        return "air_time"
    return ""
