"""Charges in which each device spends its own share of a round's μ: totals, budgets, tampering, sizes."""

import base64
import json
import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airfed.privacy import gaussian_epsilon
from airfed.privacy.exposure import Exposure
from airfed.privacy.ledger import (
    BudgetExhausted,
    Ledger,
    LedgerError,
    ParticipationMask,
    open_shared_ledger,
    shared_ledger_spent,
)
from airfed.problem import Budget

HEADER = {"scenario": "x", "delta": 1e-5, "unit": "device"}
SIZE = 6


def put(ledger, index, mu, shares=None, **rest):
    """Charge a round to the devices with a share; to all devices of the ledger without shares."""
    mask = None
    if shares is not None:
        shares = np.asarray(shares)
        who = np.flatnonzero(shares)
        mask = ParticipationMask.of(who, shares.size, shares[who])
    devices = SIZE if mask is None else mask.count
    return ledger.charge(index, devices=devices, alignment=mu, mu=mu, power=1.0, mask=mask, **rest)


@st.composite
def rows(draw):
    """Shares of six devices: 0 for those that are not scheduled, 1 for one at least."""
    row = draw(st.lists(st.just(0.0) | st.just(1.0) | st.floats(1e-6, 1.0), min_size=SIZE, max_size=SIZE))
    row[draw(st.integers(0, SIZE - 1))] = 1.0
    return row


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(1e-3, 10.0), st.none() | rows()), min_size=1, max_size=12))
@settings(max_examples=80)
def test_every_device_has_spent_its_shares_and_a_replay_agrees(tmp_path_factory, rounds):
    path = tmp_path_factory.mktemp("ledger") / "l"
    ledger, exact = Ledger.create(path, HEADER), [Fraction(0)] * SIZE
    for index, mu, row in rounds:
        charge = put(ledger, index, mu, row)
        for device, share in enumerate([1.0] * SIZE if row is None else row):
            exact[device] += (Fraction(mu) * Fraction(share)) ** 2
        assert Fraction(charge.mu_total) ** 2 >= max(exact)
        assert charge.mu_total <= math.sqrt(max(exact)) * (1 + 2e-15)
    again = Ledger.load(path)
    assert again.charges == ledger.charges
    if all(row is None for _, _, row in rounds):
        return
    for each in (ledger, again):
        for mu, square in zip(each.device_mus().tolist(), exact, strict=True):
            assert Fraction(mu) ** 2 >= square
            assert mu <= math.sqrt(square) * (1 + 2e-15)
        assert each.device_mus().max() == each.mu_total
    assert again.device_epsilons().tolist() == [gaussian_epsilon(mu, 1e-5) for mu in again.device_mus().tolist()]


def test_totals_of_shares_stay_above_the_truth_and_tight_for_any_number_of_rounds():
    rng, exposure, exact = np.random.default_rng(1), Exposure(), [Fraction(0)] * 20
    for _ in range(300):
        mu, shares = float(rng.uniform(0.01, 0.1)), np.append(rng.uniform(0.01, 1.0, 19), 1.0)
        exposure = exposure.plus(mu, ParticipationMask.of(np.arange(20), 20, shares))
        exact = [square + (Fraction(mu) * Fraction(share)) ** 2 for square, share in zip(exact, shares, strict=True)]
    for mu, high, low, square in zip(exposure.mus(), *exposure.per_device, exact, strict=True):
        assert square <= Fraction(high) + Fraction(low) <= square * (1 + Fraction(1, 2**50))
        assert mu <= math.sqrt(square) * (1 + 2e-15)


def test_equal_shares_are_written_once(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    one, two = np.random.default_rng(0).uniform(0.1, 1.0, (2, 2000))
    one[0] = two[0] = 1.0
    for index, row in enumerate([one, two, one, one, two]):
        put(ledger, index, 0.1 * (1 + index), row)
    lines = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()[1:]]
    assert [line["shares"] if isinstance(line["shares"], int) else None for line in lines] == [None, None, 0, 0, 1]
    again = Ledger.load(tmp_path / "l")
    for each in (ledger, again):
        masks = [charge.mask for charge in each.charges]
        assert masks[0] is masks[2] is masks[3]  # one copy in memory
        assert masks[1] is masks[4]
    assert np.array_equal(again.device_mus(), ledger.device_mus())
    np.testing.assert_allclose(
        again.device_mus() ** 2, (0.01 + 0.09 + 0.16) * one**2 + (0.04 + 0.25) * two**2, rtol=1e-13
    )


