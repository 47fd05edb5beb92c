"""Tables within [learning]: a network of the family of `airfed.network`, and ridge regression."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from airfed.keys.declare import Count, Key, NonNegative, Positive, Section
from airfed.network import Network, describe


class NetworkSection(Section):
    """[learning.network]: layers of one's own, instead of learning.model.

    Convolutions without padding, each followed by a 2×2 max-pool and a ReLU; dense layers, each followed by a ReLU; one
    more with as many outputs as the data have classes. Without any layer this is softmax regression.
    """

    convolutions: Annotated[list[list[Count]], Key("[channels, kernel size] of each: [[32, 5], [64, 5]]")] = Field(
        default=[]
    )
    hidden: Annotated[list[Count], Key("width of each hidden dense layer: [512]")] = Field(default=[])
    l2: Annotated[NonNegative, Key("of the regulariser (λ/2)‖w‖² over all parameters", "λ")] = 0.0

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for index, pair in enumerate(self.convolutions):
            if len(pair) != 2:
                raise ValueError(
                    f"Expected learning.network.convolutions[{index}] to be [channels, kernel size], got {pair!r:.60}."
                )
        return self

    def __str__(self) -> str:
        """Return the layers in a few words.

        >>> print(NetworkSection(convolutions=[[32, 5], [64, 3]], hidden=[512]))
        network 32c5-64c3-512
        """
        return describe(self.convolutions, self.hidden, self.l2)

    def build(self, *, input_shape: tuple[int, int, int], classes: int) -> Network:
        """Return the network for images of the given shape.

        Raises:
            ValueError: the images are too small for the convolutions.
        """
        return Network(
            input_shape=input_shape,
            convolutions=tuple((outputs, kernel) for outputs, kernel in self.convolutions),
            hidden=tuple(self.hidden),
            classes=classes,
            l2=self.l2,
        )


class RidgeSection(Section):
    """[learning.ridge]: least squares with a regulariser, on data drawn from the seed.

    Features x ~ N(0, I) of learning.dimension d >= 5, and labels y = x₂ + 3x₅ + 0.2·N(0, 1). Device k has the loss
    (1/D_k) Σ ½(xᵀm − y)² + λ‖m‖²/2 over its D_k samples, as many as every other device has. Runs record L − L*;
    airfed calibrate tells ζ, ϱ and G, which are known exactly.
    """

    samples: Annotated[Count, Key("samples, of all devices together", "n")] = 10_000
    l2: Annotated[Positive, Key("of the regulariser (λ/2)‖m‖²", "λ")] = 1e-4

    def __str__(self) -> str:
        """Return the task in a few words.

        >>> print(RidgeSection(samples=500))
        ridge n500-l2:0.0001
        """
        return f"ridge n{self.samples}-l2:{self.l2:g}"
