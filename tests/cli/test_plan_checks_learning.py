"""A plan refuses an invalid model or its data with the same sentence as a run."""

import numpy as np
import pytest

from airfed.cli import main
from airfed.scenario import template

SCENARIO = (
    template.SCENARIO.replace("num_devices = 100", "num_devices = 5")
    .replace("total_steps = 200", "total_steps = 8")
    .replace('model = "cnn"', 'model = "MODEL"')
    .replace('dataset = "mnist"', 'dataset = "mnist-5k"')
)
NET = """
import torch
from torch import nn

COUNT = [0.0]

class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(784, 10), torch.zeros(1)

    def forward(self, images):
        self.mean = 0.9 * self.mean + 0.1 * images.mean()
        return self.layer(images.flatten(1)) - self.mean

class Global(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images):
        COUNT[0] += float(images.mean())
        return self.layer(images.flatten(1) * COUNT[0])

def dropout():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Dropout(0.5))

def shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(700, 10))

def few():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 9))

def batch():
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(2304, 10))

def good():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
"""


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Return the message of both `plan` and `run` for a model on a data set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_net_to_refuse.py").write_text(NET)

    def said(model, dataset="mnist-5k"):
        text = SCENARIO.replace("MODEL", model).replace("mnist-5k", dataset)
        (tmp_path / "s.toml").write_text(text)
        messages = []
        for command in (["plan", "s.toml"], ["run", "s.toml", "--out", "run"]):
            assert main(command) == 2, command
            out, err = capsys.readouterr()
            assert (out, err.count("\n"), "Traceback" in err) == ("", 1, False)
            messages.append(err)
        assert messages[0] == messages[1]
        return messages[0]

    return said


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("dropout", "must not draw random numbers in training, as Dropout does"),
        ("shape", "fails on images (2, 1, 28, 28): RuntimeError: "),
        ("few", "at least 10 outputs, one per class, got 9"),
        ("batch", "airfed.learning.models.with_group_norm(module)"),
        ("Mean", "must have no state, but mean changes in training"),
        ("Global", "must not depend on earlier training"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_plan_as_by_run(refused, model, words):
    assert words in refused(f"a_net_to_refuse:{model}")


IMAGES, LABELS = np.zeros((30, 2, 2), np.uint8), np.arange(30) % 3
FOUR = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS}


@pytest.mark.parametrize("model", ["logistic", "a_net_to_refuse:good"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": None, "images": IMAGES}, "must have an array named train_images or x_train; got images, "),
        ({"y_test": None}, "must have an array named test_labels or y_test"),
        ({"x_train": np.float32(1)}, "Images in mine.npz must have shape (n, height, width), got ()"),
        ({"x_test": np.uint8(1)}, "Images in mine.npz must have shape (n, height, width), got ()"),
        ({"y_train": np.int64(1)}, "must be a vector of whole numbers, got int64 ()"),
        ({"x_train": IMAGES.astype(int)}, "must be bytes or floats, got int64"),
        (
            {"y_train": LABELS + 1, "y_test": LABELS + 1},
            "must start at 0, got training labels from 1 to 3. Subtract 1",
        ),
        ({"y_test": LABELS[1:]}, "as many test labels as images"),
        ({"x_test": np.zeros((30, 2, 3), np.uint8)}, "must have the same shape"),
    ],
)
def test_data_that_cannot_be_used_is_refused_by_plan_as_by_run(refused, tmp_path, model, changes, words):
    arrays = {name: array for name, array in {**FOUR, **changes}.items() if array is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    assert words in refused(model, "mine.npz")


def test_good_data_and_a_good_model_are_planned(refused, tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", **FOUR)
    (tmp_path / "s.toml").write_text(SCENARIO.replace("MODEL", "a_net_to_refuse:good").replace("mnist-5k", "mine.npz"))
    assert main(["plan", "s.toml"]) == 0
    assert "Traceback" not in capsys.readouterr().err
