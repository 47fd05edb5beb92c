"""The audit of several antennas: each claim against each adversary, and bugs planted one at a time."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from airfed import antennas
from airfed.aircomp import AirCompRound, Superposition
from airfed.audit import Subject, audit
from airfed.audit.audit import SAMPLES
from airfed.cli.app import main
from airfed.planning import limits
from airfed.training.execution import execute
from airfed.training.run import Run
from airfed.training.setup import prepare

QUICK = {"pairs": 36, "trials": 1500, "samples": 80_000}
REFUTED = {"sensitivity", "contribution", "round loop", "canaries", "trajectory"}
HIGH_SNR = {"budget__epsilon": 12.0, "fleet__peak_power": 100.0, "budget__total_power": 1e5}  # held by privacy
SEVERAL = {"link__antennas": 3, "link__beamforming": "dominant_eigenvector", "policy__name": "full", **HIGH_SNR}
CHANGING = {"channel__coherence_rounds": 1, "policy__name": "uniform", "policy__size": 4}


def several(make_scenario, **changes):
    return make_scenario(channel={"model": "rayleigh", "minimum": 0.1}, **{**SEVERAL, **changes})


def subject(make_scenario, **changes):
    return Subject.of(several(make_scenario, **changes))


@pytest.mark.parametrize("changes", [{}, CHANGING], ids=["static", "time-varying"])
@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
@pytest.mark.parametrize("against", ["all_antennas", "combined"])
def test_a_claim_holds_against_its_adversary_and_weaker_ones(make_scenario, adversary, against, changes):
    found = audit(subject(make_scenario, link__adversary=adversary, **changes), against=against, **QUICK)
    summary = found.to_dict()
    assert (summary["antennas"], summary["adversary"], summary["against"]) == (3, adversary, against)
    if (adversary, against) == ("combined", "all_antennas"):
        assert found.verdict == "fail"
        assert {check.name for check in found.failures} == REFUTED
    else:
        assert found.verdict == "pass", found.failures
    if adversary == against and not changes:
        assert summary["mu_lower"] > 0.9 * summary["mu_claimed"]
    assert any("stronger adversary" in warning for warning in found.warnings) == (
        (adversary, against) == ("all_antennas", "combined")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"budget__adjacency": "add_remove"},
        {"budget__adjacency": "add_remove", **CHANGING},
        {"link__beamforming": "optimal", "policy__name": "optimal"},
        {"policy__name": "optimal", "channel__coherence_rounds": 1, "link__beamforming": "optimal"},
        {"policy__name": "threshold_power"},
        {"policy__name": "dp_fedavg"},
        {"policy__name": "artificial_noise", "link__adversary": "combined"},
        {"link__antennas": 8, "link__noise_source": "secure"},
        {"fleet__num_devices": 1},
        {"budget__device_power": 3.0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_honest_scenarios_of_all_kinds_pass(make_scenario, changes):
    found = audit(subject(make_scenario, **changes), pairs=240, trials=5000, samples=100_000)
    assert found.verdict == "pass", found.failures


def test_an_unknown_adversary_is_refused(make_scenario):
    with pytest.raises(ValueError, match="against"):
        audit(subject(make_scenario), against="everyone")


@pytest.mark.parametrize(
    "changes", [{}, {"channel__coherence_rounds": 1, "link__antennas": 1}], ids=["static", "time-varying"]
)
def test_threshold_power_control_passes(make_scenario, changes):
    full_power = {"policy__name": "threshold_power", "fleet__peak_power": 1e-4, "budget__epsilon": 50.0}
    found = subject(make_scenario, **full_power, **changes)
    assert found.plan.sequence[0].power.max() == pytest.approx(1e-4, rel=1e-12)
    assert audit(found, **QUICK).verdict == "pass"


def test_an_adversary_without_a_claim_is_refused(make_scenario):
    with pytest.raises(ValueError, match="artificial noise"):
        audit(
            subject(make_scenario, policy__name="artificial_noise", link__adversary="combined"), against="all_antennas"
        )


def test_the_command_and_a_run_use_the_given_adversary(make_scenario, tmp_path, capsys, monkeypatch):
    for name in ("pairs", "samples"):
        monkeypatch.setitem(audit.__kwdefaults__, name, QUICK[name])
    execute(several(make_scenario, link__adversary="combined"), tmp_path / "run")
    quickly = ["audit", str(tmp_path / "run"), "--trials", "500", "--json"]
    assert main([*quickly, "--against", "all_antennas"]) == 4
    summary = json.loads(capsys.readouterr().out)
    assert (summary["verdict"], summary["adversary"], summary["against"]) == ("fail", "combined", "all_antennas")
    assert summary["mu_lower"] > summary["mu_claimed"]
    run = Run.open(tmp_path / "run")
    assert run.audit(trials=200, against="all_antennas").verdict == "fail"
    assert run.audit(trials=200).verdict == "pass"


def test_a_plan_with_another_beamformer_is_not_the_plan_of_the_scenario(make_scenario, tmp_path):
    """The plan is consistent: only planning again detects the change."""
    execute(several(make_scenario), tmp_path / "run")
    run = Run.open(tmp_path / "run").checked()
    beamformer = run.plan.beamformer + 0.01
    moved = replace(run.plan, problem=run.plan.problem.with_beamformer(beamformer))
    other = replace(run, _plan=moved, _figures=json.loads(json.dumps(moved.to_dict())))
    found = audit(Subject.of_run(other), **QUICK)
    assert "beamformer" in {name for check in found.failures for name in check.figures.get("differing", ())}


# Planted bugs -------------------------------------------------------------------------------------------------------

real_receive, real_from_plan = Superposition.receive, AirCompRound.from_plan.__func__


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


def correlated(patch, change):
    """Let parts of the noise be correlated by 0.02 at the same variance: change(noise, a, b) with a² + b² = 1."""
    b = 0.02
    received(patch, lambda noise: change(noise, math.sqrt(1 - b**2), b))
    return {"audit": {"samples": SAMPLES}}


def noise_correlated_between_antennas(patch):
    def change(noise, a, b):
        noise[1:] = a * noise[1:] + b * noise[:-1].copy()

    return correlated(patch, change)


def noise_anticorrelated_between_two_antennas(patch):
    def change(noise, a, b):
        noise[2] = a * noise[2] - b * noise[0]

    return correlated(patch, change)


def noise_correlated_between_real_and_imaginary_parts(patch):
    def change(noise, a, b):
        noise[:, 1] = a * noise[:, 1] + b * noise[:, 0]

    return correlated(patch, change)


def aircomp(patch, change):
    """Change the AirComp of a round."""

    def from_plan(cls, plan, index=-1, **options):
        return change(real_from_plan(cls, plan, index, **options))

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))


def beamformer_of_norm_two(patch):
    aircomp(patch, lambda made: replace(made, beamformer=2 * made.beamformer))
    return {"link__adversary": "combined"}


def beamformer_of_norm_a_half(patch):
    aircomp(patch, lambda made: replace(made, beamformer=made.beamformer / 2))
    return {"link__adversary": "combined"}


def released(patch, change):
    """Let the released signal be another function of the beamformer and the antennas' signals, (A, 2, d)."""
    patch.setattr(
        "airfed.aircomp._combined", lambda beamformer, parts: change(beamformer, parts[:, 0] + 1j * parts[:, 1])
    )
    return {"link__adversary": "combined"}


