"""A plan and its table of amplitudes: compact, read-only, and refused if invalid."""

import dataclasses
import json
import math
import tracemalloc

import numpy as np
import pytest

import oracle
import problems
from airfed import Fleet, InfeasibleError, Plan, plan
from airfed.planning import Amplitudes
from airfed.policies import METHODS

# Names that outside programs read.
PUBLIC = {
    *("policy", "scheduled", "alignment", "rounds", "local_steps", "bound", "binding", "power", "power_total"),
    *("epsilon_round", "epsilon_total", "epsilon_paper"),
}


@pytest.fixture
def problem():
    return problems.random(np.random.default_rng(1), devices=5, total_steps=10)


def by_hand(problem, scheduled=(0, 2), alignment=0.01, rounds=4, **rest):
    table = Amplitudes.aligned(list(scheduled), num_devices=5, level=alignment, rounds=rounds)
    return Plan(problem=problem, policy="mine", amplitudes=table, **rest)


# The table


def peak(make):
    """Return the result of a function and its peak memory [bytes]."""
    tracemalloc.start()
    try:
        return make(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_million_devices_in_equal_rounds_take_one_row():
    devices, rounds = 10**6, 200
    every = np.arange(devices)
    table, most = peak(lambda: Amplitudes.aligned(every, num_devices=devices, level=0.1, rounds=rounds))
    assert table.share.nbytes == devices
    assert most < 40 * devices  # a dense table of booleans alone would be 200 times the devices
    large = problems.make(np.full(devices, 0.7), steps=rounds, total_power=1e12)
    found, most = peak(lambda: Plan(problem=large, policy="mine", amplitudes=table))
    figures, more = peak(lambda: (found.bound, found.power_total, found.epsilon_total, found.limits, found.amplitude))
    assert max(most, more) < 150 * devices
    assert figures[-1].shape == (rounds, devices)
    assert figures[-1].strides[0] == 0


def test_adaptive_power_of_many_devices_takes_one_row():
    devices, rounds = 10**5, 200
    large = problems.make(
        np.full(devices, 0.7), steps=rounds, scope="total", epsilon=8.0, total_power=1e12, convexity=5.0
    )
    found = plan(large, policy="liu_simeone", rounds=rounds)
    assert not found.constant
    assert np.unique(found.amplitudes.level).size > 100
    assert found.amplitudes.share.shape == (1, devices)
    assert found.amplitudes.share.dtype == np.bool_


@pytest.mark.parametrize("seed", range(20))
def test_dense_and_compact_are_the_same_table(seed):
    rng = np.random.default_rng(seed)
    row = np.where(rng.random(7) < 0.7, rng.random(7), 0.0)
    row[seed % 7] = 1.0
    level = rng.uniform(0.1, 2.0, 5) if seed % 2 else np.full(5, 0.3)
    share = row > 0 if seed % 3 else row
    one, many = Amplitudes(level=level, share=share[None]), Amplitudes(level=level, share=np.tile(share, (5, 1)))
    assert many.share.shape == one.share.shape == (1, 7)
    again = Amplitudes.of_table(one.dense)
    np.testing.assert_allclose(again.dense, one.dense, rtol=4e-16)
    for table in (one, again):
        assert table.equal == (share.dtype == bool)
        assert table.constant == (seed % 2 == 0)
        assert np.array_equal(table.dense > 0, np.tile(row > 0, (5, 1)))
        assert table.scheduled.tolist() == np.flatnonzero(row).tolist()
        assert table.sizes.tolist() == [np.count_nonzero(row)] * 5
        for k in range(7):
            assert table.rounds_of(k).tolist() == (list(range(5)) if row[k] else [])
        for i in range(5):
            assert table.devices(i).tolist() == np.flatnonzero(row).tolist()
            assert np.array_equal(table.received(i), table.dense[i, table.devices(i)])
            assert np.array_equal(table.shares(i) > 0, row > 0)


def test_a_table_is_read_only():
    for table in (Amplitudes.aligned([0], num_devices=2, level=1.0, rounds=3), Amplitudes.of_table(np.eye(2) + 0.5)):
        for array in (table.level, table.share, table.dense, table.scheduled, table.sizes):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize(
    "table",
    [
        *([[math.nan, 1.0]], [[math.inf, 1.0]], [[-1.0, 1.0]], [[0.0, 0.0]], [[1.0], [0.0]], [], [[]], [[[1.0]]]),
        *(np.empty((0, 3)), np.empty((3, 0)), [[1e-300, 1e300]], 1.0, [["a", "b"]], [[1.0, None]]),
    ],
    ids=lambda table: str(table)[:24],
)
def test_an_invalid_table_is_refused(table):
    if np.array_equal(table, 1.0):
        assert Amplitudes.of_table(table).num_devices == 1
        return
    with pytest.raises((ValueError, TypeError)):
        Amplitudes.of_table(table)


@pytest.mark.parametrize(
    ("level", "share", "message"),
    [
        ([1.0, 2.0], np.ones((3, 2), bool), "share must have shape"),
        ([[1.0]], np.ones((1, 2), bool), "share must have shape"),
        ([], np.ones((1, 2), bool), "share must have shape"),
        ([1.0], np.ones(2, bool), "share must have shape"),
        ([0.0], np.ones((1, 2), bool), "positive and finite"),
        ([math.nan], np.ones((1, 2), bool), "positive and finite"),
        ([math.inf], np.ones((1, 2), bool), "positive and finite"),
        ([1.0], np.zeros((1, 2), bool), "a scheduled device in every round"),
        ([1.0], np.empty((1, 0), bool), "a scheduled device in every round"),
        ([1.0], [[0.5, 0.2]], "between 0 and 1"),
        ([1.0], [[1.0, -0.2]], "between 0 and 1"),
        ([1.0], [[1.0, math.nan]], "between 0 and 1"),
        ([1.0], [[1.0, 2.0]], "between 0 and 1"),
    ],
)
def test_an_invalid_compact_table_is_refused(level, share, message):
    with pytest.raises(ValueError, match=message):
        Amplitudes(level=level, share=share)


# The plan


@pytest.mark.parametrize("seed", range(6))
def test_each_device_is_exposed_by_its_amplitude_and_its_own_factor(seed):
    """With imperfect CSI, or against an adversary who observes all antennas."""
    rng, shape = np.random.default_rng(seed), (6, 5) if seed % 2 else (5,)
    there = problems.make(problems.gains(seed, *shape), csi_error=0.01, steps=9)
    if seed % 3 == 0:
        channel = problems.channels(seed, *shape, 3)
        there = problems.make(channel=channel, steps=9).with_beamformer(np.ones(3) / np.sqrt(3))
    table = np.full((6, 5), 0.2) + rng.random((6, 5) if seed < 4 else (1, 5))
    found = Plan(problem=there, policy="mine", amplitudes=Amplitudes.of_table(table))
    assert not found.equal_mu
    assert np.unique(found.device_mu).size == 5
    oracle.check(found)
    assert found.mu_total == found.device_mu.max() == found.device_mu[found.most_exposed]


@pytest.mark.parametrize("seed", range(8))
def test_every_figure_of_any_table_follows_from_it(seed):
    rng = np.random.default_rng(seed)
    there = problems.make(problems.gains(seed, 6, 5) if seed % 2 else problems.gains(seed, 5), steps=9)
    table = rng.random((6, 5)) * (rng.random((6, 5)) < 0.6)
    table[:, seed % 5] += 0.1
    found = Plan(problem=there, policy="mine", amplitudes=Amplitudes.of_table(table))
    np.testing.assert_allclose(found.amplitude, table, rtol=4e-16)
    oracle.check(found)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert Plan.from_dict(there, record).to_dict() == record


@pytest.mark.parametrize(("alignment", "validity"), [(0.001, "proved"), (0.5, "unproven"), (50.0, "unsafe")])
def test_the_validity_of_lemma_1_is_reported(problem, alignment, validity):
    assert by_hand(problem, alignment=alignment * problem.link.noise_std).epsilon_paper_validity == validity


def test_the_record_has_the_public_names(problem):
    record = plan(problem).to_dict()
    assert set(record) >= PUBLIC
    assert set(record["bound"]) == {"total", "terms"}
    assert record["unit"] == "device"
    assert record["adjacency"] == "replace_one"
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_plan_cannot_be_changed(problem):
    result = by_hand(problem)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.amplitudes = None
    for array in (result.scheduled, result.power, result.amplitude):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scheduled": []}, "scheduled"),
        ({"scheduled": [0, 0]}, "distinct indices from 0 to 4"),
        ({"scheduled": [-1, 2]}, "from 0 to 4"),
        ({"scheduled": [0, 5]}, "from 0 to 4"),
        ({"scheduled": [[0, 1]]}, "scheduled"),
        ({"scheduled": [0.0, 1.0]}, "scheduled"),
        ({"scheduled": [True, False]}, "scheduled"),
        ({"alignment": 0.0}, "positive and finite"),
        ({"alignment": float("nan")}, "positive and finite"),
        ({"rounds": 11}, "rounds must be at most total_steps, 10; got 11"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"rounds": 2.0}, "rounds"),
        ({"average": "mean"}, "average"),
        ({"notes": ("x" * 1001,)}, "at most 1000 printable characters"),
        ({"notes": (1,)}, "notes"),
        ({"notes": ("\udc80",)}, "notes"),
        ({"notes": ("two\nlines",)}, "notes"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(problem, changes, named):
    with pytest.raises(ValueError, match=named):
        by_hand(problem, **changes)


def test_a_plan_about_another_fleet_or_too_few_gains_is_refused(problem):
    table = Amplitudes.aligned([0], num_devices=4, level=0.1, rounds=3)
    with pytest.raises(ValueError, match="amplitudes must have 5 devices, got 4"):
        Plan(problem=problem, policy="mine", amplitudes=table)
    short = dataclasses.replace(problem, fleet=Fleet(gain=problems.gains(0, 2, 4), peak_power=1.0))
    with pytest.raises(ValueError, match="gain must have 3 rounds as the plan, got 2"):
        Plan(problem=short, policy="mine", amplitudes=table)


@pytest.mark.parametrize("alignment", [1e-200, 1e200, 1e300])
def test_values_out_of_the_supported_range_are_infeasible(problem, alignment):
    with pytest.raises(InfeasibleError, match=r"^No plan fits: "):
        by_hand(problem, alignment=alignment)


def test_a_violated_limit_is_named(problem):
    peak = by_hand(problem).limits["peak_power"]
    assert "peak_power" in by_hand(problem, alignment=peak * 1.001).violations
    assert "peak_power" not in by_hand(problem, alignment=peak).violations


@pytest.mark.parametrize(
    "change",
    [
        *({"alignment": 1.0}, {"rounds": 5}, {"scheduled": [0, 1]}, {"scheduled": [2, 9]}, {"scheduled": "all"}),
        *({"mu_total": 1.0}, {"power_total": 1.0}, {"clip_norm": 9.0}, {"epsilon_total": 0.1}, {"method": {}}),
        *({"amplitude": [0.01, 0.02]}, {"amplitude": [math.nan, 1.0]}, {"amplitude": [1.0]}),
        *({"mu_round": None}, {"mu_total": "2"}, {"epsilon_total": [1.0]}, {"power_total": {}}, {"objective": "x"}),
        *({"policy": None}, {"policy": "a\nb"}, {"lower_bound": 1e9}, {"lower_bound": math.nan}),
    ],
    ids=str,
)
def test_an_edited_record_is_refused(problem, change):
    with pytest.raises(ValueError, match=r"must be|could not|shape|not the record of a plan"):
        Plan.from_dict(problem, by_hand(problem).to_dict() | change, METHODS)


@pytest.mark.parametrize("name", ["mu_round", "epsilon_total", "power_total", "num_scheduled"])
def test_a_record_without_a_value_is_refused(problem, name):
    record = by_hand(problem).to_dict()
    del record[name]
    with pytest.raises(ValueError, match=f"not the record of a plan: KeyError, '{name}'"):
        Plan.from_dict(problem, record, METHODS)
