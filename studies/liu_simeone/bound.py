"""Static and adaptive power over the rounds: the theory of D. Liu, O. Simeone, "Privacy for Free" ([LS21]).

All devices send D∇L_k, received with the same amplitude c_t in round t, in noise of standard deviation σ per entry. The
variable is x_t = σ²/c_t², the variance of the noise on their sum. Replacing one *sample* changes the sum by at most 2γ,
hence μ_t² = 4γ²/x_t. (airfed's plans have device-level privacy.)

[LS21] is IEEE J. Sel. Areas Commun. 39(1), 2021, arXiv:2006.05459.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from airfed import _validate
from airfed.keys import ScenarioError
from airfed.privacy import gaussian_mu
from airfed.scenario import Scenario
from airfed.scenario.learning_section import RIDGE
from airfed.training.setup import ridge_task

Floats = NDArray[np.float64]

EPSILONS: Final = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0)
METHODS: Final = ("adaptive", "static", "no_privacy")


@dataclass(frozen=True, kw_only=True, eq=False)
class Constants:
    """The constants of a scenario in the bound of [LS21].

    Args:
        dimension: d.
        samples: n, of all devices together.
        smoothness: ζ.
        contraction: ρ = 1 − ϱ/ζ, between 0 and 1.
        initial_gap: G = L(0) − L*.
        minimum: L*.
        sensitivity: γ, the largest norm of one sample's gradient.
        floor: x_min of each round, (T,), by the peak powers.
    """

    dimension: int
    samples: int
    smoothness: float
    contraction: float
    initial_gap: float
    minimum: float
    sensitivity: float
    floor: Floats

    def gap(self, noise: Floats) -> float:
        """Return the bound on the expected L − L* after all T rounds: ρ^T G + d/(2ζn²) Σ ρ^{T−t} x_t.

        Args:
            noise: x_t, (T,).
        """
        last = self.floor.size
        weights = self.contraction ** np.arange(last - 1, -1, -1.0)
        spread = self.dimension / (2 * self.smoothness * self.samples**2)  # [LS21, Thm 1]
        return float(self.contraction**last * self.initial_gap + spread * np.sum(weights * noise))

    def spent(self, noise: Floats) -> float:
        """Return Σ 2γ²/x_t = Σ μ_t²/2."""
        return float(np.sum(2 * self.sensitivity**2 / noise))


def constants(scenario: Scenario) -> Constants:
    """Return the constants of a scenario with ridge regression.

    As in [LS21], ‖w‖ is at most ‖w*‖, which bounds the gradient of device k by G_k = 2‖w*‖ζ_k and that of a sample by
    γ = 2‖w*‖(max ‖x‖² + λ). Both depend on the data, so a private training cannot use them.

    Raises:
        ScenarioError: the model is not ridge regression, or data or gains are missing.
    """
    if scenario.learning.model != RIDGE:
        raise ScenarioError(f"learning.model must be 'ridge', got {scenario.learning.model!r}.")
    task, problem = ridge_task(scenario), scenario.problem()
    features, labels = task.data
    strong_convexity, smoothness = task.curvature_range
    reach = 2 * float(np.linalg.norm(task.optimum))
    largest = float(np.max(np.sum(features**2, axis=-1)))
    rounds = scenario.policy.rounds or scenario.learning.total_steps
    sent = labels.shape[1] * reach * task.curvatures  # D_k G_k
    gain = np.broadcast_to(problem.fleet.gain, (rounds, task.num_devices))
    needed = (sent / gain) ** 2 / problem.fleet.peak_power
    return Constants(
        dimension=task.dimension,
        samples=labels.size,
        smoothness=smoothness,
        contraction=1 - strong_convexity / smoothness,
        initial_gap=task.initial_gap,
        minimum=task.minimum,
        sensitivity=reach * (largest + task.l2),
        floor=problem.link.noise_std**2 * needed.max(axis=1),
    )


def paper_budget(epsilon: float, delta: float) -> float:
    """Return R_dp = (√(ε + C²) − C)² with √π C exp(C²) = 1/δ, which Σ 2γ²/x_t must not exceed.

    Implements [LS21, Lemma 1]: sufficient for (ε, δ), not necessary.
    """
    _validate.positive(epsilon=epsilon, delta=delta)
    constant = math.sqrt(float(special.lambertw(2 / (math.pi * delta**2)).real) / 2)
    return float((epsilon / (math.sqrt(epsilon + constant**2) + constant)) ** 2)


def exact_budget(epsilon: float, delta: float) -> float:
    """Return μ²/2 of the exact (ε, δ): rounds with Σ μ_t² ≤ μ² are together one Gaussian mechanism."""
    return float(gaussian_mu(epsilon, delta)) ** 2 / 2


BUDGETS: Final = {"paper": paper_budget, "exact": exact_budget}


def static(constants: Constants, budget: float) -> Floats:
    """Return x_t with the same share of the budget in each round: max{2γ²T/R, x_min,t}."""
    rounds = constants.floor.size
    return np.asarray(np.maximum(2 * constants.sensitivity**2 * rounds / budget, constants.floor))


def adaptive(constants: Constants, budget: float) -> Floats:
    """Return the x_t of the smallest gap within the budget: max{λρ^{t/2}, x_min,t}.

    The gap grows with λ, and Σ 2γ²/x_t = 2γ²(Σ 1/(λρ^{t/2}) + Σ 1/x_min,t), with the first sum over the rounds in which
    λρ^{t/2} is above the floor. These are the rounds with the smallest x_min,t ρ^{−t/2}, so that λ has a closed form
    for a given number of them.
    """
    floor = constants.floor
    if constants.spent(floor) <= budget:
        return floor.copy()
    rounds = floor.size
    shape = constants.contraction ** (np.arange(1, rounds + 1) / 2 - rounds / 2)  # ρ^{(t−T)/2}: 1 in the last round
    order = np.argsort(floor / shape)
    share = budget / (2 * constants.sensitivity**2)
    above = np.cumsum(1 / shape[order])
    rest = np.append(np.cumsum(1 / floor[order][::-1])[::-1][1:], 0.0)  # of the rounds at their floor
    number = np.flatnonzero(above / (floor / shape)[order] + rest >= share)[-1]
    scale = above[number] / (share - rest[number]) * (1 + 1e-12)  # rounding must not exceed the budget
    return np.asarray(np.maximum(scale * shape, floor))


def rows(draws: Mapping[int, Constants], delta: float, epsilons: Sequence[float] = EPSILONS) -> list[dict[str, Any]]:
    """Return the gap over L* of each method, for each accountant, ε and draw.

    Args:
        draws: constants by seed.
        delta: δ of the whole training.
        epsilons: ε of the whole training.
    """
    found = []
    for accountant, budget_of in BUDGETS.items():
        for epsilon in epsilons:
            budget = budget_of(epsilon, delta)
            for seed, drawn in draws.items():
                noise = (adaptive(drawn, budget), static(drawn, budget), drawn.floor)
                gaps = {name: drawn.gap(x) / drawn.minimum for name, x in zip(METHODS, noise, strict=True)}
                found.append({"accountant": accountant, "epsilon": epsilon, "seed": seed, "budget": budget, **gaps})
    return found


def means(rows: Sequence[Mapping[str, Any]], accountant: str) -> dict[float, dict[str, float]]:
    """Return the mean gap over L* of each method over the draws, by ε, from the rows of one accountant."""
    own = [row for row in rows if row["accountant"] == accountant]
    return {
        epsilon: {name: float(np.mean([row[name] for row in own if row["epsilon"] == epsilon])) for name in METHODS}
        for epsilon in dict.fromkeys(float(row["epsilon"]) for row in own)
    }
