"""Runs with several antennas: reproducible bits, records that name the adversary, forgeries refused."""

import json
import threading
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airfed import scenario
from airfed.aircomp import CLIP_MARGIN
from airfed.cli.app import main
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.text.phrases import ADVERSARIES
from airfed.training import setup as setups
from airfed.training.directory import RunError, sha256
from airfed.training.distributed import ProcessGroup, check_equal
from airfed.training.execution import execute
from airfed.training.loop import NoiseFault, _check_noise, federated_averaging
from airfed.training.noise import SecureNoise
from airfed.training.run import Run
from airfed.training.setup import prepare, signal_digests

TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
SEARCHED = {"policy.name": "optimal", "link.beamforming": "optimal"}
CHANGING = {"channel.coherence_rounds": 1, "policy.name": "uniform", "policy.size": 4}

pytestmark = pytest.mark.usefixtures("no_flush")


def make_scenario(**changes):
    policy = {
        "policy.name": "full",
        "policy.size": None,
        "policy.rounds": 4,
        "link.beamforming": "dominant_eigenvector",
    }
    link = {"link.antennas": 4, "link.noise_std": 1.0, "budget.total_power": 6.0, "learning.dimension": 30}
    return scenario.parse(TINY).override({**policy, **link, **changes})


@pytest.mark.parametrize("changes", [{}, CHANGING], ids=["static", "changing"])
def test_each_round_arrives_and_costs_as_its_entry_says(changes, shout, same_noise):
    made = prepare(make_scenario(**changes))
    plan, noise = made.plan, same_noise
    start = np.zeros(30, np.float32)
    for done, entry in zip(
        federated_averaging(plan, made.aircomp, shout, noise, parameters=start), plan.sequence, strict=True
    ):
        got, size, fleet = done.aggregate, entry.scheduled.size, plan.problem.fleet
        drawn = noise.draw(done.index, 2 * 4 * 30, 1.0).reshape(4, 2, 30)
        f, arrived = fleet.beamformer_in(done.index), got.antennas - (drawn[:, 0] + 1j * drawn[:, 1])
        combined = np.conj(f) @ arrived
        full = size * entry.alignment * (1 - CLIP_MARGIN)
        assert np.linalg.norm(combined.real) == pytest.approx(full, rel=1e-9)
        assert np.linalg.norm(combined.imag) < 1e-9 * full  # every phase is corrected
        np.testing.assert_allclose(got.received, (np.conj(f) @ got.antennas).real, atol=1e-12)
        np.testing.assert_allclose(got.energy, entry.power * (1 - CLIP_MARGIN) ** 2, rtol=1e-9)


