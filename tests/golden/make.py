"""Golden records: the plans and the exact sums of airfed 0.2.0, which a redesign is compared with.

    python tests/golden/make.py [PREFIX ...]

writes `golden.json.gz` anew, or only the cases whose names begin with a PREFIX. Do this only for a change that is meant
to change plans. Problems are made from a seed, by NumPy's uniform numbers alone, and through public names alone.

Names in cases and records are those of 0.2.0. `NAMES` says what they are called today; it is the only place to edit
after a rename. `amplitudes`, `preset` and `trained` are the only code that knows more of airfed than its public names.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import itertools
import json
import math
import platform
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import airfed

FILE = Path(__file__).with_name("golden.json.gz")
REPOSITORY = Path(__file__).parents[2]

# What 0.2.0 called it, where it is called otherwise today: "plan" attributes and arguments, names of a "policy",
# "option"s, fields of "link" and "budget", values of "trust" and "combining", keys of a scenario and values of a key.
NAMES: dict[str, str] = {
    "plan.law": "samples",
    "policy.noise_free": "fedavg",
    "policy.central": "dp_fedavg",
    "policy.truncated": "truncated_inversion",
    "policy.seif": "artificial_noise",
    "link.estimation_error": "csi_error",
    "link.estimation_failure": "csi_failure",
    "link.trust_estimates": "assume_perfect_csi",
    "link.combining": "beamforming",
    "combining.strongest_eigenvector": "dominant_eigenvector",
    "combining.sum": "equal_gain",
    "combining.one": "antenna_selection",
    "link.trust": "adversary",
    "trust.radio": "all_antennas",
    "trust.combiner": "combined",
    "budget.relation": "adjacency",
    "relation.replace": "replace_one",
    "key.channel.coherence": "channel.coherence_rounds",
    "key.channel.estimation_error": "channel.csi_error",
    "key.channel.trust_estimates": "channel.assume_perfect_csi",
    "policy.objective.measured": "accuracy",
}

SLOW = ("preset/liu-lmc", "preset/pomfl", "example/fading")  # seconds each


def name(kind: str, old: Any) -> Any:
    """Return what is called `old` in the records."""
    return NAMES.get(f"{kind}.{old}", old)


# Problems


class Draw:
    """Random numbers made of uniform ones, so that they stay the same."""

    def __init__(self, kind: str, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64([zlib.crc32(kind.encode()), seed]))

    def uniform(self, low: float, high: float, *shape: int) -> Any:
        found = low + (high - low) * self._rng.random(shape)
        return found if shape else float(found)

    def power_of_ten(self, low: float, high: float, *shape: int) -> Any:
        return 10.0 ** self.uniform(low, high, *shape)

    def whole(self, low: int, high: int) -> int:
        """Return one of low..high."""
        return low + int(self._rng.random() * (high - low + 1))

    def one_of(self, values: Any) -> Any:
        return values[self.whole(0, len(values) - 1)]

    def rayleigh(self, *shape: int) -> Any:
        """Return gains of mean square 1."""
        return np.sqrt(-np.log1p(-self._rng.random(shape)))

    def channel(self, *shape: int) -> Any:
        """Return complex gains of mean square 1."""
        return self.rayleigh(*shape) * np.exp(2j * np.pi * self._rng.random(shape))


BUDGETS = [("round", "exact"), ("round", "classic"), ("total", "exact")]
PRIVACY = [(0.3, 1e-5), (1.0, 1e-3), (5.0, 1e-3), (20.0, 1e-2)]


def problem_of(
    draw: Draw,
    *,
    gain: Any = None,
    channel: Any = None,
    decades: float = 0.0,
    steps: int,
    link: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
) -> airfed.Problem:
    """Return a problem in which each limit binds for some seeds; peak powers spread over some decades."""
    devices = (channel if gain is None else gain).shape[-2 if gain is None else -1]
    power = draw.power_of_ten(-1, 1)
    spread = draw.power_of_ten(-decades / 2, decades / 2, devices)
    smoothness = draw.power_of_ten(-1, 2)
    convexity = smoothness * draw.power_of_ten(-4, 0)
    epsilon, delta = draw.one_of(PRIVACY)
    scope, formula = draw.one_of(BUDGETS)
    limits = {
        "epsilon": epsilon,
        "delta": delta,
        "total_power": power * devices * steps * draw.power_of_ten(-3, 0.5),
        "scope": scope,
        "formula": formula,
        "relation": draw.one_of(["replace", "replace", "add_remove"]),
    }
    seen = {"gain": gain} if channel is None else {"channel": channel}
    return airfed.Problem(
        fleet=airfed.Fleet(peak_power=power * spread if decades else power, **seen),
        link=airfed.Link(
            noise_std=draw.power_of_ten(-2, 1),
            iq=False,  # 0.2.0 sent one entry per symbol
            **{name("link", key): name(key, value) for key, value in (link or {}).items()},
        ),
        learning=airfed.Learning(
            dimension=int(draw.power_of_ten(0, 5)),
            total_steps=steps,
            clip_norm=draw.power_of_ten(-1, 1),
            learning_rate=1 / smoothness,
            smoothness=smoothness,
            strong_convexity=convexity,
            initial_gap=draw.power_of_ten(-2, 2),
        ),
        budget=airfed.Budget(
            **{name("budget", key): name(key, value) for key, value in {**limits, **(budget or {})}.items()}
        ),
    )


def decided(problem: airfed.Problem, policy: str = "optimal", *, options: Any = None, **settings: Any) -> airfed.Plan:
    """Return the plan of a policy."""
    if options:
        settings["options"] = {name("option", key): value for key, value in options.items()}
    given = {name("plan", key): value for key, value in settings.items() if value is not None}
    return airfed.plan(problem, policy=name("policy", policy), **given)


def some_rounds(draw: Draw, steps: int) -> int | None:
    """Return I, fixed in a third of the cases."""
    return draw.whole(1, steps) if draw.whole(0, 2) == 0 else None


def aligned(draw: Draw, seed: int, *, decades: float = 0.0, **rest: Any) -> airfed.Plan:
    steps = draw.whole(1, 40)
    problem = problem_of(draw, gain=draw.rayleigh(draw.whole(1, 16)) + 0.02, decades=decades, steps=steps, **rest)
    return decided(problem, rounds=some_rounds(draw, steps))


def unequal(draw: Draw, seed: int) -> airfed.Plan:
    return aligned(draw, seed, decades=draw.one_of([0.3, 1.0, 2.0]))


RULES: list[tuple[str, dict[str, Any]]] = [
    ("paper", {}),
    ("full", {}),
    ("uniform", {"seed": 3}),
    ("uniform", {"size": 2, "seed": 4}),
    ("top_k", {}),
    ("top_k", {"size": 3}),
    ("threshold", {"threshold": 0.4}),
]


def rules(draw: Draw, seed: int) -> airfed.Plan:
    steps, (policy, settings) = draw.whole(1, 30), RULES[seed % len(RULES)]
    gain = draw.rayleigh(draw.whole(3, 12)) + 0.02
    problem = problem_of(draw, gain=gain, decades=draw.one_of([0.0, 1.0]), steps=steps)
    average = draw.one_of([None, "tail", "exponential"])
    return decided(problem, policy, rounds=some_rounds(draw, steps), average=average, **settings)


def imperfect(draw: Draw, seed: int) -> airfed.Plan:
    link = {
        "estimation_error": draw.power_of_ten(-5, -1),
        "estimation_failure": draw.power_of_ten(-9, -3),
        "trust_estimates": seed % 6 == 5,
    }
    steps, policy = draw.whole(1, 20), ["optimal", "optimal", "paper", "full", "top_k"][seed % 5]
    problem = problem_of(draw, gain=draw.rayleigh(draw.whole(2, 10)) + 0.05, decades=seed % 2, steps=steps, link=link)
    return decided(problem, policy, rounds=some_rounds(draw, steps))


def constrained(draw: Draw, seed: int) -> airfed.Plan:
    """Privacy that earlier trainings have spent, and a limit on the time on the air."""
    steps = draw.whole(2, 20)
    budget = {"scope": "total", "formula": "exact", "spent": draw.uniform(0.0, 0.05)}
    link: dict[str, Any] = {}
    if seed % 2:
        budget["air_time"], link["bandwidth"] = draw.power_of_ten(0, 3), 1e3
    problem = problem_of(draw, gain=draw.rayleigh(6) + 0.05, steps=steps, link=link, budget=budget)
    return decided(problem, ["optimal", "full", "digital", "threshold_power"][seed // 2 % 4])


COMBININGS = ["optimal", "strongest_eigenvector", "sum", "one"]
SEEN = list(itertools.product(COMBININGS, ["radio", "combiner"]))


def antennas(draw: Draw, seed: int) -> airfed.Plan:
    combining, trust = SEEN[seed % len(SEEN)]
    channel = draw.channel(draw.whole(2, 7), draw.whole(2, 4))
    steps, policy = draw.whole(1, 12), ["optimal", "optimal", "full", "top_k", "paper"][seed // len(SEEN) % 5]
    link = {"combining": combining, "trust": trust}
    problem = problem_of(draw, channel=channel, decades=seed % 2, steps=steps, link=link)
    return decided(problem, policy, rounds=some_rounds(draw, steps))


def time_varying_antennas(draw: Draw, seed: int) -> airfed.Plan:
    combining, trust = SEEN[seed % len(SEEN)]
    steps, devices, number = draw.whole(2, 6), draw.whole(2, 5), draw.whole(2, 3)
    link = {"combining": combining, "trust": trust}
    problem = problem_of(draw, channel=draw.channel(steps, devices, number), steps=steps, link=link)
    law = draw.channel(3, steps, devices, number) if seed % 2 else None
    return decided(problem, ["optimal", "myopic", "full"][seed // len(SEEN) % 3], law=law)


def varying(
    draw: Draw, seed: int, policy: str, *, known: bool, battery: bool = False, settings: dict[str, Any] | None = None
) -> airfed.Plan:
    """Return a plan for gains of all rounds, or for those so far and draws of the rest."""
    steps, devices = draw.whole(3, 14), draw.whole(2, 8)
    gain = np.maximum(draw.rayleigh(steps, devices), 0.05)
    law = None if known else np.maximum(draw.rayleigh(4, steps, devices), 0.05)
    budget: dict[str, Any] = {}
    if battery:
        worth = draw.power_of_ten(-1.5, 0.5, devices) * steps
        budget["device_power"] = float(worth[0]) if seed % 3 == 0 else tuple(worth.tolist())
    link = {"estimation_error": 0.01} if seed % 5 == 4 else {}
    gain = gain[0] if battery and seed % 2 else gain
    problem = problem_of(draw, gain=gain, decades=float(seed % 2), steps=steps, link=link, budget=budget)
    law = law if gain.ndim == 2 else None
    return decided(problem, policy, law=law, rounds=some_rounds(draw, steps), **(settings or {}))


def clairvoyant(draw: Draw, seed: int) -> airfed.Plan:
    return varying(draw, seed, ["optimal", "clairvoyant"][seed % 2], known=bool(seed % 2 == 0))


def causal(draw: Draw, seed: int) -> airfed.Plan:
    return varying(draw, seed, "optimal", known=False)


def conditional(draw: Draw, seed: int) -> airfed.Plan:
    """Draws of the rest that depend on the gains so far."""
    steps, devices = draw.whole(3, 8), draw.whole(2, 6)
    gain, noise = np.maximum(draw.rayleigh(steps, devices), 0.05), draw.rayleigh(3, steps, devices)

    def law(seen: Any) -> Any:
        rest = noise[:, len(seen) :]
        return np.maximum(rest if not len(seen) else 0.5 * (rest + seen[-1]), 0.05)

    return decided(problem_of(draw, gain=gain, steps=steps), law=law)


def myopic(draw: Draw, seed: int) -> airfed.Plan:
    return varying(draw, seed, "myopic", known=bool(seed % 2))


def batteries(draw: Draw, seed: int) -> airfed.Plan:
    policy = ["optimal", "optimal", "myopic", "full"][seed % 4]
    return varying(draw, seed, policy, known=bool(seed % 3), battery=True)


def varying_rules(draw: Draw, seed: int) -> airfed.Plan:
    policy, settings = [each for each in RULES if each[1].get("size", 0) <= 2][seed % 6]
    settings = {**settings, "threshold": 0.01} if policy == "threshold" else settings
    return varying(draw, seed, policy, known=bool(seed % 2), settings=settings)


BASELINES: list[tuple[str, dict[str, Any]]] = [
    ("noise_free", {}),
    ("central", {}),
    ("digital", {}),
    ("digital", {"bits": 4, "access": "ofdma"}),
    ("truncated", {}),
    ("truncated", {"cutoff": 0.2}),
    ("threshold_power", {}),
    ("threshold_power", {"shrink": True}),
    ("liu_simeone", {}),
    ("liu_simeone", {"variant": "static"}),
    ("seif", {}),
    ("cotaf", {}),
    ("cotaf", {"clipped": True}),
]
REPLACE_ONLY = ("digital", "seif")
REMOVED = tuple(f"baseline{kind}/{seed}" for kind in ("", "-varying", "-antennas") for seed in (7, 20, 33))  # shrink


def baseline(draw: Draw, seed: int, *, changing: bool = False, several: bool = False) -> airfed.Plan:
    policy, options = BASELINES[seed % len(BASELINES)]
    steps, devices = (draw.whole(2, 3), draw.whole(2, 4)) if several else (draw.whole(2, 10), draw.whole(2, 8))
    budget = {"relation": "replace"} if policy in REPLACE_ONLY else {}
    given: dict[str, Any] = {"gain": np.maximum(draw.rayleigh(*([steps] if changing else []), devices), 0.05)}
    link: dict[str, Any] = {}
    law = None
    if several:
        combining, trust = SEEN[seed // len(BASELINES) * 3 % len(SEEN)]
        given, link = {"channel": draw.channel(devices, 2)}, {"combining": combining, "trust": trust}
    elif changing and seed // len(BASELINES) % 2:
        law = np.maximum(draw.rayleigh(3, steps, devices), 0.05)
    elif policy not in ("seif", "noise_free", "central", "cotaf") and seed // len(BASELINES) == 1:
        link = {"estimation_error": 0.003}
    problem = problem_of(draw, decades=float(seed % 2), steps=steps, link=link, budget=budget, **given)
    return decided(problem, policy, options=options, law=law, rounds=some_rounds(draw, steps))


def baseline_varying(draw: Draw, seed: int) -> airfed.Plan:
    return baseline(draw, seed, changing=True)


def baseline_antennas(draw: Draw, seed: int) -> airfed.Plan:
    return baseline(draw, seed, several=True)


def infeasible(draw: Draw, seed: int) -> airfed.Plan:
    """Devices that cannot be reached, alone or in a round, and budgets that leave no signal."""
    gain = draw.rayleigh(4, 3) + 0.1
    gain[1, seed % 3] = 0.0
    if seed % 4 == 0:
        return decided(problem_of(draw, gain=gain[1], steps=4), ["full", "seif", "truncated", "cotaf"][seed // 4])
    if seed % 4 == 1:
        return decided(problem_of(draw, gain=gain[0], steps=4), "threshold", threshold=9.0)
    if seed % 4 == 2:
        return decided(problem_of(draw, gain=gain, steps=4), ["full", "liu_simeone", "threshold_power"][seed // 4 % 3])
    gain[2] = 0.0
    return decided(problem_of(draw, gain=gain, steps=4), ["optimal", "myopic", "full"][seed // 4 % 3], rounds=4)


KINDS = {
    "aligned": (aligned, 40),
    "unequal": (unequal, 36),
    "rules": (rules, 28),
    "imperfect": (imperfect, 24),
    "constrained": (constrained, 8),
    "antennas": (antennas, 24),
    "time-varying-antennas": (time_varying_antennas, 12),
    "clairvoyant": (clairvoyant, 18),
    "causal": (causal, 18),
    "conditional": (conditional, 4),
    "myopic": (myopic, 10),
    "batteries": (batteries, 12),
    "varying-rules": (varying_rules, 12),
    "infeasible": (infeasible, 12),
    "baseline": (baseline, 39),
    "baseline-varying": (baseline_varying, 26),
    "baseline-antennas": (baseline_antennas, 13),
}


# Scenarios

# Of an upload, which 0.2.0 rounded: now 15 dBm and 3 dBm in each of d symbols
POWERS = {
    "pomfl": {"fleet.peak_power_per_symbol": 248.24 / 7850},
    "ncairfl": {"fleet.peak_power_per_symbol": 158.64 / 79510},
}


def preset(which: str) -> airfed.Scenario:
    """Return a scenario that airfed comes with."""
    from airfed.scenario import presets

    return airfed.load(presets.FOLDER / f"{which}.toml").override({"link.iq": False, **POWERS.get(which, {})})


def example(which: str, **changes: Any) -> airfed.Plan:
    scenario = airfed.load(REPOSITORY / "examples" / f"{which}.toml")
    return scenario.override({"link.iq": False, **renamed(changes)}).plan()


def renamed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys of a scenario, and their values, as they are called today."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return {
        name("key", key): name("policy" if key == "policy.name" else key, value) if isinstance(value, str) else value
        for key, value in changes.items()
    }


OWN_DATA = {"policy__surrogate": "mnist-5k-cnn-4"}  # that of 0.2.0; since then another data set is preferred
SCENARIOS: dict[str, Any] = {
    "example/paper": lambda: example("paper"),
    "example/paper full": lambda: example("paper", policy__name="full"),
    "example/paper uniform": lambda: example("paper", policy__name="uniform", policy__size=50),
    "example/paper as printed": lambda: example("paper", policy__name="paper"),
    "example/paper total": lambda: example(
        "paper", budget__scope="total", budget__formula="exact", budget__epsilon=11.3
    ),
    "example/fading": lambda: example("fading"),
    "example/fading myopic": lambda: example("fading", policy__name="myopic"),
    "example/private": lambda: example("private", **OWN_DATA),
    "example/private by the bound": lambda: example("private", policy__objective="bound"),
    "example/private full": lambda: example("private", policy__name="full", **OWN_DATA),
    "example/private noise": lambda: example("private", link__noise_std=0.1, **OWN_DATA),
    "example/private epsilon": lambda: example("private", budget__epsilon=8.0, **OWN_DATA),
    "example/private threshold power": lambda: example("private", policy__name="threshold_power", **OWN_DATA),
    **{
        f"preset/{which}": lambda which=which: preset(which).plan()
        for which in ("liu-lmc", "liu-simeone", "ncairfl", "pomfl", "ris-fl", "yan")
    },
}


# What is written down of a plan


def amplitudes(plan: airfed.Plan, index: int) -> Any:
    """Return a_ik of those who are scheduled in a round."""
    return plan.sequence[index].amplitude


FIGURES = (
    "rounds",
    "num_scheduled",
    "alignment",
    "clip_norm",
    "average",
    "power_total",
    "mu_round",
    "mu_total",
    "epsilon_round",
    "epsilon_total",
    "epsilon_paper",
    "binding",
    "violations",
    "lower_bound",
    "noise_share",
    "channel_uses",
    "predicted_accuracy",
)


def recorded(plan: airfed.Plan) -> dict[str, Any]:
    """Return what is compared of a plan, as plain values."""
    found = {each: getattr(plan, name("plan", each)) for each in FIGURES}
    found["device_share"] = 1.0 - float(np.mean(plan.sequence.totals.shortfall))
    power, devices = np.asarray(plan.power, dtype=np.float64), plan.problem.fleet.num_devices
    return {
        **found,
        # 0.2.0 named, of limits within 0.1%, not the smallest where rounds differ
        "binding": None if plan.problem.time_varying else found["binding"],
        # 0.2.0 added it to a scenario's plan by the bound only where it was printed
        "predicted_accuracy": found["predicted_accuracy"] if plan.objective == "accuracy" else None,
        "violations": list(found["violations"]),
        "scheduled": mask(plan.scheduled, devices),
        "local_steps": digest(json.dumps(list(map(int, plan.local_steps))).encode()),
        "bound": plan.bound.total,
        "terms": dict(plan.bound.terms),
        "gradient_bound": plan.gradient_bound.total,
        "power": power.tolist() if power.size <= 16 else [power.min(), power.max(), power.sum(), np.ptp(power[::7])],
        "sequence": alike([round_of(plan, index, devices) for index in range(plan.rounds)]),
    }


def round_of(plan: airfed.Plan, index: int, devices: int) -> list[Any]:
    """Return devices, amplitudes (one where they are equal), ϖ, μ and power [W] of a round."""
    entry, level = plan.sequence[index], np.asarray(amplitudes(plan, index), dtype=np.float64)
    equal = bool(np.all(level == level[0]))
    return [
        mask(entry.scheduled, devices),
        float(level[0]) if equal else level.tolist(),
        entry.clip_norm,
        entry.mu,
        float(np.sum(entry.power)),
    ]


def alike(rows: list[list[Any]]) -> list[list[Any]]:
    """Return each run of equal rows once, after the number of them."""
    return [[len(list(group)), *row] for row, group in itertools.groupby(rows)]


def mask(devices: Any, number: int) -> str:
    """Return a set of devices as a number in base 16, whose bit k is device k."""
    bits = np.zeros(number, dtype=np.uint8)
    bits[np.asarray(devices)] = 1
    return np.packbits(bits, bitorder="little")[::-1].tobytes().hex()


def digest(content: bytes) -> str:
    """Return the first 16 digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


