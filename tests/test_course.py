"""How θ and ϖ move: the formulas against the plain sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed.course import CONSTANT, Course


@given(growth=st.floats(1.0, 1e6), rounds=st.integers(1, 3000))
def test_the_crest_is_the_largest_over_the_root_of_the_mean_square_and_never_above(growth, rounds):
    factors = Course(growth=growth).alignment_factors(rounds)
    exact = 1 / np.sqrt(np.mean(np.square(factors.astype(np.longdouble))))
    crest = float(Course(growth=growth).crests(np.array([rounds]))[0])
    assert 1.0 <= crest <= max(1.0, float(exact))
    assert crest == pytest.approx(float(exact), rel=1e-14)


@given(growth=st.floats(1.0, 1e6), decay=st.floats(1e-6, 1.0), rounds=st.integers(2, 50))
def test_squares_grow_and_norms_fall_by_the_same_factor_from_round_to_round(growth, decay, rounds):
    course = Course(growth=growth, clip_decay=decay)
    alignment, clip = course.alignment_factors(rounds), course.clip_factors(rounds)
    assert (alignment[-1], clip[0]) == (1.0, 1.0)
    np.testing.assert_allclose(np.square(alignment[1:] / alignment[:-1]), growth ** (1 / rounds), rtol=1e-12)
    np.testing.assert_allclose(clip[1:] / clip[:-1], decay ** (1 / rounds), rtol=1e-12)


def test_a_constant_course_is_all_ones():
    assert CONSTANT.constant
    assert not Course(growth=2.0).constant
    assert not Course(clip_decay=0.5).constant
    for values in (CONSTANT.alignment_factors(7), CONSTANT.clip_factors(7), CONSTANT.crests(np.arange(1, 8))):
        assert np.all(values == 1.0)


@pytest.mark.parametrize(
    "changes",
    [{"growth": value} for value in (0.5, 0.0, -1.0, 2e6, np.inf, np.nan, "2", True)]
    + [{"clip_decay": value} for value in (1.5, 0.0, -1.0, 1e-7, np.nan, None)]
    + [{"power_share": value} for value in (1.5, 0.0, -0.1, np.nan)],
)
def test_what_is_out_of_range_is_refused_by_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Course(**changes)
