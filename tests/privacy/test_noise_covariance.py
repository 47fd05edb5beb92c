"""Noise that antennas share, of covariance σ²R: exposure, noise after combining, audit, records and messages."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import problems
from airfed import Fleet, Link, antennas, plan, scenario
from airfed.aircomp import Superposition
from airfed.audit import Subject, audit
from airfed.cli.app import main
from airfed.planning import Plan, beamforming
from airfed.policies import METHODS
from airfed.scenario import ScenarioError
from airfed.training.execution import execute
from airfed.training.run import Run

THREE = np.array([[1.0, 0.3 + 0.2j, 0.1j], [0.3 - 0.2j, 1.5, -0.4], [-0.1j, -0.4, 0.8]])
TEXTS = [["1", "0.3+0.2j", "0.1j"], ["0.3-0.2j", 1.5, -0.4], ["-0.1j", -0.4, 0.8]]
QUICK = {"pairs": 36, "trials": 1500, "samples": 80_000}
PRIVACY_BINDS = {"budget__epsilon": 12.0, "fleet__peak_power": 100.0, "budget__total_power": 1e5}


def equal_correlation(rho, number=3):
    return (1 - rho) * np.eye(number) + rho


def root(matrix, power):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.conj().T


def problem_with(channel, covariance, **rest):
    return problems.make(channel=channel, noise=0.3, noise_covariance=covariance, total_power=1e3, **rest)


def true_mu(found, channel, covariance, sigma=0.3):
    """μ by the formulas for the signals at the antennas, 2θ√(hᴴR⁻¹h)/(σ|fᴴh|) and 2θ/(σ√(fᴴRf)), per round."""
    beamformer = root(covariance, -0.5) @ found.beamformer  # of the antennas' signals
    sent = found.amplitude / np.abs(channel @ (root(covariance, -0.5) @ found.beamformer).conj())  # |x_k|
    if found.problem.link.adversary == "combined":
        noise = sigma * math.sqrt((beamformer.conj() @ covariance @ beamformer).real)
        return 2 * np.max(sent * np.abs(channel @ beamformer.conj())) / noise
    seen = np.sqrt(np.einsum("ka,ab,kb->k", channel.conj(), np.linalg.inv(covariance), channel).real)
    return 2 * np.max(sent * seen) / sigma


@pytest.mark.parametrize("way", ["optimal", "dominant_eigenvector", "equal_gain", "antenna_selection"])
@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
@pytest.mark.parametrize("covariance", [equal_correlation(0.6), equal_correlation(-0.4), THREE], ids=str)
def test_exposure_and_noise_after_combining_are_those_at_the_antennas(covariance, adversary, way):
    channel = problems.channels(4, 8, 3)
    found = plan(problem_with(channel, covariance, adversary=adversary, beamforming=way))
    assert found.mu_round == pytest.approx(true_mu(found, channel, covariance), rel=1e-12)
    assert found.violations == ()
    beamformer = root(covariance, -0.5) @ found.beamformer
    noise = 0.3 * math.sqrt((beamformer.conj() @ covariance @ beamformer).real)
    gain = np.abs(channel @ beamformer.conj())
    signal = found.sequence.signal(0)
    np.testing.assert_allclose(signal.noise_std, noise, rtol=1e-12)  # of the same signal, gain by gain
    np.testing.assert_allclose(found.problem.fleet.gain, gain, rtol=1e-12)
    if way == "antenna_selection":
        assert np.sum(np.abs(beamformer) > 1e-12 * np.abs(beamformer).max()) == 1
    if way == "equal_gain":
        np.testing.assert_allclose(beamformer, beamformer[0], rtol=1e-12)


def test_without_the_covariance_the_claim_is_too_small():
    """With equal correlation 0.6 the true μ is up to 1/√0.4 = 1.58 times the claimed one."""
    channel, covariance = problems.channels(1, 30, 4), equal_correlation(0.6, 4)
    assumed = plan(problem_with(channel, None, scope="total"))
    seen = np.sqrt(np.einsum("ka,ab,kb->k", channel.conj(), np.linalg.inv(covariance), channel).real)
    true = 2 * np.max((assumed.amplitude[0] / assumed.problem.fleet.gain * seen)[assumed.scheduled]) / 0.3
    assert 1.4 < true / assumed.mu_round < 1 / math.sqrt(0.4)
    declared = plan(problem_with(channel, 0.6, scope="total"))
    assert declared.mu_round == pytest.approx(true_mu(declared, channel, covariance), rel=1e-12)


def test_a_number_is_the_matrix_of_equal_correlation_and_the_identity_changes_nothing():
    channel = problems.channels(2, 8, 3)
    by_number, by_matrix = (plan(problem_with(channel, each)) for each in (0.6, equal_correlation(0.6)))
    assert by_number.bound.total == by_matrix.bound.total
    np.testing.assert_array_equal(by_number.beamformer, by_matrix.beamformer)
    white, identity = (plan(problem_with(channel, each)) for each in (None, np.eye(3)))
    assert identity.bound.total == pytest.approx(white.bound.total, rel=1e-12)


def test_a_given_beamformer_is_of_the_antennas_and_a_problem_is_whitened_once():
    channel, beamformer = problems.channels(3, 8, 3), problems.channels(5, 3)
    given = problem_with(channel, THREE)
    raw = Fleet(channel=channel, peak_power=1.0, beamformer=beamformer)
    fixed = replace(given, fleet=raw)
    scale = math.sqrt((beamformer.conj() @ THREE @ beamformer).real)
    np.testing.assert_allclose(fixed.fleet.gain, np.abs(channel @ beamformer.conj()) / scale, rtol=1e-12)
    again = replace(fixed, link=replace(fixed.link, adversary="combined"))
    np.testing.assert_array_equal(again.fleet.channel, fixed.fleet.channel)
    moved = given.with_beamformer(fixed.fleet.beamformer)
    np.testing.assert_array_equal(replace(moved, budget=moved.budget).fleet.channel, given.fleet.channel)
    with pytest.raises(ValueError, match="already whitened with another one"):
        replace(fixed, link=replace(fixed.link, noise_covariance=0.5))


@pytest.mark.parametrize("covariance", [[[0.01]], [[1.0, 0.5], [0.5, 1.0]], 0.5])
def test_one_antenna_has_no_covariance(covariance):
    # It would be ignored: noise of covariance 0.01σ² would count as σ².
    with pytest.raises(ValueError, match=r"^noise_covariance must be None with one antenna"):
        problems.make(noise_covariance=covariance)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (1.0, r"^noise_covariance must be a matrix, or a number strictly between -1 and 1; got 1\.0\.$"),
        (-0.6, r"^noise_covariance must be positive definite, .* got eigenvalues from -0\.2 to 1\.6\.$"),
        (np.ones((3, 3)), r"^noise_covariance must be positive definite, .*\.$"),
        (np.eye(2), r"^noise_covariance must have a row for each of the 3 antennas, got 2\.$"),
        (np.eye(3)[:2], r"^noise_covariance must be a Hermitian matrix, the same as its conjugate transpose\.$"),
        ([[1.0, 0.5], [0.2, 1.0]], r"^noise_covariance must be a Hermitian matrix.*\.$"),
        ([[1.0, math.nan], [math.nan, 1.0]], r"^noise_covariance must be finite in every entry.*\.$"),
        ([[1.0, 0.5], [0.5]], r"^noise_covariance must be an array of complex numbers; .*\.$"),
        ("much", r"^noise_covariance must be a matrix, or a number .* got 'much'\.$"),
    ],
)
def test_a_wrong_covariance_gives_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        problem_with(problems.channels(3, 8, 3), given)


# Scenarios ------------------------------------------------------------------------------------------------------------


def several(make_scenario, **changes):
    known = {"link__antennas": 3, "link__beamforming": "dominant_eigenvector", "policy__name": "full", **PRIVACY_BINDS}
    return make_scenario(channel={"model": "rayleigh", "minimum": 0.1}, **known | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"link__noise_covariance": 1.5},
            r"noise_covariance must be a matrix, or a number strictly between -1 and 1; got 1\.5\.$",
        ),
        ({"link__noise_covariance": [["x"]]}, r"link\.noise_covariance must be numbers, .* ones, got 'x'\.$"),
        ({"link__noise_covariance": [[True, 0.0], [0.0, 1.0]]}, r"must be numbers, .* ones, got True\.$"),
        ({"link__noise_covariance": [[1.0], [0.5, 1.0]]}, r"its rows must have the same number of entries\.$"),
        ({"link__noise_covariance": [[1.0, 2.0], [2.0, 1.0]]}, r"noise_covariance must be positive definite.*\.$"),
        ({"link__noise_covariance": 0.5, "link__antennas": 1}, r"must not be set with link\.antennas = 1: .*\.$"),
    ],
)
def test_a_wrong_key_gives_one_sentence(make_scenario, changes, message):
    with pytest.raises(ScenarioError, match=message):
        several(make_scenario, **changes)


@pytest.mark.parametrize("correlation", [None, 0.0, 0.5], ids=["constant", "independent", "dependent"])
def test_channels_of_a_scenario_and_samples_of_a_plan_are_whitened(make_scenario, correlation):
    fading = {} if correlation is None else {"coherence_rounds": 1, "correlation": correlation}
    plain = several(make_scenario).override({f"channel.{key}": value for key, value in fading.items()})
    shared = plain.override({"link.noise_covariance": TEXTS})
    assert shared.digest() != plain.digest()
    assert "noise_covariance" not in plain.content()["link"]
    problem, white = shared.problem(), plain.problem()

    def whitened(vectors):
        return np.einsum("ab,...b->...a", root(THREE, -0.5), vectors)

    np.testing.assert_allclose(problem.fleet.channel, whitened(white.fleet.channel), rtol=1e-12, atol=1e-14)
    samples, before = shared.samples(problem), plain.samples(white)
    if correlation is None:
        assert samples is None
        return
    used = beamforming.effective_samples(problem, samples)
    if correlation:
        used, before = used(problem.fleet.channel[:1]), before(white.fleet.channel[:1])
    strongest = np.linalg.eigvalsh(np.einsum("...ka,...kb->...ab", whitened(before), whitened(before).conj()))[..., -1]
    np.testing.assert_allclose(np.sum(np.square(used), axis=-1), strongest, rtol=1e-10)  # of the dominant eigenvector
    assert shared.plan(problem).violations == ()


def test_plan_ledger_and_run_state_the_covariance_and_resume(make_scenario, tmp_path, capsys):
    asked = several(make_scenario, link__noise_covariance=TEXTS)
    (tmp_path / "s.toml").write_text(asked.to_toml())
    assert main(["plan", str(tmp_path / "s.toml")]) == 0
    assert "antennas share noise: ε counts with noise_covariance" in capsys.readouterr().out.replace("\n", " ")
    execute(asked, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    pairs = [[[entry.real, entry.imag] for entry in row] for row in THREE]
    header = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    recorded = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert recorded["noise_covariance"] == header["noise_covariance"] == pairs
    np.testing.assert_array_equal(run.plan.beamformer, asked.plan().beamformer)
    execute(scenario.load(tmp_path / "s.toml"), tmp_path / "run", resume=True)
    assert main(["ledger", str(tmp_path / "run")]) == 0
    assert "antennas share noise" in capsys.readouterr().out
    with pytest.raises(ValueError, match="noise_covariance must be None as in the problem"):
        Plan.from_dict(several(make_scenario).problem(), recorded, METHODS)


# Audit ----------------------------------------------------------------------------------------------------------------

real_receive = Superposition.receive


def noise_of_covariance(patch, covariance, *, whiten):
    """Let the antennas receive noise of covariance σ²R; the receiver whitens it if R is declared."""
    color = np.linalg.cholesky(covariance)  # another root of R than the receiver's

    def receive(self, noise):
        parts = np.array(noise).reshape(self.signal.shape)
        colored = np.einsum("ab,b...->a...", color, parts[:, 0] + 1j * parts[:, 1])
        if whiten:
            colored = np.einsum("ab,b...->a...", root(covariance, -0.5), colored)
        return real_receive(self, np.stack((colored.real, colored.imag), axis=1).ravel())

    patch.setattr(Superposition, "receive", receive)


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_the_audit_refutes_undeclared_shared_noise_and_passes_declared(make_scenario, monkeypatch, adversary):
    covariance = equal_correlation(0.6)
    undeclared = several(make_scenario, link__adversary=adversary)
    declared = undeclared.override({"link.noise_covariance": 0.6})
    noise_of_covariance(monkeypatch, covariance, whiten=False)
    found = audit(Subject.of(undeclared), **QUICK)
    assert found.verdict == "fail"
    noise_of_covariance(monkeypatch, covariance, whiten=True)
    found = audit(Subject.of(declared), **QUICK)
    assert found.verdict == "pass", found.failures
    assert found.to_dict()["mu_lower"] > 0.9 * found.to_dict()["mu_claimed"]
    noise_of_covariance(monkeypatch, equal_correlation(0.4), whiten=False)
    assert audit(Subject.of(declared), **QUICK).verdict == "fail"


def test_link_compares_and_prints_with_a_covariance():
    assert Link(noise_std=1.0, noise_covariance=np.eye(2)) == Link(noise_std=1.0, noise_covariance=[[1, 0], [0, 1]])
    assert "noise_covariance=0.5" in repr(Link(noise_std=1.0, noise_covariance=0.5))
    assert antennas.whitened(np.ones((2, 3), dtype=complex), None).shape == (2, 3)
