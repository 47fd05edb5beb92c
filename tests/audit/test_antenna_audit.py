"""The audit of several antennas: each claim against each adversary, and bugs planted one at a time."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from airfed import antennas
from airfed.aircomp import Air, Superposition
from airfed.audit import Subject, audit
from airfed.cli.app import main
from airfed.planning import limits
from airfed.training.execution import execute
from airfed.training.run import Run
from airfed.training.setup import prepare

QUICK = {"pairs": 36, "trials": 1500, "samples": 80_000}
REFUTED = {"sensitivity", "contribution", "round loop", "canaries", "trajectory"}
LOUD = {"budget__epsilon": 12.0, "fleet__peak_power": 100.0, "budget__total_power": 1e5}  # held by privacy
SEVERAL = {"link__antennas": 3, "link__combining": "strongest_eigenvector", "policy__name": "full", **LOUD}
CHANGING = {"channel__coherence": 1, "policy__name": "uniform", "policy__size": 4}


def several(world, **changes):
    return world(channel={"model": "rayleigh", "minimum": 0.1}, **{**SEVERAL, **changes})


def subject(world, **changes):
    return Subject.of(several(world, **changes))


@pytest.mark.parametrize("changes", [{}, CHANGING], ids=["static", "changing"])
@pytest.mark.parametrize("trust", ["radio", "combiner"])
@pytest.mark.parametrize("against", ["radio", "combiner"])
def test_a_claim_holds_against_whom_it_is_made_and_whoever_sees_less(world, trust, against, changes):
    found = audit(subject(world, link__trust=trust, **changes), against=against, **QUICK)
    summary = found.to_dict()
    assert (summary["antennas"], summary["trust"], summary["against"]) == (3, trust, against)
    if (trust, against) == ("combiner", "radio"):
        assert found.verdict == "fail"
        assert {check.name for check in found.failures} == REFUTED
    else:
        assert found.verdict == "pass", found.failures
    if trust == against and not changes:
        assert summary["mu_lower"] > 0.9 * summary["mu_claimed"]
    assert any("sees more" in warning for warning in found.warnings) == ((trust, against) == ("radio", "combiner"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"budget__relation": "add_remove"},
        {"budget__relation": "add_remove", **CHANGING},
        {"link__combining": "optimal", "policy__name": "optimal"},
        {"policy__name": "optimal", "channel__coherence": 1, "link__combining": "optimal"},
        {"policy__name": "threshold_power"},
        {"policy__name": "central"},
        {"policy__name": "seif", "link__trust": "combiner"},
        {"link__antennas": 8, "link__noise_source": "secure"},
        {"fleet__num_devices": 1},
        {"budget__device_power": 3.0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_honest_worlds_of_all_kinds_pass(world, changes):
    found = audit(subject(world, **changes), pairs=240, trials=5000, samples=100_000)
    assert found.verdict == "pass", found.failures


def test_who_is_not_known_cannot_attack(world):
    with pytest.raises(ValueError, match="against"):
        audit(subject(world), against="everybody")


@pytest.mark.parametrize("changes", [{}, {"channel__coherence": 1, "link__antennas": 1}], ids=["static", "changing"])
def test_who_sends_at_full_power_and_counts_less_passes(world, changes):
    saturated = {"policy__name": "threshold_power", "fleet__peak_power": 1e-4, "budget__epsilon": 50.0}
    found = subject(world, **saturated, **changes)
    assert found.plan.sequence[0].power.max() == pytest.approx(1e-4, rel=1e-12)
    assert audit(found, **QUICK).verdict == "pass"


def test_nobody_attacks_where_nothing_is_claimed(world):
    with pytest.raises(ValueError, match="artificial noise"):
        audit(subject(world, policy__name="seif", link__trust="combiner"), against="radio")


def test_the_command_and_a_run_attack_as_they_are_told(world, tmp_path, capsys, monkeypatch):
    for name in ("pairs", "samples"):
        monkeypatch.setitem(audit.__kwdefaults__, name, QUICK[name])
    execute(several(world, link__trust="combiner"), tmp_path / "run")
    quickly = ["audit", str(tmp_path / "run"), "--trials", "500", "--json"]
    assert main([*quickly, "--against", "radio"]) == 4
    summary = json.loads(capsys.readouterr().out)
    assert (summary["verdict"], summary["trust"], summary["against"]) == ("fail", "combiner", "radio")
    assert summary["mu_lower"] > summary["mu_claimed"]
    run = Run.open(tmp_path / "run")
    assert run.audit(trials=200, against="radio").verdict == "fail"
    assert run.audit(trials=200).verdict == "pass"


def test_a_plan_with_another_combiner_is_not_what_the_scenario_plans(world, tmp_path):
    """All its figures follow from it: only who plans again sees it."""
    execute(several(world), tmp_path / "run")
    run = Run.open(tmp_path / "run").checked()
    combiner = run.plan.combiner + 0.01
    moved = replace(run.plan, problem=run.plan.problem.heard_by(combiner))
    other = replace(run, _plan=moved, _figures=json.loads(json.dumps(moved.to_dict())))
    found = audit(Subject.of_run(other), **QUICK)
    assert "combiner" in {name for check in found.failures for name in check.figures.get("differing", ())}


# Planted bugs -------------------------------------------------------------------------------------------------------

real_receive, real_from_plan = Superposition.receive, Air.from_plan.__func__


def received(patch, change):
    """Let the receiver's noise, (A, 2, d), be changed on its way, where the round loop's own check does not look."""

    def receive(self, noise):
        wrong = np.array(noise).reshape(self.signal.shape)
        change(wrong)
        return real_receive(self, wrong.ravel())

    patch.setattr(Superposition, "receive", receive)


def noise_on_one_antenna_only(patch):
    received(patch, lambda noise: noise[1:].fill(0.0))


def noise_missing_on_the_last_antenna(patch):
    received(patch, lambda noise: noise[-1].fill(0.0))


def noise_of_the_real_part_halved_by_complex_convention(patch):
    def change(noise):
        noise[:, 0] /= math.sqrt(2)

    received(patch, change)


def imaginary_noise_missing(patch):
    received(patch, lambda noise: noise[:, 1].fill(0.0))


def one_noise_for_all_antennas(patch):
    def change(noise):
        noise[1:] = noise[0]

    received(patch, change)


def opposite_noise_on_two_antennas(patch):
    def change(noise):
        noise[1] = -noise[0]

    received(patch, change)


def air(patch, change):
    """Let the air of a round be changed."""

    def from_plan(cls, plan, index=-1, **options):
        return change(real_from_plan(cls, plan, index, **options))

    patch.setattr(Air, "from_plan", classmethod(from_plan))


def combiner_of_norm_two(patch):
    air(patch, lambda made: replace(made, combiner=2 * made.combiner))
    return {"link__trust": "combiner"}


def combiner_of_norm_a_half(patch):
    air(patch, lambda made: replace(made, combiner=made.combiner / 2))
    return {"link__trust": "combiner"}


def released(patch, change):
    """Let the released signal be another function of the combiner and the antennas' signals, (A, 2, d)."""
    patch.setattr("airfed.aircomp._combined", lambda combiner, parts: change(combiner, parts[:, 0] + 1j * parts[:, 1]))
    return {"link__trust": "combiner"}


