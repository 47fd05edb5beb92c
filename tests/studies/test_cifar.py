"""The study of CIFAR-10: its scenarios, its split of the data, its page."""

import itertools

import numpy as np
import pandas as pd
import pytest

from airfed.learning.models import parameters_of
from studies import cifar, resnet


def made_up(settings=("small-1000",), seeds=(1, 2, 3)):
    rows = []
    for setting, seed in itertools.product(settings, seeds):
        for method, epsilon in [("fedavg", None), *itertools.product(cifar.METHODS, cifar.EPSILONS)]:
            accuracy = {"fedavg": 0.45, "weighted": 0.30, "dp_fedavg": 0.32}[method] + 0.01 * seed
            rows.append(
                {"setting": setting, "method": method, "epsilon": epsilon, "seed": seed, "dimension": 7834}
                | {"expected": None if method == "fedavg" else 0.31, "accuracy": accuracy, "version": "0.3.0"}
            )
    return pd.DataFrame(rows)


def test_the_table_has_differences_paired_by_seed():
    head, *cells = cifar.table(made_up(seeds=(1, 2)))
    assert [row[head.index("ε")] for row in cells] == ["2", "8", "16"]
    assert cells[0][:4] == ["8c5-16c5, d = 7,834", "1,000", "2 of 10", "46.5 ± 6.4"]  # t(0.975, 1) · 1/√2 · 1/√2 = 6.35
    assert {row[head.index("airfed − DP-FedAvg")] for row in cells} == {"-2.0 [-2.0, -2.0]"}


def test_the_page_says_what_it_has_and_what_it_has_not():
    page = cifar.markdown(made_up()).replace("\n", " ")
    assert "3 seeds; airfed 0.3.0" in page
    assert "not trained yet: 8c5-16c5 with 100 devices, ResNet with 1,000 devices, ResNet with 100 devices." in page
    assert "Privacy costs airfed 15 (8c5-16c5" in page
    assert "A difference in 3 of 3 rows between airfed and DP-FedAvg is shown." in page
    assert "not trained yet" not in cifar.markdown(made_up(tuple(cifar.SETTINGS)))


def test_the_page_has_the_records():
    found = cifar.rows()
    assert cifar.PAGE.read_text(encoding="utf-8") == cifar.markdown(found)
    for _, own in found.groupby("setting"):  # the same seeds for every method
        assert own.groupby(["method", "epsilon"], dropna=False)["seed"].apply(tuple).nunique() == 1
    private = found[found["method"] != "fedavg"]
    assert (private["epsilon_total"] <= private["epsilon"]).all()
    assert (found["accuracy"] > 0.15).all()  # far from chance level, which the page gives as 10%


def test_devices_and_pilot_runs_share_no_image(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.random((60, 3, 32, 32), np.float32)
    labels = np.arange(60) % 10
    made = cifar.data.Dataset(
        name="cifar-10",
        **{"train_images": images[:50], "train_labels": labels[:50]},
        **{"test_images": images[50:], "test_labels": labels[50:]},
        **{"classes": 10, "sha256": ""},
    )
    monkeypatch.setattr(cifar.data, "load", lambda name: made)
    monkeypatch.setattr(cifar, "DEVICES_IMAGES", 40)
    parts = [np.load(file) for file in cifar.split.__wrapped__(tmp_path)]
    assert [len(part["train_labels"]) for part in parts] == [40, 10]
    restored = np.concatenate([part["train_images"] for part in parts]).astype(np.float32)
    scale, shift = (np.reshape(each, (1, 3, 1, 1)) for each in (cifar._STD, cifar._MEAN))
    np.testing.assert_allclose(restored * scale + shift, images[:50], atol=2e-3)
    np.testing.assert_array_equal(parts[0]["test_images"], parts[1]["test_images"])


@pytest.mark.parametrize("name", cifar.SETTINGS)
def test_every_setting_has_its_dimension_and_images_per_device(name, tmp_path):
    file = tmp_path / "devices.npz"
    images, labels = np.zeros((10, 3, 32, 32), np.float16), np.arange(10)
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    scenario, setting = cifar.scenario_of(name, file), cifar.SETTINGS[name]
    assert scenario.dimension == (77_850 if setting.title == "ResNet" else 7_834)
    assert scenario.num_devices == setting.devices
    assert setting.changes["learning.batch_size"] <= cifar.DEVICES_IMAGES // setting.devices


def test_the_residual_network_normalises_each_image_alone():
    import torch

    torch.manual_seed(0)
    network, images = resnet.net(), torch.randn(4, 3, 32, 32)
    assert sum(each.numel() for each in parameters_of(network)) == 77_850
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), alone, rtol=1e-4, atol=1e-5)


def test_the_readme_has_the_means_on_record():
    text = " ".join((cifar.HERE.parent / "README.md").read_text(encoding="utf-8").split())
    own = cifar.rows().query("setting == 'small-1000'")
    means = {
        (method, epsilon): f"{100 * part['accuracy'].mean():.0f}%"
        for (method, epsilon), part in own.fillna({"epsilon": np.inf}).groupby(["method", "epsilon"])
    }
    two, eight, without = (means[key] for key in (("weighted", 2.0), ("weighted", 8.0), ("fedavg", np.inf)))
    assert f"{two} at ε = 2 and {eight} at ε = 8, against {without} without privacy (three seeds)" in text
    assert own["seed"].nunique() == 3
