"""Several antennas in scenarios: their keys, what they make of a problem, and where else they are turned."""

import json
import tomllib

import numpy as np
import pytest

from airfed import scenario
from airfed.cli import main
from airfed.experiments import points
from airfed.explorer import compare_tab, knobs, view
from airfed.explorer.design import MOST_BATTERIES, MOST_HEARD, Design, from_query, from_scenario
from airfed.scenario import ScenarioError, template
from airfed.scenario.sections import ANTENNAS

SMALL = {"fleet.num_devices": 12, "learning.total_steps": 20}


def world_of(**changes):
    tables = tomllib.loads(template.SCENARIO)
    return scenario.parse(tables).override(SMALL | {key.replace("__", "."): value for key, value in changes.items()})


def test_one_antenna_is_what_it_was():
    plain, one = world_of(), world_of(link__antennas=1, link__combining="optimal", link__trust="radio")
    assert one.digest() == plain.digest()
    assert plain.problem().fleet.antennas == 1
    assert one.problem().fleet.gain.tobytes() == plain.problem().fleet.gain.tobytes()
    assert not set(plain.content()["link"]) & set(ANTENNAS)
    assert not {"angle_spread", "sector", "antenna_spacing"} & set(plain.content()["channel"])
    seen = {plain.digest()}
    for changes in ({"link__antennas": 2}, {"link__trust": "combiner"}, {"channel__angle_spread": 5.0}):
        seen.add(world_of(**changes).digest())
    assert len(seen) == 4


def test_a_problem_has_the_vectors_the_combining_and_the_trust():
    world = world_of(link__antennas=3, link__combining="sum", link__trust="combiner")
    problem = world.problem()
    assert problem.fleet.channel.shape == (12, 3)
    assert (problem.link.combining, problem.link.trust) == ("sum", "combiner")
    assert world.samples(problem) is None
    plan = world.plan(problem)
    np.testing.assert_allclose(np.abs(plan.combiner), np.sqrt(1 / 3))
    again = scenario.parse(tomllib.loads(world.to_toml()))
    np.testing.assert_array_equal(again.problem().fleet.channel, problem.fleet.channel)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_samples_are_of_channels(correlation):
    fading = {"channel__coherence": 1, "channel__correlation": correlation}
    world = world_of(link__antennas=2, link__combining="strongest_eigenvector", policy__rounds=4, **fading)
    problem = world.problem()
    assert problem.fleet.channel.shape == (4, 12, 2)
    samples = world.samples(problem)
    draws = samples(problem.fleet.channel[:1]) if callable(samples) else samples[:, 1:]
    assert draws.shape == (24, 3, 12, 2)
    assert len(world.plan(problem).combiner) >= 4  # one for each round
    with pytest.raises(ScenarioError, match="that this scenario has drawn"):
        world.override({"seed": 5}).samples(problem)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"link__antennas": 0}, r"^Expected link\.antennas=0 >= 1 and <= 4096\.$"),
        ({"link__antennas": 2.5}, r"^Expected link\.antennas to be a whole number"),
        ({"link__combining": "mrc"}, r"^Expected link\.combining to be one of 'optimal', .*; got 'mrc'\.$"),
        ({"link__trust": "nobody"}, r"^Expected link\.trust to be one of 'radio', 'combiner'; got 'nobody'\.$"),
        ({"channel__angle_spread": -1.0}, r"^Expected channel\.angle_spread=-1\.0 >= 0"),
        ({"channel__sector": 200.0}, r"^Expected channel\.sector=200\.0 >= 0 and <= 180"),
        ({"channel__antenna_spacing": 0.0}, r"^Expected channel\.antenna_spacing=0\.0 > 0\.$"),
        (
            {"link__antennas": 2, "channel__estimation_error": 0.1},
            r"^Expected channel\.estimation_error=0 with link\.antennas=2, got 0\.1: [^\n]*\.$",
        ),
    ],
)
def test_bad_values_name_their_key(changes, named):
    with pytest.raises(ScenarioError, match=named):
        world_of(**changes)


def test_absurd_numbers_of_antennas_are_refused_before_memory_is():
    with pytest.raises(ScenarioError, match=r"^Expected link\.antennas=1000000000 >= 1 and <= 4096"):
        world_of(link__antennas=10**9)
    with pytest.raises(ScenarioError, match=r"^Expected at most 2\*\*27 complex gains .* at 4096 antennas"):
        world_of(link__antennas=4096, fleet__num_devices=10**6).problem()


