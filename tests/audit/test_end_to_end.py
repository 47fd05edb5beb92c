"""The attack on trained models: tight on sound code; it detects broken engines, clipping and noise."""

import json
import math

import numpy as np
import pytest

from airfed import aircomp
from airfed.aircomp import Superposition
from airfed.audit import Subject, audit
from airfed.cli.app import main
from airfed.learning.fused import FusedEngine
from airfed.training.noise import SeededNoise

CLAIMS = {"models of one round", "models of all rounds"}
ADD_REMOVE = {"budget__adjacency": "add_remove"}
DIFFERENT_ROUNDS = {"policy__name": "liu_simeone", "learning__strong_convexity": 5.0, "budget__total_power": 1e5}
real_receive, real_clip, real_draw = Superposition.receive, aircomp.clip, SeededNoise.draw


def attacked(make_scenario, **changes):
    return audit(Subject.of(make_scenario(**changes)), trials=1200, end_to_end=True)


@pytest.mark.parametrize(
    "changes",
    [{}, ADD_REMOVE, DIFFERENT_ROUNDS, {"policy__name": "digital"}, {"learning__clip_norm": 1e-4}],
    ids=["replace_one", "add_remove", "different rounds", "digital", "small norms"],
)
def test_sound_code_passes_and_its_claim_is_tight(make_scenario, changes):
    found = attacked(make_scenario, **{"budget__epsilon": 12.0, "fleet__peak_power": 100.0}, **changes)
    assert found.verdict == "pass", found.failures
    for claim in (found.round_evidence, found.total_evidence):
        assert claim.upper_strict > claim.claimed > 0.97 * claim.lower
        assert claim.lower > 0.85 * claim.claimed


def test_it_holds_for_several_antennas_whose_models_show_less(make_scenario):
    several = {"link__antennas": 3, "policy__name": "full", "channel": {"model": "rayleigh", "minimum": 0.1}}
    found = attacked(make_scenario, **several)
    assert found.verdict == "pass", found.failures
    assert found.total_evidence.lower > 0


def clipping_off(patch):
    patch.setattr(aircomp, "clip", lambda updates, clip_norm: real_clip(updates, 1e3 * clip_norm))


def noise_halved_on_its_way(patch):
    patch.setattr(Superposition, "receive", lambda self, noise: real_receive(self, noise / 2))


def model_from_twice_the_aggregate_without_its_noise(patch):
    """The signals are sound, and the released model has an extra sum without noise."""

    def receive(self, noise):
        aggregate, clean = real_receive(self, noise), real_receive(self, np.zeros_like(noise))
        aggregate.estimate[:] += clean.estimate
        return aggregate

    patch.setattr(Superposition, "receive", receive)


@pytest.mark.parametrize(
    "mutant", [clipping_off, noise_halved_on_its_way, model_from_twice_the_aggregate_without_its_noise]
)
def test_it_refutes(mutant, make_scenario, monkeypatch):
    mutant(monkeypatch)
    found = attacked(make_scenario)
    assert {check.name for check in found.failures} == CLAIMS
    assert found.total_evidence.proved > 1.4 * found.total_evidence.claimed


def test_noise_that_the_round_loop_refuses_fails_the_audit(make_scenario, monkeypatch):
    def halved(self, *arguments, **named):
        return real_draw(self, *arguments, **named) / 2

    monkeypatch.setattr(SeededNoise, "draw", halved)
    (failure,) = attacked(make_scenario).failures
    assert failure.name == "models"
    assert "0.2" in failure.finding


def test_the_engine_is_inside(make_scenario, monkeypatch):
    """Without updates from the engine the scores are noise."""
    real = FusedEngine._train

    def still(self, start, device, steps, round_index, row):
        real(self, start, device, steps, round_index, row)
        row[:] = 0.0

    monkeypatch.setattr(FusedEngine, "_train", still)
    found = attacked(make_scenario)
    assert found.total_evidence.upper_strict < 0.5 * found.total_evidence.claimed


def test_the_command(make_scenario, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(make_scenario().to_toml())
    command = ["audit", str(tmp_path / "s.toml"), "--end-to-end", "--trials", "300"]
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["mode"], summary["verdict"]) == ("end_to_end", "pass")
    assert 0 < summary["mu_total_lower"] < 1.1 * summary["mu_total_claimed"]
    assert "the engines" not in summary["not_attacked"]
    assert math.isfinite(summary["epsilon_total_lower_clopper_pearson"])
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "not attacked: your own model and data" in shown
    assert "assumes Gaussian scores" in shown
    assert main([*command, "--against", "combined"]) == 2
