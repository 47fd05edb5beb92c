"""Named random streams spawned from one seed.

Every consumer of randomness has its own stream, so drawing more from one stream never shifts another. Two policies
that run with one seed have the same channels, data and initial model.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airfed import _validate

# These numbers determine every recorded result: never change one, and never reuse 4.
_STREAMS: Final = {
    **{"data": 0, "channel": 1, "init": 2, "policy": 3, "batch": 5, "phase": 6},
    **{"fading": 7, "samples": 8, "array": 9},
}


def stream(seed: int, name: str, *key: int) -> np.random.Generator:
    """Return the generator of the stream `name` under `seed`; `key` (e.g. round and device) selects a sub-stream.

    >>> stream(0, "channel").random() == stream(0, "policy").random()
    False
    """
    _validate.seed(seed=seed)
    if name not in _STREAMS:
        raise ValueError(f"name must be one of {', '.join(_STREAMS)}; got {name!r}.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(_STREAMS[name], *key))))
