"""Pilot runs and the accuracy surrogate made of them."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from airfed import plan, scenario
from airfed._files import DataError
from airfed.cli import main
from airfed.experiments import sweep
from airfed.experiments.pilots import GridPoint, MissingPilots, better_half, design, estimates, run_pilots
from airfed.experiments.points import dataset_digest
from airfed.experiments.results import Record
from airfed.keys import ScenarioError
from airfed.learning import data
from airfed.planning import load_surrogate
from airfed.planning.surrogate import load_surrogates
from airfed.scenario.learning_section import shipped
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
shared_ledger = "shared.jsonl"
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
def loaded(file):
    return scenario.load(file)


def pretend(found, status="finished", better=0.0, loss=None):
    """Train nothing: every point gets the accuracy `found(values)`, plus `better` with a tail average."""

    def lost(accuracy, point):
        return 2 - accuracy if loss is None else loss(point.values)

    def ended(point):
        accuracy = found(point.values)
        worth = {"none": accuracy, "tail": accuracy + better, "exponential": accuracy}
        averages = {
            name: {"accuracy": value, "loss": 0.0, "test_loss": lost(value, point)} for name, value in worth.items()
        }
        last = {"loss": 1.0, "accuracy": accuracy, "averages": averages}
        return Record(point=point, status=status, run=SimpleNamespace(rounds=[last]))

    return lambda name, points: [ended(point) for point in points]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_every_pilot_run_has_exactly_the_noise_of_its_grid_point(loaded, partition):
    pilots = design(loaded.override({"learning.partition": partition}), **GRID, devices=4)
    assert len(pilots.grid) == (8 if partition == "iid" else 24)
    for point in pilots.points(pilots.grid, pilots.seeds):
        found = point.scenario.plan()
        values = point.values
        assert found.noise_share == pytest.approx(values["noise"], rel=1e-12, abs=0)
        assert found.alignment == pytest.approx(1.0, rel=1e-14)  # on the safe side of the peak power
        assert (found.binding, found.violations) == ("peak_power", ())
        assert found.rounds == values["rounds"]
        assert found.clip_norm == values["clip_norm"]
        assert found.scheduled.tolist() == list(range(round(4 * values["participation"])))
        assert point.scenario.budget.shared_ledger is None
        assert point.scenario.link.noise_source == "seeded"


def test_a_pilot_device_holds_as_many_images_as_a_device_of_the_scenario(loaded, tmp_path):
    def partitioned(**given):
        pilots = design(loaded, **GRID, **given)
        shards = build_task(pilots.points(pilots.grid[:1], [101])[0].scenario).shards
        assert shards.shape[1] == pilots.images == pilots.about()["images_per_device"]
        return pilots.devices, pilots.images

    images(tmp_path, "proxy.npz", 30)
    assert partitioned(devices=4) == (4, 8)
    assert partitioned() == (10, 6)  # a fifth of the images is held out
    assert partitioned(devices=3, dataset=str(tmp_path / "proxy.npz")) == (3, 8)
    assert partitioned(devices=10, dataset=str(tmp_path / "proxy.npz")) == (10, 2)
    assert partitioned(devices=3, images=20) == (3, 21)


def test_pilot_runs_are_scored_on_training_images_that_no_device_holds(loaded, tmp_path):
    pilots = design(loaded.override({"learning.images": 70}), **GRID, devices=4)
    about = pilots.about()
    assert (about["scored_on"], about["validation_images"]) == ("validation", 16)
    assert about["data_digest"] == dataset_digest(str(tmp_path / "tiny.npz"))  # of all images: to compare with devices
    whole = data.load(tmp_path / "tiny.npz")
    splits = []
    for point in pilots.points(pilots.grid[:1], [101, 102]):
        task = build_task(point.scenario)
        found, held = task.dataset, task.shards.ravel()
        scored = {image.tobytes() for image in found.test_images}
        trained = {image.tobytes() for image in found.train_images}
        assert (len(scored), len(trained)) == (16, 64)
        assert scored | trained == {image.tobytes() for image in whole.train_images}
        assert held.max() < 64
        known = {image.tobytes(): label for image, label in zip(whole.train_images, whole.train_labels, strict=True)}
        for images_of, labels in ((found.test_images, found.test_labels), (found.train_images, found.train_labels)):
            assert [known[image.tobytes()] for image in images_of] == labels.tolist()
        splits.append((frozenset(scored), task.data_digest))
    assert splits[0][0] != splits[1][0]
    assert splits[0][1] != splits[1][1]


def test_too_many_validation_images_are_one_sentence(loaded):
    with pytest.raises(DataError, match=r"^learning\.validation_images must be less than 80, .*tiny\.npz, got 80\.$"):
        build_task(loaded.override({"learning.validation_images": 80}))
    many = loaded.override({"learning.validation_images": 70, "learning.images": 11})
    with pytest.raises(ScenarioError, match=r"at most 10, .* in tiny\.npz without validation_images, got 11\.$"):
        build_task(many)


def test_more_devices_train_where_each_holds_little(loaded, tmp_path):
    images(tmp_path, "many.npz", 1200)
    many = loaded.override({"learning.dataset": "many.npz", "fleet": {"num_devices": 300, "peak_power": 1.0}})
    pilots = design(many, **GRID)
    assert (pilots.devices, pilots.images) == (200, 4)
    assert design(many, **GRID, quick=True).devices == 100
    assert design(many.override({"fleet.num_devices": 24}), **GRID).devices == 20
    assert design(many.override({"fleet.num_devices": 5}), **GRID).devices == 5


def test_proxy_data_need_not_lie_where_the_devices_data_do(loaded, tmp_path):
    images(tmp_path, "proxy.npz", 30)
    (tmp_path / "tiny.npz").unlink()
    with pytest.raises(ScenarioError, match=r"no such file.*Or give the images per device \(--images\)\.$"):
        design(loaded, **GRID, dataset=str(tmp_path / "proxy.npz"))
    assert design(loaded, **GRID, dataset=str(tmp_path / "proxy.npz"), images=12, devices=2).images == 12


def test_the_default_grid_follows_from_the_scenario(loaded):
    pilots = design(loaded.override({"learning.total_steps": 200}))
    assert pilots.rounds == (10, 21, 45, 95, 200)
    assert len(pilots.clip_norm) == 5
    assert list(pilots.clip_norm) == sorted(set(pilots.clip_norm))
    assert pilots.noise[0] == 1e-3
    assert len(pilots.noise) >= 6
    problem = loaded.problem()
    left = [plan(problem, rounds=rounds) for rounds in (1, 6)]
    assert pilots.noise[-1] >= max(0.1 / (each.num_scheduled * each.alignment) for each in left)
    coarse = design(loaded.override({"learning.total_steps": 200}), quick=True)
    assert len(coarse.grid) < len(pilots.grid) / 3
    assert coarse.rounds[-1] == 200


def test_few_devices_have_few_participation_ratios(loaded):
    skewed = loaded.override({"learning.partition": "shards"})
    assert design(skewed, **GRID, devices=8).participation == (0.25, 0.5, 1.0)
    assert design(skewed, **GRID, devices=2).participation == (0.5, 1.0)
    assert design(skewed, **GRID, devices=1).participation == (1.0,)
    assert design(skewed, **GRID).about()["shards_per_device"] == 2


def test_only_the_better_half_at_each_noise_has_all_seeds(loaded):
    grid = {"rounds": (1, 2, 6), "clip_norms": (0.5, 2.0), "noise": (0.001, 0.3)}
    pilots = design(loaded, **grid, seeds=(5, 6, 7))
    tried = Counter()

    def accuracy(values):
        tried[GridPoint(*(values[name] for name in GridPoint._fields))] += 1
        level = 0.3 + 0.1 * values["rounds"] if values["noise"] < 0.01 else 0.3 + 0.3 / values["rounds"]
        return level + 0.01 * values["clip_norm"] + 0.001 * values["seed"]

    surrogate = run_pilots(pilots, pretend(accuracy))
    for noise, best in ((0.001, (6, 2)), (0.3, (1, 2))):
        often = {at.rounds for at, times in tried.items() if times == 3 and at.noise == noise}
        assert often <= set(best)
        assert sum(tried[at] for at in pilots.grid if at.noise == noise) == 6 + 2 * 3
    assert surrogate.accuracy[0, 0, 2, 1, 0] == pytest.approx(0.9 + 0.02 + 0.006)
    assert surrogate.accuracy[0, 0, 0, 0, 0] == pytest.approx(0.4 + 0.005 + 0.006)  # corrected for its single seed
    assert np.allclose(surrogate.spread, 0.001)  # pooled where there was one


def test_the_spread_of_a_single_training_is_that_of_the_others_at_its_noise():
    a, b, c, d = (GridPoint(1.0, rounds, 1.0, noise) for noise in (0.1, 0.2) for rounds in (1, 2))
    found = estimates({a: np.array([0.5, 0.7]), b: np.array([0.1]), c: np.array([0.3]), d: np.array([0.2, 0.2])})
    spread = {at: deviation for at, (_, deviation) in found.items()}
    assert spread == pytest.approx({a: np.sqrt(0.02), b: np.sqrt(0.02), c: 0.0, d: 0.0})
    assert better_half({a: 0.6, b: 0.1, c: 0.3, d: 0.2}) == [a, c]


def test_a_single_training_is_corrected_for_the_effect_of_its_seed():
    a, b, c = (GridPoint(1.0, rounds, 1.0, 0.1) for rounds in (1, 2, 3))
    found = estimates({a: np.array([0.85, 0.81]), b: np.array([0.84]), c: np.array([0.8, 0.78])})
    assert {at: mean for at, (mean, _) in found.items()} == pytest.approx({a: 0.83, b: 0.825, c: 0.79})


def test_every_grid_point_has_all_averages(loaded):
    def accuracy(values):
        return 0.4 + 0.05 * values["rounds"] - 0.1 * values["noise"] + 0.001 * values["clip_norm"]

    surrogate = run_pilots(design(loaded, **GRID), pretend(accuracy, better=0.03))
    assert surrogate.averages == ("none", "tail", "exponential")
    assert np.allclose(surrogate.accuracy[1] - surrogate.accuracy[0], 0.03)
    assert np.allclose(surrogate.loss, 2 - surrogate.accuracy)


def test_a_grid_point_near_chance_level_is_not_run_with_more_noise(loaded):
    pilots = design(loaded, rounds=(2, 6), clip_norms=(0.5, 2.0), noise=(0.001, 0.01, 0.1))
    tried = []

    def accuracy(values):
        tried.append((values["rounds"], values["clip_norm"], values["noise"]))
        return 0.9 if values["rounds"] == 2 or values["noise"] < 0.01 else 0.29

    surrogate = run_pilots(pilots, pretend(accuracy))
    assert (6, 2.0, 0.01) in tried
    assert not [values for values in tried if values[0] == 6 and values[2] == 0.1]
    assert np.allclose(surrogate.accuracy[:, 0, 1, :, 2], 0.25)
    assert np.allclose(surrogate.accuracy[:, 0, 0], 0.9)


def test_if_all_grid_points_are_near_chance_level_the_rest_is_set_to_it(loaded):
    surrogate = run_pilots(design(loaded, **GRID), pretend(lambda values: 0.1))
    assert np.all(surrogate.accuracy[..., 1] == 0.25)


def test_a_pilot_run_that_diverges_counts_as_chance_level(loaded):
    surrogate = run_pilots(design(loaded, **GRID), pretend(lambda values: 0.9, status="diverged"))
    assert np.all(surrogate.accuracy == 0.25)


def test_a_loss_that_is_not_finite_counts_as_chance_level(loaded):
    surrogate = run_pilots(design(loaded, **GRID), pretend(lambda values: -np.inf if values["rounds"] == 2 else 0.9))
    assert {0.25, 0.9} == set(surrogate.accuracy.ravel().round(9))
    assert np.isfinite(surrogate.loss).all()


@pytest.mark.parametrize(("good", "poor", "later"), [(0.5, 0.0, 0.1), (0.9, 0.89, 1.3), (0.5, 0.5, 0.5)])
def test_a_correction_beyond_the_range_still_gives_a_surrogate(loaded, good, poor, later):
    """The seed's effect, estimated on the better half, may move accuracy or loss of the others out of range."""

    def accuracy(values):
        return later if values["seed"] == 6 else good if values["rounds"] == 2 else poor

    def loss(values):
        return 0.0 if values["seed"] == 6 or values["rounds"] != 2 else 1.0

    surrogate = run_pilots(design(loaded, **GRID, seeds=(5, 6)), pretend(accuracy, loss=loss))
    (loaded.folder / "written.json").write_text(surrogate.to_json())
    again = load_surrogate(loaded.folder / "written.json")
    assert 0 <= again.accuracy.min() <= again.accuracy.max() <= 1
    assert again.loss.min() == 0