def transpose_for_conjugate_transpose(patch):
    """Re(fᵀY) is released; all else follows Re(fᴴY)."""
    return released(patch, lambda combiner, signal: (combiner @ signal).real)


def sum_of_the_antennas_released(patch):
    return released(patch, lambda combiner, signal: np.sum(signal, axis=0).real)


def one_claim_for_both_adversaries(patch):
    """μ = 2θ/σ although every antenna's signal is kept."""
    patch.setattr(limits, "amplifications", lambda problem: np.ones(problem.fleet.gain.shape))


def exposure_of_the_mean_device(patch):
    real = limits.amplifications
    patch.setattr(limits, "amplifications", lambda problem: np.full(problem.fleet.gain.shape, real(problem).mean()))


AUDITED = {
    noise_on_one_antenna_only: {"noise scale", "noise in every part", "canaries"},
    noise_missing_on_the_last_antenna: {"noise scale", "noise in every part"},
    noise_of_the_real_part_halved_by_complex_convention: {"noise scale", "noise in every part"},
    imaginary_noise_missing: {"noise scale", "noise in every part"},
    one_noise_for_all_antennas: {"noise correlation", "noise used once"},
    opposite_noise_on_two_antennas: {"noise correlation"},
    combiner_of_norm_two: {"sensitivity", "contribution", "noise scale"},
    combiner_of_norm_a_half: {"noise scale"},
    transpose_for_conjugate_transpose: {"accounting", "sensitivity", "contribution", "canaries"},
    sum_of_the_antennas_released: {"sensitivity", "contribution", "noise scale"},
    one_claim_for_both_adversaries: {"accounting", "sensitivity", "contribution", "canaries"},
    exposure_of_the_mean_device: {"accounting", "sensitivity", "contribution"},
}