LIMITS = ("privacy", "peak_power", "total_power", "device_power", "air_time", "threshold")


def reason(error: Exception) -> str:
    """Return which limit a sentence is about: the last that it names in brackets."""
    named = [word for inside in re.findall(r"\(([^()]*)\)", str(error)) for word in re.findall(r"\w+", inside)]
    return next((word for word in reversed(named) if word in LIMITS), "other")


def outcome(make: Any) -> dict[str, Any]:
    """Return the record of a plan, or why there is none."""
    try:
        return recorded(make())
    except airfed.InfeasibleError as error:
        return {"infeasible": reason(error)}


# Runs

TINY: dict[str, Any] = {
    "seed": 3,
    "fleet.num_devices": 6,
    "fleet.peak_power": 1.0,
    "channel.model": "rayleigh",
    "channel.minimum": 0.3,
    "link.noise_std": 0.5,
    "budget.epsilon": 4.0,
    "budget.delta": 1e-3,
    "budget.scope": "total",
    "budget.total_power": 1.0,
    "learning.model": "quadratic",
    "learning.dimension": 50,
    "learning.total_steps": 12,
    "learning.learning_rate": 0.1,
    "learning.clip_norm": 40.0,
    "learning.smoothness": 10.0,
    "learning.strong_convexity": 1.0,
    "learning.initial_gap": 150.0,
    "policy.rounds": 4,
}
LOGISTIC = {
    "learning.model": "logistic",
    "learning.dimension": None,
    "learning.dataset": "mnist-5k",
    "learning.clip_norm": 1.0,
    "learning.batch_size": 16,
    "run.engine": "torch",
}
RUNS: dict[str, dict[str, Any]] = {
    "aligned": {"policy.name": "optimal"},
    "uniform, averaged": {"policy.name": "uniform", "policy.size": 3, "policy.average": "tail"},
    "time-varying": {"channel.coherence": 1, "policy.rounds": None},
    "antennas": {"link.antennas": 3, "policy.name": "full"},
    "imperfect": {"channel.estimation_error": 0.01, "policy.name": "full"},
    "threshold_power": {"policy.name": "threshold_power"},
    "seif": {"policy.name": "seif"},
    "digital": {"policy.name": "digital"},
    "cotaf": {"policy.name": "cotaf"},
    "logistic": LOGISTIC,
}


