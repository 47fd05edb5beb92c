"""Batteries of devices, and the recorder of a run that charges some devices of its fleet."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from airfed.aircomp import Superposition
from airfed.audit.audit import _all_counted, record_checks
from airfed.audit.subject import Subject
from airfed.cli import main
from airfed.privacy.ledger import BudgetExhausted, Ledger, LedgerError, ParticipationMask
from airfed.problem import Budget
from airfed.training import charging
from airfed.training.charging import Batteries, LedgerRecorder
from airfed.training.directory import RunDirectory
from airfed.training.execution import execute, prepare
from airfed.training.recorder import RunRecorder
from airfed.training.run import Run

HEADER = {"scenario": "x", "delta": 1e-5, "unit": "device"}
SMALL = {"policy__name": "uniform", "policy__size": 3}  # three of six devices


def varying(rng, *, devices=7, rounds=9, **budget):
    """Return the entries of a plan whose rounds have different devices and powers."""
    sequence = []
    for index in range(rounds):
        scheduled = np.flatnonzero(rng.random(devices) < 0.5)
        scheduled = scheduled if scheduled.size else np.array([index % devices])
        sequence.append(
            SimpleNamespace(
                scheduled=scheduled, power=rng.exponential(size=scheduled.size), alignment=rng.uniform(0.1, 1), mu=0.1
            )
        )
    limits = Budget(epsilon=1.0, delta=1e-5, total_power=1e9, **budget)
    problem = SimpleNamespace(budget=limits, fleet=SimpleNamespace(num_devices=devices))
    return SimpleNamespace(problem=problem, sequence=sequence, rounds=rounds)


def put(ledger, plan, index):
    entry = plan.sequence[index]
    mask = ParticipationMask.of(entry.scheduled, plan.problem.fleet.num_devices)
    figures = {"alignment": entry.alignment, "mu": entry.mu, "power": float(np.sum(entry.power))}
    ledger.charge(index, devices=mask.count, mask=mask, **figures)


@pytest.mark.parametrize("seed", range(5))
def test_a_device_spends_its_planned_power_in_every_charge_of_its_rounds(tmp_path, seed):
    rng = np.random.default_rng(seed)
    plan, ledger = varying(rng, device_power=50.0), Ledger.create(tmp_path / "l", HEADER)
    batteries, asked, expected = Batteries(plan, ledger), [], np.zeros(7)
    real = plan.sequence

    class Counting:
        def __getitem__(self, index):
            asked.append(index)
            return real[index]

    for index in rng.integers(0, 9, 20).tolist():  # some of them again
        plan.sequence = real
        put(ledger, plan, index)
        plan.sequence = Counting()
        for device, watts in zip(real[index].scheduled, real[index].power, strict=True):
            expected[device] += watts
        if rng.random() < 0.5:
            np.testing.assert_allclose(batteries.spent, expected, rtol=1e-13)
    np.testing.assert_allclose(batteries.spent, expected, rtol=1e-13)
    np.testing.assert_allclose(batteries.used, expected / 50.0, rtol=1e-13)
    assert len(asked) == 20  # each charge is added once, however often it is asked
    plan.sequence = real
    np.testing.assert_array_equal(Batteries(plan, Ledger.load(tmp_path / "l")).spent, batteries.spent)


@pytest.mark.parametrize("seed", range(5))
def test_no_battery_is_exceeded_and_inactive_devices_need_none(tmp_path, seed):
    rng = np.random.default_rng(seed)
    capacity = rng.uniform(1.0, 4.0, 7)
    plan, ledger = varying(rng, device_power=tuple(capacity)), Ledger.create(tmp_path / "l", HEADER)
    batteries, spent, stopped = Batteries(plan, ledger), np.zeros(7), 0
    for index in [*range(9)] * 2:
        entry = plan.sequence[index]
        after = spent.copy()
        after[entry.scheduled] += entry.power
        if np.any(after > capacity):
            stopped += 1
            device = next(device for device in entry.scheduled if after[device] > capacity[device])
            left, needed = capacity[device] - spent[device], after[device] - spent[device]
            with pytest.raises(BudgetExhausted) as error:
                batteries.check(index)
            assert f"battery of device {device}" in str(error.value)
            assert f"{left:.4g} W of {capacity[device]:.4g} W are left" in str(error.value)
            assert f"needs {needed:.4g} W. Raise budget.device_power" in str(error.value)
        else:
            batteries.check(index)
            put(ledger, plan, index)
            spent = after
    assert stopped
    assert np.all(batteries.spent <= capacity)


def test_a_battery_that_the_plan_empties_exactly_lasts(tmp_path):
    plan, ledger = varying(np.random.default_rng(1), device_power=1.0), Ledger.create(tmp_path / "l", HEADER)
    for entry in plan.sequence:
        entry.scheduled, entry.power = np.array([2]), np.array([1 / 9])
    batteries = Batteries(plan, ledger)
    for index in range(9):
        batteries.check(index)
        put(ledger, plan, index)
    assert batteries.used[2] == pytest.approx(1.0, rel=1e-14)
    with pytest.raises(BudgetExhausted, match=r"device 2 does not suffice for round 1: .* of 1 W are left"):
        batteries.check(0)


def test_without_batteries_nothing_is_checked_and_a_constant_plan_has_them_too(make_scenario, tmp_path):
    outcome = execute(make_scenario(**SMALL), tmp_path / "run")
    plan, ledger = outcome.setup.plan, Run.open(tmp_path / "run").checked().ledger
    batteries = Batteries(plan, ledger)
    assert batteries.capacity is None
    assert batteries.used is None
    batteries.check(0)
    expected = np.zeros(6)
    expected[plan.scheduled] = plan.sequence.device_power(plan.rounds)
    np.testing.assert_allclose(batteries.spent, expected, rtol=1e-13)


def test_charges_of_another_plan_are_not_counted_as_if_they_were_of_this_one(tmp_path):
    plan, ledger = varying(np.random.default_rng(1), device_power=100.0), Ledger.create(tmp_path / "l", HEADER)
    put(ledger, plan, 8)
    plan.rounds = 8
    with pytest.raises(LedgerError, match="round 9 belongs to another plan"):
        Batteries(plan, ledger).check(0)
    plan.rounds, plan.sequence[8].alignment = 9, 7.0
    with pytest.raises(LedgerError, match="round 9 belongs to another plan"):
        Batteries(plan, ledger).check(0)


@pytest.mark.parametrize("what", ["mask", "power"])
def test_charges_of_other_devices_or_powers_are_of_another_plan(tmp_path, what):
    plan, ledger = varying(np.random.default_rng(1), device_power=100.0), Ledger.create(tmp_path / "l", HEADER)
    put(ledger, plan, 3)
    entry = plan.sequence[3]
    if what == "power":
        entry.power = 2 * entry.power
    else:
        inactive = np.setdiff1d(np.arange(7), entry.scheduled)
        entry.scheduled = np.sort(np.append(entry.scheduled[1:], inactive[0]))
    with pytest.raises(LedgerError, match="round 4 belongs to another plan"):
        Batteries(plan, ledger).check(0)


# The recorder: a run with three of six devices, charged one by one as if rounds differed.


@pytest.fixture
def some_devices(monkeypatch):
    """Make the recorder charge the scheduled devices only."""

    def mask(plan, index):
        return ParticipationMask.of(plan.sequence[index].scheduled, plan.problem.fleet.num_devices)

    monkeypatch.setattr(charging, "participation_mask", mask)


def test_the_recorder_charges_the_devices_that_transmit(make_scenario, tmp_path, some_devices):
    changes = SMALL | {"budget__shared_ledger": str(tmp_path / "shared_ledger")}
    outcome = execute(make_scenario(**changes), tmp_path / "run")
    assert outcome.status == "finished"
    plan, run = outcome.setup.plan, Run.open(tmp_path / "run").checked()
    for ledger in (run.ledger, Ledger.load(tmp_path / "shared_ledger")):
        assert [charge.mask.devices.tolist() for charge in ledger.charges] == [plan.scheduled.tolist()] * 8
        assert set(np.flatnonzero(ledger.device_mus())) == set(plan.scheduled)
        assert plan.mu_total <= ledger.mu_total <= plan.mu_total * (1 + 1e-15)
        assert ledger.epsilon_total <= 3.0


def test_devices_of_another_run_do_not_stop_devices_that_have_spent_nothing(make_scenario, tmp_path, some_devices):
    """Two trainings of three devices each on one shared ledger: ε is that of a device, not of both."""
    shared_ledger = {"budget__shared_ledger": str(tmp_path / "shared_ledger"), "budget__epsilon": 6.0, **SMALL}
    first = execute(make_scenario(**shared_ledger), tmp_path / "one")
    assert first.status == "finished"
    ledger = Ledger.load(tmp_path / "shared_ledger")
    others = np.setdiff1d(np.arange(6), first.setup.plan.scheduled)
    mu = ledger.mu_total
    ledger.check_total(6.0, mu=mu, mask=ParticipationMask.of(others, 6))
    with pytest.raises(BudgetExhausted):
        ledger.check_total(6.0, mu=mu, mask=ParticipationMask.of(first.setup.plan.scheduled[:1], 6))


def test_the_run_stops_when_a_battery_is_empty(make_scenario, tmp_path, some_devices, monkeypatch):
    plan = prepare(make_scenario(**SMALL)).plan
    capacity = np.full(6, 1e9)
    capacity[plan.scheduled[1]] = plan.sequence.device_power(5)[1] * (1 + 1e-9)
    monkeypatch.setattr(Batteries, "capacity", property(lambda self: capacity))
    outcome = execute(make_scenario(**SMALL), tmp_path / "run")
    assert (outcome.status, len(outcome.records)) == ("exhausted", 5)
    assert f"The battery of device {plan.scheduled[1]} does not suffice for round 6" in outcome.message
    assert Run.open(tmp_path / "run").checked().ledger.rounds == 5


@pytest.mark.parametrize("source", ["secure", "seeded"])
def test_half_a_line_is_charged_to_all_devices(make_scenario, tmp_path, some_devices, source):
    scenario = make_scenario(link__noise_source=source, budget__scope="round", **SMALL)
    asked = iter([False] * 4 + [True] * 100)
    execute(scenario, tmp_path / "run", stop=lambda: next(asked))
    file = tmp_path / "run/ledger.jsonl"
    before = Ledger.load(file).rounds
    with file.open("ab") as stream:
        stream.write(b'{"alignment": 0.')
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    ledger = Run.open(tmp_path / "run").checked().ledger
    assert 0 < before < 8
    full = [charge.round_index for charge in ledger.charges if charge.mask is None]
    assert full == ([] if source == "seeded" else [before])  # its devices are unknown
    assert (ledger.device_mus() > 0).all() == (source == "secure")


@pytest.mark.parametrize("change", ["another", "fewer", "more"])
def test_a_run_that_charges_others_than_the_plan_schedules_is_refused(make_scenario, tmp_path, monkeypatch, change):
    plan = prepare(make_scenario(**SMALL)).plan
    inactive = np.setdiff1d(np.arange(6), plan.scheduled)[:1]
    charged = {
        "another": np.append(plan.scheduled[1:], inactive),
        "fewer": plan.scheduled[1:],
        "more": np.append(plan.scheduled, inactive),
    }[change]
    real = Ledger.charge

    def charge(self, *arguments, devices, mask, **figures):
        return real(self, *arguments, devices=charged.size, mask=ParticipationMask.of(charged, 6), **figures)

    monkeypatch.setattr(Ledger, "charge", charge)
    execute(make_scenario(**SMALL), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    with pytest.raises(LedgerError, match="round 1 is charged to other devices than the plan schedules"):
        run.checked()
    checks = record_checks(Subject.of(make_scenario(**SMALL)), run)
    assert [check.name for check in checks if not check.passed] == ["ledger"]
    counted = _all_counted(Ledger.load(tmp_path / "run/ledger.jsonl"), plan)
    assert counted == (change == "more")  # too much is no danger to privacy


def test_a_repeated_secure_round_is_charged_again_to_its_devices_alone(
    make_scenario, tmp_path, some_devices, monkeypatch
):
    class Broken(Exception):
        pass

    scenario = make_scenario(link__noise_source="secure", budget__scope="round", **SMALL)
    real, received = Superposition.receive, []

    def receive(self, noise):
        received.append(noise)
        if len(received) == 4:
            raise Broken
        return real(self, noise)

    monkeypatch.setattr(Superposition, "receive", receive)
    with pytest.raises(Broken):
        execute(scenario, tmp_path / "run")
    outcome = execute(scenario, tmp_path / "run", resume=True)
    ledger, plan = Run.open(tmp_path / "run").checked().ledger, outcome.setup.plan
    assert ledger.rounds == 9
    assert ledger.device_mus()[plan.scheduled] == pytest.approx(plan.mu_round * 3.0)
    assert np.count_nonzero(ledger.device_mus()) == 3
    powers = np.zeros(6)
    powers[plan.scheduled] = 9 * plan.power
    np.testing.assert_allclose(Batteries(plan, ledger).spent, powers)


def test_the_devices_are_printed_within_80_columns_and_in_json(
    make_scenario, tmp_path, some_devices, monkeypatch, capsys
):
    plan = execute(make_scenario(**SMALL), tmp_path / "run").setup.plan
    capacity = np.linspace(5.0, 10.0, 6)
    monkeypatch.setenv("COLUMNS", "80")
    for batteries in (False, True):
        if batteries:
            monkeypatch.setattr(Batteries, "capacity", property(lambda self: capacity))
        assert main(["ledger", str(tmp_path / "run")]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert main(["ledger", str(tmp_path / "run"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        epsilon, battery = found["per_device"]["epsilon"], found["per_device"].get("battery")
        assert f"most exposed device ({plan.scheduled[0]}): ε = 3" in shown
        assert "never scheduled: 3 of 6 devices" in shown
        assert epsilon["never"] == 3
        assert (epsilon["minimum"], epsilon["median"]) == (0.0, 0.0)
        assert epsilon["p90"] == epsilon["maximum"] == found["epsilon_total"] == epsilon["each"][plan.scheduled[0]]
        assert np.count_nonzero(epsilon["each"]) == 3
        assert ("batteries used most, by device" in shown) == (battery is not None) == batteries
    used = np.zeros(6)
    used[plan.scheduled] = plan.sequence.device_power(8) / capacity[plan.scheduled]
    np.testing.assert_allclose(battery["each"], used)
    assert battery["maximum"] == max(battery["each"])
    assert [row["device"] for row in battery["emptiest"]] == np.argsort(-used, kind="stable")[:5].tolist()
    assert f"{battery['maximum']:.1%}" in shown


def test_many_devices_are_not_listed_one_by_one(tmp_path, capsys):
    header = HEADER | {
        "epsilon": 3.0,
        "scope": "total",
        "formula": "exact",
        "adjacency": "replace_one",
        "shared_ledger": True,
    }
    ledger, size = Ledger.create(tmp_path / "l", header), 100_000
    rng = np.random.default_rng(1)
    for index in range(5):
        mask = ParticipationMask.of(np.flatnonzero(rng.random(size) < 0.5), size)
        ledger.charge(index, devices=mask.count, alignment=0.1, mu=rng.uniform(), power=1.0, mask=mask, run="a")
    assert main(["ledger", str(tmp_path / "l"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["per_device"]["epsilon"]
    every = np.sort(ledger.device_epsilons())
    assert set(found) == {"never", "minimum", "median", "p90", "maximum", "most_exposed"}
    assert (found["median"], found["p90"]) == (every[size // 2 - 1], every[size * 9 // 10 - 1])
    assert found["never"] == np.count_nonzero(every == 0) > 0
    assert main(["ledger", str(tmp_path / "l")]) == 0
    assert "shared ledger" in capsys.readouterr().out


def test_a_run_of_one_set_of_devices_is_printed_as_before(make_scenario, tmp_path, capsys):
    execute(make_scenario(**SMALL), tmp_path / "run")
    assert main(["ledger", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "per_device" not in found
    assert len(found["devices"]) == 3


@pytest.mark.parametrize("kind", ["run", "bare"])
def test_half_a_line_costs_the_power_of_the_dearest_round_that_it_may_be_about(make_scenario, tmp_path, kind):
    """The round of largest μ may have few devices: neither the total nor a battery may be overstated by it."""
    scenario = make_scenario(
        link__noise_source="secure", budget__scope="round", channel__coherence_rounds=1, policy__name="optimal"
    )
    scenario = scenario.override({"budget.device_power": 1e6, "policy.size": None})
    setup = prepare(scenario)
    plan = setup.plan
    assert len(set(plan.sequence.powers.tolist())) > 1
    if kind == "run":
        asked = iter([False] * 4 + [True] * 100)
        execute(scenario, tmp_path / "run", stop=lambda: next(asked))
        file = tmp_path / "run/ledger.jsonl"
    else:
        file = tmp_path / "ledger"
        LedgerRecorder(file, plan)
    with file.open("ab") as stream:
        stream.write(b'{"alignment": 0.')
    if kind == "run":
        ledger = Ledger.load(file, repair=True)
        first = ledger.rounds
        recorder = RunRecorder(setup, RunDirectory(tmp_path / "run"), ledger)
        rounds = range(recorder.state.round_index, first + 1)
    else:
        recorder, rounds = LedgerRecorder(file, plan), range(plan.rounds)
    torn = recorder.ledger.charges[-1]
    assert torn.mask is None
    assert torn.mu == max(plan.sequence.mus[list(rounds)])
    assert torn.power_planned == max(plan.sequence.powers[list(rounds)])
    spent = np.zeros(plan.problem.fleet.num_devices)
    for charge in recorder.ledger.charges[:-1]:
        spent[charge.mask.devices] += plan.sequence[charge.round_index].power
    for each in rounds:
        entry = plan.sequence[each]
        assert np.all(recorder._batteries.spent[entry.scheduled] >= (spent[entry.scheduled] + entry.power) * 0.999999)
