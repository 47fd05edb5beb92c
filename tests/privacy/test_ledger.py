"""The ledger: totals, tampering, crashes, budgets."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed.aircomp import Superposition
from airfed.learning.quadratic import QuadraticEngine
from airfed.privacy import classic_epsilon, compose, gaussian_epsilon
from airfed.privacy.gaussian import root_up
from airfed.privacy.ledger import BudgetExhausted, Ledger, LedgerError
from airfed.problem import Budget
from airfed.training import execution
from airfed.training.directory import RunDirectory, RunError
from airfed.training.execution import execute
from airfed.training.formats import METRICS, UNNOISED
from airfed.training.run import Run


def verified(path):
    """The ledger of a valid run."""
    return Run.open(path).checked().ledger


HEADER = {"scenario": "x", "delta": 1e-5, "unit": "device"}


def filled(path, mus=(0.3,) * 6):
    ledger = Ledger.create(path, HEADER)
    for index, mu in enumerate(mus):
        ledger.charge(index, devices=4, alignment=mu, mu=mu, power=1.5)
        ledger.settle(index, 1.0 + index)
    return ledger


def test_totals_are_those_of_the_plan_to_the_last_bit(tmp_path):
    for rounds in (1, 2, 7, 100):
        path = tmp_path / f"{rounds}.jsonl"
        ledger = filled(path, (0.123456789,) * rounds)
        assert ledger.mu_total == compose(0.123456789, rounds)
        assert ledger.epsilon_total == gaussian_epsilon(compose(0.123456789, rounds), 1e-5)
        assert Ledger.load(path).charges == ledger.charges


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_the_total_is_never_below_the_root_of_the_sum_of_squares(mus):
    exact = sum((Fraction(mu) ** 2 for mu in mus), Fraction(0))
    total = root_up(exact)
    assert Fraction(total) ** 2 >= exact
    assert Fraction(math.nextafter(total, 0)) ** 2 < exact


def test_every_line_contains_round_devices_theta_mu_power_and_both_epsilons(tmp_path):
    filled(tmp_path / "l")
    opened, charge, settle, *_ = map(json.loads, (tmp_path / "l").read_text().splitlines())
    assert opened["kind"] == "open"
    assert opened["unit"] == "device"
    names = "round attempt devices alignment mu power_planned epsilon_round mu_total epsilon_total hash kind"
    assert set(charge) == set(names.split())
    assert settle["power_metered"] == 1.0


# Removing the last line is for the checkpoint to notice, and it has no successor to be swapped with.
@pytest.mark.parametrize(
    ("number", "how"),
    [
        (number, how)
        for number in range(13)
        for how in ("edit", "remove", "swap", "repeat", "space", "blank")
        if number < 12 or how not in ("remove", "swap")
    ],
)
def test_any_edit_is_detected(tmp_path, number, how):
    path = tmp_path / "ledger.jsonl"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 13
    if how == "edit":
        entry = json.loads(lines[number])
        name = "mu" if "mu" in entry else "power_metered" if "power_metered" in entry else "delta"
        lines[number] = json.dumps({**entry, name: entry[name] / 2}, sort_keys=True).encode() + b"\n"
    elif how == "remove":
        del lines[number]
    elif how == "swap":
        lines[number : number + 2] = lines[number + 1], lines[number]
    elif how == "repeat":
        lines.insert(number, lines[number])
    elif how == "space":
        lines[number] = lines[number].replace(b": ", b":  ", 1)
    else:
        lines.insert(number, b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match="line"):
        Ledger.load(path)


def test_a_forged_chain_with_a_wrong_total_is_detected(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, HEADER)
    good = ledger.charge(0, devices=4, alignment=0.3, mu=0.3, power=1.0)
    with path.open("ab") as stream:  # a total that is the round's own: the hash is right, the sum is not
        names = ("devices", "alignment", "mu", "power_planned", "epsilon_round")
        entry = {"kind": "charge", "round": 1, "attempt": 0, **{name: getattr(good, name) for name in names}}
        ledger._append(stream, {**entry, "mu_total": good.mu_total, "epsilon_total": good.epsilon_total})
    with pytest.raises(LedgerError, match="mu_total of line 3 does not follow"):
        Ledger.load(path)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"nonsense\n", b"\xff\xfe\n", b'{"kind": "open"}\n'])
def test_a_file_that_is_no_ledger_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger.load(path)
    with pytest.raises(LedgerError, match="There is no ledger"):
        Ledger.load(tmp_path / "missing")


def test_a_half_written_line_is_repaired_on_resume_only(tmp_path):
    path = tmp_path / "ledger.jsonl"
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "charge", "rou')
    with pytest.raises(LedgerError, match="half-written"):
        Ledger.load(path)
    resumed = Ledger.resume(path, HEADER)
    assert resumed.rounds == 6
    assert resumed.torn
    resumed.charge(6, devices=4, alignment=0.3, mu=0.3, power=1.5)  # takes the place of the half line
    assert path.read_bytes().startswith(whole + b'{"alignment"')
    assert Ledger.load(path).rounds == 7
    with pytest.raises(LedgerError, match="belongs to another plan"):
        Ledger.resume(path, {**HEADER, "delta": 1e-3})
    path.write_bytes(b'{"kind": "op')  # the first line is written whole or not at all: this is damage
    with pytest.raises(LedgerError, match="the ledger is empty"):
        Ledger.resume(path, HEADER)


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_flushed_charge_counts_with_or_without_its_newline(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, HEADER)
    ledger.charge(0, devices=4, alignment=0.3, mu=0.3, power=1.5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Ledger.load(path, repair=True)
    assert (again.rounds, again.torn) == ((1, False) if cut == 1 else (0, True))
    if cut == 1:
        again.charge(1, devices=4, alignment=0.3, mu=0.3, power=1.5)
        assert Ledger.load(path).rounds == 2
    else:
        again.charge(0, devices=4, alignment=0.3, mu=0.3, power=1.5)
        assert path.read_bytes() == whole


def test_a_torn_line_that_is_longer_than_the_next_leaves_nothing_behind(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 5000)
    again = Ledger.load(path, repair=True)
    again.charge(6, devices=4, alignment=0.3, mu=0.3, power=1.5)
    assert Ledger.load(path).rounds == ledger.rounds + 1


def test_two_processes_on_one_ledger_share_one_budget(tmp_path):
    path = tmp_path / "ledger.jsonl"
    budget = Budget(epsilon=2.0, delta=1e-5, total_power=1e9, scope="total")
    one, two = Ledger.create(path, HEADER), Ledger.load(path)

    def spend():
        for index in itertools.count():
            for ledger in (one, two):
                ledger.charge(index, devices=4, alignment=0.1, mu=0.1, power=1.0, within=budget)

    with pytest.raises(BudgetExhausted, match="privacy budget is spent"):
        spend()
    found = Ledger.load(path)
    assert found.rounds == max(one.rounds, two.rounds)
    assert found.epsilon_total <= 2.0
    with pytest.raises(BudgetExhausted):
        Ledger.load(path).charge(0, devices=4, alignment=0.1, mu=0.1, power=1.0, within=budget)


@pytest.mark.parametrize("how", ["gone", "cut", "replaced"])
def test_a_ledger_that_changes_under_a_training_is_detected_before_the_next_charge(tmp_path, how):
    path = tmp_path / "ledger.jsonl"
    ledger = filled(path)
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    else:
        path.unlink()
        Ledger.create(path, {**HEADER, "unit": "another"})
    with pytest.raises(LedgerError, match="while a training charges it"):
        ledger.charge(6, devices=4, alignment=0.3, mu=0.3, power=1.5)


def test_a_charge_records_whether_it_was_used(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, HEADER)
    for index in range(3):
        ledger.charge(index, devices=4, alignment=0.3, mu=0.3, power=1.5)
    ledger.mark_sent(0)
    ledger.mark_sent(1, "a digest")
    found = Ledger.load(path)
    assert [(charge.sent, charge.signal) for charge in found.charges] == [(True, ""), (True, "a digest"), (False, "")]
    with pytest.raises(LedgerError, match="was not charged"):
        ledger.mark_sent(3)
    again = found.charge(0, devices=4, alignment=0.3, mu=0.3, power=1.5)
    assert (again.attempt, again.sent) == (1, False)


HEADERS = [
    {"delta": 0.0},
    {"delta": "1e-5"},
    {"epsilon": "a"},
    {"epsilon": -1.0},
    {"total_power": 0.0},
    {"adjacency": "none"},
    {"privacy": "perfect"},
    {"spent": [1]},
    {"scope": None},
]


@pytest.mark.parametrize("change", HEADERS)
def test_a_header_that_no_ledger_was_opened_with_is_refused(tmp_path, change):
    Ledger.create(tmp_path / "l", {**HEADER, **change})
    with pytest.raises(LedgerError, match="line 1 is not a valid ledger line"):
        Ledger.load(tmp_path / "l")


def test_a_pipe_or_a_device_instead_of_a_ledger_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(LedgerError, match="is not a ledger"):
            Ledger.load(tmp_path / name)


def test_a_round_that_repeats_with_another_power_is_another_run(tmp_path):
    ledger = filled(tmp_path / "l")
    ledger.settle(2, 3.0)
    with pytest.raises(LedgerError, match="not the same run"):
        ledger.settle(2, 3.5)
    with pytest.raises(LedgerError, match="was not charged"):
        ledger.settle(99, 1.0)


def test_a_charge_is_on_the_disk_before_anything_is_transmitted(make_scenario, tmp_path, monkeypatch):
    events = []
    real = {"sync": os.fsync, "receive": Superposition.receive}

    def sync(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith("ledger.jsonl"):
            with open(name, "rb") as stream:
                events.append(("sync", sum(b'"charge"' in line for line in stream)))
        return real["sync"](descriptor)

    def receive(self, noise):
        events.append(("receive", None))
        return real["receive"](self, noise)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Superposition, "receive", receive)
    execute(make_scenario(), tmp_path / "run")
    transmitted = 0
    for position, (kind, _) in enumerate(events):
        if kind == "receive":
            transmitted += 1
            assert max(count for what, count in events[:position] if what == "sync") >= transmitted
    assert transmitted == 8


class Broken(Exception):
    """Raised by a device to end the whole process."""


@pytest.fixture
def break_at(monkeypatch):
    """Return a function that makes the engine raise in a round."""
    real = QuadraticEngine.updates

    def breaking(round_to_break):
        def updates(self, parameters, devices, *, steps, round_index):
            if round_index == round_to_break:
                raise Broken
            return real(self, parameters, devices, steps=steps, round_index=round_index)

        monkeypatch.setattr(QuadraticEngine, "updates", updates)

    return breaking


def test_a_failed_round_is_charged_and_a_seeded_replay_is_charged_once(make_scenario, tmp_path, break_at):
    break_at(5)
    with pytest.raises(Broken):
        execute(make_scenario(), tmp_path / "run")
    ledger = Ledger.load(tmp_path / "run/ledger.jsonl")
    assert [charge.round_index for charge in ledger.charges] == [0, 1, 2, 3, 4, 5]
    assert ledger.find(5).power_metered is None
    break_at(None)
    outcome = execute(make_scenario(), tmp_path / "run", resume=True)
    assert outcome.status == "finished"
    ledger = verified(tmp_path / "run")
    assert ledger.rounds == 8
    assert ledger.mu_total == outcome.setup.plan.mu_total

    whole = execute(make_scenario(), tmp_path / "whole")  # the record of a resumed run has the same bits
    assert outcome.records == whole.records
    assert (tmp_path / "run/ledger.jsonl").read_bytes() == (tmp_path / "whole/ledger.jsonl").read_bytes()


def test_rounds_since_the_last_checkpoint_are_recorded_as_they_were(make_scenario, tmp_path, break_at):
    scenario = make_scenario(run__checkpoint_every=4)
    break_at(7)
    with pytest.raises(Broken):
        execute(scenario, tmp_path / "run")
    break_at(None)
    resumed = execute(scenario, tmp_path / "run", resume=True)
    assert resumed.records == execute(scenario, tmp_path / "whole").records


def test_a_secure_round_that_failed_before_it_was_transmitted_is_charged_once(make_scenario, tmp_path, break_at):
    scenario = make_scenario(link__noise_source="secure")
    for _ in range(4):
        break_at(5)
        with pytest.raises(Broken):
            execute(scenario, tmp_path / "run", resume=(tmp_path / "run").exists())
    break_at(None)
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    assert verified(tmp_path / "run").rounds == 8


def test_a_secure_replay_is_charged_again_and_the_run_stops_by_itself(make_scenario, tmp_path, monkeypatch):
    scenario = make_scenario(link__noise_source="secure")
    received = []

    def receive(self, noise):
        received.append(noise)
        if len(received) == 6:
            raise Broken
        return real(self, noise)

    real = Superposition.receive
    with monkeypatch.context() as patch:
        patch.setattr(Superposition, "receive", receive)
        with pytest.raises(Broken):
            execute(scenario, tmp_path / "run")
    outcome = execute(scenario, tmp_path / "run", resume=True)
    # Eight rounds would spend the budget exactly; the one that broke has cost its share for nothing.
    assert outcome.status == "exhausted"
    assert "after 8 rounds" in outcome.message
    assert "epsilon" in outcome.message
    ledger = verified(tmp_path / "run")
    assert [(c.round_index, c.attempt) for c in ledger.charges if c.round_index == 5] == [(5, 0), (5, 1)]
    assert len(outcome.records) == 7
    assert ledger.epsilon_total <= 3.0


@pytest.mark.parametrize("limit", ["privacy", "power"])
def test_a_run_stops_before_it_exceeds_a_budget(make_scenario, tmp_path, monkeypatch, limit):
    scenario = make_scenario() if limit == "privacy" else make_scenario(budget__epsilon=1000.0, budget__total_power=2.0)
    real = execution.prepare

    def too_many_rounds(asked, *, spent):
        setup = real(asked, spent=spent)
        problem = replace(setup.plan.problem, learning=replace(setup.plan.problem.learning, total_steps=40))
        table = replace(setup.plan.amplitudes, level=np.full(setup.plan.rounds + 3, setup.plan.alignment))
        return replace(setup, plan=replace(setup.plan, problem=problem, amplitudes=table))

    monkeypatch.setattr(execution, "prepare", too_many_rounds)
    outcome = execute(scenario, tmp_path / "run")
    assert outcome.status == "exhausted"
    assert len(outcome.records) == 8
    assert ("total_power" if limit == "power" else "budget.epsilon") in outcome.message
    assert "left" in outcome.message or " of 3 " in outcome.message
    ledger = verified(tmp_path / "run")
    budget = scenario.budget
    assert ledger.power_planned <= budget.total_power * (1 + 1e-12)
    assert ledger.epsilon_total <= budget.epsilon


@pytest.mark.parametrize("formula", ["exact", "classic"])
def test_a_round_that_exceeds_the_budget_of_a_round_is_refused(tmp_path, formula):
    budget = Budget(epsilon=1.0, delta=1e-5, total_power=10.0, formula=formula)
    ledger = Ledger.create(tmp_path / "l", HEADER)
    ledger.check(budget, mu=0.2, power=1.0)
    with pytest.raises(BudgetExhausted, match="the budget is 1 a round"):
        ledger.check(budget, mu=0.3, power=1.0)
    assert classic_epsilon(0.3, 1e-5) > 1 < gaussian_epsilon(0.3, 1e-5)


def test_deleting_the_last_lines_is_detected_by_the_checkpoint(make_scenario, tmp_path):
    execute(make_scenario(), tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()  # which would give it away, too
    path = tmp_path / "run/ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    Ledger.load(path)  # the chain itself is whole
    with pytest.raises(LedgerError, match="are missing"):
        verified(tmp_path / "run")
    with pytest.raises(LedgerError, match="are missing"):
        execute(make_scenario(), tmp_path / "run", resume=True)


def test_a_deleted_ledger_is_detected(make_scenario, tmp_path):
    execute(make_scenario(run__checkpoint_every=100), tmp_path / "run")
    (tmp_path / "run/ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="There is no ledger"):
        verified(tmp_path / "run")
    for file in (tmp_path / "run/checkpoints").iterdir():
        file.unlink()
    with pytest.raises(LedgerError, match="There is no ledger"):
        execute(make_scenario(), tmp_path / "run", resume=True)


def test_metrics_and_ledger_must_agree(make_scenario, tmp_path):
    execute(make_scenario(), tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    records[4]["power_transmitted"] *= 0.5
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(LedgerError, match="power of round 5"):
        verified(tmp_path / "run")
    with pytest.raises(RunError):
        verified(tmp_path / "nothing")


def test_a_private_record_leaves_out_values_without_noise(make_scenario, tmp_path):
    full = execute(make_scenario(), tmp_path / "full")
    private = execute(make_scenario(run__record="private"), tmp_path / "private")
    for open_record, closed in zip(full.records, private.records, strict=True):
        assert set(open_record) == set(closed)
        for name in UNNOISED:
            assert closed[name] is None
        kept = set(closed) - set(UNNOISED)
        assert {name: closed[name] for name in kept} == {name: open_record[name] for name in kept}
    assert b"power_metered" not in (tmp_path / "private/ledger.jsonl").read_bytes()
    model = [RunDirectory(tmp_path / name).latest().parameters for name in ("full", "private")]
    assert np.array_equal(*model)


def test_released_fields_are_listed(make_scenario, tmp_path):
    """A new metric must be listed here: is it covered by the noise?"""
    released = {
        "round",
        "steps",
        "accuracy",
        "test_loss",
        "power_planned",
        "power_planned_total",
        "epsilon_round",
        "epsilon_total",
    }
    adaptive = {"clip_norm", "unclipped"}  # post-processing of the noisy indicators
    assert set(execute(make_scenario(), tmp_path / "run").records[0]) == released | set(UNNOISED)
    assert set(METRICS) == released | set(UNNOISED) | adaptive


KILLED = """
import os, signal, sys
from pathlib import Path
from airfed import scenario
from airfed.aircomp import Superposition
from airfed.training.execution import execute
real, count = Superposition.receive, [0]
def receive(self, noise):
    count[0] += 1
    if count[0] == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, noise)
Superposition.receive = receive
execute(scenario.load(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_a_kill_between_ledger_and_transmission_charges_the_round(make_scenario, tmp_path, source):
    scenario = make_scenario(link__noise_source=source)
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "s.toml", tmp_path / "run"], check=False)
    assert done.returncode == -signal.SIGKILL
    run = Run.open(tmp_path / "run").checked()
    assert len(run.rounds) == 3
    assert run.ledger.rounds == 4
    outcome = execute(scenario, tmp_path / "run", resume=True)
    again = verified(tmp_path / "run")
    assert (outcome.status, again.rounds) == (("finished", 8) if source == "seeded" else ("exhausted", 8))
    assert again.rounds >= len(outcome.records)
