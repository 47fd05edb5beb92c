"""Figures: every TOML of the paper expands, every drawing function draws, and a missing column is one sentence."""

import csv
import dataclasses
import json
import sys
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from airfed.cli import main
from airfed.cli.sweep import FigureName
from airfed.experiments import claims, figures, points
from airfed.experiments.results import Record, estimate
from airfed.plotting.colours import PALETTE
from airfed.training.directory import RunError


def small(tmp_path):
    """A scenario in which a training takes a moment: 80 devices with one tiny image each."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    images = rng.normal(0.2 * labels[:, None, None], 0.1, (80, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return {
        "learning.dataset": str(tmp_path / "tiny.npz"),
        "learning.model": "logistic",
        "learning.dimension": 4 * 4 * 4 + 4,
        "fleet.num_devices": 80,
        "run.evaluate_every": 20,
        "run.engine": "auto",
        "run.threads": 1,
        "seed": [0],
    }


def changed(experiment, changes):
    """The experiment in a smaller scenario."""

    def replaced(axes):
        return {key: tuple(changes.get(key, values)) for key, values in axes.items()}

    variants = [dataclasses.replace(variant, axes=replaced(variant.axes)) for variant in experiment.variants]
    varied = {*experiment.axes, *(key for variant in variants for key in variant.axes)}
    base = experiment.base.vary({key: value for key, value in changes.items() if key not in varied})
    axes = replaced(experiment.axes)
    return dataclasses.replace(experiment, base=base, axes=axes, variants=tuple(variants))


def studies(*names, quick=True):
    return figures.studies({name: figures.FIGURES[name] for name in names}, quick=quick)


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("quick", [True, False])
def test_every_figure_has_its_points(name, quick, monkeypatch):
    monkeypatch.setattr("airfed.experiments.points.dataset_digest", lambda dataset: dataset)
    found = studies(name, quick=quick)
    assert set(found) == set(figures.FIGURES[name].experiments)
    for study in found.values():
        assert study.points
        assert not any(point.problem for point in study.points)
        if figures.FIGURES[name].trains:
            seeds = {point.values["seed"] for point in study.points}
            assert len(seeds) >= (3 if quick else 5)
            dataset = {point.scenario.learning.dataset for point in study.points}
            assert dataset == ({"mnist-5k"} if quick else {"mnist"})


def test_a_wrong_name_is_refused_before_anything_heavy_is_imported(monkeypatch, capsys):
    assert get_args(FigureName) == tuple(figures.FIGURES)
    monkeypatch.setitem(sys.modules, "airfed.experiments.figures", None)  # an import of it would raise
    assert main(["figures", "fig7"]) == 2
    assert 'Invalid value "fig7"' in capsys.readouterr().err


def test_figures_share_the_points_they_have_in_common(monkeypatch):
    monkeypatch.setattr("airfed.experiments.points.dataset_digest", lambda dataset: dataset)
    found = studies(*list(figures.FIGURES)[1:])
    keys = [point.key for study in found.values() for point in study.points]
    assert len(set(keys)) < len(keys)
    fig4, fig5 = ({point.key for point in found[name].points} for name in ("fig4", "fig5"))
    assert fig4 <= fig5


def test_a_point_that_diverged_at_once_leaves_out_its_seed_and_nothing_else(monkeypatch):
    monkeypatch.setattr("airfed.experiments.points.dataset_digest", lambda dataset: dataset)
    found = studies("fig4", "fig6")
    plan = {"num_devices": 100, "num_scheduled": 57, "rounds": 40, "binding": "privacy", "alignment": 0.6}
    plan["bound"] = {"total": 1.0}
    good = [{"round": 0, "steps": 5, "loss": 0.5, "accuracy": 0.9, "test_loss": 0.5}]
    empty = [{"round": 0, "steps": 5, "loss": None, "accuracy": None, "test_loss": None}]

    def ended(study, bad):
        manifest = {"airfed": "0.3.0"}
        runs = {
            True: SimpleNamespace(figures=plan, rounds=empty, manifest=manifest),
            False: SimpleNamespace(figures=plan, rounds=good, manifest=manifest),
        }
        records = [
            Record(point=point, status="diverged", message="Round 0.", run=runs[bad(point)]) for point in study.points
        ]
        return dataclasses.replace(study, records=records)

    one = ended(found["fig4"], lambda point: point.values["seed"] == 0)
    assert one.seeds == (1, 2, 3)
    every = ended(found["fig6"], lambda point: True)
    with pytest.raises(RunError, match="No seed of fig6 is complete: Round 0"):
        _ = every.seeds
    results = claims.final_results({"fig4": one, "fig6": every})
    assert set(results["experiment"]) == {"fig4"}
    assert set(results["seed"]) == {1, 2, 3}


def test_the_note_prints_everything_that_the_paper_leaves_open():
    scenario = studies("fig2")["fig2"].experiment.base
    note = figures.settings(scenario, seeds=(0, 1, 2))
    for text in (
        "N = 100",
        "Rayleigh",
        "h_min = 0.2",
        "σ = 1",
        "ε = 5",
        "ξ = 0.001",
        "ϖ = 5",
        "G = 2.3",
        "ϱ = 0.1",
        "ζ = 10",
    ):
        assert text in note
    assert "40 images per device" in note
    assert "3 seeds" in note
    assert "20 images per device" in figures.settings(scenario.override({"learning.images": 2000}))


def training_rows():
    return [
        {"label": label, "seed": seed, "step": step, "accuracy": 0.1 + step / 300 + seed / 100, "loss": 2 - step / 200}
        for label, every in (("proposed", 5), ("other", 20))
        for seed in (0, 1)
        for step in range(every, 201, every)
    ]


def test_curves_of_different_rounds_meet_on_one_grid():
    steps, values = figures._on_one_grid(training_rows(), ["proposed", "other"], "accuracy")
    assert (steps[0], steps[-1]) == (0, 200)
    assert np.isnan(values[1][:, steps < 20]).all()
    late = steps >= 20
    np.testing.assert_allclose(values[0][:, late], values[1][:, late], atol=1e-12)


def test_bands_are_intervals_of_means_and_of_paired_differences():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3, 5, 7))
    means, half = figures.paired_differences(values, 1)
    np.testing.assert_allclose(means, values.mean(axis=1) - values[1].mean(axis=0))
    for curve in (0, 2):
        for place in range(7):
            difference = estimate(values[curve, :, place] - values[1, :, place])
            assert half[curve, place] == pytest.approx(difference.half_width)
    assert not half[1].any()
    _, shifted = figures.paired_differences(values + rng.normal(size=(1, 5, 7)) * 100, 1)
    np.testing.assert_allclose(shifted, half, atol=1e-12)  # effects on all curves cancel
    means, half = figures.mean_bands(values)
    np.testing.assert_allclose(means, values.mean(axis=1))
    assert half[2, 3] == pytest.approx(estimate(values[2, :, 3]).half_width)
    for bands in (figures.mean_bands(values[:, :1]), figures.paired_differences(values[:, :1], 0)):
        assert not bands[1].any()


def test_training_curves_have_their_own_intervals_and_a_panel_of_paired_differences():
    rows = training_rows() + [
        {"label": "failed", "seed": seed, "step": step, "accuracy": 0.1, "loss": 2.3}
        for seed in (0, 1)
        for step in (1, 200)
    ]
    drawn = figures.training_figure(rows, "the settings")
    drawn.draw_without_rendering()
    assert drawn.get_label() == "the settings"
    accuracy, _, difference = drawn.axes
    colours = [line.get_color() for line in accuracy.lines]
    assert colours[0] == PALETTE["policy-optimal"]
    assert len(set(colours)) == 3
    assert "minus proposed" in difference.get_ylabel()
    assert [text.get_text() for text in difference.texts] == ["failed: -67, outside the axis"]
    assert difference.get_ylim()[0] > -10
    assert "95% interval over 2 seeds" in [text.get_text() for text in drawn.legends[0].texts]


def test_where_a_curve_has_no_value_there_is_no_band():
    values = np.ones((2, 3, 2))
    values[1, :, 1] = np.nan
    _, half = figures.paired_differences(values, 0)
    np.testing.assert_array_equal(half, [[0.0, 0.0], [0.0, np.nan]])


def test_fig2_is_drawn_without_data_or_training(tmp_path, capsys):
    assert main(["figures", "fig2", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [file.rsplit(".", 1)[1] for file in found["figures"]["fig2"]] == ["png", "pdf", "txt", "csv"]
    rows = list(csv.DictReader((tmp_path / "fig2.csv").read_text().splitlines()))
    assert len(rows) == 100
    for row in rows:
        limits = [float(row[name]) for name in ("privacy_limit", "peak_limit", "total_limit")]
        assert float(row["alignment"]) == pytest.approx(min(limits))
    assert (tmp_path / "fig2.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_trained_figure_from_the_command_to_the_verdicts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AIRFED_DEBUG", "1")
    changes = small(tmp_path)
    load = points.load
    monkeypatch.setattr(points, "load", lambda path, quick: changed(load(path, quick=quick), changes))
    names = ["fig3", "fig4", "fig5", "fig6"]
    arguments = ["--quick", "--out", str(tmp_path / "out"), "--jobs", "1", "--check"]
    assert main(["figures", *names, *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["figures"]) == set(names)
    for name in names:
        for ending in ("png", "pdf", "csv"):
            assert (tmp_path / "out" / f"{name}.{ending}").stat().st_size > 0
    assert {verdict["figure"] for verdict in found["verdicts"]} == set(names)
    assert main(["figures", "fig6", *arguments]) == 0  # nothing is left to run; the text version
    assert "comparisons pass" in capsys.readouterr().out
