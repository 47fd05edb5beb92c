"""The server's side, with ClientApps in this process: the training is that of `airfed run`, whatever devices do."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp
from safetensors.numpy import load_file

from airfed import flower
from airfed.aircomp import AirComp, Superposition
from airfed.flower import NoDeviceAvailable, OverTheAirFedAvg, messages
from airfed.privacy.ledger import BudgetExhausted, Ledger
from airfed.training.directory import RunDirectory, RunError
from airfed.training.execution import execute
from airfed.training.loop import Diverged
from airfed.training.run import Run
from airfed.training.state import Averages


class Nothing:
    """A recorder that keeps nothing; the noise of a round is always the same."""

    def charge(self, index):
        pass

    def send(self, index, signal):
        return ""

    def settle(self, done):
        pass


NODE = 100  # of device 0; the grid's node ids are not the devices' indices


def test_another_project_trains_as_airfed_run_does(own_training, start, own_app, make_grid, tmp_path):
    trained = start(make_grid(own_app, range(5)), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("average", ["tail", "exponential"])
def test_the_average_is_returned_and_evaluated_and_devices_go_on_with_the_model(
    setup, initial_arrays, own_app, make_grid, tmp_path, clock, average
):
    def train(plan, first=0, arrays=initial_arrays, rounds=None, **options):
        options |= {"aircomp": setup.aircomp, "noise": setup.noise, "wait_for_devices": 0.0, "clock": clock}
        strategy = OverTheAirFedAvg(plan, Nothing(), first_round=first, **options)
        seen = []
        grid = make_grid(own_app, range(5))
        result = strategy.start(
            grid, arrays, rounds, timeout=5.0, evaluate_fn=lambda _, found: seen.append(messages.flatten(found))
        )
        _, *sent = [batch[0] for batch in grid.sent if batch]  # the first only asks who is there
        sent = [messages.flatten(message.content["arrays"]) for message in sent]
        return strategy, messages.flatten(result.arrays), seen, sent

    plan = replace(setup.plan, average=average)
    _, _, models, sent = train(setup.plan)
    strategy, released, seen, sent_too = train(plan)
    expected = Averages(rounds=plan.rounds, names=(average,), latest=models[0].astype(np.float32))
    for model, evaluated in zip(models[1:], seen[1:], strict=True):
        expected = expected.after(model.astype(np.float32))
        np.testing.assert_array_equal(evaluated, expected.model(average))
    np.testing.assert_array_equal(released, seen[-1])
    np.testing.assert_array_equal(messages.flatten(strategy.released), released)
    assert not np.array_equal(released, models[-1])
    np.testing.assert_array_equal(sent, sent_too)
    # In two sittings: with what is left of the first one.
    first, _, _, _ = train(plan, rounds=2)
    going_on = {"first": 2, "arrays": messages.unflatten(first.averages.latest, initial_arrays)}
    _, again, _, _ = train(plan, **going_on, averages=first.averages)
    np.testing.assert_array_equal(again, released)
    with pytest.raises(ValueError, match="averages must be given with first_round=2"):
        train(plan, **going_on)
    with pytest.raises(ValueError, match="averages must be after 1 of 3 rounds, got 2 of 3"):
        train(plan, first=1, averages=first.averages)


def test_only_the_scheduled_are_sent_to_each_with_its_own_amplitude(setup, start, own_app, make_grid, tmp_path):
    grid = make_grid(own_app, range(5))
    start(grid, tmp_path / "ledger.jsonl")
    question, *rounds = [batch for batch in grid.sent if batch]
    assert len(question) == 5
    assert len(rounds) == setup.plan.rounds
    for index, batch in enumerate(rounds):
        amplitude = {m.metadata.dst_node_id - NODE: messages.RoundConfig.of(m).amplitude for m in batch}
        assert sorted(amplitude) == setup.plan.scheduled.tolist() == [0, 2, 3, 4]
        np.testing.assert_array_equal(
            [amplitude[k] for k in sorted(amplitude)], setup.aircomp.at(-1).transmit_amplitude
        )
        assert {messages.RoundConfig.of(m).local_steps for m in batch} == {setup.plan.local_steps[index]}


def test_a_device_that_cheats_is_clipped_by_the_server(setup, own_training, start, own_app, make_grid, tmp_path):
    signal = 1e6 * np.eye(12)[0]

    def too_strong(message, reply):
        return Message(RecordDict({"over-the-air": ArrayRecord({"signal": Array(signal)})}), reply_to=message)

    without = own_training(missing={(2, 2)})  # the last round: nothing else changes after it
    trained = start(make_grid(own_app, range(5), faults={(NODE + 2, 2): too_strong}), tmp_path / "ledger.jsonl")
    learning = setup.plan.problem.learning
    most = learning.learning_rate * learning.clip_norm / setup.plan.num_scheduled
    moved = trained - without
    assert abs(moved[0]) == pytest.approx(most, rel=1e-5)
    np.testing.assert_allclose(moved[1:], 0.0, atol=1e-6)


def test_a_device_that_is_absent_throughout_is_charged_and_counts_as_zero(
    own_training, start, own_app, make_grid, tmp_path, caplog
):
    trained = start(make_grid(own_app, [0, 2, 4]), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(missing={(3, i) for i in range(3)}), rtol=1e-5, atol=1e-6)
    assert [c.devices for c in Ledger.load(tmp_path / "ledger.jsonl").charges] == [4, 4, 4]


def test_a_contacted_device_without_a_reply_is_metered_at_maximum_power(setup, start, own_app, make_grid, tmp_path):
    def garbage(message, reply):
        return Message(
            RecordDict({"over-the-air": ArrayRecord({"signal": Array(np.full(12, np.nan))})}), reply_to=message
        )

    def metered(name, devices=range(5), **faults):
        start(make_grid(own_app, devices, **faults), tmp_path / name)
        return [charge.power_metered for charge in Ledger.load(tmp_path / name).charges]

    device = NODE + 3
    well, absent = metered("well"), metered("absent", [0, 2, 4])  # the latter is not contacted
    (worst,) = setup.plan.power[setup.plan.scheduled == 3]
    for name, fault in (("late", lambda message, reply: None), ("garbage", garbage)):
        not_received = metered(name, faults={(device, 0): fault})
        assert not_received[0] == pytest.approx(absent[0] + worst)
        assert well[0] < not_received[0] <= setup.plan.power.sum() * (1 + 1e-12)


def test_a_round_without_connected_devices_is_neither_charged_nor_sent(start, own_app, make_grid, tmp_path):
    for devices in ([], [1]):  # device 1 is not scheduled
        grid = make_grid(own_app, devices)
        with pytest.raises(NoDeviceAvailable, match="none of the 4 scheduled devices is connected; nothing was"):
            start(grid, tmp_path / "ledger.jsonl")
        assert Ledger.load(tmp_path / "ledger.jsonl").charges == []
        assert not any("round-index" in message.content["over-the-air"] for batch in grid.sent for message in batch)


def test_a_round_without_replies_ends_the_training(start, own_app, make_grid, tmp_path):
    faults = {(NODE + k, 1): lambda message, reply: None for k in range(5)}
    with pytest.raises(Diverged, match="no device sent a valid signal"):
        start(make_grid(own_app, range(5), faults=faults), tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("broken", ["question", "amplitude", "model"])
def test_a_failure_before_a_round_is_sent_is_not_charged(
    setup, start, initial_arrays, own_app, make_grid, tmp_path, broken, monkeypatch
):
    grid, aircomp = make_grid(own_app, range(5)), setup.aircomp.at(0)
    if broken == "question":
        monkeypatch.setattr(grid, "get_node_ids", lambda: 1 / 0)
    elif broken == "amplitude":  # an order that a device would refuse
        aircomp = replace(aircomp, transmit_amplitude=aircomp.transmit_amplitude * np.array([1.0, 1.0, 1.0, np.nan]))
        monkeypatch.setattr(AirComp, "at", lambda self, index: aircomp)
    else:
        initial_arrays["a"] = Array(np.full(5, np.nan))
    with pytest.raises((ValueError, ZeroDivisionError)):
        start(grid, tmp_path / "ledger.jsonl")
    assert Ledger.load(tmp_path / "ledger.jsonl").charges == []


def test_a_device_that_returns_with_another_id_is_received_in_the_next_round(
    start, own_training, own_app, make_grid, tmp_path
):
    grid = make_grid(own_app, range(5))

    def restart(message, reply):
        grid.nodes[900] = (own_app, {"partition-id": 2})  # while Flower still believes in the old one

    grid.faults[NODE + 2, 1] = restart
    trained = start(grid, tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(missing={(2, 1)}), rtol=1e-5, atol=1e-6)
    assert [message.metadata.dst_node_id for message in grid.sent[-1]] == [NODE, 900, NODE + 3, NODE + 4]


def test_nothing_is_sent_that_was_not_charged(start, own_app, make_grid):
    grid = make_grid(own_app, range(5))

    class Spent:
        def charge(self, index):
            if index == 1:
                raise BudgetExhausted("spent")

        def send(self, index, signal):
            return "once"

        def settle(self, done):
            assert done.index == 0

    with pytest.raises(BudgetExhausted):
        start(grid, Spent())
    assert len([batch for batch in grid.sent if batch]) == 2  # the question, and round 0


def test_a_resumed_ledger_includes_the_spent_budget(start, own_app, make_grid, tmp_path):
    path = tmp_path / "ledger.jsonl"
    start(make_grid(own_app, range(5)), path)
    start(make_grid(own_app, range(5)), path)
    charges = Ledger.load(path).charges
    assert [c.round_index for c in charges] == [0, 1, 2] * 2
    assert len({c.run for c in charges}) == 2  # each training is charged, and draws noise, under a name of its own
    with pytest.raises(ValueError, match="belongs to another plan"):
        start(make_grid(own_app, range(5)), path, noise=None)  # another source of noise


def test_two_strategies_on_one_ledger_share_one_budget(setup, own_app, make_grid, initial_arrays, clock, tmp_path):
    path, options = tmp_path / "ledger.jsonl", {"wait_for_devices": 0.0, "clock": clock}
    plan = replace(setup.plan, problem=replace(setup.plan.problem, budget=total_of(setup.plan)))
    one, two = (OverTheAirFedAvg(plan, path, aircomp=setup.aircomp, **options) for _ in range(2))
    one.start(make_grid(own_app, range(5)), initial_arrays, timeout=5.0)
    with pytest.raises(BudgetExhausted):
        two.start(make_grid(own_app, range(5)), initial_arrays, timeout=5.0)
    assert Ledger.load(path).rounds == plan.rounds


def total_of(plan):
    """A budget that the plan's rounds spend to the last bit."""
    return replace(plan.problem.budget, scope="total", formula="exact", epsilon=plan.epsilon_total * (1 + 1e-9))


