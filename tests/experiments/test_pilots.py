"""Pilots and the response that they measure."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import airfed
from airfed import plan, scenario
from airfed.cli import main
from airfed.experiments import sweep
from airfed.experiments.pilots import Cell, Unmeasured, better_half, design, means, measure, spreads
from airfed.experiments.points import dataset_digest
from airfed.experiments.results import Record
from airfed.keys import ScenarioError
from airfed.planning import load_response
from airfed.training.directory import RunError
from airfed.training.setup import build_task

SCENARIO = """
seed = 0
[fleet]
num_devices = 10
peak_power = [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 2]
[channel]
model = "rayleigh"
minimum = 0.2
[link]
noise_std = 0.1
noise_source = "secure"
[budget]
epsilon = 2.0
delta = 1e-3
total_power = 1000.0
scope = "total"
account = "account.jsonl"
[learning]
dataset = "tiny.npz"
model = "logistic"
total_steps = 6
learning_rate = 0.5
clip_norm = 1.0
smoothness = 2.0
strong_convexity = 0.1
initial_gap = 2.3
[policy]
name = "threshold"
threshold = 0.5
[run]
engine = "torch"
"""
GRID = {"rounds": (2, 6), "clip_norms": (0.5, 2.0), "noise": (0.001, 0.3)}
LINE = ["--rounds", "2,6", "--clip-norms", "0.5,2", "--noise", "0.001,0.3", "--devices", "4", "--jobs", "1"]


def images(folder, name, count):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    pixels = rng.normal(0.3 * labels[:, None, None, None], 0.2, (count, 1, 4, 4)).astype(np.float32)
    np.savez(folder / name, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)


@pytest.fixture
def file(tmp_path):
    images(tmp_path, "tiny.npz", 80)
    (tmp_path / "s.toml").write_text(SCENARIO)
    return tmp_path / "s.toml"


@pytest.fixture
def world(file):
    return scenario.load(file)


def pretend(found, status="finished", better=0.0):
    """Runs nothing: every point ends with the accuracy that `found` says, and some more with the tail's average."""

    def ended(point):
        accuracy = found(point.values)
        worth = {"none": accuracy, "tail": accuracy + better, "exponential": accuracy}
        averages = {name: {"accuracy": value, "loss": 0.0, "test_loss": 2 - value} for name, value in worth.items()}
        last = {"loss": 1.0, "accuracy": accuracy, "averages": averages}
        return Record(point=point, status=status, run=SimpleNamespace(rounds=[last]))

    return lambda name, points: [ended(point) for point in points]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_every_pilot_has_exactly_the_noise_of_its_place(world, partition):
    pilots = design(world.override({"learning.partition": partition}), **GRID, devices=4)
    assert len(pilots.cells) == (8 if partition == "iid" else 24)
    for point in pilots.points(pilots.cells, pilots.seeds):
        decision = point.scenario.plan()
        values = point.values
        assert decision.noise_share == pytest.approx(values["noise"], rel=1e-12, abs=0)
        assert decision.alignment == pytest.approx(1.0, rel=1e-14)  # on the safe side of the peak power
        assert (decision.binding, decision.violations) == ("peak_power", ())
        assert decision.rounds == values["rounds"]
        assert decision.clip_norm == values["clip_norm"]
        assert decision.scheduled.tolist() == list(range(round(4 * values["share"])))
        assert point.scenario.budget.account is None
        assert point.scenario.link.noise_source == "seeded"


def test_a_pilot_device_holds_as_many_images_as_a_device_of_the_scenario(world, tmp_path):
    def dealt(**given):
        pilots = design(world, **GRID, **given)
        shards = build_task(pilots.points(pilots.cells[:1], [101])[0].scenario).shards
        assert shards.shape[1] == pilots.images == pilots.about()["images_per_device"]
        return pilots.devices, pilots.images

    images(tmp_path, "proxy.npz", 30)
    assert dealt(devices=4) == (4, 8)
    assert dealt() == (10, 8)
    assert dealt(devices=3, dataset=str(tmp_path / "proxy.npz")) == (3, 10)
    assert dealt(devices=10, dataset=str(tmp_path / "proxy.npz")) == (10, 3)
    assert dealt(devices=3, images=20) == (3, 20)


