"""Which names of a scenario are built in, and which are the user's own code."""

from __future__ import annotations

from typing import Final

from airfed._usercode import UserCode, named
from airfed.policies import EVERY

NETWORK: Final = "network"
"""What `learning.model` reads where [learning.network] writes the layers down."""

RIDGE: Final = "ridge"
"""Ridge regression, which [learning.ridge] describes."""

SYNTHETIC: Final = ("quadratic", RIDGE)
"""The models whose data are drawn from the seed: no images, no accuracy, and a known optimum."""

MODELS: Final = ("cnn", "mlp", "logistic", *SYNTHETIC, NETWORK)
"""The models that need no code of the user's."""


def user_code(model: str) -> UserCode | None:
    """Return the code of a `learning.model`; None for a built-in model.

    Raises:
        ValueError: it is neither a built-in model nor "module:callable".
    """
    return named(model, builtin=MODELS, key="learning.model")


def own_policy(policy: str) -> UserCode | None:
    """Return the code of a `policy.name`; None for a built-in policy.

    Raises:
        ValueError: it is neither a built-in policy nor "module:callable".
    """
    return named(policy, builtin=EVERY, key="policy.name")
