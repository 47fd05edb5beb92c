"""What travels between server and devices, and in which records.

A training message holds the global model under "arrays", whatever the project puts under "config", and an `Order` under
"over-the-air": one per device, because every device has its own amplitude. A reply holds the transmitted signal x_k
and nothing else. A question holds only the key "ask", and is answered with the device's index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from airfed.air import Air

RECORD: Final = "over-the-air"
ARRAYS: Final = "arrays"
CONFIG: Final = "config"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the plan asks of one device in one round.

    Args:
        round_index: i, from 0; keys the mini-batches.
        local_steps: E_i.
        learning_rate: τ.
        clip_norm: ϖ.
        amplitude: √(φ_k P_k) [√W], with which this device transmits an update of norm ϖ.
    """

    round_index: int
    local_steps: int
    learning_rate: float
    clip_norm: float
    amplitude: float

    def to_record(self) -> ConfigRecord:
        """Return the order as a record of a message."""
        return ConfigRecord({name.replace("_", "-"): value for name, value in self.__dict__.items()})

    @classmethod
    def of(cls, message: Message) -> Order:
        """Return the order in a training message.

        Raises:
            ValueError: there is none.
        """
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise ValueError(f"Expected a record {RECORD!r} in the message: is the strategy OverTheAirFedAvg?")
        values: dict[str, Any] = {name.replace("-", "_"): value for name, value in record.items()}
        return cls(**values)


def question(node_id: int, *, ttl: float) -> Message:
    """Return the message that asks a node which device it is.

    It is of the type "train", although it trains nothing: Flower calls a mod only around functions that the app has
    registered, and every app that trains has registered this one.
    """
    content = RecordDict({RECORD: ConfigRecord({"ask": "device"})})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)


def is_question(message: Message) -> bool:
    """Return whether a message asks for the device's index."""
    record = message.content.config_records.get(RECORD)
    return record is not None and "ask" in record


def answer(message: Message, device: int) -> Message:
    """Return the reply to a question."""
    return Message(RecordDict({RECORD: MetricRecord({"device": device})}), reply_to=message)


def answered_device(reply: Message) -> int | None:
    """Return the device index in the reply to a question, or None where it holds none."""
    if reply.has_error():
        return None
    device = reply.content.metric_records.get(RECORD, MetricRecord()).get("device")
    return device if isinstance(device, int) else None


def training(node_id: int, arrays: ArrayRecord, config: ConfigRecord, order: Order, *, ttl: float | None) -> Message:
    """Return the message that lets a device train."""
    content = RecordDict({ARRAYS: arrays, CONFIG: config, RECORD: order.to_record()})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)


def transmission(message: Message, signal: NDArray[np.float64]) -> Message:
    """Return the reply to a training message: x_k in float32, which is all that leaves the device."""
    record = ArrayRecord({"signal": Array(signal.astype(np.float32))})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def received_update(reply: Message, air: Air, device: int, dimension: int) -> NDArray[np.float64]:
    """Return the update (1, d) of a device from its transmission; the air clips it once more.

    Raises:
        ValueError: the reply holds an error, or no signal of the right kind; says which.
    """
    if reply.has_error():
        raise ValueError(reply.error.reason)
    record = reply.content.array_records.get(RECORD)
    if record is None or "signal" not in record:
        raise ValueError("the reply holds no signal: is over_the_air_mod among the ClientApp's mods?")
    try:
        signal = record["signal"].numpy()
    except (TypeError, EOFError, OSError) as error:
        raise ValueError(f"the signal cannot be read: {error}") from None
    if not isinstance(signal, np.ndarray) or signal.shape != (dimension,) or signal.dtype.kind != "f":
        raise ValueError(f"expected a signal of {dimension} floating-point numbers")
    return air.undo_precoding(np.array([device]), signal[None, :])


def flatten(arrays: ArrayRecord) -> NDArray[np.float64]:
    """Return all arrays of a record one after the other, as one vector.

    Raises:
        ValueError: an array does not hold floating-point numbers.
    """
    return np.concatenate([_real(name, array.numpy()) for name, array in arrays.items()])


def unflatten(vector: NDArray[np.float32], like: Mapping[str, Array]) -> ArrayRecord:
    """Return a vector as a record of the names, shapes and types of another."""
    record, start = ArrayRecord(), 0
    for name, array in like.items():
        end = start + int(np.prod(array.shape, dtype=np.int64))
        record[name] = Array(vector[start:end].reshape(array.shape).astype(array.dtype))
        start = end
    return record


def _real(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    if array.dtype.kind != "f":
        raise ValueError(
            f"Expected floating-point arrays only, got {array.dtype} for {name!r}: only what is trained can be "
            "averaged over the air; leave counters and other buffers out of the ArrayRecord."
        )
    return array.astype(np.float64).ravel()
