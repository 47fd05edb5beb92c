"""Scenarios that are planned by an accuracy surrogate."""

import json
from pathlib import Path

import numpy as np
import pytest

from airfed import Run, load, run
from airfed._files import DataError
from airfed.cli.app import main
from airfed.experiments.pilots import design
from airfed.experiments.points import dataset_digest
from airfed.explorer import knobs, view
from airfed.explorer.design import from_query, from_scenario
from airfed.learning import data
from airfed.planning import Surrogate
from airfed.planning.surrogate import CHOSEN_ON_DATA
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError, learning_section
from airfed.scenario.learning_section import shipped, traits

SCENARIO = (
    (Path(__file__).parents[1] / "eight.toml").read_text()
    + """
[policy]
objective = "accuracy"
surrogate = "measured.json"
"""
)


def surrogate(scenario, **about):
    rounds, clips, noise = (2, 4, 12), (0.5, 1.0), (1e-6, 1e-2, 1e3)
    grid = np.meshgrid((1.0,), rounds, clips, noise, indexing="ij")
    plain = (0.9 - 0.1 * np.abs(np.log(grid[1] / 4)) - 0.1 * (grid[2] < 1)) / (1 + grid[3])
    accuracy = np.stack([plain, plain + 0.01])
    return Surrogate(
        participation=(1.0,),
        rounds=rounds,
        clip_norm=clips,
        noise=noise,
        averages=("none", "exponential"),
        accuracy=accuracy,
        spread=np.full(accuracy.shape, 0.02),
        loss=1 - accuracy,
        loss_spread=np.full(accuracy.shape, 0.02),
        about={**traits(scenario.learning), **about},
    )


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    loaded = load(tmp_path / "scenario.toml")
    (tmp_path / "measured.json").write_text(surrogate(loaded).to_json())
    return loaded


def test_the_surrogate_determines_the_plan(scenario):
    plan = scenario.plan()
    assert (plan.objective, plan.clip_norm, plan.rounds) == ("accuracy", 1.0, 4)
    assert plan.average == "exponential"
    fixed = scenario.override({"policy.average": "none"}).plan()
    assert fixed.average == "none"
    assert fixed.predicted_accuracy < plan.predicted_accuracy
    assert 0 < plan.prediction.low < plan.predicted_accuracy < plan.prediction.high <= 1
    plans, _ = scenario.compare()
    assert all(plan.objective == "accuracy" for plan in plans.values())
    assert max(plan.predicted_accuracy for plan in plans.values()) == plans["optimal"].predicted_accuracy


def test_a_run_clips_to_the_norm_that_was_chosen_and_its_record_needs_no_surrogate(scenario, tmp_path):
    trained = run(scenario, tmp_path / "out")
    assert trained.plan.clip_norm == 1.0
    assert trained.plan.predicted_accuracy == scenario.plan().predicted_accuracy
    assert max(trained.rounds["power_transmitted"] / trained.rounds["power_planned"]) <= 1 + 1e-9
    (tmp_path / "measured.json").unlink()
    again = Run.open(tmp_path / "out").checked()
    assert again.plan.to_dict() == trained.plan.to_dict()
    assert again.audit(trials=500).verdict == "pass"


def test_another_surrogate_is_another_plan_and_is_not_resumed(scenario, tmp_path):
    run(scenario, tmp_path / "out")
    content = json.loads((tmp_path / "measured.json").read_text())
    content["clip_norm"] = [0.5, 1.5]
    (tmp_path / "measured.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the plan"):
        run(scenario, tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning.learning_rate": 0.2}, "fitted with learning_rate = 0.2, got .* with 0.1"),
        ({"learning.total_steps": 13}, "fitted with total_steps = 13"),
        ({"learning.partition": "shards"}, "fitted with partition = 'shards'"),
        ({"policy.surrogate": "nothing.json"}, "no such file"),
        ({"policy.surrogate": "scenario.toml"}, "it is not JSON"),
        ({"policy.surrogate": None}, "the package has none for this training"),
        ({"policy.objective": "best"}, "policy.objective must be one of 'bound', 'accuracy'"),
    ],
)
def test_mistakes(scenario, changes, says):
    with pytest.raises(ScenarioError, match=says):
        scenario.override(changes).plan()


