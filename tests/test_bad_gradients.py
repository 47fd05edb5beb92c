"""Seven bad values, four dtypes, three placements: the sum stays finite, no device exceeds θ, the device is logged."""

import logging

import numpy as np
import pytest
import torch

from airfed.aircomp import AirCompRound, clip
from airfed.learning.quadratic import QuadraticEngine
from airfed.training.execution import execute

VALUES = {
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "1e20": 1e20,
    "1e38": 1e38,
    "zero": 0.0,
    "denormal": None,  # the smallest of each dtype
}
DTYPES = ("float16", "float32", "float64", "bfloat16")
PLACEMENTS = ("one", "all", "device")


def bad_update(value, dtype, placement, dimension, rng):
    """An update of one device, converted as an engine would: bfloat16 widens to float32."""
    kind = getattr(torch, dtype)
    number = torch.finfo(kind).smallest_normal * torch.finfo(kind).eps if value is None else value
    update = torch.from_numpy(rng.normal(size=dimension)).to(kind)
    if placement == "one":
        update[dimension // 2] = number
    else:
        update[:] = number
    return update.to(torch.float32).numpy() if kind is torch.bfloat16 else update.numpy()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", VALUES)
def test_a_bad_gradient_does_no_harm(make_scenario, value, dtype, placement):
    scenario = make_scenario()
    plan = scenario.plan(rounds=8)
    aircomp, dimension = AirCompRound.from_plan(plan), 50
    rng = np.random.default_rng(0)
    others, good = plan.scheduled[1:], rng.normal(size=(plan.num_scheduled - 1, dimension))
    bad = bad_update(VALUES[value], dtype, placement, dimension, rng)

    def receive(*extra):
        superposition = aircomp.open_round(dimension)
        for devices, updates in extra:
            superposition.add(devices, updates)
        return superposition.receive(np.zeros(dimension))

    first = plan.scheduled[:1]
    if placement == "device":  # every device sends it, in one chunk
        both = receive((plan.scheduled, np.tile(bad, (plan.num_scheduled, 1))))
        without = receive()
        limit = plan.num_scheduled * plan.alignment
        bad_devices = plan.scheduled
    else:
        both = receive((first, bad[None, :]), (others, good))
        without = receive((others, good))
        limit = plan.alignment
        bad_devices = first
    assert np.isfinite(both.received).all()
    assert np.isfinite(both.estimate).all()
    moved = float(np.linalg.norm(both.received - without.received))
    assert moved <= limit
    finite = bool(np.isfinite(bad.astype(np.float64)).all())
    assert both.refused.tolist() == ([] if finite else bad_devices.tolist())
    if not finite:
        assert moved == 0.0
    elif value in ("1e20", "1e38"):
        assert moved > 0.999 * limit  # a huge finite update is clipped, not dropped


def test_the_cases_are_eighty_four():
    assert len(VALUES) * len(DTYPES) * len(PLACEMENTS) == 84


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_clipped_vector_is_longer_than_the_clip_norm(dtype):
    rng = np.random.default_rng(1)
    for clip_norm in (1e-3, 0.7, 1.0, 123.0):
        rows = rng.normal(size=(2500, 32))
        rows *= clip_norm * np.exp(rng.normal(0, 1e-3, 2500) * (rng.random(2500) < 0.5))[:, None] / 5.6
        clipped, _ = clip(rows.astype(dtype), clip_norm)
        assert np.all(np.sum(np.square(clipped.astype(np.longdouble)), axis=1) <= clip_norm**2)


def test_a_run_logs_refused_devices(make_scenario, tmp_path, monkeypatch, caplog):
    real = QuadraticEngine.updates

    def updates(self, parameters, devices, *, steps, round_index):
        for part, rows in real(self, parameters, devices, steps=steps, round_index=round_index):
            if round_index == 2:
                rows[part == 4] = np.nan
            yield part, rows

    monkeypatch.setattr(QuadraticEngine, "updates", updates)
    with caplog.at_level(logging.WARNING):
        outcome = execute(make_scenario(), tmp_path / "run")
    assert outcome.status == "finished"
    assert [record["refused"] for record in outcome.records] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert "round 3" in caplog.text
    assert "[4]" in caplog.text