def test_axes_are_refused_before_anything_is_trained(loaded):
    def fail(title, points):
        raise AssertionError("trained")

    for axis in ({"noise": (0.1, 0.1 * (1 + 1e-12))}, {"clip_norms": (1e-120, 1.0)}):
        with pytest.raises(ValueError, match="of a surrogate must be"):
            run_pilots(design(loaded, **{**GRID, **axis}), fail)


def test_missing_pilot_runs_give_no_surrogate(loaded):
    with pytest.raises(MissingPilots) as caught:
        run_pilots(design(loaded, **GRID), pretend(lambda values: 0.9, status="stopped"))
    assert len(caught.value.records) == 4


def test_the_command_writes_a_surrogate_that_plans(file, capsys):
    out = file.with_name("r.json")
    assert main(["pilot", str(file), "--out", str(out), *LINE]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if "written" not in line and "resumes" not in line) < 120
    assert "best I" in text
    assert "is at the edge of the grid" in text
    surrogate = load_surrogate(out)
    assert surrogate.accuracy.shape == (3, 1, 2, 2, 2)
    assert surrogate.accuracy.max() > 0.4
    assert surrogate.about["seeds"] == [101, 102]
    assert surrogate.about["model"] == "logistic"
    assert surrogate.about["dataset"] == "tiny.npz"
    assert (surrogate.about["devices"], surrogate.about["images_per_device"]) == (4, 8)
    problem = scenario.load(file).override({"budget.epsilon": 50.0}).problem()
    assert plan(problem, objective=surrogate).clip_norm in (0.5, 2.0)
    assert not file.with_name("shared.jsonl").exists()  # pilot runs charge nothing
    # 8 grid points, 4 of them with two seeds
    assert len(list((file.with_name("r.json.pilots") / "records").glob("*.json"))) == 12


