"""Checks of arguments: valid values pass, and the message names the argument."""

from fractions import Fraction

import numpy as np
import pytest

from airfed import _validate

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = [True, np.True_, "1", None, [1.0], 1j, np.array([1.0]), NAN, np.float32("nan"), 10**400, -(10**400)]
NO_NUMBERS += [Fraction(1, 10**400), np.longdouble("1e-400"), np.longdouble("1e400")]


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "check", [_validate.number, _validate.positive, _validate.non_negative, _validate.fraction, _validate.moderate]
)
def test_no_number(check, value):
    with pytest.raises(ValueError, match="speed must be a number"):
        check(speed=value)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_validate.positive, [1, 5e-324, np.float32(2), Fraction(1, 3), 1.7e308], [0, -1, -0.0, INF, -INF]),
        (_validate.non_negative, [0, 0.0, 1e-320, np.int8(3)], [-1, -5e-324, INF]),
        (_validate.fraction, [0.5, 5e-324, np.nextafter(1, 0)], [0, 1, -0.5, 1.5, INF]),
        (_validate.moderate, [1e-100, 1, 10**100, Fraction(1, 3)], [0, 9e-101, 1.1e100, 10**101, -1, INF]),
        (
            _validate.positive_integer,
            [1, np.int64(7), np.uint8(200), 2**53],
            [0, -1, 1.0, True, "1", None, NAN, 2**53 + 1, 10**400, 10**5000, -(10**5000)],
        ),
        (_validate.seed, [0, np.int32(5), 2**128 - 1], [-1, -(10**5000), 0.0, False, None, 2**128, 10**400, 10**5000]),
    ],
)
def test_ranges(check, good, bad):
    for value in good:
        check(speed=value)
    for value in bad:
        with pytest.raises(ValueError, match="speed"):
            check(speed=value)


def test_several_arguments_at_once():
    with pytest.raises(ValueError, match="b must be positive and finite, got 0"):
        _validate.positive(a=1.0, b=0, c=-1)


def test_one_of():
    _validate.one_of(("red", "blue"), colour="red")
    with pytest.raises(ValueError, match="colour must be one of red, blue; got 'green'"):
        _validate.one_of(("red", "blue"), colour="green")


def test_vector_is_a_read_only_copy():
    source = np.array([1, 2, 3], dtype=np.int16)
    vector = _validate.vector(gain=source, minimum=0.0, strict=True)
    source[0] = 9
    assert vector.tolist() == [1.0, 2.0, 3.0]
    assert vector.dtype == np.float64
    assert vector.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 5.0
    reverse = _validate.vector(gain=np.arange(1.0, 5.0)[::-1], minimum=0.0, strict=True)
    assert reverse.flags.c_contiguous


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "gain must have at least one entry"),
        (np.array([]), "at least one entry"),
        (1.0, "flat list"),
        ([[1.0]], "flat list"),
        ([[1.0], [1.0, 2.0]], "list of numbers"),
        (["0.2"], "list of numbers"),
        ("0.2", "list of numbers"),
        ([True, False], "list of numbers"),
        ([None], "gain"),
        ([1j], "list of numbers"),
        (np.array([1 + 2j]), "list of numbers"),
        ([10**400], "list of numbers"),
        ([object()], "list of numbers"),
        ({"a": 1}, "list of numbers"),
        ([0.5, NAN], r"gain\[1\] must be non-negative and finite, got nan"),
        ([0.5, INF], r"gain\[1\] must be non-negative and finite, got inf"),
        ([0.5, -0.1], r"gain\[1\] must be non-negative and finite, got -0.1"),
    ],
)
def test_bad_vectors(value, named):
    with pytest.raises(ValueError, match=named):
        _validate.vector(gain=value, minimum=0.0, strict=False)


def test_strict_excludes_the_minimum():
    assert _validate.vector(gain=[0.0], minimum=0.0, strict=False).tolist() == [0.0]
    with pytest.raises(ValueError, match=r"gain\[0\] must be positive and finite, got 0.0"):
        _validate.vector(gain=[0.0], minimum=0.0, strict=True)
