"""What every channel model is: a [channel] table of a scenario that draws gains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from airfed import _validate
from airfed.keys.declare import Control, Fraction, Key, NonNegative, Section, control_of
from airfed.problem import Link

_OWN_KEYS: Final[dict[str, str]] = {}
MODELS: Final[dict[str, type[ChannelModel]]] = {}
"""Every model by its name in scenarios; a class with a default for `model` is one."""


class ChannelModel(Section, ABC):
    """Draws the gains of a fleet.

    A subclass declares keys of its own and `magnitudes`; the keys here are every model's. With
    `model: Literal["mine"] = "mine"` it has a name, and scenarios, template, reference and explorer have it (if it is
    defined before `airfed.scenario` is imported, as those in `models` are).
    """

    minimum: Annotated[
        NonNegative,
        Key("smallest gain in the cell", "h_min", note="weaker gains are raised to it"),
        Control("Minimum gain", 0.0, 1.0, "linear"),
    ] = 0.0
    pin_minimum: Annotated[
        bool,
        Key(
            "set the weakest device exactly to the minimum, as the paper's figures do",
            choices={True: "exactly at h_min", False: "as drawn"},
        ),
        Control("Weakest device"),
    ] = False
    estimation_error: Annotated[
        NonNegative,
        Key("NMSE of the gains as the devices know them", note="relative; privacy counts on it"),
        Control("Error of the known gains", 0.0, 0.2, "linear"),
    ] = Link.estimation_error
    estimation_failure: Annotated[
        Fraction, Key("probability with which some device may arrive stronger than is accounted for", "β")
    ] = Link.estimation_failure
    trust_estimates: Annotated[
        bool, Key("plan and account as if the known gains were exact; where they are not, the privacy is not kept")
    ] = Link.trust_estimates
    model: Annotated[str, Key("law of the gains", choices=_OWN_KEYS), Control("Channel law")]

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Enter the model under its name."""
        if not (field := cls.model_fields["model"]).is_required():
            MODELS[field.default] = cls
            _OWN_KEYS[field.default] = ", ".join(cls.starts())

    @classmethod
    def starts(cls) -> dict[str, Any]:
        """Return the keys that not every model has, each with the value that a page starts from."""
        found = {}
        for key, info in cls.model_fields.items():
            if key not in ChannelModel.model_fields:
                control = control_of(info)
                found[key] = info.default if control is None or control.start is None else control.start
        return found

    @property
    def num_gains(self) -> int | None:
        """How many gains it has; None where it draws as many as are asked for."""
        return None

    def draw(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return one gain |h_k| per device, raised to the minimum."""
        return raise_to_minimum(self.magnitudes(num_devices, rng), self.minimum, pin=self.pin_minimum)

    @abstractmethod
    def magnitudes(self, num_devices: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return |h_k| as the law draws it; a law of complex amplitudes draws them here and returns their moduli."""

    def located(self, folder: Path) -> Self:
        """Return the model with the files it names looked for from `folder`."""
        return self.model_copy(update={key: str(folder / getattr(self, key)) for key in self.file_keys()})

    @model_validator(mode="after")
    def _check_minimum(self) -> Self:
        self.model_fields_set.add("model")  # what is dumped without its defaults is still this model
        if self.pin_minimum and self.minimum == 0:
            raise ValueError("Expected channel.minimum > 0 with channel.pin_minimum = true: it is pinned to that.")
        return self


def raise_to_minimum(gains: NDArray[np.float64], minimum: float, *, pin: bool = False) -> NDArray[np.float64]:
    """Return the gains with weaker ones raised to `minimum` (h_min); `pin` also sets the weakest exactly to it.

    >>> raise_to_minimum(np.array([0.05, 0.3, 2.0]), 0.1)
    array([0.1, 0.3, 2. ])
    >>> raise_to_minimum(np.array([0.5, 0.3, 2.0]), 0.1, pin=True)
    array([0.5, 0.1, 2. ])
    """
    _validate.non_negative(minimum=minimum)
    raised = np.maximum(gains, minimum)
    if pin:
        raised[np.argmin(gains)] = minimum
    return raised


def true_channel(
    gain: NDArray[np.float64], phase: NDArray[np.float64], *, nmse: float, rng: np.random.Generator
) -> NDArray[np.complex128]:
    """Return h_k = ĥ_k + e_k, the channel as it is where ĥ_k = gain·e^{j·phase} is what the devices know of it.

    Args:
        gain, phase: of the estimate.
        nmse: E|e|² over the mean of |ĥ|²; 0 for perfect knowledge. e is circularly symmetric Gaussian.
        rng: draws e.
    """
    known = gain * np.exp(1j * phase)
    spread = np.sqrt(0.5 * nmse * np.mean(np.square(gain)))
    real, imaginary = rng.normal(0.0, 1.0, (2, gain.size))
    return np.asarray(known + spread * (real + 1j * imaginary))
