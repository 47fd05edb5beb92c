"""Experiments: the points of a TOML file, and the error of an invalid one."""

import numpy as np
import pytest

from airfed.experiments import points
from airfed.scenario import ScenarioError


@pytest.fixture
def folder(folder):
    with (folder / "scenario.toml").open("a") as file:
        file.write('[policy]\nname = "uniform"\nsize = 4\n')
    return folder


def load(folder, text, **options):
    (folder / "experiment.toml").write_text('base = "scenario.toml"\n' + text)
    return points.load(folder / "experiment.toml", **options)


def test_every_variant_meets_every_combination(folder):
    text = """
    [axes]
    seed = [0, 1]
    "link.noise_std" = [0.1, 0.2, 0.3]
    [[variants]]
    label = "a"
    policy.name = "full"
    [[variants]]
    label = "b"
    """
    expanded = points.expand(load(folder, text))
    assert len(expanded) == 12
    assert len({point.key for point in expanded}) == 12
    assert [(p.label, p.values["seed"], p.values["link.noise_std"]) for p in expanded[:4]] == [
        ("a", 0, 0.1),
        ("a", 0, 0.2),
        ("a", 0, 0.3),
        ("a", 1, 0.1),
    ]
    assert expanded[0].scenario.policy.name == "full"
    assert expanded[0].scenario.policy.size is None  # "full" would refuse the base's size
    assert expanded[-1].scenario.policy.size == 4


def test_a_variant_may_have_axes_of_its_own(folder):
    text = """
    [axes]
    seed = [0, 1]
    [[variants]]
    label = "some"
    axes."policy.size" = [2, 3, 4]
    [[variants]]
    label = "all"
    policy.name = "full"
    """
    expanded = points.expand(load(folder, text))
    assert len({point.key for point in expanded}) == len(expanded) == 2 * 3 + 2
    assert [(p.label, *p.values.values(), p.scenario.policy.size) for p in expanded[2:5]] == [
        ("some", 0, 4, 4),
        ("some", 1, 2, 2),
        ("some", 1, 3, 3),
    ]
    assert all(list(point.values) == ["seed"] for point in expanded if point.label == "all")
    for twice in ('"policy.size" = 4\n', "axes.seed = [3]\n"):
        with pytest.raises(ScenarioError, match="must be an axis or a key of variant 'some', not both"):
            load(folder, text.replace('label = "some"\n', f'label = "some"\n{twice}'))


def test_quick_replaces_axes_and_keeps_the_rest(folder):
    text = """
    [set]
    "learning.clip_norm" = 3.0
    [axes]
    seed = [0, 1, 2]
    "link.noise_std" = [0.1, 0.2]
    [[variants]]
    label = "a"
    [[variants]]
    label = "b"
    [quick]
    axes.seed = [7]
    variants = ["b"]
    set.learning.total_steps = 6
    """
    quick = load(folder, text, quick=True)
    assert quick.axes == {"seed": (7,), "link.noise_std": (0.1, 0.2)}
    assert [variant.label for variant in quick.variants] == ["b"]
    assert (quick.base.learning.clip_norm, quick.base.learning.total_steps) == (3.0, 6)
    assert len(load(folder, text).variants) == 2


def test_the_key_covers_everything_that_shapes_a_record_and_nothing_else(folder):
    base = load(folder, "").base
    key = points.content_key(base)
    same = [{"name": "other"}, {"run.threads": 2}, {"run.chunk": 5}, {"run.checkpoint_every": 3}]
    other = [
        {"seed": 1},
        {"policy.size": 5},
        {"policy.rounds": 3},
        {"budget.epsilon": 2.5},
        {"channel.minimum": 0.3},
        {"run.evaluate_every": 2},
        {"run.averages": "all"},
        {"learning.total_steps": 13},
    ]
    assert all(points.content_key(base.override(change)) == key for change in same)
    keys = [points.content_key(base.override(change)) for change in other]
    assert len({key, *keys}) == len(other) + 1


def test_the_key_follows_the_file_of_gains(folder):
    (folder / "gains.csv").write_text("gain\n1.0\n0.5\n")
    scenario = load(folder, "").base.override(
        {"channel": {"model": "file", "path": "gains.csv"}, "fleet.num_devices": None, "policy.size": 1}
    )
    before = points.content_key(scenario)
    (folder / "gains.csv").write_text("gain\n1.0\n0.6\n")
    assert points.content_key(scenario) != before


def test_data_and_model_are_looked_for_beside_the_scenario(folder):
    text = (folder / "scenario.toml").read_text()
    text = text.replace('model = "quadratic"', 'model = "beside:make"\ndataset = "tiny.npz"')
    (folder / "scenario.toml").write_text(text)
    images, labels = np.zeros((8, 4, 4), np.float32), np.arange(8) % 4
    np.savez(folder / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    code = "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))\n"
    (folder / "beside.py").write_text(code)
    scenario = load(folder, "").base
    before = points.content_key(scenario)
    (folder / "beside.py").write_text(code + "# changed\n")
    assert points.content_key(scenario) != before


def test_one_bad_value_leaves_the_other_points_alone(folder):
    expanded = points.expand(load(folder, "[axes]\nbudget.epsilon = [1.0, -1.0]\n"))
    assert [bool(point.problem) for point in expanded] == [False, True]
    assert "budget.epsilon must be positive, got -1.0" in expanded[1].problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[axes]\nbudget.epsilonn = [1.0]\n", r"Unknown key 'budget.epsilonn'; did you mean 'epsilon'\?"),
        ("[axes]\nseed = []\n", r"Axis seed must have at least one value, got \[\]"),
        ("[axes]\nseed = 3\n", "Axis seed must be a list of values, got 3"),
        ("[axes]\nseed = [1, 1]\n", "Axis seed must have different values, got"),
        ("[axis]\nseed = [1]\n", "Unknown key axis. The keys are"),
        ("axes = 3\n", "axes must be a table, got 3"),
        ("[[variants]]\nseed = 1\n", "Missing key label in .* number 1"),
        ('[[variants]]\nlabel = "a"\n[[variants]]\nlabel = "a"\n', "must have different labels, got 'a' twice"),
        (
            '[axes]\nseed = [1]\n[[variants]]\nlabel = "a"\nseed = 1\n',
            "seed must be an axis or a key of variant 'a', not both",
        ),
        ('[[variants]]\nlabel = "a"\n[quick]\nvariants = ["b"]\n', "got 'b'"),
        ("[quick]\nseed = 1\n", "Unknown key quick.seed"),
        ("[set]\nlink.noise_std = -1\n", "link.noise_std"),
    ],
)
def test_a_bad_experiment_is_one_sentence(folder, text, sentence):
    with pytest.raises(ScenarioError, match=sentence) as caught:
        points.expand(load(folder, text, quick=True))
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(folder):
    with pytest.raises(ScenarioError, match=r"Cannot read an experiment from .*none\.toml"):
        points.load(folder / "none.toml")
    (folder / "lost.toml").write_text('base = "none.toml"')
    with pytest.raises(ScenarioError, match=r"Cannot read a scenario from .*none\.toml"):
        points.load(folder / "lost.toml")
    (folder / "bare.toml").write_text("[axes]\nseed = [1]")
    with pytest.raises(ScenarioError, match="Missing key base"):
        points.load(folder / "bare.toml")
