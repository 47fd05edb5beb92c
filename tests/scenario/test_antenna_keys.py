"""Several antennas in scenarios: their keys, the problem, and the explorer."""

import json
import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.cli import main
from airfed.experiments import points
from airfed.explorer import compare_tab, knobs, view
from airfed.explorer.design import MOST_ANTENNAS, MOST_BATTERIES, Design, from_query, from_scenario
from airfed.scenario import ScenarioError, template
from airfed.scenario.sections import ANTENNAS

SMALL = {"fleet.num_devices": 12, "learning.total_steps": 20}


def scenario_of(**changes):
    tables = tomllib.loads(template.SCENARIO)
    return scenario.parse(tables).override(SMALL | {key.replace("__", "."): value for key, value in changes.items()})


def test_one_antenna_gives_the_scalar_gains():
    plain, one = (
        scenario_of(),
        scenario_of(link__antennas=1, link__beamforming="optimal", link__adversary="all_antennas"),
    )
    assert one.digest() == plain.digest()
    assert plain.problem().fleet.antennas == 1
    assert one.problem().fleet.gain.tobytes() == plain.problem().fleet.gain.tobytes()
    assert not set(plain.content()["link"]) & set(ANTENNAS)
    assert not {"angle_spread", "sector", "antenna_spacing"} & set(plain.content()["channel"])
    seen = {plain.digest()}
    for changes in ({"link__antennas": 2}, {"link__adversary": "combined"}, {"channel__angle_spread": 5.0}):
        seen.add(scenario_of(**changes).digest())
    assert len(seen) == 4


def test_a_problem_has_the_channel_vectors_the_beamforming_and_the_adversary():
    loaded = scenario_of(link__antennas=3, link__beamforming="equal_gain", link__adversary="combined")
    problem = loaded.problem()
    assert problem.fleet.channel.shape == (12, 3)
    assert (problem.link.beamforming, problem.link.adversary) == ("equal_gain", "combined")
    assert loaded.samples(problem) is None
    plan = loaded.plan(problem)
    np.testing.assert_allclose(np.abs(plan.beamformer), np.sqrt(1 / 3))
    again = scenario.parse(tomllib.loads(loaded.to_toml()))
    np.testing.assert_array_equal(again.problem().fleet.channel, problem.fleet.channel)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_samples_are_of_channels(correlation):
    fading = {"channel__coherence_rounds": 1, "channel__correlation": correlation}
    loaded = scenario_of(link__antennas=2, link__beamforming="dominant_eigenvector", policy__rounds=4, **fading)
    problem = loaded.problem()
    assert problem.fleet.channel.shape == (4, 12, 2)
    samples = loaded.samples(problem)
    draws = samples(problem.fleet.channel[:1]) if callable(samples) else samples[:, 1:]
    assert draws.shape == (24, 3, 12, 2)
    assert len(loaded.plan(problem).beamformer) >= 4  # one for each round
    with pytest.raises(ScenarioError, match="not drawn from this scenario"):
        loaded.override({"seed": 5}).samples(problem)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"link__antennas": 0}, r"^link\.antennas must be between 1 and 4096, got 0\.$"),
        ({"link__antennas": 2.5}, r"^link\.antennas must be a whole number >= 1 and <= 4096, got 2\.5\.$"),
        ({"link__beamforming": "mrc"}, r"^link\.beamforming must be one of 'optimal', .*; got 'mrc'\.$"),
        ({"link__adversary": "nobody"}, r"^link\.adversary must be one of 'all_antennas', 'combined'; got 'nobody'\.$"),
        ({"channel__angle_spread": -1.0}, r"^channel\.angle_spread must be between 0 and 180, got -1\.0\.$"),
        ({"channel__sector": 200.0}, r"^channel\.sector must be between 0 and 180, got 200\.0\.$"),
        ({"channel__antenna_spacing": 0.0}, r"^channel\.antenna_spacing must be positive, got 0\.0\.$"),
        (
            {"link__antennas": 2, "channel__csi_error": 0.1},
            r"^channel\.csi_error must be 0 with link\.antennas=2, got 0\.1: [^\n]*\.$",
        ),
    ],
)
def test_bad_values_name_their_key(changes, named):
    with pytest.raises(ScenarioError, match=named):
        scenario_of(**changes)


def test_absurd_numbers_of_antennas_are_refused_before_memory_is():
    with pytest.raises(ScenarioError, match=r"^link\.antennas must be between 1 and 4096, got 1000000000\.$"):
        scenario_of(link__antennas=10**9)
    with pytest.raises(ScenarioError, match=r"at most 2\*\*27 complex gains, .* at 4096 antennas"):
        scenario_of(link__antennas=4096, fleet__num_devices=10**6).problem()