def test_the_page_reads_it_only_where_it_was_started_with_it(scenario):
    assert from_scenario(scenario).scenario().plan().objective == "accuracy"
    with pytest.raises(ScenarioError, match=r"policy\.surrogate must not be set in the explorer"):
        from_query({"policy.surrogate": str(scenario.folder / "measured.json")}).scenario()


@pytest.mark.parametrize("name", shipped())
def test_a_scenario_finds_the_surrogate_of_the_package(name):
    about = shipped()[name].about
    scenario = load("examples/paper.toml")
    keys = ("model", "dataset", "total_steps", "learning_rate", "partition")
    fitting = scenario.override(
        {
            **{f"learning.{key}": about[key] for key in keys},
            "learning.alpha": about.get("alpha"),
            "learning.images": 4000,
            "fleet.num_devices": 4000 // about["images_per_device"],
        }
    )
    found = fitting.surrogate
    assert found is not None
    assert found.about == about
    assert found.accuracy.max() > (0.7 if about["dataset"] == "fashion-mnist" else 0.8)
    assert fitting.override({"learning.total_steps": 7}).surrogate is None
    named = fitting.override({"policy.surrogate": name})
    assert named.surrogate.about == about
    assert named.anchored().policy.surrogate == name  # a name stays a name


@pytest.mark.parametrize("objective", ["bound", None])
def test_a_surrogate_fits_up_to_another_half_of_the_data(objective, tmp_path, capsys):
    scenario = load("examples/paper.toml").override({"policy.objective": objective})
    fits = {
        devices: scenario.override({"fleet.num_devices": devices}).surrogate is not None
        for devices in (20, 66, 67, 100, 150, 151, 600, 667, 1000, 1500, 1501)
    }
    assert [devices for devices, fit in fits.items() if fit] == [67, 100, 150, 667, 1000, 1500]
    assert load("examples/private.toml").surrogate.about["images_per_device"] == 4
    few = scenario.override({"fleet.num_devices": 20})
    assert (few.plan().prediction, few.plan().objective) == (None, "bound")
    with pytest.raises(ScenarioError, match=r"fitted with 133 to 300 images per device, got .* with 40\."):
        few.override({"policy.surrogate": "mnist-5k-cnn-40"}).plan()
    (tmp_path / "few.toml").write_text(few.to_toml())
    for command in ("plan", "compare"):
        assert main([command, str(tmp_path / "few.toml")]) == 0
        said = "".join(capsys.readouterr().out.split())  # a long path is broken
        assert f"runairfedpilot{tmp_path / 'few.toml'}--dataPROXY--outFILE." in said
        assert "Expectedtestaccuracy" not in said


def test_accuracy_is_the_objective_where_a_surrogate_fits():
    scenario = load("examples/paper.toml").override({"policy.objective": None})
    plan = scenario.plan()
    assert plan.objective == "accuracy"
    assert scenario.plan(objective="bound").to_dict() == load("examples/paper.toml").plan().to_dict()
    assert scenario.override({"learning.total_steps": 7}).plan().objective == "bound"
    assert scenario.override({"budget.device_power": 5.0}).plan().objective == "bound"  # rounds may differ
    plans, _ = scenario.compare()
    expected = [each.predicted_accuracy for each in plans.values()]
    assert expected == sorted(expected, reverse=True)
    assert max(expected) == plans["optimal"].predicted_accuracy == plan.predicted_accuracy


def test_a_plan_outside_the_range_of_a_default_surrogate_is_made_by_the_bound():
    noisy = load("examples/paper.toml").override({"policy.objective": None, "link.noise_std": 1e4})
    plan = noisy.plan()
    assert (plan.objective, plan.prediction) == ("bound", None)
    assert plan.notes[0].startswith("Planned by the bound: the noise per coordinate would be at least ")
    assert noisy.compare()[0]["optimal"].objective == "bound"
    with pytest.raises(InfeasibleError, match="the noise per coordinate"):
        noisy.plan(objective="accuracy")


