"""The server's side, with ClientApps in this process: the same training as airfed's own, whatever devices do."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from safetensors.numpy import load_file

from airfed import flower
from airfed.flower import OverTheAirFedAvg, messages, over_the_air_mod
from airfed.flower.roster import Roster
from airfed.privacy.ledger import BudgetExhausted, Ledger
from airfed.running.directory import RunDirectory, RunError
from airfed.running.execution import execute
from airfed.running.loop import Diverged, federated_averaging
from airfed.running.setup import prepare

NODE = 100  # of device 0; the grid's node ids are not the devices' indices


@pytest.fixture
def setup(scenario):
    return prepare(scenario)


@pytest.fixture
def own_app(setup):
    """A project of its own: it knows nothing of airfed but the mod and the order, and has two arrays."""
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message, context):
        order = message.content["over-the-air"]
        weights = np.concatenate([array.numpy() for array in message.content["arrays"].values()])
        devices = np.array([context.node_config["partition-id"]])
        steps, index = order["local-steps"], order["round-index"]
        ((_, update),) = setup.task.engine.updates(weights, devices, steps=steps, round_index=index)
        trained = weights - order["learning-rate"] * update[0].astype(np.float64)
        return Message(RecordDict({"model": as_two(trained)}), reply_to=message)

    return app


def as_two(vector):
    return ArrayRecord({"a": Array(vector[:5]), "b": Array(vector[5:])})


def start(setup, grid, books, **options):
    options = {"air": setup.air, "noise": setup.noise, "wait_for_devices": 0.0, **options}
    strategy = OverTheAirFedAvg(setup.plan, books, **options)
    result = strategy.start(grid, as_two(setup.task.initial_parameters), timeout=5.0)
    return messages.flatten(result.arrays)


class Without:
    """airfed's engine, less the devices that are missing in a round."""

    def __init__(self, engine, missing):
        self.engine, self.missing = engine, missing

    def updates(self, parameters, devices, *, steps, round_index):
        there = np.array([k for k in devices if (k, round_index) not in self.missing])
        return self.engine.updates(parameters, there, steps=steps, round_index=round_index)


def own_training(setup, missing=()):
    engine = Without(setup.task.engine, missing)
    *_, last = federated_averaging(setup.plan, setup.air, engine, setup.noise, parameters=setup.task.initial_parameters)
    return last.parameters


def test_another_projects_training_is_airfeds_own(setup, own_app, make_grid, tmp_path):
    trained = start(setup, make_grid(own_app, range(5)), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(setup), rtol=1e-5, atol=1e-6)


def test_only_the_scheduled_are_sent_to_each_with_its_own_amplitude(setup, own_app, make_grid, tmp_path):
    grid = make_grid(own_app, range(5))
    start(setup, grid, tmp_path / "ledger.jsonl")
    question, *rounds = [batch for batch in grid.sent if batch]
    assert len(question) == 5
    assert len(rounds) == setup.plan.rounds
    for index, batch in enumerate(rounds):
        amplitude = {m.metadata.dst_node_id - NODE: messages.Order.of(m).amplitude for m in batch}
        assert sorted(amplitude) == setup.plan.scheduled.tolist() == [0, 2, 3, 4]
        np.testing.assert_array_equal([amplitude[k] for k in sorted(amplitude)], setup.air.transmit_amplitude)
        assert {messages.Order.of(m).local_steps for m in batch} == {setup.plan.local_steps[index]}


def silent(message, reply):
    return None


def failing(message, reply):
    return Message(Error(code=0, reason="the battery is empty"), reply_to=message)


def signalling(make):
    def fault(message, reply):
        return Message(RecordDict({"over-the-air": make()}), reply_to=message)

    return fault


