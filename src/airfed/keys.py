"""Keys of scenarios, declared once: a field of a `Section` whose type is `Annotated[..., Key(...)]`.

The checks, the error messages, the reference (`docs/scenario.md`), the commented template and the controls of the
explorer come from the declaration. A bare number is in SI units; a text must name its unit.
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
JOULES: Final = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600.0}
DECIBELS: Final = {"dB": 1.0}
WATTS_PER_HERTZ: Final = {"W/Hz": 1.0, "mW/Hz": 1e-3, "dBW/Hz": 1.0, "dBm/Hz": 1e-3}
"""Unit -> factor to SI, applied after 10^(x/10) to a level such as dBm."""

_QUANTITY = re.compile(r"\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")


def density(value: Any) -> Any:
    """Return a noise density in W/Hz; refuse a bare number that is not positive, which is meant in dBm/Hz."""
    if isinstance(value, int | float) and value <= 0:
        raise ValueError('must be a number > 0 in W/Hz or a text such as "-174 dBm/Hz"')
    return in_si(WATTS_PER_HERTZ)(value)


def amplitude(value: Any) -> Any:
    """Return a number unchanged; refuse a text, and name the amplitude if the text is a power."""
    if not isinstance(value, str):
        return value
    text = "must be a bare number, an amplitude in √W per real dimension"
    try:
        power = in_si(WATTS)(value)
    except ValueError:
        raise ValueError(text) from None
    # CN(0, s²) has power s² W, half of it in each of its two real dimensions
    if 0 < power < math.inf:
        text += f" (complex noise of that power P has √(P/2) = {math.sqrt(power / 2):.4g})"
    raise ValueError(text)


def in_si(units: Mapping[str, float]) -> Callable[[Any], Any]:
    """Return a converter to SI that passes numbers, converts "30 dBm" and refuses "30".

    >>> in_si(WATTS)("30 dBm")
    1.0
    """

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _QUANTITY.fullmatch(value)
        known = ", ".join(units)
        if match is None:
            raise ValueError(f"must be a number with one of the units {known}")
        number, unit = match.groups()
        if not unit:
            raise ValueError(f"must be a bare number for {next(iter(units))} or have one of the units {known}")
        if unit not in units:
            raise ValueError(f"must have one of the units {known}")
        try:
            level = unit.startswith("dB") and unit != "dB"
            return (10 ** (float(number) / 10) if level else float(number)) * units[unit]
        except OverflowError:
            raise ValueError("must be a number that float64 can hold") from None

    return convert


def _printable(text: str) -> str:
    """Return the text if it has no control characters, which could steer a terminal."""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text):
        raise ValueError("must be a text without control characters")
    return text


Watts = Annotated[float, BeforeValidator(in_si(WATTS)), Field(gt=0, allow_inf_nan=False)]
Joules = Annotated[float, BeforeValidator(in_si(JOULES)), Field(gt=0, allow_inf_nan=False)]
Metres = Annotated[float, BeforeValidator(in_si(METRES)), Field(gt=0, allow_inf_nan=False)]
Hertz = Annotated[float, BeforeValidator(in_si(HERTZ)), Field(gt=0, allow_inf_nan=False)]
Kelvin = Annotated[float, BeforeValidator(in_si(KELVIN)), Field(gt=0, allow_inf_nan=False)]
WattsPerHertz = Annotated[float, BeforeValidator(density), Field(gt=0, allow_inf_nan=False)]
Decibels = Annotated[float, BeforeValidator(in_si(DECIBELS)), Field(ge=0, le=300, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=100)]  # in dB; ten times any measured value, and 10^(x/20) is finite
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Name = Annotated[str, AfterValidator(_printable)]


@dataclass(frozen=True)
class Key:
    """Description of a key, beyond its type and default."""

    meaning: str  # one sentence, without its capital and full stop
    symbol: str = ""  # as in `docs/notation.md`
    unit: str = ""  # of a bare number
    _: KW_ONLY
    note: str = ""  # a second sentence, also shown on the explorer page
    choices: Mapping[Any, str] = field(
        default_factory=dict
    )  # value -> label on the page; not exhaustive unless the type is a Literal
    file: bool = False  # a path, relative to the folder of the scenario

    @property
    def text(self) -> str:
        """Meaning, choices and note, as the reference and the template print them."""
        words = {value: text for value, text in self.choices.items() if isinstance(value, str)}
        named = [word if text.lower() == word else f"{word} ({text})" for word, text in words.items()]
        return self.meaning + ": " * bool(named) + ", ".join(named) + "; " * bool(self.note) + self.note


@dataclass(frozen=True)
class Control:
    """Input element of a key on the explorer page."""

    label: str
    low: float | None = None  # range of the slider, if any; the field beside it takes any value
    high: float | None = None
    kind: Literal["log", "count", "linear"] = "log"  # scale; "count" is logarithmic over whole numbers
    _: KW_ONLY
    start: Any = None  # initial value on the page; None: the default of the key
    open: bool = False  # the high end of the slider leaves the key unset: no limit


def key_of(info: FieldInfo) -> Key | None:
    """Return the `Key` of a field."""
    return next((item for item in info.metadata if isinstance(item, Key)), None)


def control_of(info: FieldInfo) -> Control | None:
    """Return the `Control` of a field; None if the page has none."""
    return next((item for item in info.metadata if isinstance(item, Control)), None)


def _plain(value: Any) -> Any:
    """Return a NumPy number, an array or a tuple as TOML would give it."""
    return list(value) if isinstance(value, tuple) else getattr(value, "tolist", lambda: value)()


class ScenarioError(ValueError):
    """A scenario is invalid; the message says which key and why."""


class Section(BaseModel):
    """Table of keys; unknown keys and values of another type raise a ValueError that names them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    removed: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions that no longer exist -> what applies instead."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Old keys, and old values as "key=value" with the new key -> new name."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**{key: _plain(value) for key, value in values.items()})
        except ValidationError as error:
            raise ValueError(sentence(error, type(self))) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # nested tables bypass it

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys whose values are paths."""
        return [name for name, info in cls.model_fields.items() if (key := key_of(info)) and key.file]


_TYPES = {
    **{"float_type": "a number", "string_type": "a text in quotes", "bool_type": "true or false"},
    **{"int_type": "a whole number", "int_from_float": "a whole number", "list_type": "a list"},
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table"),
}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_KINDS = {dict: "a table", bool: "true or false", int: "a whole number", float: "a number"}
_LONGEST = 60  # printed characters of a bad value
_ENDLESS = 2**53  # limits from here on are named only in the message about a value beyond them


def sentence(error: ValidationError, root: type[BaseModel]) -> str:
    """Return a message for the most specific of pydantic's errors.

    A misspelt key comes before a missing one, and an entry of a list before the list, the innermost one first.
    """

    def specificity(item: ErrorDetails) -> tuple[int, ...]:
        kind, listed = item["type"], int in map(type, item["loc"])
        inner = (len(item["loc"]), kind == "value_error") if listed else (0, False)
        return kind == "extra_forbidden", listed, kind == "too_short", *inner

    item = max(error.errors(include_url=False), key=specificity)
    model, key = _locate(item["loc"], root)
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    shown = "NaN" if isinstance(value, float) and math.isnan(value) else _shorten(value)
    ranges = _field_ranges(model, key)
    if kind == "extra_forbidden":
        name = str(item["loc"][-1])
        if (instead := getattr(model, "removed", {}).get(name)) is not None:
            return f"The key {key!r} was removed: {instead}."
        if (today := getattr(model, "renamed", {}).get(name)) is not None:
            return f"The key {key!r} is now called {key.removesuffix(name) + today!r}."
        close = difflib.get_close_matches(name, _keys(model), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(_keys(model))}."
        return f"Unknown key {key!r}; {hint}"
    if kind == "missing":
        return f"Missing key {key}: expected {expectation(model, str(item['loc'][-1]))}."
    if kind == "union_tag_not_found":
        tags = ", ".join(tag for variant in _variants(root, key) for tag in _tags(variant))
        return f"Missing key {key}.model: expected one of {tags}."
    if kind == "union_tag_invalid":
        return f"{key}.model must be one of {context['expected_tags']}; got {context['tag']!r}."
    if kind.startswith(("greater_than", "less_than")):
        ((sign, limit),) = ((sign, context[bound]) for bound, sign in _SIGNS.items() if bound in context)
        if limit >= _ENDLESS:  # 2**53, or 2**128 - 1
            power = f"2**{(limit - 1).bit_length()}" + " - 1" * (limit.bit_count() > 1)
            return f"{key} must be at most {power}, got {shown}."
        return f"{key} must be {in_words(ranges or f'{sign} {limit:g}')}, got {shown}."
    if kind == "finite_number":
        return f"{key} must be {in_words(ranges)}{' and ' if ranges else ''}finite, got {shown}."
    if kind == "literal_error":
        if (today := getattr(model, "renamed", {}).get(f"{item['loc'][-1]}={value}")) is not None:
            return f"The value {shown} of {key} is now called {today!r}."
        return f"{key} must be one of {context['expected'].replace(' or ', ', ')}; got {shown}."
    if kind == "too_short":
        return f"{key} must have at least {context['min_length']} entry, got none."
    if kind == "value_error":
        text = str(context["error"])
        return text if text.endswith(".") else f"{key} {text}, got {shown}."
    expected = _TYPES.get(kind)
    if kind == "float_type" and isinstance(value, int) and not isinstance(value, bool):
        expected, ranges = "a number that float64 can hold", ""
    if expected is not None:
        return f"{key} must be {' '.join([expected, ranges]).strip()}, got {shown}."
    return f"{key}={shown}: {item['msg']}."


def in_words(ranges: str) -> str:
    """Return a range in words.

    >>> in_words("> 0"), in_words(">= 1"), in_words(">= 0 and <= 100"), in_words("> 0 and < 1")
    ('positive', 'at least 1', 'between 0 and 100', 'strictly between 0 and 1')
    """
    match ranges.replace(" and", "").split():
        case [">", "0"]:
            return "positive"
        case [">=", "0"]:
            return "non-negative"
        case [">=", low, "<=", high]:
            return f"between {low} and {high}"
        case [">", low, "<", high]:
            return f"strictly between {low} and {high}"
    signs = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
    return " ".join(signs.get(word, word) for word in ranges.split())


def _shorten(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 3 * _LONGEST:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except ValueError:  # a list that contains such a number
        return "a value too long to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _locate(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """Return the innermost model on the path of a location, and the key as the user wrote it."""
    model, key = root, ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif variant := [v for v in _variants(root, key) if part in _tags(v)]:
            model = variant[0]
        elif part not in ("float", "str", model.__name__) and "[" not in part:  # otherwise a branch of a union
            key += f".{part}" if key else part
            inner = _models(model.model_fields[part].annotation) if part in model.model_fields else []
            model = inner[0] if inner else model
    return model, key


def _variants(root: type[BaseModel], key: str) -> list[type[BaseModel]]:
    """Return the alternatives of a discriminated table such as [channel]."""
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
    """Return the values that a key accepts, such as "a whole number >= 1"."""
    field = model.model_fields.get(key)
    if field is None:
        return "a table"
    types = _types(field.annotation)
    given = [part for part in get_args(field.annotation) if part is not type(None)]
    listed = get_origin(given[0] if len(given) == 1 and type(None) in types else field.annotation) is list
    if _models(field.annotation):
        return "a list" if listed else "a table"
    if Literal in types:
        of = "a list of" if listed else "one of"
        return f"{of} {', '.join(value for value in types if isinstance(value, str))}"
    kind = next((text for kind, text in _KINDS.items() if kind in types), "a text in quotes")
    ranges = _field_ranges(model, key)
    if listed:
        return f"a list of {'texts in quotes' if str in types else 'numbers'} {ranges}".strip()
    return f"{kind} {ranges}".strip() + (", or a list of them" if list in types else "")


def _types(annotation: Any) -> list[Any]:
    """Return the plain types in an annotation, outermost first."""
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [get_origin(annotation) or annotation, *(found for argument in inner for found in _types(argument))]


def _field_ranges(model: type[BaseModel], key: str) -> str:
    """Return the range of a key, such as "> 0 and < 1"; entries of a list share the range of the list."""
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
