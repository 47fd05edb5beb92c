"""The exact functions against Arb's balls, at random points.

A ball holds the truth for certain: an answer that it gives is a proof, and where it gives none it is made smaller. That
the returned double is on the safe side of the truth, and its neighbour is not, means that it is the truth correctly
rounded.
"""

import math
import sys

import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from airfed.privacy import gaussian_delta, gaussian_epsilon, gaussian_mu

PRECISIONS = [128 * 2**k for k in range(9)]  # bits; 32768 are more than any point here could need

MU = st.floats(-8, math.log10(50)).map(lambda x: 10.0**x)
Z1 = st.floats(-8, 29.5)
DELTA = st.one_of(st.floats(-200, -0.001).map(lambda x: 10.0**x), st.floats(1e-3, 1 - 1e-9))
EPSILON = st.floats(-12, 3.4).map(lambda x: 10.0**x)


def at_most(mu, epsilon, delta):
    """Return whether δ(ε) ≤ delta is proved; the arguments count as exact."""
    before = ctx.prec
    try:
        for ctx.prec in PRECISIONS:
            a, b, root = arb(epsilon) / arb(mu), arb(mu) / 2, arb(2).sqrt()
            truth = (((a - b) / root).erfc() - arb(epsilon).exp() * ((a + b) / root).erfc()) / 2
            if truth <= arb(delta):
                return True
            if truth > arb(delta):
                return False
        raise AssertionError(f"undecided at {ctx.prec} bits: {mu}, {epsilon}, {delta}")
    finally:
        ctx.prec = before


def test_the_oracle_proves_both_answers_and_takes_doubles_for_exact():
    # δ(1; 1) = Φ(−1/2) − eΦ(−3/2) = 0.12693673750664…
    assert at_most(1.0, 1.0, 0.12693673750665)
    assert not at_most(1.0, 1.0, 0.12693673750664)
    assert arb(0.1) * arb(2) ** 60 == arb(int(0.1 * 2.0**60))


@settings(max_examples=400)
@given(mu=MU, z1=Z1)
def test_delta_is_the_truth_rounded_up(mu, z1):
    epsilon = max(0.0, mu * (mu / 2 + z1))
    delta = gaussian_delta(mu, epsilon)
    assert at_most(mu, epsilon, delta)
    assert not at_most(mu, epsilon, math.nextafter(delta, 0))


@settings(max_examples=400)
@given(mu=MU, delta=DELTA)
def test_epsilon_is_the_truth_rounded_up(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert at_most(mu, epsilon, delta)
    assert epsilon == 0 or not at_most(mu, math.nextafter(epsilon, 0), delta)


@settings(max_examples=400)
@given(mu=MU, share=st.floats(-14, -0.001).map(lambda x: 10.0**x))
def test_a_tiny_epsilon_is_the_truth_rounded_up(mu, share):
    delta = gaussian_delta(mu, 0.0) * (1 - share)  # just below δ(0): double precision would know no digit of ε
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon > 0
    assert at_most(mu, epsilon, delta)
    assert not at_most(mu, math.nextafter(epsilon, 0), delta)


@settings(max_examples=400)
@given(epsilon=st.one_of(st.just(0.0), EPSILON), delta=DELTA)
def test_mu_is_the_truth_rounded_down(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert at_most(mu, epsilon, delta)
    assert not at_most(math.nextafter(mu, math.inf), epsilon, delta)


@pytest.mark.parametrize("delta", [sys.float_info.min, 1e-300])
def test_the_smallest_normal_delta_is_no_exception(delta):
    for mu in (1e-3, 0.3, 5.0):
        epsilon = gaussian_epsilon(mu, delta)
        assert at_most(mu, epsilon, delta)
        assert not at_most(mu, math.nextafter(epsilon, 0), delta)
