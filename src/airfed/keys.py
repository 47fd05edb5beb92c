"""Keys of scenarios, declared once: a field of a `Section` whose type is `Annotated[..., Key(...)]`.

The checks, the sentences about a wrong value, the reference (`docs/scenario.md`), the commented template and the
controls of the explorer all come from the declaration. A bare number is in SI units; a text must name its unit.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airfed._validate import LARGEST_INTEGER, LARGEST_SEED

WATTS: Final = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "dBW": 1.0, "dBm": 1e-3}
METRES: Final = {"m": 1.0, "km": 1e3}
HERTZ: Final = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
KELVIN: Final = {"K": 1.0}
DECIBELS: Final = {"dB": 1.0}
WATTS_PER_HERTZ: Final = {"W/Hz": 1.0, "mW/Hz": 1e-3, "dBW/Hz": 1.0, "dBm/Hz": 1e-3}
"""Unit -> its factor to SI, after 10^(x/10) where it is a level such as dBm."""

_QUANTITY = re.compile(r"\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")


def density(value: Any) -> Any:
    """Return a noise density in W/Hz; a bare number that can only be meant in decibels is refused."""
    if isinstance(value, int | float) and value <= 0:
        raise ValueError('expected a number > 0 in W/Hz, or a text such as "-174 dBm/Hz"')
    return in_si(WATTS_PER_HERTZ)(value)


def amplitude(value: Any) -> Any:
    """Return a number as it is; a text is refused, with the amplitude that belongs to it where it is a power."""
    if not isinstance(value, str):
        return value
    text = "expected a bare number, an amplitude in √W per real dimension"
    try:
        power = in_si(WATTS)(value)
    except ValueError:
        raise ValueError(text) from None
    # CN(0, s²) has s² W in all, and half of it in each of its two real dimensions
    if 0 < power < math.inf:
        text += f"; complex noise of that power P has √(P/2) = {math.sqrt(power / 2):.4g}"
    raise ValueError(text)


def in_si(units: Mapping[str, float]) -> Callable[[Any], Any]:
    """Return a converter to SI: numbers pass, "30 dBm" is converted, "30" alone is refused.

    >>> in_si(WATTS)("30 dBm")
    1.0
    """

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _QUANTITY.fullmatch(value)
        known = ", ".join(units)
        if match is None:
            raise ValueError(f"expected a number and one of the units {known}")
        number, unit = match.groups()
        if not unit:
            raise ValueError(
                f"missing unit: write a bare number for {next(iter(units))}, or a text with one of {known}"
            )
        if unit not in units:
            raise ValueError(f"unknown unit {unit!r}: expected one of {known}")
        try:
            level = unit.startswith("dB") and unit != "dB"
            return (10 ** (float(number) / 10) if level else float(number)) * units[unit]
        except OverflowError:
            raise ValueError(f"{value!r} is out of range") from None

    return convert


def _shown(text: str) -> str:
    """A text that is printed here and there, if nothing in it steers a terminal."""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text):
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
    """What a key is for, beyond its type and default."""

    meaning: str  # one sentence, without its capital and full stop
    symbol: str = ""  # as in `docs/notation.md`
    unit: str = ""  # of a bare number
    _: KW_ONLY
    note: str = ""  # a second sentence, which a page shows too
    choices: Mapping[Any, str] = field(default_factory=dict)  # values, as a page calls them; others only if no Literal
    file: bool = False  # the path of a file, from the scenario's folder

    @property
    def text(self) -> str:
        """Meaning, choices and note for people who read or write a file."""
        words = {value: text for value, text in self.choices.items() if isinstance(value, str)}
        named = [word if text.lower() == word else f"{word} ({text})" for word, text in words.items()]
        return self.meaning + ": " * bool(named) + ", ".join(named) + "; " * bool(self.note) + self.note


@dataclass(frozen=True)
class Control:
    """How a page turns a key."""

    label: str  # what the page calls it
    low: float | None = None  # ends of its slider, if it has one; the field beside it takes any value
    high: float | None = None
    kind: Literal["log", "count", "linear"] = "log"  # "count" (whole numbers) is logarithmic, too
    _: KW_ONLY
    start: Any = None  # where the page starts, unless at the default
    open: bool = False  # the high end of the slider means that nothing is written down: no limit


def key_of(info: FieldInfo) -> Key | None:
    """Return what a field declares itself to be."""
    return next((item for item in info.metadata if isinstance(item, Key)), None)


def control_of(info: FieldInfo) -> Control | None:
    """Return how a page turns a field, if it does."""
    return next((item for item in info.metadata if isinstance(item, Control)), None)


def _plain(value: Any) -> Any:
    """A NumPy number, an array or a tuple as what TOML would give."""
    return list(value) if isinstance(value, tuple) else getattr(value, "tolist", lambda: value)()


class ScenarioError(ValueError):
    """A scenario is wrong; the message is the user's, in one sentence."""


class Section(BaseModel):
    """A table of keys: unknown ones are refused, values are not converted; a ValueError says in a sentence why."""

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


_TYPES = {
    **{"float_type": "a number", "string_type": "a text in quotes", "bool_type": "true or false"},
    **{"int_type": "a whole number", "int_from_float": "a whole number", "list_type": "a list"},
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table"),
}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_KINDS = {dict: "a table", bool: "true or false", int: "a whole number", float: "a number"}
_LONGEST = 60  # characters of a bad value that are shown
_ENDLESS = 2**53  # a limit that nobody meets by accident is told only to those who do


