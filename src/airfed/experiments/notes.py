"""What is printed beside a figure: every setting, and which of them the paper does not give."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from airfed.planning import Plan
from airfed.scenario import RayleighChannel, Scenario

_TRAINING_IMAGES = {"mnist-5k": 4000, "mnist": 60000, "fashion-mnist": 60000}


FOLDERS: Final = [Path(str(resources.files("airfed.experiments"))) / "paper"]
"""Where experiment files are looked for."""


def settings(
    world: Scenario,
    *,
    seeds: Sequence[int] = (),
    extra: str = "",
    varied: Sequence[str] = (),
    reference: str = "the thick curve",
) -> str:
    """Return the settings of a figure in three or four sentences.

    Args:
        world: what its points share.
        seeds: that were averaged over.
        extra: what is particular to the figure.
        varied: symbols that the figure itself varies; they are left out.
        reference: what the bands compare with; "" where they are plain intervals.
    """
    learning, budget = world.learning, world.budget
    scope = "in each round" if budget.scope == "round" else "in total"
    formula = "Lemma 1" if budget.formula == "classic" else "exact"
    shown = {
        "N": f"N = {world.num_devices}",
        "P": f"P = {world.fleet.peak_power:g} W" if isinstance(world.fleet.peak_power, float) else "P given per device",
        "P_tot": f"P_tot = {budget.total_power:g} W",
        "h": f"gains {_law(world)}",
        "σ": f"σ = {world.link.received_std:g} per real dimension",
        "ε": f"ε = {budget.epsilon:g} and ξ = {budget.delta:g} {scope} ({formula})",
        "ϖ": f"ϖ = {learning.clip_norm:g}",
        "τ": f"τ = {learning.learning_rate:g}",
        "T": f"T = {learning.total_steps}",
        "bound": f"ζ = {learning.smoothness:g}, ϱ = {learning.strong_convexity:g}, G = {learning.initial_gap:g}",
    }
    parts = [text for symbol, text in shown.items() if symbol not in varied]
    model = learning.model.upper() if learning.network is None else learning.model_title
    task = f"{model}, d = {world.dimension}, {learning.dataset}, {learning.partition.upper()}"
    images = learning.images or _TRAINING_IMAGES.get(learning.dataset)
    if images and "N" not in varied:
        task += f", {images // world.num_devices} images per device"
    text = "; ".join([*parts, task]) + "."
    if len(seeds) > 1:
        compared = f"bands: 95% (Student t) of the difference from {reference}, seed by seed"
        text += f" Mean of {len(seeds)} seeds; {compared if reference else 'whiskers: 95% (Student t)'}."
    elif seeds:
        text += " One seed."
    text += " Not given by the paper, so ours: the law of h, σ, ε, ξ, ϖ, ϱ, ζ, G."
    return f"{text} {extra}".strip()


def definition_file(experiment: str) -> Path:
    """Return the TOML of an experiment."""
    files = [folder / f"{experiment}.toml" for folder in FOLDERS]
    return next((file for file in files if file.exists()), files[0])


def noise_on_mean(plan: Plan) -> float:
    """Return s = σϖ/(|K|θ), the standard deviation per coordinate of the noise on the mean update."""
    problem = plan.problem
    return problem.link.noise_std * problem.learning.clip_norm / (plan.num_scheduled * plan.alignment)


def _law(world: Scenario) -> str:
    channel = world.channel
    law = f"Rayleigh (scale {channel.scale:g})" if isinstance(channel, RayleighChannel) else channel.model
    if channel.minimum:
        law += f", not below h_min = {channel.minimum:g}" + (
            ", the weakest exactly there" if channel.pin_minimum else ""
        )
    return law