def test_settings_are_chosen_on_another_data_set_or_with_a_warning(tmp_path, capsys):
    scenario = load("examples/paper.toml")
    assert scenario.surrogate.same_data  # to predict, and not to choose
    assert not scenario.plan().notes
    chosen = scenario.override({"policy.objective": "accuracy"})
    assert chosen.surrogate.about["dataset"] == "fashion-mnist"
    assert not chosen.plan().notes
    assert "with pilots on another data set" in chosen.plan().prediction.basis
    same = chosen.override({"policy.surrogate": "mnist-5k-cnn-40"})
    for warned in (same, same.override({"learning.dataset": "mnist", "learning.images": 4000})):
        assert CHOSEN_ON_DATA in warned.plan().notes
    narrow, wide = (each.plan().prediction for each in (same, chosen))
    assert narrow.high - narrow.low < wide.high - wide.low
    (tmp_path / "same.toml").write_text(same.to_toml())
    assert main(["plan", str(tmp_path / "same.toml")]) == 0
    assert CHOSEN_ON_DATA in " ".join(capsys.readouterr().out.split())


def test_the_private_example_is_planned_by_another_data_set(capsys):
    """The surrogate chooses the plan of the recorded benchmark, which pilots on the same data set had chosen."""
    private = load("examples/private.toml")
    plan = private.plan()
    assert private.surrogate.about["dataset"] == "fashion-mnist"
    assert private.surrogate.about["scored_on"] == "validation"
    assert not plan.notes
    assert (plan.rounds, plan.clip_norm, plan.average) == (56, 5.0, "exponential")
    assert f"{plan.predicted_accuracy:.1%}" == "67.1%"
    assert [round(100 * end) for end in (plan.prediction.low, plan.prediction.high)] == [44, 90]
    own = private.override({"policy.surrogate": "mnist-5k-cnn-4"}).plan()
    assert (own.rounds, own.clip_norm, own.average) == (56, 5.0, "exponential")
    assert CHOSEN_ON_DATA in own.notes
    assert main(["plan", "examples/private.toml"]) == 0
    assert "does not cover" not in capsys.readouterr().out


@pytest.mark.parametrize("same", [True, False])
def test_a_run_and_its_ledger_and_report_have_the_warning(same, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"train_images": rng.random((40, 4, 4)), "train_labels": np.arange(40) % 4}
    arrays |= {"test_images": rng.random((8, 4, 4)), "test_labels": np.arange(8) % 4}
    np.savez(tmp_path / "own.npz", **arrays)
    learning = {"model": "logistic", "dataset": "own.npz", "dimension": None}
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    loaded = load(tmp_path / "scenario.toml").override({f"learning.{key}": value for key, value in learning.items()})
    about = {"dataset": "copy.npz", "data_digest": dataset_digest(str(tmp_path / "own.npz")) if same else "0" * 64}
    (tmp_path / "measured.json").write_text(surrogate(loaded, **about, images_per_device=5).to_json())
    assert (CHOSEN_ON_DATA in loaded.plan().notes) is same
    trained = run(loaded, tmp_path / "out")
    assert (CHOSEN_ON_DATA in trained.plan.notes) is same
    assert (trained.ledger.header.get("warning") == CHOSEN_ON_DATA) is same
    Run.open(tmp_path / "out").checked()
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html")]) == 0
    assert ("settings were chosen on the devices" in (tmp_path / "r.html").read_text()) is same


def test_averages_help_where_the_noise_is_large():
    """The numbers of docs/surrogate.md and docs/howto/choose.md."""
    gains, losses = [], []
    for each in shipped().values():
        accuracy = dict(zip(each.averages, 100 * each.accuracy, strict=True))
        plain = accuracy.pop("none")
        least = np.unravel_index(plain[..., 0].argmax(), plain[..., 0].shape)
        gains += [float((other - plain).max()) for other in accuracy.values()]
        losses += [float((plain - other)[..., 0][least]) for other in accuracy.values()]
    assert (round(min(gains)), round(max(gains))) == (4, 17)
    assert (round(min(losses), 1), round(max(losses), 1)) == (0.5, 1.7)


