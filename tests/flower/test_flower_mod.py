"""The device's side: the data that leave a device."""

import math
import re

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airfed.flower import client_app, messages, over_the_air_mod
from airfed.flower.messages import RoundConfig

CONFIG = RoundConfig(round_index=2, local_steps=3, learning_rate=0.5, clip_norm=2.0, amplitude=0.25)
START = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, np.float32)}
floats = st.floats(-1e6, 1e6, width=32)


def record(named):
    return ArrayRecord({name: Array(value) for name, value in named.items()})


def training_message():
    return messages.training(7, record(START), ConfigRecord({"lr": 0.1}), CONFIG, ttl=60.0)


def context(**node_config):
    return Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={})


def replying(trained):
    """An inner app that replies with the given arrays, and with a metric."""

    def inner(message, context):
        content = {"model": record(trained), "metrics": MetricRecord({"train-loss": 0.1, "num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    return inner


def signal_of(reply):
    return reply.content["over-the-air"]["signal"].numpy()


@settings(max_examples=50, deadline=None)
@given(arrays(np.float32, (2, 3), elements=floats), arrays(np.float32, 2, elements=floats))
def test_a_device_transmits_its_clipped_update_and_nothing_else(weight, bias):
    reply = over_the_air_mod(training_message(), context(), replying({"weight": weight, "bias": bias}))
    assert list(reply.content) == ["over-the-air"]
    assert list(reply.content["over-the-air"]) == ["signal"]
    sent = signal_of(reply).astype(np.float64)
    start = np.concatenate([value.astype(np.float64).ravel() for value in START.values()])
    update = (start - np.concatenate([weight.astype(np.float64).ravel(), bias])) / CONFIG.learning_rate
    norm = np.linalg.norm(update)
    assert np.linalg.norm(sent) <= CONFIG.amplitude  # φ_k P_k is kept to, whatever the update
    expected = update * CONFIG.amplitude / max(norm, CONFIG.clip_norm)
    np.testing.assert_allclose(sent, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("trained", "why"),
    [
        ({"weight": np.full((2, 3), np.nan, np.float32), "bias": START["bias"]}, "NaN or an Inf"),
        ({"weight": START["weight"], "bias": np.array([np.inf, 0], np.float32)}, "NaN or an Inf"),
        ({"weight": START["weight"], "bias": np.ones(2, np.int64)}, "int64 for 'bias'"),
        ({"weight": START["weight"]}, "names and sizes"),
        ({"weight": START["weight"], "bias": np.ones(3, np.float32)}, "names and sizes"),
    ],
)
def test_an_update_that_cannot_be_transmitted_is_an_error_reply_with_the_reason(trained, why):
    reply = over_the_air_mod(training_message(), context(), replying(trained))
    assert reply.has_error()
    assert why in reply.error.reason


def test_errors_of_the_app_pass_through():
    def failing(message, context):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        over_the_air_mod(training_message(), context(), failing)


def test_a_message_of_another_strategy_is_refused_before_any_training():
    message = Message(RecordDict({"arrays": record(START)}), 7, MessageType.TRAIN)
    reply = over_the_air_mod(message, context(), replying(START))
    assert "OverTheAirFedAvg" in reply.error.reason


def test_other_messages_are_none_of_its_business():
    message = Message(RecordDict({"arrays": record(START)}), 7, MessageType.EVALUATE)
    reply = over_the_air_mod(message, context(), replying(START))
    assert list(reply.content) == ["model", "metrics"]


def test_the_mod_answers_the_question_for_the_device_without_the_app():
    app = ClientApp(mods=[over_the_air_mod])

    @app.train()
    def train(message, context):
        raise AssertionError("nothing is to be trained")

    question = messages.question(7, ttl=10.0)
    assert messages.answered_device(app(question, context(**{"partition-id": 3}))) == 3
    for wrong in ({}, {"partition-id": "3"}, {"partition-id": True}):
        reply = app(question, context(**wrong))
        with pytest.raises(ValueError, match="--node-config"):
            messages.answered_device(reply)


def test_an_order_survives_its_message():
    assert RoundConfig.of(training_message()) == CONFIG


ODD = {
    **{str(value): value for value in (math.nan, math.inf, -1, -1.0, 0.0, True, 1e300, 1e-300)},
    **{repr(value): value for value in ("1", b"1", [], [1.0], ["x"])},
    "5000 digits": 10**4999,
    "a long text": "x\n" * 10**6,
}
KEYS = ["round-index", "local-steps", "learning-rate", "clip-norm", "amplitude"]


def ordering(order):
    content = {"arrays": record(START), "config": ConfigRecord(), "over-the-air": order}
    return Message(RecordDict(content), 7, MessageType.TRAIN)


def untouched(message, context):
    raise AssertionError("nothing is to be trained")


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
@pytest.mark.parametrize("key", KEYS)
def test_an_order_that_no_plan_gives_is_refused_before_any_training(key, value, caplog):
    order = CONFIG.to_record()
    order[key] = value
    reply = over_the_air_mod(ordering(order), context(), untouched)
    assert re.match(rf"(round_index and )?{key.replace('-', '_')}( and local_steps)? must be ", reply.error.reason)
    assert len(reply.error.reason) <= 201
    assert reply.error.reason.isprintable()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("key", KEYS[:2])
def test_no_plan_has_two_to_the_70_rounds_or_steps(key):
    order = CONFIG.to_record()
    order[key] = 2**70
    assert over_the_air_mod(ordering(order), context(), untouched).has_error()


def test_an_order_has_all_its_values_and_no_others():
    orders = [CONFIG.to_record() for _ in range(3)]
    del orders[0]["amplitude"]
    orders[1]["noise\n"] = 0.0
    orders[2].clear()
    for order in orders:
        reply = over_the_air_mod(ordering(order), context(), untouched)
        names = "round-index, local-steps, learning-rate, clip-norm, amplitude"
        assert f"must have {names}, and optionally phase, and nothing else" in reply.error.reason


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, 8, elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.floats(1e-100, 1e100),
    st.floats(1e-100, 1e100),
    st.floats(1e-30, 1e30),
)
def test_a_device_never_exceeds_its_amplitude(trained, learning_rate, clip_norm, amplitude):
    order = RoundConfig(
        round_index=0, local_steps=1, learning_rate=learning_rate, clip_norm=clip_norm, amplitude=amplitude
    ).to_record()
    reply = over_the_air_mod(
        ordering(order), context(), replying({"weight": trained[:6].reshape(2, 3), "bias": trained[6:]})
    )
    if reply.has_error():
        assert "NaN or an Inf" in reply.error.reason
    else:
        sent = signal_of(reply).astype(np.float64)
        assert np.linalg.norm(sent) <= amplitude  # and finite


BAD_MODELS = {
    "NaN": {"model": Array(np.full(8, np.nan))},
    "Inf": {"model": Array(np.array([np.inf, 1.0]))},
    "integers": {"model": Array(np.ones(8, np.int32))},
    "nothing": {},
    "rubbish": {"model": Array("float32", (8,), "numpy.ndarray", b"rubbish")},
    "a size that is not there": {
        "model": Array("float32", (8,), "numpy.ndarray", Array(np.ones(8, np.float32)).data.replace(b"8", b"9"))
    },
    "another stype": {"model": Array("float32", (8,), "torch", b"")},
    "a long name of integers": {"x\x1b" * 10**5: Array(np.ones(8, np.int32))},
}


@pytest.mark.parametrize("model", BAD_MODELS.values(), ids=BAD_MODELS)
def test_a_model_that_is_none_is_refused_before_any_training(model):
    content = {"arrays": ArrayRecord(model), "config": ConfigRecord(), "over-the-air": CONFIG.to_record()}
    reply = over_the_air_mod(Message(RecordDict(content), 7, MessageType.TRAIN), context(), untouched)
    assert re.search(" must (be|have|match) |does not fit into|declares ", reply.error.reason)
    assert len(reply.error.reason) <= 201
    assert reply.error.reason.isprintable()


def test_two_models_and_no_content_are_refused_too():
    two = Message(RecordDict({"a": record(START), "b": record(START), "over-the-air": CONFIG.to_record()}), 7, "train")
    assert "must have one ArrayRecord" in over_the_air_mod(two, context(), untouched).error.reason
    for content in ({}, {"over-the-air": record(START)}, {"over-the-air": MetricRecord({"ask": 1})}):
        reply = over_the_air_mod(Message(RecordDict(content), 7, "train"), context(), untouched)
        assert "OverTheAirFedAvg" in reply.error.reason


class TestReadyClient:
    """`client_app` of a scenario file answers the messages for its device."""

    def reply(self, scenario_file, *, model=None, device=2, **changes):
        usual = {"round_index": 0, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 2.0, "amplitude": 0.3}
        order = RoundConfig(**{**usual, **changes})
        arrays = ArrayRecord({"model": Array(np.zeros(12, np.float32) if model is None else model)})
        message = messages.training(7, arrays, ConfigRecord(), order, ttl=60.0)
        return client_app(scenario_file)(message, context(**{"partition-id": device}))

    def test_it_executes_a_plan(self, scenario_file):
        assert signal_of(self.reply(scenario_file)).shape == (12,)
        assert signal_of(self.reply(scenario_file, amplitude=1.0)).shape == (12,)  # its peak power exactly

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"amplitude": 1.001}, "power must be at most 1 W"),
            ({"amplitude": 1e30}, "power must be at most 1 W"),
            ({"local_steps": 8}, "local_steps must be at most 7, the total steps, got 8"),
            ({"local_steps": 2**31 - 1}, "at most 7"),
            ({"model": np.zeros(11)}, "12 numbers, got 11"),
            ({"device": 5}, "between 0 and 4, got 5"),
            ({"device": -1}, "between 0 and 4, got -1"),
            ({"device": "two"}, "--node-config"),
            ({"model": np.full(12, 1e300)}, "finite in float32"),
        ],
    )
    def test_it_refuses_a_configuration_that_does_not_fit_its_scenario(self, scenario_file, changes, why):
        assert why in self.reply(scenario_file, **changes).error.reason


def test_flatten_and_unflatten_are_inverse_and_keep_types():
    named = {"a": np.ones((2, 2), np.float16), "b": np.arange(3, dtype=np.float64), "c": np.array(5, np.float32)}
    back = messages.unflatten(messages.flatten(record(named)).astype(np.float32), record(named))
    for name, value in named.items():
        assert back[name].numpy().dtype == value.dtype
        np.testing.assert_array_equal(back[name].numpy(), value)
