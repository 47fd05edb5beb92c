"""Charges of some devices of a fleet: totals of each, budgets, tampering, shared ledgers, sizes."""

import base64
import json
import math
import resource
import tracemalloc
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airfed.privacy import gaussian_epsilon, gaussian_mu
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
from airfed.training.charging import check_shared_ledger

HEADER = {"scenario": "x", "delta": 1e-5, "unit": "device"}
MUS = st.floats(1e-3, 10.0) | st.sampled_from([0.1, 0.3, 0.5])


def put(ledger, index, mu, who=None, num_devices=None, **rest):
    """Charge a round to some devices, or to all."""
    mask = None if who is None else ParticipationMask.of(who, num_devices)
    devices = 4 if mask is None else mask.count
    return ledger.charge(index, devices=devices, alignment=mu, mu=mu, power=1.5, mask=mask, **rest)


@st.composite
def histories(draw, most=12):
    """A fleet's size, and rounds of it: (index, μ, devices), None for all devices."""
    size = draw(st.integers(1, 12))
    some = st.sets(st.integers(0, size - 1), min_size=1).map(sorted)
    rounds = st.tuples(st.integers(0, 4), MUS, st.none() | some)
    return size, draw(st.lists(rounds, min_size=1, max_size=most))


def squares(size, rounds):
    """Return the exact Σμ² of each device, without the ledger's code."""
    total = [Fraction(0)] * size
    for _, mu, who in rounds:
        for device in range(size) if who is None else who:
            total[device] += Fraction(mu) ** 2
    return total


def assert_just_above(mu, square):
    """A reported μ is not below the root of the exact sum, and hardly above it."""
    assert Fraction(float(mu)) ** 2 >= square
    assert mu <= math.sqrt(square) * (1 + 1e-15)


@given(histories())
@settings(max_examples=60)
def test_every_device_has_spent_what_its_rounds_cost_and_a_replay_agrees(tmp_path_factory, history):
    size, rounds = history
    path = tmp_path_factory.mktemp("ledger") / "l"
    ledger, attempts, before = Ledger.create(path, HEADER), {}, 0.0
    for number, (index, mu, who) in enumerate(rounds, start=1):
        charge = put(ledger, index, mu, who, size)
        assert charge.attempt == attempts.get(index, 0)
        attempts[index] = charge.attempt + 1
        exact = squares(size, rounds[:number])
        assert_just_above(charge.mu_total, max(exact))
        assert ledger.mu_total == charge.mu_total >= before  # of the most exposed of all, whoever is charged now
        assert ledger.epsilon_total == charge.epsilon_total == gaussian_epsilon(charge.mu_total, 1e-5)
        before = charge.mu_total
        found = ledger.latest(index).mask
        assert (found is None) if who is None else found.devices.tolist() == who
    again = Ledger.load(path)
    assert again.charges == ledger.charges
    assert again.num_devices == ledger.num_devices
    if all(who is None for _, _, who in rounds):
        assert ledger.num_devices is None
        with pytest.raises(ValueError, match="charged to all devices"):
            ledger.device_mus()
        return
    for each in (ledger, again):
        mus = each.device_mus()
        assert mus.shape == (size,)
        for mu, square in zip(mus, exact, strict=True):
            assert_just_above(mu, square)
        assert mus.max() == each.mu_total
        assert each.device_epsilons().tolist() == [gaussian_epsilon(mu, 1e-5) for mu in mus.tolist()]
        assert each.device_epsilons().max() == each.epsilon_total