class OwnNoise:
    """Noise that depends on the round alone: how airfed keys its own is no part of the record."""

    privacy, repeatable = "simulated", True

    def draw(self, round_index: int, dimension: int, noise_std: float, **_: Any) -> Any:
        rng = np.random.Generator(np.random.Philox(key=round_index))
        return noise_std * rng.standard_normal(dimension)


def trained(changes: dict[str, Any]) -> tuple[list[str], list[list[float]]]:
    """Return digests of each round's exact sum and model, and the norms of mean and model and the power transmitted."""
    from airfed.scenario import parse
    from airfed.training.loop import NoRecorder, receive, transmit
    from airfed.training.setup import prepare

    tables: dict[str, Any] = {}
    for key, value in renamed({**TINY, **changes}).items():
        *section, last = key.split(".")
        table = tables.setdefault(section[0], {}) if section else tables
        if value is not None:
            table[last] = value
    made = prepare(parse(tables))
    sums: list[str] = []
    values = []
    model = made.task.initial_parameters
    for index in range(made.plan.rounds):
        signal: Any = transmit(made.plan, made.aircomp, made.task.engine, parameters=model, index=index)
        done = receive(made.plan, signal, OwnNoise(), NoRecorder(), parameters=model, index=index)
        model = done.parameters
        vectors = (done.aggregate.estimate, model.astype(np.float64))
        values.append([*(float(np.linalg.norm(each)) for each in vectors), done.aggregate.power])
        sums += [hashlib.sha256(each.tobytes()).hexdigest() for each in (signal.integers, model)]
    made.task.engine.close()
    return sums, values


