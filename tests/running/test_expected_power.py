"""Expected power: the meter sees to it that the total is never exceeded, whatever devices transmit."""

import json
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from airfed import Budget, scenario
from airfed.cli import main
from airfed.privacy.ledger import BudgetExhausted, Ledger, LedgerError
from airfed.running import execution
from airfed.running.agreement import check_header, ledger_header
from airfed.running.books import LedgerBooks, RunBooks
from airfed.running.directory import RunDirectory
from airfed.running.execution import execute
from airfed.running.run import Run
from airfed.scenario.errors import ScenarioError

pytestmark = pytest.mark.usefixtures("no_flush")
TINY = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
HEADER = {"delta": 1e-3}
EXTRA = 9  # rounds that the plan has and the budget, at the worst, has not


def world(**changes):
    some = {"policy.name": "full", "policy.size": None, "policy.rounds": 6, "learning.total_steps": 40}
    # Power is what limits the plan, and the updates are shorter than the norm that they are clipped to.
    binding = {"budget.epsilon": 1e7, "budget.total_power": 1.0, "learning.clip_norm": 45.0, "link.noise_std": 0.03}
    return scenario.parse(TINY).override({**some, **binding, "budget.power": "expected", **changes})


@pytest.fixture
def _more_rounds(monkeypatch):
    """Plans have more rounds than their budget has at the worst, as a measured response may make them."""
    real = execution.prepare

    def prepare(asked, *, spent):
        setup = real(asked, spent=spent)
        assert setup.plan.binding == "total_power"
        return replace(setup, plan=replace(setup.plan, rounds=setup.plan.rounds + EXTRA))

    monkeypatch.setattr(execution, "prepare", prepare)


# -- the ledger


rounds = st.lists(
    st.tuples(
        st.floats(1e-3, 30.0),  # the worst case of the round [W]
        st.one_of(st.just(1.0), st.floats(0.0, 1.0)),  # the share of it that is transmitted
        st.sampled_from(["settled", "lost", "again"]),  # lost: the process died before it was written down
    ),
    min_size=1,
    max_size=30,
)


@given(rounds=rounds, total=st.floats(1.0, 100.0))
def test_the_total_is_never_exceeded_and_no_round_that_fits_is_refused(rounds, total):
    budget = Budget(epsilon=1e6, delta=1e-3, total_power=total, power="expected")
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", HEADER)
        transmitted, least = 0.0, 0.0  # really, and what somebody must count who knows only the settled rounds
        for index, (worst, share, fate) in enumerate(rounds):
            for attempt in range(2 if fate == "again" else 1):
                try:
                    ledger.charge(index, devices=1, alignment=1.0, mu=1e-3, power=worst, within=budget)
                except BudgetExhausted:
                    assert least + worst > total * (1 - 1e-9)
                    continue
                transmitted += share * worst
                if fate == "settled" or attempt:
                    ledger.settle(index, share * worst)
                    least += share * worst
                else:
                    least += worst
                assert transmitted <= ledger.power_counted * (1 + 1e-12) <= total * (1 + 1e-9)
                assert ledger.power_counted == pytest.approx(least, rel=1e-9, abs=1e-300)
        assert Ledger.load(ledger.path).power_counted == ledger.power_counted


@given(powers=st.lists(st.floats(1e-3, 30.0), min_size=1, max_size=30), total=st.floats(1.0, 100.0))
def test_where_everything_is_clipped_expected_power_is_the_worst_case(powers, total):
    sent = {}
    for power in ("worst", "expected"):
        budget = Budget(epsilon=1e6, delta=1e-3, total_power=total, power=power)
        with tempfile.TemporaryDirectory() as folder:
            ledger, sent[power] = Ledger.create(Path(folder) / "ledger.jsonl", HEADER), []
            for index, worst in enumerate(powers):
                try:
                    ledger.charge(index, devices=1, alignment=1.0, mu=1e-3, power=worst, within=budget)
                except BudgetExhausted:
                    continue
                ledger.settle(index, worst)
                sent[power].append(index)
    assert sent["worst"] == sent["expected"]


# -- a run


@pytest.mark.usefixtures("_more_rounds")
@pytest.mark.parametrize("average", ["none", "exponential"])
def test_a_run_goes_on_while_the_meter_leaves_room_and_ends_with_its_model(tmp_path, average):
    changes = {"policy.average": average}
    worst = execute(world(**changes, **{"budget.power": "worst"}), tmp_path / "worst")
    assert (worst.status, len(worst.records)) == ("exhausted", 6)
    outcome, out = execute(world(**changes), tmp_path / "run"), tmp_path / "run"
    assert outcome.status == "exhausted"
    assert 6 < len(outcome.records) < 6 + EXTRA
    assert "by the meter and the next round may need" in outcome.message
    run = Run.open(out).checked()
    metered, total = run.ledger.power_metered, run.scenario.budget.total_power
    assert metered <= total < run.ledger.power_planned
    assert metered + run.ledger.charges[-1].power_planned > total  # one more might have been too much
    assert run.ledger.header["power"] == "expected"
    assert run.finished
    assert RunDirectory(out).latest().round_index == len(outcome.records)
    # The very model that a run of just so many rounds would hold.
    books = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunBooks, "conclude", lambda self, *, finished: books.append(self))
        execute(world(**changes), out, resume=True)
    (book,) = books
    assert load_file(out / "model.safetensors")["parameters"].tobytes() == book.averages.model(average).tobytes()