def transpose_for_conjugate_transpose(patch):
    """Re(fᵀY) is released; all else follows Re(fᴴY)."""
    return released(patch, lambda beamformer, signal: (beamformer @ signal).real)


def sum_of_the_antennas_released(patch):
    return released(patch, lambda beamformer, signal: np.sum(signal, axis=0).real)


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
    opposite_noise_on_two_antennas: {"noise correlation", "noise autocorrelation"},
    noise_correlated_between_antennas: {"noise autocorrelation"},
    noise_anticorrelated_between_two_antennas: {"noise autocorrelation"},
    noise_correlated_between_real_and_imaginary_parts: {"noise autocorrelation"},
    beamformer_of_norm_two: {"sensitivity", "contribution", "noise scale"},
    beamformer_of_norm_a_half: {"noise scale"},
    transpose_for_conjugate_transpose: {"accounting", "sensitivity", "contribution", "canaries"},
    sum_of_the_antennas_released: {"sensitivity", "contribution", "noise scale"},
    one_claim_for_both_adversaries: {"accounting", "sensitivity", "contribution", "canaries"},
    exposure_of_the_mean_device: {"accounting", "sensitivity", "contribution"},
}


SLOW = (
    noise_missing_on_the_last_antenna,
    imaginary_noise_missing,
    beamformer_of_norm_a_half,
    exposure_of_the_mean_device,
)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in AUDITED],
    ids=lambda mutant: mutant.__name__,
)
def test_the_audit_catches(mutant, make_scenario, monkeypatch):
    changes = mutant(monkeypatch) or {}
    effort = QUICK | changes.pop("audit", {})
    found = audit(subject(make_scenario, **changes), **effort)
    assert {check.name for check in found.failures} >= AUDITED[mutant], found.failures


