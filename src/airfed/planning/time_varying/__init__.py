"""Plans for channels that vary from round to round, and for devices with batteries.

`clairvoyant` knows the gains of all rounds and certifies how far from the optimum it may be at most; `causal` knows
only those that have come, and samples of the rest; `myopic` gives each round an equal share of every budget. `planner`
turns a `Problem` into what they solve.
"""

from airfed.planning.time_varying._fill import fill
from airfed.planning.time_varying.planner import (
    Samples,
    equal_shares,
    factors,
    first_sample,
    gains_of,
    instance_of,
    mean_problem,
    optimal,
    per_round,
    seldom,
)
from airfed.planning.time_varying.solution import Solution

__all__ = [
    "Samples",
    "Solution",
    "equal_shares",
    "factors",
    "fill",
    "first_sample",
    "gains_of",
    "instance_of",
    "mean_problem",
    "optimal",
    "per_round",
    "seldom",
]