def test_more_devices_train_where_each_holds_little(world, tmp_path):
    images(tmp_path, "many.npz", 1200)
    many = world.override({"learning.dataset": "many.npz", "fleet": {"num_devices": 300, "peak_power": 1.0}})
    pilots = design(many, **GRID)
    assert (pilots.devices, pilots.images) == (200, 4)
    assert design(many, **GRID, quick=True).devices == 100
    assert design(many.override({"fleet.num_devices": 24}), **GRID).devices == 20
    assert design(many.override({"fleet.num_devices": 5}), **GRID).devices == 5


def test_proxy_data_need_not_lie_where_the_devices_data_do(world, tmp_path):
    images(tmp_path, "proxy.npz", 30)
    (tmp_path / "tiny.npz").unlink()
    with pytest.raises(ScenarioError, match=r"no such file.*--images how many a device holds\.$"):
        design(world, **GRID, dataset=str(tmp_path / "proxy.npz"))
    assert design(world, **GRID, dataset=str(tmp_path / "proxy.npz"), images=10, devices=2).images == 10


def test_what_is_not_asked_for_follows_from_the_scenario(world):
    pilots = design(world.override({"learning.total_steps": 200}))
    assert pilots.rounds == (10, 21, 45, 95, 200)
    assert len(pilots.clip_norm) == 5
    assert list(pilots.clip_norm) == sorted(set(pilots.clip_norm))
    assert pilots.noise[0] == 1e-3
    assert len(pilots.noise) >= 6
    problem = world.problem()
    left = [plan(problem, rounds=rounds) for rounds in (1, 6)]
    assert pilots.noise[-1] >= max(0.1 / (each.num_scheduled * each.alignment) for each in left)
    coarse = design(world.override({"learning.total_steps": 200}), quick=True)
    assert len(coarse.cells) < len(pilots.cells) / 3
    assert coarse.rounds[-1] == 200


def test_few_devices_have_few_shares(world):
    skewed = world.override({"learning.partition": "shards"})
    assert design(skewed, **GRID, devices=8).share == (0.25, 0.5, 1.0)
    assert design(skewed, **GRID, devices=2).share == (0.5, 1.0)
    assert design(skewed, **GRID, devices=1).share == (1.0,)
    assert design(skewed, **GRID).about()["shards_per_device"] == 2


def test_only_the_better_half_of_each_noise_is_tried_again(world):
    grid = {"rounds": (1, 2, 6), "clip_norms": (0.5, 2.0), "noise": (0.001, 0.3)}
    pilots = design(world, **grid, seeds=(5, 6, 7))
    tried = Counter()

    def accuracy(values):
        tried[Cell(*(values[name] for name in Cell._fields))] += 1
        level = 0.3 + 0.1 * values["rounds"] if values["noise"] < 0.01 else 0.3 + 0.3 / values["rounds"]
        return level + 0.01 * values["clip_norm"] + 0.001 * values["seed"]

    response = measure(pilots, pretend(accuracy))
    for noise, best in ((0.001, (6, 2)), (0.3, (1, 2))):
        often = {cell.rounds for cell, times in tried.items() if times == 3 and cell.noise == noise}
        assert often <= set(best)
        assert sum(tried[cell] for cell in pilots.cells if cell.noise == noise) == 6 + 2 * 3
    assert response.accuracy[0, 0, 2, 1, 0] == pytest.approx(0.9 + 0.02 + 0.006)
    assert response.accuracy[0, 0, 0, 0, 0] == pytest.approx(0.4 + 0.005 + 0.006)  # one seed, which had less luck
    assert np.allclose(response.spread, 0.001)  # pooled where there was one


def test_the_spread_of_a_single_training_is_that_of_the_others_at_its_noise():
    a, b, c, d = (Cell(1.0, rounds, 1.0, noise) for noise in (0.1, 0.2) for rounds in (1, 2))
    found = spreads({a: np.array([0.5, 0.7]), b: np.array([0.1]), c: np.array([0.3]), d: np.array([0.2, 0.2])})
    assert found == pytest.approx({a: np.sqrt(0.02), b: np.sqrt(0.02), c: 0.0, d: 0.0})
    assert better_half({a: 0.6, b: 0.1, c: 0.3, d: 0.2}) == [a, c]