def test_noise_is_drawn_once_a_round_at_the_server(setup, start, own_app, make_grid, tmp_path):
    class Counting:
        privacy, repeatable = "simulated", True
        drawn: list[int] = []  # noqa: RUF012

        def draw(self, round_index, dimension, noise_std, *, transmission=""):
            self.drawn.append(round_index)
            return setup.noise.draw(round_index, dimension, noise_std)

    start(make_grid(own_app, range(5)), tmp_path / "ledger.jsonl", noise=Counting())
    assert Counting.drawn == [0, 1, 2]


def test_the_plan_determines_the_rounds_and_the_size_of_the_model(setup, initial_arrays, own_app, make_grid, tmp_path):
    strategy = OverTheAirFedAvg(setup.plan, tmp_path / "ledger.jsonl")
    grid = make_grid(own_app, range(5))
    with pytest.raises(ValueError, match=r"num_rounds must be between 1 and 3, .* got 4"):
        strategy.start(grid, initial_arrays, num_rounds=4)
    with pytest.raises(ValueError, match="must have 12 numbers, the dimension of the plan, got 11"):
        strategy.start(grid, ArrayRecord([setup.task.initial_parameters[:11]]))
    assert strategy.configure_evaluate(1, ArrayRecord(), None, grid) == []
    assert grid.sent == []


