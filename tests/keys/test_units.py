"""Numbers with units."""

import pytest

from airfed.keys import METRES, WATTS, in_si


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("1 W", 1.0),
        ("250mW", 0.25),
        ("3 uW", 3e-6),
        ("0 dBW", 1.0),
        ("30 dBm", 1.0),
        ("-30 dBm", 1e-6),
        ("  2.5e-3 W ", 2.5e-3),
        ("+.5 W", 0.5),
        ("10 dBW", 10.0),
    ],
)
def test_watts(text, watts):
    assert in_si(WATTS)(text) == pytest.approx(watts, rel=1e-14)


def test_metres():
    assert in_si(METRES)("1.5 km") == 1500.0
    assert in_si(METRES)("20 m") == 20.0


@pytest.mark.parametrize("value", [1, 1.5, True, None, [1]])
def test_values_that_are_not_texts_pass(value):
    assert in_si(WATTS)(value) is value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("30", "must be a bare number for W or have one of the units W"),
        ("30 dBq", "must have one of the units W, mW, uW, dBW, dBm"),
        ("30 w", "must have one of the units"),
        ("30 km", "must have one of the units"),
        ("watt", "must be a number with one of the units"),
        ("", "must be a number"),
        ("nan W", "must be a number"),
        ("inf W", "must be a number"),
        ("1 W 2", "must be a number"),
        ("1,5 W", "must be a number"),
        ("99999 dBW", "must be a number that float64 can hold"),
    ],
)
def test_bad_texts(text, reason):
    with pytest.raises(ValueError, match=reason):
        in_si(WATTS)(text)