def test_interrupted_pilot_runs_are_resumed_with_the_same_surrogate(file, capsys, monkeypatch):
    whole, parts = file.with_name("whole.json"), file.with_name("parts.json")
    assert main(["pilot", str(file), "--out", str(whole), *LINE]) == 0
    original, trained = sweep.run_point, []

    def some(loaded, out, key, *rest):
        """The first three points of each call; the others are as if stopped."""
        trained.append(key)
        return original(loaded, out, key, *rest) if len(trained) <= 3 else key

    monkeypatch.setattr(sweep, "run_point", some)
    assert main(["pilot", str(file), "--out", str(parts), *LINE]) == 2
    assert not parts.exists()
    assert "Stopped; the same command resumes." in capsys.readouterr().err
    monkeypatch.setattr(sweep, "run_point", lambda *given: trained.append(given[2]) or original(*given))
    trained.clear()
    assert main(["pilot", str(file), "--out", str(parts), *LINE, "--json"]) == 0
    assert len(trained) == 12 - 3
    assert parts.read_bytes() == whole.read_bytes()
    found = json.loads(capsys.readouterr().out)
    assert [row["noise"] for row in found["best"]] == [0.001, 0.3]
    assert found["out"] == str(parts)


def test_candidates_get_pilots_each_and_one_surrogate_that_chooses(file, capsys):
    file.write_text(SCENARIO.replace('model = "logistic"', 'model = ["logistic", {hidden = [3]}]'))
    out = file.with_name("r.json")
    assert main(["pilot", str(file), "--out", str(out), *LINE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["networks"]
    assert [(each["model"], each["dimension"]) for each in found] == [("logistic", 68), ("network", 67)]
    several = load_surrogates(out)
    assert [each.about["dimension"] for each in several] == [68, 67]
    for text, surrogate in zip(('"logistic"', '"network"\nnetwork = {hidden = [3]}'), several, strict=True):
        file.write_text(SCENARIO.replace('model = "logistic"', f"model = {text}"))
        alone = out.with_name(f"{text[1:4]}.json")
        assert main(["pilot", str(file), "--out", str(alone), *LINE]) == 0
        assert alone.read_text() == surrogate.to_json()  # as for that network alone
    capsys.readouterr()
    file.write_text(SCENARIO.replace('model = "logistic"', 'model = ["logistic", {hidden = [3]}]'))
    assert main(["pilot", str(file), "--out", str(out.with_name("again.json")), *LINE]) == 0
    said = capsys.readouterr().out
    assert "Pilot runs: network 3 (d = 67) on tiny.npz (the scenario's data: for simulations only), 4 devices" in said
    assert said.count("best I") == 2
    chosen = scenario.load(file).override({"budget.epsilon": 50.0, "policy": {"surrogate": "r.json"}}).plan()
    assert len(chosen.networks) == 2
    assert chosen.predicted_accuracy == max(each.accuracy for each in chosen.networks)


def test_a_failed_pilot_run_is_reported_and_nothing_is_written(file, capsys, monkeypatch):
    def fail(loaded, out, key, *rest):
        raise RunError("Cannot write: the disk is full.")

    monkeypatch.setattr(sweep, "run_point", fail)
    assert main(["pilot", str(file), "--out", str(file.with_name("r.json")), *LINE]) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert not file.with_name("r.json").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "out"),
        ("--out s.toml", "s.toml exists and is not overwritten. Choose another file."),
        ("--out no/r.json", "Cannot write no/r.json: the folder no does not exist."),
        ("--out r.json --rounds 2,x", "must be whole numbers separated by commas, as in 10,20,40, got '2,x'"),
        ("--out r.json --rounds 2.5", "must be whole numbers"),
        ("--out r.json --rounds 2,,6", "must be whole numbers"),
        ("--out r.json --rounds 2,7", "--rounds must be different numbers > 0 and at most 6, got 2, 7."),
        ("--out r.json --rounds 0", "--rounds must be different numbers > 0 and at most 6, got 0."),
        ("--out r.json --rounds 2,2", "--rounds must be different numbers"),
        ("--out r.json --clip-norms one", "must be numbers separated by commas, as in 1,2,5, got 'one'"),
        ("--out r.json --clip-norms 1,0", "--clip-norms must be different numbers > 0, got 1, 0."),
        ("--out r.json --noise nan", "--noise must be different numbers > 0, got nan."),
        ("--out r.json --noise inf", "--noise must be different numbers > 0, got inf."),
        ("--out r.json --seeds 3", "--seeds must be two or more different seeds, got 3."),
        ("--out r.json --seeds 3,3", "--seeds must be two or more different seeds, got 3, 3."),
        ("--out r.json --devices 0", "--devices must be at least 1, got 0."),
        (
            "--out r.json --devices 500",
            "500 devices need at least one training image each, got 64 besides 16 for validation.",
        ),
        ("--out r.json --images 0", "--images must be at least 1, got 0."),
        ("--out r.json --jobs 0", "--jobs must be at least 1, got 0."),
        ("--out r.json --data nothing.npz", "there is no such file"),
    ],
)
def test_mistakes_are_one_sentence(file, monkeypatch, capsys, line, words):
    monkeypatch.chdir(file.parent)
    assert main(["pilot", "s.toml", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(file.parent.glob("*.pilots"))


def test_a_model_without_accuracy_is_refused(file, monkeypatch, capsys):
    text = SCENARIO.replace('model = "logistic"', 'model = "quadratic"\ndimension = 5')
    file.write_text(text)
    assert main(["pilot", str(file), "--out", str(file.with_name("r.json"))]) == 2
    assert "learning.model must be a classifier, got 'quadratic', which has no accuracy." in capsys.readouterr().err


def test_every_surrogate_has_the_digest_of_its_data(loaded):
    assert design(loaded, **GRID).about()["data_digest"] == dataset_digest(str(loaded.folder / "tiny.npz"))


@pytest.mark.parametrize("name", shipped())
def test_the_surrogates_included_in_airfed_match_their_names(name, repository):
    surrogate = shipped()[name]
    about = surrogate.about
    dataset, model = about["dataset"], about["model"]
    partition = "" if about["partition"] == "iid" else f"-{about['partition']}-{about['alpha']:g}"
    assert name == f"{dataset}-{model}{partition}-{about['images_per_device']}"
    assert about["total_steps"] == 200
    assert dataset != "mnist-5k" or about["data_digest"] == dataset_digest("mnist-5k")
    paper = scenario.load(repository / "examples" / "paper.toml").override({"learning.model": model})
    for key in ("learning_rate", "batch_size"):
        assert about[key] == getattr(paper.learning, key)
    found = plan(paper.problem(), objective=surrogate)
    assert found.violations == ()
    assert found.predicted_accuracy > (0.7 if dataset == "mnist-5k" else 0.6)
