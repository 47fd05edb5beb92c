"""How a key is declared: a field of a `Section` whose type is `Annotated[..., Key(...)]`."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from airfed._validate import LARGEST_INTEGER, LARGEST_SEED
from airfed.keys.sentences import sentence
from airfed.keys.units import DECIBELS, HERTZ, KELVIN, METRES, WATTS, density, in_si

UNSHOWN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that are not to be seen, or that move what is."""


def _shown(text: str) -> str:
    """Return a text that is printed here and there, if nothing in it steers a terminal."""
    if not text.isprintable() and any(unicodedata.category(character) in UNSHOWN for character in text):
        raise ValueError("expected a text without control characters")
    return text


Watts = Annotated[float, BeforeValidator(in_si(WATTS)), Field(gt=0, allow_inf_nan=False)]
Metres = Annotated[float, BeforeValidator(in_si(METRES)), Field(gt=0, allow_inf_nan=False)]
Hertz = Annotated[float, BeforeValidator(in_si(HERTZ)), Field(gt=0, allow_inf_nan=False)]
Kelvin = Annotated[float, BeforeValidator(in_si(KELVIN)), Field(gt=0, allow_inf_nan=False)]
WattsPerHertz = Annotated[float, BeforeValidator(density), Field(gt=0, allow_inf_nan=False)]
Decibels = Annotated[float, BeforeValidator(in_si(DECIBELS)), Field(ge=0, le=300, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=100)]  # in dB; ten times what anybody has measured, and 10^(x/20) is finite
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Name = Annotated[str, AfterValidator(_shown)]


@dataclass(frozen=True)
class Key:
    """What a key is for, beyond its type and default.

    Args:
        meaning: one sentence, without its capital and full stop.
        symbol: as in `docs/notation.md`.
        unit: of a bare number.
        note: a second sentence, which a page shows too.
        choices: its values, as a page calls them; unless the type is a Literal there may be others.
        file: it is the path of a file, from the scenario's folder.
    """

    meaning: str
    symbol: str = ""
    unit: str = ""
    _: KW_ONLY
    note: str = ""
    choices: Mapping[Any, str] = field(default_factory=dict)
    file: bool = False

    @property
    def text(self) -> str:
        """Meaning, choices and note for people who read or write a file."""
        words = {value: text for value, text in self.choices.items() if isinstance(value, str)}
        named = [word if text.lower() == word else f"{word} ({text})" for word, text in words.items()]
        return self.meaning + ": " * bool(named) + ", ".join(named) + "; " * bool(self.note) + self.note


@dataclass(frozen=True)
class Control:
    """How a page turns a key.

    Args:
        label: what the page calls it.
        low, high: ends of its slider, if it has one; the field beside it takes any value.
        kind: "log" and "count" (whole numbers) run logarithmically.
        start: where the page starts, unless at the default.
        open: the high end of its slider means that nothing is written down: no limit, no end.
    """

    label: str
    low: float | None = None
    high: float | None = None
    kind: Literal["log", "count", "linear"] = "log"
    _: KW_ONLY
    start: Any = None
    open: bool = False


def key_of(info: FieldInfo) -> Key | None:
    """Return what a field declares itself to be."""
    return next((item for item in info.metadata if isinstance(item, Key)), None)


def control_of(info: FieldInfo) -> Control | None:
    """Return how a page turns a field, if it does."""
    return next((item for item in info.metadata if isinstance(item, Control)), None)


def _plain(value: Any) -> Any:
    """A number of NumPy's, an array or a tuple as what TOML would give."""
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


class Section(BaseModel):
    """A table of keys: unknown ones are refused, values are not converted.

    Raises:
        ValueError: a value is wrong, in one sentence (of `model_validate`: pydantic's ValidationError).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    removed: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had, and what holds without them."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**{key: _plain(value) for key, value in values.items()})
        except ValidationError as error:
            raise ValueError(sentence(error, type(self))) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # tables within tables are not made by it

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys that are paths of files."""
        return [name for name, info in cls.model_fields.items() if (key := key_of(info)) and key.file]