def test_an_inactive_device_spends_nothing(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    for index in range(5):
        put(ledger, index, 0.3, [0, 2], 4)
    assert ledger.device_mus().tolist()[1::2] == [0.0, 0.0]
    assert ledger.device_epsilons().tolist()[1::2] == [0.0, 0.0]


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_totals_stay_tight_for_any_number_of_rounds(spread):
    rng = np.random.default_rng(1)
    exposure, exact = Exposure(), [Fraction(0)] * 3
    for _ in range(5000):
        mu = float(0.1 * 10 ** (spread * rng.uniform(-1, 0)))
        who = np.flatnonzero(rng.random(3) < [1.0, 0.5, 0.01])
        exposure = exposure.plus(mu, ParticipationMask.of(who, 3))
        for device in who:
            exact[device] += Fraction(mu) ** 2
    for mu, high, low, square in zip(exposure.mus(), *exposure.per_device, exact, strict=True):
        assert_just_above(mu, square)
        assert square <= Fraction(high) + Fraction(low) <= square * (1 + Fraction(1, 2**51))


@given(histories(most=25), st.floats(0.05, 3.0))
@settings(max_examples=60)
def test_no_device_exceeds_a_total_or_is_stopped_by_others(tmp_path_factory, history, epsilon):
    size, rounds = history
    budget = Budget(epsilon=epsilon, delta=1e-5, total_power=1e9, scope="total")
    ledger, taken = Ledger.create(tmp_path_factory.mktemp("ledger") / "l", HEADER), []
    allowed = Fraction(gaussian_mu(epsilon, 1e-5)) ** 2
    for index, mu, who in rounds:
        after = squares(size, [*taken, (index, mu, who)])
        most = max(after[device] for device in (range(size) if who is None else who))
        if abs(most / allowed - 1) < Fraction(1, 10**9):
            continue  # too close for this test to tell
        if most > allowed:
            written = ledger.path.read_bytes()
            with pytest.raises(BudgetExhausted, match="privacy budget"):
                put(ledger, index, mu, who, size, within=budget)
            assert ledger.path.read_bytes() == written
        else:
            put(ledger, index, mu, who, size, within=epsilon if index % 2 else budget)
            taken.append((index, mu, who))
        assert ledger.epsilon_total <= epsilon * (1 + 1e-9)
    assert ledger.rounds == len(taken)


def test_the_sentence_names_the_device_that_has_spent_its_budget(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    put(ledger, 0, 0.3, [1], 4)
    put(ledger, 1, 0.9, [3], 4)
    put(ledger, 2, 0.3, [0, 2], 4, within=1.5)  # device 3 is far beyond that, and not concerned
    with pytest.raises(BudgetExhausted, match=r"of device 1 is spent after 3 rounds: ε is 1\.1\d+ of 1\.5 .* 1\.6"):
        put(ledger, 3, 0.3, [1, 2], 4, within=1.5)
    with pytest.raises(BudgetExhausted, match="budget of device 3 is spent"):
        put(ledger, 3, 0.01, None, within=1.5)


def forged(ledger, **changes):
    """Append a charge with a valid hash and some values changed."""
    good = json.loads(ledger.path.read_bytes().splitlines()[-1])
    del good["hash"]
    entry = {**good, "round": good["round"] + 1, **changes}
    with ledger.path.open("r+b") as stream:
        ledger._append(stream, {name: value for name, value in entry.items() if value is not None})


def text_of(content):
    return base64.b64encode(zlib.compress(bytes(content))).decode()


SOUND = bytes([0b00110000, 0])  # devices 2 and 3 of ten
MALFORMED = {
    "not base64": {"mask": "*nonsense*"},
    "not text": {"mask": [2, 3]},
    "not ascii": {"mask": "é" * 8},
    "not compressed": {"mask": base64.b64encode(SOUND).decode()},
    "cut short": {"mask": base64.b64encode(zlib.compress(SOUND)[:-1]).decode()},
    "something after it": {"mask": base64.b64encode(zlib.compress(SOUND) + b"x").decode()},
    "too short": {"mask": text_of(SOUND[:1])},
    "too long": {"mask": text_of([*SOUND, 0])},
    "beyond the fleet": {"mask": text_of([0b00100000, 0b00100000])},
    "no device": {"mask": text_of([0, 0]), "devices": 0},
    "another number": {"devices": 3},
    "no fleet": {"num_devices": None},
    "no mask": {"mask": None},
    "a fleet of another size": {"num_devices": 11},
    "a fleet of no whole number": {"num_devices": 10.0},
    "an empty fleet": {"num_devices": 0, "mask": text_of([])},
    "an absurd fleet": {"num_devices": 10**12},
    "something that swells": {"mask": base64.b64encode(zlib.compress(bytes(10**8))).decode()},
}


@pytest.mark.parametrize("how", [None, *MALFORMED])
def test_a_malformed_mask_is_refused(tmp_path, how):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    put(ledger, 0, 0.3, [0, 1], 10)
    # Two devices that have spent nothing, so that the total stays as it is: sound but for what is changed.
    forged(ledger, **{"mask": text_of(SOUND), **MALFORMED.get(how, {})})
    if how is None:
        assert Ledger.load(tmp_path / "l").latest(1).mask.devices.tolist() == [2, 3]
        return
    tracemalloc.start()
    with pytest.raises(LedgerError, match="line 3"):
        Ledger.load(tmp_path / "l")
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()


def test_a_charge_moved_to_another_device_is_detected(tmp_path):
    path = tmp_path / "l"
    ledger = Ledger.create(path, HEADER)
    put(ledger, 0, 0.3, [0, 1], 10)
    put(ledger, 1, 0.3, [0, 5], 10)
    lines = path.read_bytes().splitlines(keepends=True)
    for mask in ([1, 5], [4, 5]):
        entry = json.loads(lines[2]) | {"mask": ParticipationMask.of(mask, 10).text}
        path.write_bytes(b"".join(lines[:2]) + json.dumps(entry, sort_keys=True).encode() + b"\n")
        with pytest.raises(LedgerError, match="line 3 or a line before it was changed"):
            Ledger.load(path)
    # Even with a chain that was made anew a total that does not follow is noticed.
    path.write_bytes(b"".join(lines[:2]))
    again = Ledger.load(path)
    entry = json.loads(lines[2]) | {"mask": ParticipationMask.of([4, 5], 10).text}
    del entry["hash"]
    with path.open("r+b") as stream:
        again._append(stream, entry)
    with pytest.raises(LedgerError, match="mu_total of line 3 does not follow"):
        Ledger.load(path)


@pytest.mark.parametrize("bit", range(10))
def test_a_flipped_bit_of_a_mask_is_detected(tmp_path, bit):
    path = tmp_path / "l"
    ledger = Ledger.create(path, HEADER)
    who = [0, 2, 3, 7]
    put(ledger, 0, 0.3, who, 10)
    flipped = sorted({bit} ^ set(who))
    line = path.read_bytes().splitlines()[-1]
    old, new = (ParticipationMask.of(mask, 10).text.encode() for mask in (who, flipped))
    assert line.count(old) == 1
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(LedgerError, match="line 2 or a line before it was changed"):
        Ledger.load(path)


@pytest.mark.parametrize(("who", "size"), [([], 4), ([4], 4), ([-1], 4), ([1, 1], 4), ([0], 0), ([0], 10**8)])
def test_an_invalid_mask_cannot_be_made(who, size):
    with pytest.raises(ValueError, match="must be"):
        ParticipationMask.of(who, size)


def test_a_charge_must_match_its_mask_and_its_fleet(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    with pytest.raises(ValueError, match="devices must be the number of devices in mask, 2, got 3"):
        ledger.charge(0, devices=3, alignment=0.1, mu=0.1, power=1.0, mask=ParticipationMask.of([0, 1], 4))
    put(ledger, 0, 0.1, [0, 1], 4)
    written = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="has 4 devices, but line 3 charges one of 5"):
        put(ledger, 1, 0.1, [0, 1], 5)
    assert ledger.path.read_bytes() == written
    assert Ledger.load(ledger.path).charges == ledger.charges


def test_in_a_shared_ledger_charges_to_all_and_to_some_devices_add_up_per_device(tmp_path):
    path = tmp_path / "shared_ledger"
    budget = Budget(epsilon=3.0, delta=1e-5, total_power=1e9, scope="total")
    one, two = open_shared_ledger(path, budget), open_shared_ledger(path, budget)
    rounds = [(0, 0.3, None), (0, 0.2, [0, 1]), (1, 0.1, None), (1, 0.4, [1, 2]), (2, 0.2, None)]
    for index, mu, who in rounds:  # two processes in turn: each reads what the other has charged
        put(one if who is None else two, index, mu, who, 4, within=3.0, run="one" if who is None else "two")
    found = Ledger.load(path)
    for mu, square in zip(found.device_mus(), squares(4, rounds), strict=True):
        assert_just_above(mu, square)
    assert shared_ledger_spent(path, budget) == found.mu_total == found.device_mus()[1]
    assert (found.latest(1, run="one").mask, found.latest(1, run="two").mask.devices.tolist()) == (None, [1, 2])


def test_a_shared_ledger_must_contain_the_charges_of_a_run_with_their_devices(tmp_path):
    ledger, shared_ledger = (Ledger.create(tmp_path / name, HEADER) for name in ("ledger", "shared_ledger"))
    for each, run in ((ledger, ""), (shared_ledger, "mine")):
        put(each, 0, 0.3, [0, 1], 4, run=run)
    check_shared_ledger(shared_ledger, ledger, "mine")
    put(ledger, 1, 0.3, [1, 2], 4)
    put(shared_ledger, 1, 0.3, [0, 3], 4, run="mine")
    with pytest.raises(LedgerError, match="some are missing"):
        check_shared_ledger(shared_ledger, ledger, "mine")


@pytest.mark.slow
@pytest.mark.parametrize(("share", "megabytes"), [(0.5, 35.0), (1e-3, 1.0)])
def test_a_million_devices_and_200_rounds(tmp_path, share, megabytes):
    size, rng = 10**6, np.random.default_rng(1)
    ledger = Ledger.create(tmp_path / "l", HEADER)
    for index in range(200):
        put(ledger, index, float(rng.uniform(0.05, 0.06)), np.flatnonzero(rng.random(size) <= share), size)
    assert (tmp_path / "l").stat().st_size < megabytes * 1e6  # 100 MB is what is allowed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    again = Ledger.load(tmp_path / "l")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300e3  # kB
    assert np.array_equal(again.device_mus(), ledger.device_mus())