def machine() -> str:
    """Return what the last bits of a training may depend on beside airfed."""
    processor = platform.processor()
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        processor = digest("".join(re.findall(r"^(?:model name|flags)\s*:.*$", text, re.MULTILINE)[:2]).encode())
    return " ".join([processor, *(importlib.metadata.version(each) for each in ("numpy", "torch"))])


# Comparing


def difference(old: Any, new: Any, rtol: float, where: str = "", atol: float = 0.0) -> str:
    """Return the first place where two records differ by more than `rtol`, or terms by so much of the bound."""
    if where == ".terms":
        atol = rtol * sum(old.values())
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(f"{where}.{key}", old[key], new[key]) for key in old if key != "binding" or new[key] is not None]
    elif isinstance(old, list) and isinstance(new, list | tuple) and len(old) == len(new):
        pairs = [(f"{where}[{place}]", *both) for place, both in enumerate(zip(old, new, strict=True))]
    elif isinstance(old, float) and isinstance(new, float | int):
        return "" if math.isclose(old, new, rel_tol=rtol, abs_tol=atol) else f"{where}: {old!r} was {new!r} now"
    else:
        return "" if old == new else f"{where}: {old!r} was {new!r} now"
    return next(filter(None, (difference(a, b, rtol, place, atol) for place, a, b in pairs)), "")