@pytest.mark.parametrize(
    "changes",
    [{}, CHANGING, pytest.param(SEARCHED, marks=pytest.mark.slow)],
    ids=["static", "changing", "searched"],
)
def test_a_run_that_is_stopped_resumes_to_the_same_bits(tmp_path, changes, stop_after, contents):
    built = make_scenario(**{"run.checkpoint_every": 2}, **changes)
    execute(built, tmp_path / "whole")
    for questions in (1, 4, 6):
        out = tmp_path / f"run-{questions}"
        assert execute(built, out, stop=stop_after(questions)).status == "stopped"
        assert execute(built, out, resume=True).status == "finished"
        assert contents(out) == contents(tmp_path / "whole")
    chunked = tmp_path / "chunked"
    execute(built.override({"run.chunk": 1}), chunked)
    assert (chunked / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


class Together(ProcessGroup):
    """One of two processes, both of which are threads of this one."""

    size = 2

    def __init__(self, rank, shelf, barrier):
        self.rank, self._shelf, self._barrier = rank, shelf, barrier

    def share(self, devices):
        return devices[self.rank :: 2]

    def _all(self, value):
        self._shelf[self.rank] = value
        self._barrier.wait(60)
        both = list(self._shelf)
        self._barrier.wait(60)
        return both

    def merge(self, superposition):
        superposition.integers = np.sum(self._all(superposition.integers), axis=0)
        superposition.norm_max = max(self._all(superposition.norm_max))

    def any(self, flag):
        return any(self._all(flag))

    def broadcast(self, values):
        return np.array(self._all(values)[0])


@pytest.mark.parametrize("changes", [{}, CHANGING], ids=["static", "changing"])
def test_two_processes_make_the_bits_of_one(tmp_path, changes):
    built = make_scenario(**changes)
    execute(built, tmp_path / "alone")
    shelf, barrier = [None, None], threading.Barrier(2)
    other = threading.Thread(
        target=execute, args=(built, tmp_path / "both"), kwargs={"group": Together(1, shelf, barrier)}
    )
    other.start()
    assert execute(built, tmp_path / "both", group=Together(0, shelf, barrier)).status == "finished"
    other.join()
    for name in ("model.safetensors", "ledger.jsonl", "metrics.jsonl"):
        assert (tmp_path / "both" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_process_with_another_beamformer_does_not_transmit():
    class Second(ProcessGroup):
        rank, size, sent = 1, 2, None

        def broadcast(self, values):
            self.sent = values if self.sent is None else self.sent
            return self.sent

    one = prepare(make_scenario(**{"link.noise_source": "secure"}))
    turned = np.array([1.0, 1e-9, 0.0, 0.0])  # so little that no figure of the plan shows it
    fleet = one.plan.problem.fleet
    other = replace(one.plan, problem=one.plan.problem.with_beamformer(fleet.beamformer + 1e-9j * turned))
    group = Second()
    check_equal(group, one)
    check_equal(group, one)
    with pytest.raises(RunError, match="The plan of process 1 differs from that of process 0"):
        check_equal(group, replace(one, plan=other))


@pytest.mark.parametrize("adversary", ["all_antennas", "combined"])
def test_the_ledger_says_whom_its_epsilon_is_claimed_against(tmp_path, adversary, capsys):
    execute(make_scenario(**{"link.adversary": adversary}), tmp_path / "run")
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert (ledger.header["antennas"], ledger.header["adversary"]) == (4, adversary)
    plan = Run.open(tmp_path / "run").checked().plan
    assert ledger.mu_total == pytest.approx(plan.mu_total)
    seen = plan.against("combined").mu_total * (
        plan.problem.fleet.exposure.max() if adversary == "all_antennas" else 1.0
    )
    assert ledger.mu_total == pytest.approx(seen, rel=1e-12)
    assert main(["ledger", str(tmp_path / "run")]) == 0
    assert f"against {ADVERSARIES[adversary]}" in capsys.readouterr().out
    assert main(["run", str(tmp_path / "run" / "scenario.toml"), "--out", str(tmp_path / "again")]) == 0
    end = " ".join(capsys.readouterr().out.partition("finished after")[2].split())
    assert f"simulated; against {ADVERSARIES[adversary]})" in end


def test_the_ledger_of_one_antenna_says_so(tmp_path):
    execute(make_scenario(**{"link.antennas": 1, "link.adversary": "combined"}), tmp_path / "run")
    header = Ledger.load(tmp_path / "run" / "ledger.jsonl").header
    assert (header["antennas"], header["adversary"]) == (1, "all_antennas")  # there is nothing to combine


@pytest.mark.parametrize(("name", "value"), [("adversary", "both"), ("antennas", 0), ("antennas", 2.5)])
def test_a_first_line_that_no_ledger_has_is_refused(tmp_path, name, value):
    execute(make_scenario(), tmp_path / "run")
    header = Ledger.load(tmp_path / "run" / "ledger.jsonl").header
    Ledger.create(tmp_path / "other.jsonl", header | {name: value})
    with pytest.raises(LedgerError):
        Ledger.load(tmp_path / "other.jsonl")


def forged(path, change):
    """Rewrite the plan and the first line of the ledger: a hash chain does not prevent that."""
    plan = json.loads((path / "plan.json").read_text())
    change(plan)
    (path / "plan.json").write_text(json.dumps(plan))
    manifest = json.loads((path / "run.json").read_text())
    manifest["plan_sha256"] = sha256((path / "plan.json").read_bytes())
    (path / "run.json").write_text(json.dumps(manifest))
    file = path / "ledger.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    header = Ledger.load(file).header
    file.unlink()
    header |= {
        "plan_sha256": manifest["plan_sha256"],
        "run_sha256": sha256((path / "run.json").read_bytes()),
        "mu_round": plan["mu_round"],
        "adversary": plan["adversary"],
    }
    ledger = Ledger.create(file, header)
    for line in lines:
        if line["kind"] == "charge":
            figures = {"devices": line["devices"], "alignment": line["alignment"], "mu": line["mu"]}
            ledger.charge(line["round"], power=line["power_planned"], **figures)
            ledger.mark_sent(line["round"])
            ledger.settle(line["round"], 0.1)
        elif line["kind"] == "model":
            ledger.name_model(line["sha256"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda plan: plan.update(adversary="combined"), "adversary"),
        (lambda plan: plan.update(antennas=8), "antennas"),
        (lambda plan: plan.update(beamforming="equal_gain"), "beamforming"),
        (
            lambda plan: plan.update(beamformer=[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
            "which the plan implies",
        ),
        (lambda plan: plan.update(beamformer=[[1.0, 0.0], [0.0, 0.0]]), "beamformer"),
        (lambda plan: plan.update(beamformer=[[1.0, 0.0, 2.0]] * 4), "beamformer"),
        (lambda plan: plan.pop("beamformer"), "beamformer"),
    ],
    ids=["adversary", "antennas", "beamforming", "beamformer", "short", "triples", "gone"],
)
def test_a_forged_plan_is_reported(tmp_path, change, sentence):
    execute(make_scenario(), tmp_path / "run")
    Run.open(tmp_path / "run").checked()
    forged(tmp_path / "run", change)
    with pytest.raises(ValueError, match=sentence):
        Run.open(tmp_path / "run").plan  # noqa: B018


def test_a_plan_that_is_edited_alone_breaks_the_ledger(tmp_path):
    execute(make_scenario(), tmp_path / "run")
    file = tmp_path / "run" / "plan.json"
    file.write_bytes(file.read_bytes().replace(b'"adversary": "all_antennas"', b'"adversary": "combined"'))
    with pytest.raises(LedgerError, match="was changed"):
        Run.open(tmp_path / "run").checked()


def test_other_channels_antennas_beamformers_or_adversaries_never_repeat_noise():
    def drawn(built, fleet=None):
        return setups.noise_source(built, signal_digests(built, fleet or problem.fleet)).draw(0, 100, 1.0)

    problem = make_scenario().problem()
    first, fleet = drawn(make_scenario()), problem.fleet
    channel = np.array(fleet.channel)
    channel[3, 1] *= 1 + 2.0**-52
    for other in ({"link.adversary": "combined"}, {"link.beamforming": "equal_gain"}, {"link.antennas": 2}):
        assert not np.any(first == drawn(make_scenario(**other)))
    assert not np.any(first == drawn(make_scenario(), type(fleet)(channel=channel, peak_power=1.0)))
    assert not np.any(first == drawn(make_scenario(), type(fleet)(gain=fleet.gain, peak_power=1.0)))
    # What a policy decides, the beamformer like K and θ, is in the digest of the sum.
    assert np.array_equal(first, drawn(make_scenario(**{"policy.name": "optimal"})))
    assert np.array_equal(first, drawn(make_scenario(), fleet.with_beamformer([1.0, 0.0, 0.0, 0.0])))


def test_a_changed_channel_is_not_resumed(tmp_path, monkeypatch, stop_after):
    execute(make_scenario(), tmp_path / "run", stop=stop_after(4))
    real = setups.signal_digests
    monkeypatch.setattr(setups, "signal_digests", lambda *given: real(*given) | {"channels": "others"})
    with pytest.raises(RunError, match=r"Cannot resume .*: the channels changed"):
        execute(make_scenario(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("part", range(8))
def test_noise_that_is_wrong_at_one_antenna_ends_the_round(part):
    noise = SecureNoise().draw(0, 8 * 2000, 0.3).reshape(8, 2000)
    _check_noise(noise, 0.3)
    for factor in (0.0, 0.5**0.5, 2.0):
        wrong = noise.copy()
        wrong[part] *= factor
        with pytest.raises(NoiseFault):
            _check_noise(wrong, 0.3)


def test_a_shared_ledger_does_not_mix_claims(tmp_path):
    shared = {
        "budget.scope": "total",
        "budget.shared_ledger": "spent.jsonl",
        "policy.rounds": 2,
        "budget.epsilon": 20.0,
    }

    def run(out, **changes):
        built = scenario.parse(
            make_scenario(**shared, **changes).model_dump(mode="json", exclude_none=True), folder=tmp_path
        )
        return execute(built, tmp_path / out)

    run("first", **{"budget.total_power": 0.01})
    with pytest.raises(LedgerError, match="holds against a server that keeps every antenna's signal"):
        run("second", **{"link.adversary": "combined"})
    (tmp_path / "spent.jsonl").unlink()
    run("third", **{"link.adversary": "combined", "budget.total_power": 0.01})
    assert run("fourth", **{"budget.total_power": 0.01}).status == "finished"  # a claim that holds against both
    assert Ledger.load(tmp_path / "spent.jsonl").header["adversary"] == "combined"