def sentence(error: ValidationError, root: type[BaseModel]) -> str:
    """Return one sentence for the most telling of pydantic's complaints.

    That is a misspelt key before a missing one, and an entry of a list before the list.
    """

    def telling(item: ErrorDetails) -> tuple[bool, bool, bool]:
        kind = item["type"]
        return kind == "extra_forbidden", int in map(type, item["loc"]), kind == "too_short"

    item = max(error.errors(include_url=False), key=telling)
    model, key = _locate(item["loc"], root)
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    shown = "NaN" if isinstance(value, float) and math.isnan(value) else _shorten(value)
    ranges = _field_ranges(model, key)
    if kind == "extra_forbidden":
        if (instead := getattr(model, "removed", {}).get(str(item["loc"][-1]))) is not None:
            return f"The key {key!r} was removed: {instead}."
        close = difflib.get_close_matches(str(item["loc"][-1]), _keys(model), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(_keys(model))}."
        return f"Unknown key {key!r}; {hint}"
    if kind == "missing":
        return f"Missing key {key}: expected {expectation(model, str(item['loc'][-1]))}."
    if kind == "union_tag_not_found":
        tags = ", ".join(tag for variant in _variants(root, key) for tag in _tags(variant))
        return f"Missing key {key}.model: expected one of {tags}."
    if kind == "union_tag_invalid":
        return f"Expected {key}.model to be one of {context['expected_tags']}; got {context['tag']!r}."
    if kind.startswith(("greater_than", "less_than")):
        ((relation, limit),) = ((sign, context[bound]) for bound, sign in _SIGNS.items() if bound in context)
        if limit >= _ENDLESS:  # 2**53, or 2**128 - 1
            power = f"2**{(limit - 1).bit_length()}" + " - 1" * (limit.bit_count() > 1)
            return f"Expected {key} {relation} {power}, got {shown}."
        return f"Expected {key}={shown} {ranges or f'{relation} {limit:g}'}."
    if kind == "finite_number":
        return f"Expected {key}={shown} {ranges}{' and ' if ranges else ''}finite."
    if kind == "literal_error":
        return f"Expected {key} to be one of {context['expected'].replace(' or ', ', ')}; got {shown}."
    if kind == "too_short":
        return f"Expected {key} to have at least {context['min_length']} entry, got none."
    if kind == "value_error":
        text = str(context["error"])
        return text if text.startswith("Expected") else f"Bad {key}={shown}: {text}."
    expected = _TYPES.get(kind)
    if kind == "float_type" and isinstance(value, int) and not isinstance(value, bool):
        expected, ranges = "a number that float64 can hold", ""
    if expected is not None:
        return f"Expected {key} to be {' '.join([expected, ranges]).strip()}, got {shown}."
    return f"Bad {key}={shown}: {item['msg']}."


def _shorten(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 3 * _LONGEST:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except ValueError:  # a list with such a number in it
        return "a value too long to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _locate(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """The innermost model that the location passes through, and the key as the user wrote it."""
    model, key = root, ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif variant := [v for v in _variants(root, key) if part in _tags(v)]:
            model = variant[0]
        elif part != "float" and "[" not in part:  # else the branch of a union that was tried, not a key
            key += f".{part}" if key else part
            inner = _models(model.model_fields[part].annotation) if part in model.model_fields else []
            model = inner[0] if inner else model
    return model, key


def _variants(root: type[BaseModel], key: str) -> list[type[BaseModel]]:
    """The alternatives of a table that comes in several kinds, such as [channel]."""
    found = _models(root.model_fields[key].annotation) if key in root.model_fields else []
    return found if len(found) > 1 else []


def _tags(variant: type[BaseModel]) -> tuple[str, ...]:
    return get_args(variant.model_fields["model"].annotation)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _keys(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if not field.exclude]


def expectation(model: type[BaseModel], key: str) -> str:
    """Return what a value of the key may be, as in "a whole number >= 1"."""
    field = model.model_fields.get(key)
    if field is None or _models(field.annotation):
        return "a table"
    types = _types(field.annotation)
    listed = get_origin(field.annotation) is list
    if Literal in types:
        of = "a list of" if listed else "one of"
        return f"{of} {', '.join(value for value in types if isinstance(value, str))}"
    kind = next((text for kind, text in _KINDS.items() if kind in types), "a text in quotes")
    ranges = _field_ranges(model, key)
    if listed:
        return f"a list of numbers {ranges}".strip()
    return f"{kind} {ranges}".strip() + (", or a list of them" if list in types else "")


def _types(annotation: Any) -> list[Any]:
    """The plain types that an annotation is made of, from the outside inwards."""
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [get_origin(annotation) or annotation, *(found for argument in inner for found in _types(argument))]


def _field_ranges(model: type[BaseModel], key: str) -> str:
    """The range of the key's last part, as in "> 0 and < 1"; entries of a list share their list's."""
    field = model.model_fields.get(key.split(".")[-1].split("[")[0])
    return "" if field is None else " and ".join(_ranges(field.metadata) or _nested_ranges(field.annotation))


def _nested_ranges(annotation: Any) -> list[str]:
    for argument in get_args(annotation):
        if found := _ranges(getattr(argument, "__metadata__", ())) or _nested_ranges(argument):
            return found
    return []


def _ranges(metadata: Iterable[Any]) -> list[str]:
    found: list[str] = []
    for item in metadata:
        for source in getattr(item, "metadata", [item]):
            bounds = {sign: getattr(source, name) for name, sign in _SIGNS.items() if hasattr(source, name)}
            found += [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound < _ENDLESS]
    return found