def cases() -> dict[str, Any]:
    """Return what makes each plan, by its name."""
    found = dict(SCENARIOS)
    for kind, (make, number) in KINDS.items():
        for seed in range(number):
            if f"{kind}/{seed}" in REMOVED:
                continue
            found[f"{kind}/{seed}"] = lambda kind=kind, make=make, seed=seed: make(Draw(kind, seed), seed)
    return found


def load() -> dict[str, Any]:
    """Return the records."""
    return json.loads(gzip.decompress(FILE.read_bytes()))


def main(prefixes: list[str]) -> None:
    """Write the records, or some of them, anew."""
    old = load() if FILE.exists() else {"plans": {}, "runs": {}}
    chosen = tuple(prefixes) or ("",)
    plans = {
        each: outcome(make) if each.startswith(chosen) or each not in old["plans"] else old["plans"][each]
        for each, make in cases().items()
    }
    runs = {}
    for each, changes in RUNS.items():
        runs[each] = old["runs"].get(each)
        if f"run/{each}".startswith(chosen) or runs[each] is None:
            bits, values = trained(changes)
            runs[each] = {"bits": bits, "values": values, "machine": machine()}
    text = json.dumps({"plans": plans, "runs": runs}, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
    refused = sum("infeasible" in each for each in plans.values())
    print(f"{FILE}: {len(plans)} plans ({refused} infeasible), {len(runs)} runs, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