@pytest.mark.usefixtures("_more_rounds")
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_a_run_that_is_stopped_anywhere_counts_the_same(tmp_path, source):
    built = world(**{"link.noise_source": source, "run.checkpoint_every": 1 if source == "secure" else 4})
    whole = execute(built, tmp_path / "whole")
    names = ("metrics.jsonl", "ledger.jsonl", "model.safetensors")
    for questions in range(0, 12, 2):
        out, asked = tmp_path / f"run-{questions}", iter([False] * questions + [True] * 100)
        stopped = execute(built, out, stop=lambda asked=asked: next(asked))
        again = execute(built, out, resume=True)
        assert (stopped.status, again.status) == ("stopped", "exhausted")
        assert Run.open(out).checked().ledger.power_counted <= built.budget.total_power
        if source == "seeded":
            assert [(out / name).read_bytes() for name in names] == [
                (tmp_path / "whole" / name).read_bytes() for name in names
            ]
        before = [(out / name).read_bytes() for name in names]
        assert execute(built, out, resume=True).message == again.message
        assert [(out / name).read_bytes() for name in names] == before
    assert whole.status == "exhausted"


@pytest.mark.usefixtures("_more_rounds")
@pytest.mark.parametrize("dies", ["append_metrics", "save"])  # after the round is settled; after it is recorded
def test_a_run_that_is_killed_in_any_round_counts_the_same(tmp_path, monkeypatch, dies):
    built = world(**{"run.checkpoint_every": 2})
    rounds = len(execute(built, tmp_path / "whole").records)
    names, real = ("metrics.jsonl", "ledger.jsonl", "model.safetensors"), getattr(RunDirectory, dies)
    for last in range(1, rounds + 1 if dies == "append_metrics" else rounds // 2 + 1):
        calls, out = [], tmp_path / f"run-{last}"

        def die(self, written, calls=calls, last=last):
            calls.append(written)
            if len(calls) == last:
                raise KeyboardInterrupt
            real(self, written)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, dies, die)
            with pytest.raises(KeyboardInterrupt):
                execute(built, out)
        assert execute(built, out, resume=True).status == "exhausted"
        for name in names:
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.usefixtures("_more_rounds")
def test_a_round_that_was_sent_and_not_settled_counts_at_its_worst_beside_its_repetition(tmp_path, monkeypatch):
    built, real = world(**{"link.noise_source": "secure"}), Ledger.settle

    def settle(self, index, power, **more):
        if index == 2:
            raise KeyboardInterrupt
        real(self, index, power, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", settle)
        with pytest.raises(KeyboardInterrupt):
            execute(built, tmp_path / "run")
    outcome = execute(built, tmp_path / "run", resume=True)
    assert outcome.status == "exhausted"
    ledger = Run.open(tmp_path / "run").checked().ledger
    twice = [charge for charge in ledger.charges if charge.round_index == 2]
    assert [charge.power_metered is None for charge in twice] == [True, False]
    metered = sum(charge.power_metered or 0.0 for charge in ledger.charges)
    assert ledger.power_counted == pytest.approx(metered + twice[0].power_planned)
    assert ledger.power_counted <= built.budget.total_power


def test_a_changed_figure_of_the_meter_is_seen(tmp_path):
    execute(world(), tmp_path / "run")
    file = tmp_path / "run" / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if '"settle"' in line)
    entry = json.loads(lines[place])
    lines[place] = json.dumps({**entry, "power_metered": entry["power_metered"] / 2}) + "\n"
    file.write_text("".join(lines))
    with pytest.raises(LedgerError):
        Ledger.load(file)
    with pytest.raises(LedgerError):
        execute(world(), tmp_path / "run", resume=True)
    with pytest.raises(LedgerError):
        Run.open(tmp_path / "run").checked()


def test_a_private_record_cannot_keep_to_expected_power():
    for order in ({"run.record": "private"}, {"budget.power": "worst", "run.record": "private"}):
        if "budget.power" in order:
            assert world(**order).run.record == "private"
        else:
            with pytest.raises(ScenarioError, match=r'Expected run\.record = "full" with budget\.power = "expected"'):
                world(**order)


# -- which of the two a ledger counts


@pytest.mark.parametrize("planned", ["worst", "expected"])
def test_a_ledger_that_does_not_say_counts_the_worst_case(tmp_path, planned):
    plan = world(**{"budget.power": planned}).plan()
    header = ledger_header(plan, scenario="", privacy="secure")
    assert header.pop("power") == planned
    ledger = Ledger.create(tmp_path / "ledger.jsonl", header)
    if planned == "worst":
        check_header(ledger, plan, "secure")
        LedgerBooks(ledger.path, plan)
    else:
        with pytest.raises(LedgerError, match="its power is not that of the plan"):
            check_header(ledger, plan, "secure")
        with pytest.raises(LedgerError, match="not that of this run"):
            LedgerBooks(ledger.path, plan)


def test_a_ledger_of_an_unknown_power_is_refused(tmp_path):
    Ledger.create(tmp_path / "ledger.jsonl", {**HEADER, "power": "hoped"})
    with pytest.raises(LedgerError):
        Ledger.load(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("power", ["worst", "expected"])
def test_the_commands_name_each_power(tmp_path, capsys, power):
    (tmp_path / "world.toml").write_text(world(**{"budget.power": power}).to_toml())
    run = str(tmp_path / "run")
    assert main(["run", str(tmp_path / "world.toml"), "--out", run]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "W transmitted, 1 W planned (worst case)" in said
    assert ("the meter sees to the total" in said) == (power == "expected")
    assert main(["ledger", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["power"] == power
    assert found["power_counted"] == found["power_metered" if power == "expected" else "power_planned"]
    assert main(["ledger", run]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("W counted (as metered, else worst case)" in said) == (power == "expected")
    assert main(["report", run, "--out", str(tmp_path / "report.html")]) == 0
    assert ("Expected of all rounds" in (tmp_path / "report.html").read_text()) == (power == "expected")