def all_arrive_in_phase(make_scenario):
    """Without noise the real part after the beamformer is the mean, and the imaginary part is zero."""
    made = prepare(several(make_scenario))
    superposition = made.aircomp.at(0).open_round(8)
    updates = np.full((made.plan.num_scheduled, 8), 0.01)
    superposition.add(made.plan.scheduled, updates)
    got = superposition.receive(np.zeros(superposition.noise_size))
    np.testing.assert_allclose(got.estimate, 0.01, rtol=1e-12)
    np.testing.assert_allclose((np.conj(made.plan.beamformer) @ got.antennas).imag, 0.0, atol=1e-12)
    assert got.fading_error == 0.0


def phase_not_corrected(patch):
    def from_plan(cls, plan, index=-1, **options):
        return real_from_plan(cls, plan, index, phase=np.zeros(plan.problem.fleet.num_devices))

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))


def phase_of_the_first_antenna(patch):
    def from_plan(cls, plan, index=-1, **options):
        return real_from_plan(cls, plan, index, phase=np.angle(plan.problem.fleet.channel[:, 0]))

    patch.setattr(AirCompRound, "from_plan", classmethod(from_plan))


def beamformer_not_conjugated(patch):
    aircomp(patch, lambda made: replace(made, beamformer=made.beamformer.conj()))


def beamformer_not_of_unit_norm(patch):
    aircomp(patch, lambda made: replace(made, beamformer=1.001 * made.beamformer))


@pytest.mark.parametrize(
    "mutant", [phase_not_corrected, phase_of_the_first_antenna, beamformer_not_conjugated, beamformer_not_of_unit_norm]
)
def test_a_check_catches(mutant, make_scenario, monkeypatch):
    """Changes that cost no privacy but change the mean."""
    all_arrive_in_phase(make_scenario)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        all_arrive_in_phase(make_scenario)


def test_no_mutant_no_alarm(make_scenario):
    found = audit(subject(make_scenario), **QUICK)
    assert found.verdict == "pass", found.failures
    assert found.warnings == []


def test_the_target_is_the_most_exposed_device(make_scenario):
    claimed = subject(make_scenario, link__adversary="combined", **CHANGING)
    plan, fleet = claimed.plan, claimed.plan.problem.fleet
    seen = plan.amplitude * antennas.norms(fleet.channel) / fleet.gain
    shown = np.sum(np.square(seen), axis=0)
    assert replace(claimed, against="all_antennas").target_device == int(np.argmax(shown))
    assert replace(claimed, against="combined").target_device == plan.most_exposed