def test_one_common_image_is_enough_for_the_warning(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"train_images": rng.random((40, 4, 4)), "train_labels": np.arange(40) % 4}
    arrays |= {"test_images": rng.random((8, 4, 4)), "test_labels": np.arange(8) % 4}
    np.savez(tmp_path / "own.npz", **arrays)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    learning = {"learning.model": "logistic", "learning.dataset": "own.npz", "learning.dimension": None}
    loaded = load(tmp_path / "scenario.toml").override(learning)
    for shared in (1, 0):
        proxy = {**arrays, "train_images": rng.random((40, 4, 4))}
        proxy["train_images"][:shared] = arrays["train_images"][7 : 7 + shared]
        np.savez(tmp_path / f"proxy{shared}.npz", **proxy)
        pilots = design(loaded, dataset=str(tmp_path / f"proxy{shared}.npz"), clip_norms=(1.0,), noise=(0.1,))
        about = pilots.about()
        assert len(about["image_digests"]) == 40
        (tmp_path / "measured.json").write_text(surrogate(loaded, **about).to_json())
        assert loaded.surrogate.same_data is bool(shared)
        assert (CHOSEN_ON_DATA in loaded.plan().notes) is bool(shared)
    (tmp_path / "measured.json").write_text(surrogate(loaded, **about | {"image_digests": 3}).to_json())
    assert not loaded.surrogate.same_data


def test_a_file_with_images_of_a_named_data_set_is_recognised(tmp_path):
    digits = data.load("mnist-5k")
    few = {"train_images": digits.train_images[:40], "train_labels": digits.train_labels[:40]}
    np.savez(tmp_path / "own.npz", **few, test_images=digits.test_images[:8], test_labels=digits.test_labels[:8])
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    learning = {"learning.model": "logistic", "learning.dataset": "own.npz", "learning.dimension": None}
    loaded = load(tmp_path / "scenario.toml").override(learning)
    about = {"dataset": "mnist-5k", "data_digest": digits.sha256, "images_per_device": 5}
    (tmp_path / "measured.json").write_text(surrogate(loaded, **about).to_json())
    assert loaded.surrogate.same_data


def test_images_that_cannot_be_compared_are_not_taken_for_others(tmp_path, monkeypatch):
    """The devices have files, and the published images of the pilot runs are not on this machine."""
    rng, real = np.random.default_rng(0), data.load
    arrays = {"train_images": rng.random((40, 4, 4)), "train_labels": np.arange(40) % 4}
    np.savez(tmp_path / "own.npz", **arrays, test_images=rng.random((8, 4, 4)), test_labels=np.arange(8) % 4)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    learning = {"learning.model": "logistic", "learning.dataset": "own.npz", "learning.dimension": None}
    loaded = load(tmp_path / "scenario.toml").override(learning)
    about = {"dataset": "fashion-mnist", "data_digest": "", "images_per_device": 5}
    (tmp_path / "measured.json").write_text(surrogate(loaded, **about).to_json())

    def missing(source):
        if source == "fashion-mnist":
            raise DataError("Fashion-MNIST is not on this machine. Run airfed data fetch fashion-mnist.")
        return real(source)

    learning_section._image_digests.cache_clear()
    monkeypatch.setattr(data, "load", missing)
    with pytest.raises(ScenarioError, match=r"must be compared .* fashion-mnist, which are missing: .*data fetch"):
        _ = loaded.surrogate


def test_the_page_shows_the_expected_accuracy(scenario):
    design = from_scenario(scenario)
    seen = view.show(design)
    assert seen.facts[0].label == "Expected accuracy"
    assert seen.cards[-1].text.startswith("Expected accuracy by the surrogate")
    (drawn,) = seen.cards[-1].charts
    assert drawn["yAxis"]["name"] == "expected test accuracy"
    assert "interval, nominal 90%" in drawn["legend"]["data"]
    assert not knobs.applies("learning.clip_norm", design)
    by_bound = view.show(design.change("policy.objective", "bound"))
    assert by_bound.facts[0].label == "Bound on the gap"  # its ϖ was not measured
    assert by_bound.cards[-1].text.startswith("Bound ")
    with pytest.raises(ValueError, match=r"fitted with learning_rate = 0\.3"):
        view.show(design.change("learning.learning_rate", 0.3))


def test_the_command_prints_the_expected_accuracy(scenario, tmp_path, capsys):
    file = str(tmp_path / "scenario.toml")
    assert main(["plan", file, "--plot", str(tmp_path / "plan.png")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Expected test accuracy, with clipping norm ϖ = 1 and an exponential model average: " in text
    assert main(["plan", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["predicted_accuracy"] == scenario.plan().predicted_accuracy
    assert said["clip_norm"] == 1.0
    assert main(["compare", file]) == 0
    assert "expected" in capsys.readouterr().out
    run(scenario, tmp_path / "out")
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html")]) == 0
    assert "with clipping norm ϖ = 1 and an exponential model average: " in (tmp_path / "r.html").read_text()
