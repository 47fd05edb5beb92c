"""Plans for channels that vary from round to round, and for devices with batteries.

`clairvoyant` knows the gains of all rounds and certifies how far from the optimum it may be at most; `causal` knows
only those that have come, and samples of the rest; `device_budgets` has equal shares of every budget, and dual
variables of many. `planner` turns a `Problem` into what they solve.
"""

from airfed.planning.time_varying.instance import Solution
from airfed.planning.time_varying.one_round import fill
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