def test_a_single_training_is_not_better_by_the_luck_of_its_seed():
    a, b, c = (Cell(1.0, rounds, 1.0, 0.1) for rounds in (1, 2, 3))
    found = means({a: np.array([0.85, 0.81]), b: np.array([0.84]), c: np.array([0.8, 0.78])})
    assert found == pytest.approx({a: 0.83, b: 0.825, c: 0.79})


def test_every_average_is_measured_beside_the_grid(world):
    def accuracy(values):
        return 0.4 + 0.05 * values["rounds"] - 0.1 * values["noise"] + 0.001 * values["clip_norm"]

    response = measure(design(world, **GRID), pretend(accuracy, better=0.03))
    assert response.averages == ("none", "tail", "exponential")
    assert np.allclose(response.accuracy[1] - response.accuracy[0], 0.03)
    assert np.allclose(response.loss, 2 - response.accuracy)


def test_what_is_hopeless_is_not_tried_with_more_noise(world):
    pilots = design(world, rounds=(2, 6), clip_norms=(0.5, 2.0), noise=(0.001, 0.01, 0.1))
    tried = []

    def accuracy(values):
        tried.append((values["rounds"], values["clip_norm"], values["noise"]))
        return 0.9 if values["rounds"] == 2 or values["noise"] < 0.01 else 0.29

    response = measure(pilots, pretend(accuracy))
    assert (6, 2.0, 0.01) in tried
    assert not [place for place in tried if place[0] == 6 and place[2] == 0.1]
    assert np.allclose(response.accuracy[:, 0, 1, :, 2], 0.25)
    assert np.allclose(response.accuracy[:, 0, 0], 0.9)


def test_where_all_is_hopeless_nothing_is_left_to_try(world):
    response = measure(design(world, **GRID), pretend(lambda values: 0.1))
    assert np.all(response.accuracy[..., 1] == 0.25)


def test_a_pilot_that_diverges_is_worth_a_guess(world):
    response = measure(design(world, **GRID), pretend(lambda values: 0.9, status="diverged"))
    assert np.all(response.accuracy == 0.25)


def test_what_was_not_run_is_no_response(world):
    with pytest.raises(Unmeasured) as caught:
        measure(design(world, **GRID), pretend(lambda values: 0.9, status="stopped"))
    assert len(caught.value.records) == 4


def test_the_command_writes_a_response_that_plans(file, capsys):
    out = file.with_name("r.json")
    assert main(["measure", str(file), "--out", str(out), *LINE]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if "written" not in line and "resumes" not in line) < 120
    assert "best I" in text
    assert "is at the edge of what was measured" in text
    response = load_response(out)
    assert response.accuracy.shape == (3, 1, 2, 2, 2)
    assert response.accuracy.max() > 0.4
    assert response.about["seeds"] == [101, 102]
    assert response.about["model"] == "logistic"
    assert response.about["dataset"] == "tiny.npz"
    assert (response.about["devices"], response.about["images_per_device"]) == (4, 8)
    problem = scenario.load(file).override({"budget.epsilon": 50.0}).problem()
    assert plan(problem, objective=response).clip_norm in (0.5, 2.0)
    assert not file.with_name("account.jsonl").exists()  # pilots charge nothing
    # 8 places, 4 of them again
    assert len(list((file.with_name("r.json.pilots") / "records").glob("*.json"))) == 12


def test_an_interrupted_measure_goes_on_and_finds_the_same(file, capsys, monkeypatch):
    whole, parts = file.with_name("whole.json"), file.with_name("parts.json")
    assert main(["measure", str(file), "--out", str(whole), *LINE]) == 0
    original, trained = sweep.run_point, []

    def some(world, out, key, *rest):
        """The first three points of each call; the others are as if stopped."""
        trained.append(key)
        return original(world, out, key, *rest) if len(trained) <= 3 else key

    monkeypatch.setattr(sweep, "run_point", some)
    assert main(["measure", str(file), "--out", str(parts), *LINE]) == 2
    assert not parts.exists()
    assert "Stopped; the same command goes on from there." in capsys.readouterr().err
    monkeypatch.setattr(sweep, "run_point", lambda *given: trained.append(given[2]) or original(*given))
    trained.clear()
    assert main(["measure", str(file), "--out", str(parts), *LINE, "--json"]) == 0
    assert len(trained) == 12 - 3
    assert parts.read_bytes() == whole.read_bytes()
    found = json.loads(capsys.readouterr().out)
    assert [row["noise"] for row in found["best"]] == [0.001, 0.3]
    assert found["out"] == str(parts)