SLOW = (
    noise_missing_on_the_last_antenna,
    imaginary_noise_missing,
    combiner_of_norm_a_half,
    exposure_of_the_mean_device,
)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in AUDITED],
    ids=lambda mutant: mutant.__name__,
)
def test_the_audit_catches(mutant, world, monkeypatch):
    changes = mutant(monkeypatch) or {}
    found = audit(subject(world, **changes), **QUICK)
    assert {check.name for check in found.failures} >= AUDITED[mutant], found.failures


def all_arrive_in_phase(world):
    """Without noise the combiner's real part is the mean, and its imaginary part is nothing."""
    made = prepare(several(world))
    superposition = made.airs.at(0).open_round(8)
    updates = np.full((made.plan.num_scheduled, 8), 0.01)
    superposition.add(made.plan.scheduled, updates)
    got = superposition.receive(np.zeros(superposition.noise_size))
    np.testing.assert_allclose(got.estimate, 0.01, rtol=1e-12)
    np.testing.assert_allclose((np.conj(made.plan.combiner) @ got.antennas).imag, 0.0, atol=1e-12)
    assert got.fading_error == 0.0


def phase_not_corrected(patch):
    def from_plan(cls, plan, index=-1, **options):
        return real_from_plan(cls, plan, index, phase=np.zeros(plan.problem.fleet.num_devices))

    patch.setattr(Air, "from_plan", classmethod(from_plan))


def phase_of_the_first_antenna(patch):
    def from_plan(cls, plan, index=-1, **options):
        return real_from_plan(cls, plan, index, phase=np.angle(plan.problem.fleet.channel[:, 0]))

    patch.setattr(Air, "from_plan", classmethod(from_plan))


def combiner_not_conjugated(patch):
    air(patch, lambda made: replace(made, combiner=made.combiner.conj()))


def combiner_not_of_unit_norm(patch):
    air(patch, lambda made: replace(made, combiner=1.001 * made.combiner))


@pytest.mark.parametrize(
    "mutant", [phase_not_corrected, phase_of_the_first_antenna, combiner_not_conjugated, combiner_not_of_unit_norm]
)
def test_a_check_catches(mutant, world, monkeypatch):
    """What costs no privacy, but makes another mean."""
    all_arrive_in_phase(world)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        all_arrive_in_phase(world)


def test_no_mutant_no_alarm(world):
    found = audit(subject(world), **QUICK)
    assert found.verdict == "pass", found.failures
    assert found.warnings == []


def test_the_device_that_is_attacked_is_the_one_that_shows_most(world):
    claimed = subject(world, link__trust="combiner", **CHANGING)
    plan, fleet = claimed.plan, claimed.plan.problem.fleet
    seen = plan.amplitude * antennas.strengths(fleet.channel) / fleet.gain
    shown = np.sum(np.square(seen), axis=0)
    assert replace(claimed, against="radio").victim == int(np.argmax(shown))
    assert replace(claimed, against="combiner").victim == plan.most_exposed
