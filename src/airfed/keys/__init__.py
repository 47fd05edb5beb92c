"""Keys of scenarios, declared once: meaning, symbol, unit, range, default, and how a page turns them.

The checks, the sentences about a wrong value, the reference (`docs/scenario.md`), the commented template and the knobs
of the explorer all come from the declaration.
"""

from airfed.keys.declare import (
    Count,
    Fraction,
    Key,
    Metres,
    Name,
    NonNegative,
    Positive,
    Section,
    Seed,
    Slider,
    Watts,
    key_of,
    start_of,
)
from airfed.keys.sentences import expectation, sentence

__all__ = [
    "Count",
    "Fraction",
    "Key",
    "Metres",
    "Name",
    "NonNegative",
    "Positive",
    "Section",
    "Seed",
    "Slider",
    "Watts",
    "expectation",
    "key_of",
    "sentence",
    "start_of",
]
