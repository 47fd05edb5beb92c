"""The device's side: what leaves a device, and what does not."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airfed.flower import messages, over_the_air_mod
from airfed.flower.messages import Order

ORDER = Order(round_index=2, local_steps=3, learning_rate=0.5, clip_norm=2.0, amplitude=0.25)
START = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, np.float32)}
floats = st.floats(-1e6, 1e6, width=32)


def record(named):
    return ArrayRecord({name: Array(value) for name, value in named.items()})


def training_message():
    return messages.training(7, record(START), ConfigRecord({"lr": 0.1}), ORDER, ttl=60.0)


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
    update = (start - np.concatenate([weight.astype(np.float64).ravel(), bias])) / ORDER.learning_rate
    norm = np.linalg.norm(update)
    assert np.linalg.norm(sent) <= ORDER.amplitude  # φ_k P_k is kept to, whatever the update
    expected = update * ORDER.amplitude / max(norm, ORDER.clip_norm)
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
def test_what_cannot_be_transmitted_is_an_error_reply_that_says_why(trained, why):
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
    assert Order.of(training_message()) == ORDER


def test_flatten_and_unflatten_are_inverse_and_keep_types():
    named = {"a": np.ones((2, 2), np.float16), "b": np.arange(3, dtype=np.float64), "c": np.array(5, np.float32)}
    back = messages.unflatten(messages.flatten(record(named)).astype(np.float32), record(named))
    for name, value in named.items():
        assert back[name].numpy().dtype == value.dtype
        np.testing.assert_array_equal(back[name].numpy(), value)