def test_a_budget_stops_the_device_that_would_exceed_it_and_no_other(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    put(ledger, 0, 0.4, [1.0, 0.1, 0.0])
    limit = gaussian_epsilon(math.hypot(0.4, 0.1), 1e-5)
    with pytest.raises(BudgetExhausted, match="privacy budget of device 0 is spent"):
        put(ledger, 1, 0.4, [0.5, 1.0, 0.0], within=limit)
    put(ledger, 1, 0.4, [0.2, 1.0, 0.5], within=limit)
    put(ledger, 2, 0.05, [0.0, 0.2, 1.0], within=limit)


def test_the_shared_ledger_of_an_aligned_and_an_unequal_run_adds_up_per_device(tmp_path):
    path, budget = tmp_path / "shared", Budget(epsilon=3.0, delta=1e-5, total_power=1e9, scope="total")
    one, two = open_shared_ledger(path, budget), open_shared_ledger(path, budget)  # two processes in turn
    for index in range(3):
        put(one, index, 0.1, within=3.0, run="aligned")
        put(two, index, 0.2, [1.0, 0.5, 0.0, 0.25, 1.0, 0.125], within=3.0, run="unequal")
    for each in (two, Ledger.load(path)):
        expected = np.sqrt(0.03 + 0.12 * np.array([1.0, 0.5, 0.0, 0.25, 1.0, 0.125]) ** 2)
        np.testing.assert_allclose(each.device_mus(), expected, rtol=1e-14)
    assert shared_ledger_spent(path, budget) == Ledger.load(path).device_mus()[0]


def relinked(path, number, **changes):
    """Rewrite one line with other content, and all later lines, with a valid chain."""
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    ledger = Ledger.create(path, {key: value for key, value in head.items() if key not in ("kind", "hash")})
    with path.open("r+b") as stream:
        for index, line in enumerate(lines):
            del line["hash"]
            ledger._append(stream, line | (changes if index == number else {}))


def shares_text(*shares):
    return ParticipationMask.of(range(len(shares)), len(shares), np.array(shares)).shares_text


def test_an_edited_share_breaks_the_chain(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    put(ledger, 0, 0.3, [1.0, 0.5, 0.75])
    old, new = (shares_text(1.0, second, 0.75).encode() for second in (0.5, 0.25))
    content = (tmp_path / "l").read_bytes()
    assert content.count(old) == 1
    (tmp_path / "l").write_bytes(content.replace(old, new))
    with pytest.raises(LedgerError, match="line 2 or a line before it was changed"):
        Ledger.load(tmp_path / "l")


@pytest.mark.parametrize(
    "shares",
    [
        *(shares_text(1.0, 0.5), shares_text(1.0, 0.5, 0.5, 0.5), "", "no base64", 0, 1, 2, 7, -1, True, None, [1.0]),
        *(
            ParticipationMask.of([0, 1, 2], 3, np.array([1.0, 0.5, 0.75])).shares_text[:-8],
            pytest.param([0.5, 0.5, 0.5], id="no device at 1"),
            pytest.param([1.0, 1.5, 0.5], id="above 1"),
            pytest.param([1.0, np.nan, 0.5], id="NaN"),
            pytest.param([1.0, 0.0, 0.5], id="0"),
            pytest.param([1.0, 1.0, 1.0], id="all 1"),
        ),
    ],
)
def test_a_line_with_invalid_shares_is_refused_though_the_chain_holds(tmp_path, shares):
    if isinstance(shares, list) and len(shares) == 3:
        shares = base64.b64encode(zlib.compress(np.array(shares).tobytes())).decode()
    path = tmp_path / "l"
    ledger = Ledger.create(path, HEADER)
    put(ledger, 0, 0.3, [1.0, 1.0, 0.0])
    put(ledger, 1, 0.3, [1.0, 0.5, 0.75])
    relinked(path, 1, shares=shares)
    if shares == "":  # no shares: every device is charged the whole μ
        assert Ledger.load(path).device_mus()[2] == pytest.approx(0.3)
        return
    with pytest.raises(LedgerError, match=r"line 3 is not a valid ledger line|does not follow"):
        Ledger.load(path)


@pytest.mark.parametrize("earlier", [[1.0, 0.0, 0.1], [1.0, 1.0, 0.0]], ids=["other devices", "no shares"])
def test_the_shares_of_other_devices_are_refused(tmp_path, earlier):
    path = tmp_path / "l"
    ledger = Ledger.create(path, HEADER)
    put(ledger, 0, 0.3, earlier)
    put(ledger, 1, 0.3, [1.0, 0.5, 0.0])
    relinked(path, 1, shares=0)
    with pytest.raises(LedgerError, match="line 3 is not a valid ledger line"):
        Ledger.load(path)


def test_a_lowered_share_of_the_most_exposed_device_does_not_follow(tmp_path):
    path = tmp_path / "l"
    ledger = Ledger.create(path, HEADER)
    put(ledger, 0, 0.3, [1.0, 0.9, 0.5])
    put(ledger, 1, 0.3, [0.5, 1.0, 0.5])
    relinked(path, 0, shares=shares_text(1.0, 0.1, 0.5))
    with pytest.raises(LedgerError, match="mu_total of line 3 does not follow"):
        Ledger.load(path)


def test_shares_need_ascending_devices():
    with pytest.raises(ValueError, match="ascending"):
        ParticipationMask.of([2, 0], 3, np.array([1.0, 0.5]))
    assert ParticipationMask.of([2, 0], 3, np.ones(2)) == ParticipationMask.of([0, 2], 3)


def test_a_ledger_does_not_grow_beyond_what_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("airfed.privacy.chain._MAX_FILE_SIZE", 2000)
    ledger = Ledger.create(tmp_path / "l", HEADER)
    put(ledger, 0, 0.1, [1.0, 0.5])
    before = (tmp_path / "l").read_bytes()
    with pytest.raises(LedgerError, match="would exceed 0 MiB"):
        put(ledger, 1, 0.1, [1.0, 0.5], run="x" * 2000)
    assert (tmp_path / "l").read_bytes() == before
    assert Ledger.load(tmp_path / "l").charges == ledger.charges
