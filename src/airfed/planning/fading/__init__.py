"""Plans for channels that change from round to round: a schedule and an alignment factor for each.

`clairvoyant` knows the gains of all rounds and certifies how far from the optimum it may be at most; `Causal` knows
only those that have come, and the law of the rest; `myopic` gives each round an equal share of every budget.
"""

from airfed.planning.fading.causal import Causal, causal
from airfed.planning.fading.clairvoyant import clairvoyant
from airfed.planning.fading.myopic import myopic
from airfed.planning.fading.sequence import Sequence, spending, thinned
from airfed.planning.fading.world import World

__all__ = ["Causal", "Sequence", "World", "causal", "clairvoyant", "myopic", "spending", "thinned"]
