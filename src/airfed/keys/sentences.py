"""What is wrong with a scenario, in one sentence that names the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}
_RELATIONS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
_KINDS = {dict: "a table", bool: "true or false", int: "a whole number", float: "a number"}
_LONGEST = 60  # characters of a bad value that are shown
_ENDLESS = 2**53  # a limit that nobody meets by accident is told only to those who do


def sentence(error: ValidationError, root: type[BaseModel]) -> str:
    """Return one sentence for the most telling of pydantic's complaints."""
    details = error.errors(include_url=False)
    unknown = [item for item in details if item["type"] == "extra_forbidden"]
    if unknown:  # a misspelt key is also a missing one: the misspelling is the better news
        return _explain(unknown[0], root)
    # "A number or a list of numbers": the complaint about an entry says more than the one about the whole.
    telling = max(details, key=lambda item: (int in map(type, item["loc"]), item["type"] == "too_short"))
    return _explain(telling, root)


def _explain(item: ErrorDetails, root: type[BaseModel]) -> str:
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
    if kind in _RELATIONS:
        relation, bound = _RELATIONS[kind]
        limit = context[bound]
        if isinstance(limit, int) and limit >= _ENDLESS:
            return f"Expected {key} {relation} {_power_of_two(limit)}, got {shown}."
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
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found: list[str] = []
    for item in metadata:
        for source in getattr(item, "metadata", [item]):
            bounds = {sign: getattr(source, name) for name, sign in signs.items() if hasattr(source, name)}
            found += [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound < _ENDLESS]
    return found


def _power_of_two(limit: int) -> str:
    return f"2**{limit.bit_length() - 1}" if limit.bit_count() == 1 else f"2**{limit.bit_length()} - 1"