class TestReadyApp:
    """`client_app` and `server_app` of a scenario file."""

    def run(self, scenario_file, grid, out, **config):
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config={"out": str(out), "wait-for-devices": 0.0, **config},
        )
        app: ServerApp = flower.server_app(scenario_file)
        app(grid, context)

    @pytest.mark.parametrize(
        "wrong",
        [{"resume": "false"}, {"round-timeout": "long"}, {"round-timeout": float("nan")}, {"wait-for-devices": -1.0}],
        ids=str,
    )
    def test_a_wrong_setting_is_named_before_anything_is_written(self, scenario_file, make_grid, tmp_path, wrong):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} in the run configuration must be "):
            self.run(scenario_file, make_grid(flower.client_app(scenario_file), range(5)), tmp_path / "run", **wrong)
        assert not (tmp_path / "run").exists()

    def test_a_run_without_connected_devices_can_be_resumed(self, scenario_file, make_grid, tmp_path):
        client, out = flower.client_app(scenario_file), tmp_path / "run"
        with pytest.raises(NoDeviceAvailable):
            self.run(scenario_file, make_grid(client, []), out)
        assert Ledger.load(out / "ledger.jsonl").charges == []
        self.run(scenario_file, make_grid(client, range(5)), out, resume=True)
        assert [charge.attempt for charge in Ledger.load(out / "ledger.jsonl").charges] == [0, 0, 0]

    def test_it_keeps_the_run_directory_of_airfed_run(self, scenario, scenario_file, make_grid, tmp_path, replay):
        out, own = tmp_path / "flower", tmp_path / "own"
        self.run(scenario_file, make_grid(flower.client_app(scenario_file), range(5)), out)
        execute(scenario, own)
        assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in own.iterdir())
        for name, tensor in replay(out).items():
            np.testing.assert_allclose(load_file(out / "model.safetensors")[name], tensor, rtol=1e-5, atol=1e-6)
        theirs, ours = (RunDirectory(folder).read_metrics() for folder in (out, own))
        for record, expected in zip(theirs, ours, strict=True):
            assert record.keys() == expected.keys()
            for key in ("steps", "power_planned_total", "epsilon_round", "epsilon_total", "refused", "missing"):
                assert record[key] == expected[key], key
        ledgers = [Run.open(folder).checked().ledger for folder in (out, own)]
        assert ledgers[0].mu_total == ledgers[1].mu_total
        assert ledgers[0].header.keys() - ledgers[1].header.keys() == {"nonce"}

    def test_no_two_runs_and_no_two_attempts_share_their_noise(self, scenario_file, make_grid, tmp_path):
        client, noises = flower.client_app(scenario_file), []
        for name in ("one", "two"):
            self.run(scenario_file, make_grid(client, range(5)), tmp_path / name)
            noises.append(Run.open(tmp_path / name).rounds["noise_error"])
        assert not np.any(noises[0] == noises[1])

        received = []
        real = Superposition.receive

        def receive(self, noise):
            received.append(noise)
            if len(received) == 2:
                raise KeyboardInterrupt  # between reception and settling
            return real(self, noise)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Superposition, "receive", receive)
            with pytest.raises(KeyboardInterrupt):
                self.run(scenario_file, make_grid(client, range(5)), tmp_path / "three")
            self.run(scenario_file, make_grid(client, range(4)), tmp_path / "three", resume=True)  # one is absent now
        assert not np.any(received[1] == received[2])
        charges = Run.open(tmp_path / "three").checked().ledger.charges
        assert [(c.round_index, c.attempt) for c in charges] == [(0, 0), (1, 0), (1, 1), (2, 0)]

    def test_a_run_interrupted_before_anything_was_received_goes_on_with_its_charge(
        self, scenario_file, make_grid, tmp_path, replay
    ):
        out, client = tmp_path / "run", flower.client_app(scenario_file)

        def crash(message, reply):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(scenario_file, make_grid(client, range(5), faults={(NODE, 1): crash}), out)
        with pytest.raises(RunError, match="already contains a run"):
            self.run(scenario_file, make_grid(client, range(5)), out)
        self.run(scenario_file, make_grid(client, range(5)), out, resume=True)
        for name, tensor in replay(out).items():
            np.testing.assert_allclose(load_file(out / "model.safetensors")[name], tensor, rtol=1e-5, atol=1e-6)
        charges = Ledger.load(out / "ledger.jsonl").charges
        assert [(c.round_index, c.attempt) for c in charges] == [(0, 0), (1, 0), (2, 0)]
        self.run(scenario_file, make_grid(client, range(5)), out, resume=True)  # nothing is left to do
        assert len(Ledger.load(out / "ledger.jsonl").charges) == 3