def test_a_file_tells_the_number_of_devices(tmp_path):
    np.save(tmp_path / "h.npy", np.ones((7, 2)) + 1j)
    tables = tomllib.loads(template.SCENARIO)
    tables["fleet"] = {"peak_power": 1.0}
    tables["channel"] = {"model": "file", "path": "h.npy"}
    tables["link"]["antennas"] = 2
    loaded = scenario.parse(tables, folder=tmp_path)
    assert loaded.num_devices == 7
    assert loaded.problem().fleet.channel.shape == (7, 2)
    assert from_scenario(loaded).scenario().num_devices == 7


def test_a_sweep_tells_channels_apart(tmp_path):
    files = []
    for index, phase in enumerate((1.0, 1j)):
        (tmp_path / str(index)).mkdir()
        np.save(tmp_path / str(index) / "h.npy", np.array([[1.0, phase], [phase, 1.0]]))
        tables = tomllib.loads(template.SCENARIO)
        tables |= {"fleet": {"peak_power": 1.0}, "channel": {"model": "file", "path": "h.npy"}}
        tables["link"]["antennas"] = 2
        files.append(scenario.parse(tables, folder=tmp_path / str(index)))
    first, second = (points.content_key(loaded) for loaded in files)
    assert first != second  # whose moduli are the same


def test_antennas_are_an_axis_of_a_sweep(tmp_path):
    (tmp_path / "s.toml").write_text(template.SCENARIO, encoding="utf-8")
    tables = {"base": "s.toml", "axes": {"link": {"antennas": [1, 2, 4], "adversary": ["all_antennas", "combined"]}}}
    found = points.expand(points.parse(tables, folder=tmp_path))
    assert [point.scenario.problem().fleet.antennas for point in found] == [1, 1, 2, 2, 4, 4]
    assert len({point.key for point in found}) == 6


@pytest.mark.parametrize("changing", [False, True])
def test_the_command_line_plans_and_compares_with_them(tmp_path, capsys, changing):
    fading = {"channel__coherence_rounds": 2, "policy__rounds": 2} if changing else {}
    loaded = scenario_of(link__antennas=2, link__beamforming="dominant_eigenvector", budget__scope="total", **fading)
    (tmp_path / "s.toml").write_text(loaded.to_toml(), encoding="utf-8")
    expected = pytest.approx(loaded.plan().bound.total)
    assert main(["plan", str(tmp_path / "s.toml")]) == 0
    capsys.readouterr()
    for command in ("plan", "compare"):
        assert main([command, str(tmp_path / "s.toml"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        found = found["policies"][loaded.policy.name] if command == "compare" else found
        assert found["bound"]["total"] == expected


# The page


def test_knobs_appear_with_a_second_antenna():
    keys = ["link.antennas", "link.beamforming", "link.adversary", "channel.angle_spread", "channel.csi_error"]
    assert {key for keys in knobs.GROUPS.values() for key in keys} >= set(keys)
    one = Design().change("channel.csi_error", 0.1)
    two = one.change("link.antennas", 2)
    assert [knobs.applies(key, one) for key in keys] == [True, False, False, False, True]
    assert [knobs.applies(key, two) for key in keys] == [True, True, True, True, False]
    assert two.scenario().channel.csi_error == 0.0
    assert from_query(dict(pair.split("=") for pair in two.query().split("&"))).scenario() == two.scenario()


def test_the_page_plans_with_them():
    made = Design()
    for key, value in {**SMALL, "link.antennas": 2, "link.beamforming": "dominant_eigenvector"}.items():
        made = made.change(key, value)
    assert isinstance(view.show(made), view.View)
    assert compare_tab.compare(made)[0].rows
    (options,) = compare_tab.front_map(made).charts
    cells = {tuple(cell["value"][:2]): cell["value"][2] for cell in options["series"][0]["data"]}
    assert cells[6, 6] == pytest.approx(-np.log(made.scenario().plan().bound.total))  # the present budgets
    shades = [cells[6, row] for row in range(13) if (6, row) in cells]
    assert np.all(np.diff(shades) >= -1e-9)  # more power is never worse, of one beamformer


def test_antennas_count_towards_the_limit_of_the_page():
    made = Design().change("link.antennas", 8).change("fleet.num_devices", MOST_ANTENNAS // 8)
    assert made.scenario().link.antennas == 8
    with pytest.raises(ScenarioError, match=rf"times link\.antennas must be at most {MOST_ANTENNAS:,} in the explorer"):
        made.change("link.antennas", 9).scenario()
    changing = Design().change("link.antennas", 8).change("channel.coherence_rounds", 1).change("policy.rounds", 50)
    assert changing.change("fleet.num_devices", MOST_BATTERIES // 400).scenario().policy.rounds == 50
    with pytest.raises(ScenarioError, match=r"devices times rounds times antennas .*set policy\.rounds"):
        changing.change("fleet.num_devices", MOST_BATTERIES // 400 + 1).scenario()