FAULTS = {
    "silent": silent,
    "failing": failing,
    "no signal": signalling(ArrayRecord),
    "NaN": signalling(lambda: ArrayRecord({"signal": Array(np.full(12, np.nan))})),
    "too long": signalling(lambda: ArrayRecord({"signal": Array(np.ones(13))})),
    "integers": signalling(lambda: ArrayRecord({"signal": Array(np.ones(12, np.int64))})),
    "unreadable": signalling(
        lambda: ArrayRecord({"signal": Array(dtype="float32", shape=(12,), stype="numpy.ndarray", data=b"rubbish")})
    ),
    "unknown type": signalling(
        lambda: ArrayRecord({"signal": Array(dtype="float32", shape=(12,), stype="other", data=b"")})
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_device_that_fails_counts_as_zero_and_everyone_is_charged(setup, own_app, make_grid, tmp_path, fault):
    grid = make_grid(own_app, range(5), faults={(NODE + 2, 1): fault})
    trained = start(setup, grid, tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(setup, missing={(2, 1)}), rtol=1e-5, atol=1e-6)
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    assert [(c.round_index, c.devices) for c in ledger.charges] == [(0, 4), (1, 4), (2, 4)]
    assert all(c.mu == setup.plan.mu_round and c.power_metered <= c.power_planned for c in ledger.charges)


def test_a_device_that_cheats_is_clipped_by_the_server(setup, own_app, make_grid, tmp_path):
    shout = 1e6 * np.eye(12)[0]
    loud = signalling(lambda: ArrayRecord({"signal": Array(shout)}))
    without = own_training(setup, missing={(2, 2)})  # the last round: nothing else changes after it
    trained = start(setup, make_grid(own_app, range(5), faults={(NODE + 2, 2): loud}), tmp_path / "ledger.jsonl")
    learning = setup.plan.problem.learning
    most = learning.learning_rate * learning.clip_norm / setup.plan.num_scheduled
    moved = trained - without
    assert abs(moved[0]) == pytest.approx(most, rel=1e-5)
    np.testing.assert_allclose(moved[1:], 0.0, atol=1e-6)


def test_a_device_that_is_absent_throughout_is_charged_and_counts_as_zero(setup, own_app, make_grid, tmp_path, caplog):
    trained = start(setup, make_grid(own_app, [0, 2, 4]), tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(setup, missing={(3, i) for i in range(3)}), rtol=1e-5, atol=1e-6)
    assert [c.devices for c in Ledger.load(tmp_path / "ledger.jsonl").charges] == [4, 4, 4]


def test_nobody_there_ends_the_training(setup, own_app, make_grid, tmp_path):
    with pytest.raises(Diverged, match="no device sent a usable update"):
        start(setup, make_grid(own_app, []), tmp_path / "ledger.jsonl")


def test_nothing_is_sent_that_was_not_charged(setup, own_app, make_grid):
    grid = make_grid(own_app, range(5))

    class Spent:
        def charge(self, index):
            if index == 1:
                raise BudgetExhausted("spent")

        def settle(self, done):
            assert done.index == 0

    with pytest.raises(BudgetExhausted):
        start(setup, grid, Spent())
    assert len([batch for batch in grid.sent if batch]) == 2  # the question, and round 0


def test_a_ledger_that_goes_on_knows_what_was_spent(setup, own_app, make_grid, tmp_path):
    path = tmp_path / "ledger.jsonl"
    start(setup, make_grid(own_app, range(5)), path)
    start(setup, make_grid(own_app, range(5)), path)
    assert [(c.round_index, c.attempt) for c in Ledger.load(path).charges] == [
        *((i, 0) for i in range(3)),
        *((i, 1) for i in range(3)),
    ]
    with pytest.raises(ValueError, match="not that of this run"):
        start(setup, make_grid(own_app, range(5)), path, noise=None)  # another source of noise


def test_noise_is_drawn_once_a_round_at_the_server(setup, own_app, make_grid, tmp_path):
    class Counting:
        privacy, repeatable = "simulated", True
        drawn: list[int] = []  # noqa: RUF012

        def draw(self, round_index, dimension, noise_std, *, transmission=""):
            self.drawn.append(round_index)
            return setup.noise.draw(round_index, dimension, noise_std)

    start(setup, make_grid(own_app, range(5)), tmp_path / "ledger.jsonl", noise=Counting())
    assert Counting.drawn == [0, 1, 2]


def test_the_plan_says_how_many_rounds_and_how_large_the_model_is(setup, own_app, make_grid, tmp_path):
    strategy = OverTheAirFedAvg(setup.plan, tmp_path / "ledger.jsonl")
    grid = make_grid(own_app, range(5))
    with pytest.raises(ValueError, match="num_rounds=4 from 1 to 3"):
        strategy.start(grid, as_two(setup.task.initial_parameters), num_rounds=4)
    with pytest.raises(ValueError, match="dimension 12, got 11"):
        strategy.start(grid, as_two(setup.task.initial_parameters[:11]))
    assert strategy.configure_evaluate(1, ArrayRecord(), None, grid) == []
    assert grid.sent == []


def test_nodes_say_which_device_they_are(own_app, make_grid, caplog):
    grid, roster = make_grid(own_app, [4, 1]), Roster(num_devices=5)
    assert roster.find(grid, [1, 2]) == {1: 101}
    assert len(grid.sent) == 1
    assert roster.find(grid, [1, 4]) == {1: 101, 4: 104}
    assert len(grid.sent) == 1  # who has answered is not asked again
    grid.nodes[900] = (own_app, {"partition-id": 2})
    grid.nodes[901] = (own_app, {"partition-id": 1})
    grid.nodes[902] = (own_app, {"partition-id": 5})
    grid.nodes[903] = (own_app, {})
    assert roster.find(grid, [1, 2]) == {1: 101, 2: 900}
    assert "device 1, which is there already" in caplog.text
    assert "the plan has 0 to 4" in caplog.text
    assert "--node-config" in caplog.text
    del grid.nodes[101]
    assert roster.find(grid, [1]) == {1: 901}  # the second takes over once the first has gone


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

    def test_it_keeps_the_run_directory_of_airfed_run(self, scenario, scenario_file, make_grid, tmp_path):
        out, own = tmp_path / "flower", tmp_path / "own"
        self.run(scenario_file, make_grid(flower.client_app(scenario_file), range(5)), out)
        execute(scenario, own)
        assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in own.iterdir())
        for name, tensor in load_file(own / "model.safetensors").items():
            np.testing.assert_allclose(load_file(out / "model.safetensors")[name], tensor, rtol=1e-5, atol=1e-6)
        theirs, ours = (RunDirectory(folder).read_metrics() for folder in (out, own))
        for record, expected in zip(theirs, ours, strict=True):
            norms = {"update_norm_mean", "update_norm_max"}  # before clipping: devices do not tell
            assert record["clipped_share"] == expected["clipped_share"]
            for key in expected.keys() - norms:
                assert record[key] == (expected[key] and pytest.approx(expected[key], rel=1e-4)), key
        ledgers = [Ledger.load(d / "ledger.jsonl") for d in (out, own)]
        assert ledgers[0].mu_total == ledgers[1].mu_total
        assert ledgers[0].header == ledgers[1].header

    def test_an_interrupted_run_goes_on_and_charges_the_repeated_round_again(
        self, scenario, scenario_file, make_grid, tmp_path
    ):
        out, client = tmp_path / "run", flower.client_app(scenario_file)

        def crash(message, reply):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(scenario_file, make_grid(client, range(5), faults={(NODE, 1): crash}), out)
        with pytest.raises(RunError, match="Expected no run"):
            self.run(scenario_file, make_grid(client, range(5)), out)
        self.run(scenario_file, make_grid(client, range(5)), out, resume=True)
        execute(scenario, tmp_path / "own")
        for name, tensor in load_file(tmp_path / "own" / "model.safetensors").items():
            np.testing.assert_allclose(load_file(out / "model.safetensors")[name], tensor, rtol=1e-5, atol=1e-6)
        charges = Ledger.load(out / "ledger.jsonl").charges
        assert [(c.round_index, c.attempt) for c in charges] == [(0, 0), (1, 0), (1, 1), (2, 0)]
        self.run(scenario_file, make_grid(client, range(5)), out, resume=True)  # nothing is left to do
        assert len(Ledger.load(out / "ledger.jsonl").charges) == 4