def test_a_failed_pilot_is_told_and_nothing_is_written(file, capsys, monkeypatch):
    def fail(world, out, key, *rest):
        raise RunError("Cannot write: the disk is full.")

    monkeypatch.setattr(sweep, "run_point", fail)
    assert main(["measure", str(file), "--out", str(file.with_name("r.json")), *LINE]) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert not file.with_name("r.json").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "out"),
        ("--out s.toml", "Expected s.toml not to exist; it is left as it is."),
        ("--out no/r.json", "Cannot write no/r.json: there is no folder no."),
        ("--out r.json --rounds 2,x", "expected whole numbers with commas between them, as in 10,20,40; got '2,x'"),
        ("--out r.json --rounds 2.5", "expected whole numbers"),
        ("--out r.json --rounds 2,,6", "expected whole numbers"),
        ("--out r.json --rounds 2,7", "Expected --rounds to be different numbers > 0 and at most 6, got 2, 7."),
        ("--out r.json --rounds 0", "Expected --rounds to be different numbers > 0 and at most 6, got 0."),
        ("--out r.json --rounds 2,2", "Expected --rounds to be different numbers"),
        ("--out r.json --clip-norms one", "expected numbers with commas between them, as in 1,2,5; got 'one'"),
        ("--out r.json --clip-norms 1,0", "Expected --clip-norms to be different numbers > 0, got 1, 0."),
        ("--out r.json --noise nan", "Expected --noise to be different numbers > 0, got nan."),
        ("--out r.json --noise inf", "Expected --noise to be different numbers > 0, got inf."),
        ("--out r.json --seeds 3", "Expected --seeds to be two or more different ones, got 3."),
        ("--out r.json --seeds 3,3", "Expected --seeds to be two or more different ones, got 3, 3."),
        ("--out r.json --devices 0", "Expected --devices=0 >= 1."),
        ("--out r.json --devices 500", "Expected at least 500 training images, one for each device; there are 80."),
        ("--out r.json --images 0", "Expected --images=0 >= 1."),
        ("--out r.json --jobs 0", "Expected --jobs=0 >= 1."),
        ("--out r.json --data nothing.npz", "there is no such file"),
    ],
)
def test_mistakes_are_one_sentence(file, monkeypatch, capsys, line, words):
    monkeypatch.chdir(file.parent)
    assert main(["measure", "s.toml", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(file.parent.glob("*.pilots"))


def test_a_model_without_accuracy_is_refused(file, monkeypatch, capsys):
    text = SCENARIO.replace('model = "logistic"', 'model = "quadratic"\ndimension = 5')
    file.write_text(text)
    assert main(["measure", str(file), "--out", str(file.with_name("r.json"))]) == 2
    assert "'quadratic' has no accuracy to measure." in capsys.readouterr().err


def test_every_response_says_that_its_data_are_proxy_data(world):
    about = design(world, **GRID).about()
    assert "never on the devices' own data" in about["proxy"]
    assert len(about["data_digest"]) == 64


SHIPPED = sorted((Path(airfed.__file__).parent / "responses").glob("*.json"))


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda file: file.stem)
def test_the_responses_that_come_with_airfed_are_what_their_names_say(shipped, repository):
    response = load_response(shipped)
    about = response.about
    dataset, model = about["dataset"], about["model"]
    partition = "" if about["partition"] == "iid" else f"-{about['partition']}-{about['alpha']:g}"
    assert shipped.stem == f"{dataset}-{model}{partition}-{about['images_per_device']}"
    assert about["total_steps"] == 200
    assert dataset != "mnist-5k" or about["data_digest"] == dataset_digest("mnist-5k")
    paper = scenario.load(repository / "examples" / "paper.toml").override({"learning.model": model})
    for key in ("learning_rate", "batch_size"):
        assert about[key] == getattr(paper.learning, key)
    decision = plan(paper.problem(), objective=response)
    assert decision.violations == ()
    assert decision.predicted_accuracy > (0.7 if dataset == "mnist-5k" else 0.6)
