"""Scenarios that are planned by a response."""

import json
from pathlib import Path

import numpy as np
import pytest

from airfed import Run, load, run
from airfed.cli.app import main
from airfed.explorer import knobs, view
from airfed.explorer.design import from_query, from_scenario
from airfed.planning import Response, load_response
from airfed.scenario import ScenarioError
from airfed.scenario.learning_section import SHIPPED, traits

WORLD = (
    (Path(__file__).parents[1] / "eight.toml").read_text()
    + """
[policy]
objective = "measured"
response = "measured.json"
"""
)


def response(world, **about):
    rounds, clips, noise = (2, 4, 12), (0.5, 1.0), (1e-6, 1e-2, 1e3)
    grid = np.meshgrid((1.0,), rounds, clips, noise, indexing="ij")
    plain = (0.9 - 0.1 * np.abs(np.log(grid[1] / 4)) - 0.1 * (grid[2] < 1)) / (1 + grid[3])
    accuracy = np.stack([plain, plain + 0.01])
    return Response(
        share=(1.0,),
        rounds=rounds,
        clip_norm=clips,
        noise=noise,
        averages=("none", "exponential"),
        accuracy=accuracy,
        spread=np.full(accuracy.shape, 0.02),
        loss=1 - accuracy,
        loss_spread=np.full(accuracy.shape, 0.02),
        about={**traits(world.learning), **about},
    )


@pytest.fixture
def world(tmp_path):
    (tmp_path / "world.toml").write_text(WORLD)
    world = load(tmp_path / "world.toml")
    (tmp_path / "measured.json").write_text(response(world).to_json())
    return world


def test_the_response_decides(world):
    decision = world.plan()
    assert (decision.objective, decision.clip_norm, decision.rounds) == ("measured", 1.0, 4)
    assert decision.average == "exponential"
    fixed = world.override({"policy.average": "none"}).plan()
    assert fixed.average == "none"
    assert fixed.predicted_accuracy < decision.predicted_accuracy
    assert 0 < decision.prediction.low < decision.predicted_accuracy < decision.prediction.high <= 1
    plans, _ = world.compare()
    assert all(plan.objective == "measured" for plan in plans.values())
    assert max(plan.predicted_accuracy for plan in plans.values()) == plans["optimal"].predicted_accuracy


def test_a_run_clips_to_the_norm_that_was_chosen_and_its_record_needs_no_response(world, tmp_path):
    trained = run(world, tmp_path / "out")
    assert trained.plan.clip_norm == 1.0
    assert trained.plan.predicted_accuracy == world.plan().predicted_accuracy
    assert max(trained.rounds["power_transmitted"] / trained.rounds["power_planned"]) <= 1 + 1e-9
    (tmp_path / "measured.json").unlink()
    again = Run.open(tmp_path / "out").checked()
    assert again.plan.to_dict() == trained.plan.to_dict()
    assert again.audit().verdict == "pass"


def test_another_response_is_another_plan_and_is_not_resumed(world, tmp_path):
    run(world, tmp_path / "out")
    content = json.loads((tmp_path / "measured.json").read_text())
    content["clip_norm"] = [0.5, 1.5]
    (tmp_path / "measured.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the plan"):
        run(world, tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning.learning_rate": 0.2}, "measured with learning_rate = 0.2; .* was with 0.1"),
        ({"learning.total_steps": 13}, "measured with total_steps = 13"),
        ({"learning.partition": "shards"}, "measured with partition = 'shards'"),
        ({"policy.response": "nothing.json"}, "no such file"),
        ({"policy.response": "world.toml"}, "it is not JSON"),
        ({"policy.response": None}, "airfed measure SCENARIO --out FILE"),
        ({"policy.objective": "best"}, "policy.objective to be one of 'bound', 'measured'"),
    ],
)
def test_mistakes(world, changes, says):
    with pytest.raises(ScenarioError, match=says):
        world.override(changes).plan()


def test_the_page_reads_it_only_where_it_was_started_with_it(world):
    assert from_scenario(world).world().plan().objective == "measured"
    with pytest.raises(ScenarioError, match=r"no policy\.response in the explorer"):
        from_query({"policy.response": str(world.folder / "measured.json")}).world()


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.json")), ids=lambda file: file.stem)
def test_what_airfed_comes_with_is_found_by_its_scenario(file):
    about = load_response(file).about
    world = load("examples/paper.toml")
    keys = ("model", "dataset", "total_steps", "learning_rate", "partition")
    fitting = world.override(
        {
            **{f"learning.{key}": about[key] for key in keys},
            "learning.alpha": about.get("alpha"),
            "fleet.num_devices": 4000 // about["images_per_device"],
        }
    )
    found = fitting.response
    assert found is not None
    assert found.about == about
    assert found.accuracy.max() > (0.7 if about["dataset"] == "fashion-mnist" else 0.8)
    assert fitting.override({"learning.total_steps": 7}).response is None
    named = fitting.override({"policy.response": file.stem})
    assert named.response.about == about
    assert named.anchored().policy.response == file.stem  # a name stays a name


def test_the_response_of_the_nearest_amount_of_data_is_taken():
    world = load("examples/paper.toml")
    assert world.response.about == world.override({"fleet.num_devices": 250}).response.about
    assert load("examples/private.toml").response.about["images_per_device"] == 4


def test_the_page_shows_what_to_expect(world):
    design = from_scenario(world)
    seen = view.show(design)
    assert seen.facts[0].label == "Expected accuracy"
    assert seen.cards[-1].text.startswith("The expected accuracy, by the accuracy surrogate")
    (drawn,) = seen.cards[-1].charts
    assert drawn["yAxis"]["name"] == "expected test accuracy"
    assert "nine of ten trainings" in drawn["legend"]["data"]
    assert not knobs.applies("learning.clip_norm", design)
    by_bound = view.show(design.change("policy.objective", "bound"))
    assert by_bound.facts[0].label == "Bound on the gap"  # its ϖ was not measured
    assert by_bound.cards[-1].text.startswith("The bound ")
    with pytest.raises(ValueError, match=r"measured with learning_rate = 0\.3"):
        view.show(design.change("learning.learning_rate", 0.3))


def test_the_command_line_says_what_to_expect(world, tmp_path, capsys):
    file = str(tmp_path / "world.toml")
    assert main(["plan", file, "--plot", str(tmp_path / "plan.png")]) == 0
    assert "Expected test accuracy, with ϖ = 1, an exponential average: " in capsys.readouterr().out
    assert main(["plan", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["predicted_accuracy"] == world.plan().predicted_accuracy
    assert said["clip_norm"] == 1.0
    assert main(["compare", file]) == 0
    assert "expected" in capsys.readouterr().out
    run(world, tmp_path / "out")
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html")]) == 0
    assert "Expected test accuracy, with ϖ = 1" in (tmp_path / "r.html").read_text()