def test_a_file_tells_the_number_of_devices(tmp_path):
    np.save(tmp_path / "h.npy", np.ones((7, 2)) + 1j)
    tables = tomllib.loads(template.SCENARIO)
    tables["fleet"] = {"peak_power": 1.0}
    tables["channel"] = {"model": "file", "path": "h.npy"}
    tables["link"]["antennas"] = 2
    world = scenario.parse(tables, folder=tmp_path)
    assert world.num_devices == 7
    assert world.problem().fleet.channel.shape == (7, 2)
    assert from_scenario(world).world().num_devices == 7


def test_a_sweep_tells_channels_apart(tmp_path):
    files = []
    for index, phase in enumerate((1.0, 1j)):
        (tmp_path / str(index)).mkdir()
        np.save(tmp_path / str(index) / "h.npy", np.array([[1.0, phase], [phase, 1.0]]))
        tables = tomllib.loads(template.SCENARIO)
        tables |= {"fleet": {"peak_power": 1.0}, "channel": {"model": "file", "path": "h.npy"}}
        tables["link"]["antennas"] = 2
        files.append(scenario.parse(tables, folder=tmp_path / str(index)))
    first, second = (points.content_key(world) for world in files)
    assert first != second  # whose moduli are the same


def test_antennas_are_an_axis_of_a_sweep(tmp_path):
    (tmp_path / "s.toml").write_text(template.SCENARIO, encoding="utf-8")
    tables = {"base": "s.toml", "axes": {"link": {"antennas": [1, 2, 4], "trust": ["radio", "combiner"]}}}
    found = points.expand(points.parse(tables, folder=tmp_path))
    assert [point.scenario.problem().fleet.antennas for point in found] == [1, 1, 2, 2, 4, 4]
    assert len({point.key for point in found}) == 6


@pytest.mark.parametrize("changing", [False, True])
def test_the_command_line_plans_and_compares_with_them(tmp_path, capsys, changing):
    fading = {"channel__coherence": 2, "policy__rounds": 2} if changing else {}
    world = world_of(link__antennas=2, link__combining="strongest_eigenvector", budget__scope="total", **fading)
    (tmp_path / "s.toml").write_text(world.to_toml(), encoding="utf-8")
    expected = pytest.approx(world.plan().bound.total)
    assert main(["plan", str(tmp_path / "s.toml")]) == 0
    capsys.readouterr()
    for command in ("plan", "compare"):
        assert main([command, str(tmp_path / "s.toml"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        found = found["policies"]["optimal"] if command == "compare" else found
        assert found["bound"]["total"] == expected


# The page


def test_knobs_appear_with_a_second_antenna():
    keys = ["link.antennas", "link.combining", "link.trust", "channel.angle_spread", "channel.estimation_error"]
    assert {key for keys in knobs.GROUPS.values() for key in keys} >= set(keys)
    one = Design().change("channel.estimation_error", 0.1)
    two = one.change("link.antennas", 2)
    assert [knobs.applies(key, one) for key in keys] == [True, False, False, False, True]
    assert [knobs.applies(key, two) for key in keys] == [True, True, True, True, False]
    assert two.world().channel.estimation_error == 0.0
    assert from_query(dict(pair.split("=") for pair in two.query().split("&"))).world() == two.world()


def test_the_page_plans_with_them():
    made = Design()
    for key, value in {**SMALL, "link.antennas": 2, "link.combining": "strongest_eigenvector"}.items():
        made = made.change(key, value)
    assert isinstance(view.show(made), view.View)
    assert isinstance(compare_tab.compare(made), compare_tab.Compared)
    cells = {tuple(cell["value"][:2]): cell["value"][2] for cell in compare_tab.front_map(made)["series"][0]["data"]}
    assert cells[6, 6] == pytest.approx(-np.log(made.world().plan().bound.total))  # the present budgets
    shades = [cells[6, row] for row in range(13) if (6, row) in cells]
    assert np.all(np.diff(shades) >= -1e-9)  # more power is never worse, of one combiner


def test_antennas_count_towards_what_the_page_computes():
    made = Design().change("link.antennas", 8).change("fleet.num_devices", MOST_HEARD // 8)
    assert made.world().link.antennas == 8
    with pytest.raises(ScenarioError, match=rf"at most {MOST_HEARD:,} devices times link\.antennas in the explorer"):
        made.change("link.antennas", 9).world()
    changing = Design().change("link.antennas", 8).change("channel.coherence", 1).change("policy.rounds", 50)
    assert changing.change("fleet.num_devices", MOST_BATTERIES // 400).world().policy.rounds == 50
    with pytest.raises(ScenarioError, match=r"devices times rounds times antennas .*set policy\.rounds"):
        changing.change("fleet.num_devices", MOST_BATTERIES // 400 + 1).world()
