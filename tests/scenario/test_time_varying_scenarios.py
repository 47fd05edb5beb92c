"""Scenarios with time-varying channels, and devices with batteries."""

import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.explorer.design import from_scenario, from_text
from airfed.scenario import ScenarioError, template


def scenario_of(folder=None, **channel):
    """The template's scenario of 100 devices and 200 local steps with another channel."""
    tables = tomllib.loads(template.SCENARIO) | {"channel": {"model": "rayleigh", **channel}}
    return scenario.parse(tables) if folder is None else scenario.parse(tables, folder=folder)


@pytest.fixture
def traced(tmp_path):
    trace = np.random.default_rng(0).rayleigh(size=(30, 100))
    np.save(tmp_path / "h.npy", trace)
    return trace, scenario_of(tmp_path, model="file", path="h.npy")


def test_there_are_as_many_rounds_as_the_policy_has_or_could_have():
    loaded = scenario_of(coherence_rounds=1)
    all_rounds = loaded.problem().fleet.gain
    assert all_rounds.shape == (200, 100)
    some = loaded.override({"policy.rounds": 40}).problem()
    np.testing.assert_array_equal(some.fleet.gain, all_rounds[:40])
    np.testing.assert_array_equal(some.at(0).fleet.gain, scenario_of().problem().fleet.gain)
    assert some.time_varying


def test_a_trace_has_the_rounds_that_it_has(traced):
    trace, loaded = traced
    assert loaded.override({"fleet.num_devices": None}).num_devices == 100
    np.testing.assert_array_equal(loaded.problem().fleet.gain, trace)
    np.testing.assert_array_equal(loaded.override({"policy.rounds": 30}).problem().fleet.gain, trace)
    with pytest.raises(ScenarioError, match=r"^policy\.rounds must be at most 30, the rounds of the trace, got 31\.$"):
        loaded.override({"policy.rounds": 31}).problem()
    with pytest.raises(ScenarioError, match="must have 99 gains"):
        loaded.override({"fleet.num_devices": 99}).problem()


def test_a_trace_in_csv_with_a_bad_cell_is_a_scenario_error(tmp_path):
    (tmp_path / "h.csv").write_text("0.5,1+2j\n0.4,x\n")
    loaded = scenario_of(tmp_path, model="file", path="h.csv").override({"fleet.num_devices": 2})
    with pytest.raises(ScenarioError, match=r"h\.csv, line 2, cell 2: the gain must be .*, got 'x'"):
        loaded.problem()


@pytest.mark.parametrize(
    "changes", [{"learning.total_steps": 10**6, "fleet.num_devices": 1000}, {"policy.rounds": 3_000_000}]
)
def test_too_many_gains_are_refused_before_they_are_drawn(changes):
    with pytest.raises(ScenarioError, match=r"at most 2\*\*28 gains, got .*\. Reduce policy\.rounds"):
        scenario_of(coherence_rounds=1).override(changes).problem()
    scenario_of().override(changes).problem()  # one draw for all rounds


@pytest.mark.parametrize(
    ("channel", "kind"),
    [
        ({}, type(None)),
        ({"common_shadowing_db": 8.0}, type(None)),
        ({"coherence_rounds": 1}, np.ndarray),
        ({"coherence_rounds": 1, "correlation": 0.5}, None),
        ({"coherence_rounds": 1, "common_shadowing_db": 8.0, "shadowing_coherence_rounds": 10}, None),
    ],
)
def test_the_samples_of_a_problem(channel, kind):
    loaded = scenario_of(**channel).override({"policy.rounds": 20})
    problem = loaded.problem()
    samples = loaded.samples(problem)
    if kind is None:
        assert samples(problem.fleet.gain[:7]).shape == (24, 13, 100)
        np.testing.assert_array_equal(samples(problem.fleet.gain[:7]), loaded.samples(problem)(problem.fleet.gain[:7]))
    else:
        assert isinstance(samples, kind)
    if problem.fleet.time_varying:
        with pytest.raises(ScenarioError, match="not drawn from this scenario"):
            loaded.override({"seed": 5}).samples(problem)


def test_the_samples_of_a_trace(traced):
    trace, loaded = traced
    problem = loaded.problem()
    assert set(loaded.samples(problem)(trace[:2])[..., 0].ravel()) == set(trace[:2, 0])
    (loaded.folder / "h.npy").unlink()
    with pytest.raises(ScenarioError, match="there is no such file"):
        loaded.samples(problem)


# Batteries


def test_batteries_reach_the_problem():
    assert scenario_of().problem().budget.device_power is None
    assert scenario_of().override({"budget.device_power": "20 dBm"}).problem().budget.device_power == pytest.approx(0.1)
    listed = scenario_of().override({"budget.device_power": ["1 W", 2, *[0.5] * 98]})
    assert listed.problem().budget.device_power == (1.0, 2.0, *[0.5] * 98)
    assert scenario.parse(tomllib.loads(listed.to_toml())) == listed
    with pytest.raises(ScenarioError, match="device_power must have one entry per device, 100; got 2"):
        scenario_of().override({"budget.device_power": [1.0, 2.0]}).problem()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (0.0, "budget.device_power must be positive, got 0.0"),
        ([1.0, -1.0], "budget.device_power[1] must be positive, got -1.0"),
        ([], "budget.device_power must have at least 1 entry"),
        ("3", "budget.device_power must be a bare number for W or have one of the units"),
        (True, "budget.device_power"),
        (float("inf"), "budget.device_power must be positive and finite, got inf"),
    ],
)
def test_bad_batteries(value, named):
    with pytest.raises(ScenarioError, match=r"^[^\n]*\.$") as caught:
        scenario_of().override({"budget.device_power": value})
    assert named in str(caught.value)


# What must not change


def test_digests_are_those_of_earlier_releases(repository):
    # The digest keys the noise: a key that is added later must not change it.
    for name, digest in (("paper", "5de211eac87d57bb"), ("private", "9eb3b6caf909a01f")):
        assert scenario.load(repository / "examples" / f"{name}.toml").digest().startswith(digest)


def test_keys_at_their_defaults_are_the_scenario_without_them():
    plain = scenario_of()
    written = scenario_of(correlation=0.0, common_shadowing_db=0.0)
    assert written.digest() == plain.digest() == scenario.parse(tomllib.loads(plain.to_toml())).digest()
    assert not {"coherence_rounds", "correlation", "common_shadowing_db"} & plain.content()["channel"].keys()
    assert "device_power" not in plain.content()["budget"]
    for changes in ({"coherence_rounds": 1}, {"shadowing_coherence_rounds": 1}, {"common_shadowing_db": 1.0}):
        assert scenario_of(**changes).digest() != plain.digest()


def test_the_page_takes_it(traced):
    _, trace = traced
    assert from_scenario(trace).scenario().plan().rounds == trace.plan().rounds
    for loaded in (scenario_of(coherence_rounds=1), scenario_of().override({"budget.device_power": 1.0})):
        assert from_scenario(loaded).scenario().content() == loaded.content()
    loaded = scenario_of(shadowing_coherence_rounds=1, common_shadowing_db=3.0)
    assert from_text(loaded.to_toml()).scenario().content() == loaded.content()
