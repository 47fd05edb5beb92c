"""What travels between server and devices, and in which records.

A training message holds the global model under "arrays", whatever the project puts under "config", and an `Order` under
"over-the-air": one per device, because every device has its own amplitude and phase. A reply holds the transmitted
signal x_k and nothing else. A question holds only the key "ask", and is answered with the device's index.

Every value is checked before it is used, and nothing is allocated for a size that was only claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from airfed import _files, _validate
from airfed.aircomp import Air

RECORD: Final = "over-the-air"
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
FAILED: Final = 6  # Flower's code for a mod whose precondition does not hold
Address = tuple[int, str, str]  # a node, the id of the message that it got, and that message's group

_LONGEST_QUOTE: Final = 200
_INTEGER_BITS: Final = 63  # of what Flower can carry
_MOST: Final = 2**31 - 1  # rounds and local steps; far beyond any plan
_FAINTEST, _LOUDEST = 1e-30, 1e30  # √W; a signal in float32 neither vanishes nor overflows


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the plan asks of one device in one round."""

    round_index: int  # i, from 0; keys the mini-batches
    local_steps: int  # E_i
    learning_rate: float  # τ
    clip_norm: float  # ϖ
    amplitude: float  # √(φ_k P_k) [√W], with which this device transmits an update of norm ϖ
    phase: float | None = None  # −arg(fᴴh_k) [rad] of several antennas; with one the radio knows it by itself

    def __post_init__(self) -> None:
        _validate.whole(round_index=self.round_index)
        _validate.positive_integer(local_steps=self.local_steps)
        if (largest := max(self.round_index, self.local_steps)) > _MOST:
            raise ValueError(f"Expected whole numbers <= {_MOST}, got one of {int(largest).bit_length()} bits.")
        _validate.moderate(learning_rate=self.learning_rate, clip_norm=self.clip_norm, amplitude=self.amplitude)
        if not _FAINTEST <= self.amplitude <= _LOUDEST:
            raise ValueError(f"Expected amplitude={self.amplitude!r} between {_FAINTEST:g} and {_LOUDEST:g}.")
        if self.phase is not None and not (isinstance(self.phase, float) and abs(self.phase) <= math.pi):
            raise ValueError(f"Expected phase={quote(repr(self.phase))} between -π and π.")

    def to_record(self) -> ConfigRecord:
        """Return the order as a record of a message."""
        return ConfigRecord({name.replace("_", "-"): value for name, value in vars(self).items() if value is not None})

    @classmethod
    def of(cls, message: Message) -> Order:
        """Return the order in a training message; raises ValueError where there is none, or not one of a plan."""
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise ValueError(f"Expected a record {RECORD!r} in the message: is the strategy OverTheAirFedAvg?")
        names = [field.name.replace("_", "-") for field in fields(cls) if field.name != "phase"]
        if set(record) - {"phase"} != set(names):
            raise ValueError(f"Expected an order of {', '.join(names)} and nothing else (but a phase).")
        values: dict[str, Any] = {name.replace("-", "_"): value for name, value in record.items()}
        return cls(**values)


def question(node_id: int, *, ttl: float) -> Message:
    """Return the message that asks a node which device it is; of type "train", for which every app calls its mods."""
    content = RecordDict({RECORD: ConfigRecord({"ask": "device"})})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)


def is_question(message: Message) -> bool:
    """Return whether a message asks for the device's index."""
    record = message.content.config_records.get(RECORD)
    return record is not None and "ask" in record


def answer(message: Message, device: int) -> Message:
    """Return the reply to a question."""
    return Message(RecordDict({RECORD: MetricRecord({"device": device})}), reply_to=message)


def answered_device(reply: Message) -> int:
    """Return the device index in the reply to a question; raises ValueError where it holds none."""
    record = _content(reply).get(RECORD)
    device = record.get("device") if isinstance(record, MetricRecord) else None
    if isinstance(device, bool) or not isinstance(device, int) or device.bit_length() > _INTEGER_BITS:
        raise ValueError("is over_the_air_mod among its mods?")
    return device


def training(
    node_id: int, arrays: ArrayRecord, config: ConfigRecord, order: Order, *, ttl: float | None, group_id: str = ""
) -> Message:
    """Return the message that lets a device train."""
    content = RecordDict({ARRAYS: arrays, CONFIG: config, RECORD: order.to_record()})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl, group_id=group_id)


def transmission(message: Message, signal: NDArray[np.float64]) -> Message:
    """Return the reply to a training message: x_k in float32, which is all that leaves the device."""
    record = ArrayRecord({"signal": Array(signal.astype(np.float32))})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def refusal(message: Message, why: object) -> Message:
    """Return the reply to a message that cannot be done, or that got nothing of use for a reply."""
    return Message(Error(code=FAILED, reason=quote(why)), reply_to=message)


def address(message: Message) -> Address:
    """Return whom a message was sent to, and as what; see `sender`."""
    metadata = message.metadata
    return metadata.dst_node_id, metadata.message_id, metadata.group_id


def sender(reply: Message) -> Address | None:
    """Return the address that a reply claims to come from, or None if it claims none that could be anybody's."""
    try:
        metadata = reply.metadata
        claim = metadata.src_node_id, metadata.reply_to_message_id, metadata.group_id
    except (AttributeError, LookupError):  # of something that only looks like a message
        return None
    return claim if isinstance(claim[0], int) and all(isinstance(part, str) for part in claim[1:]) else None


def received_update(reply: Message, air: Air, device: int, dimension: int) -> NDArray[np.float64]:
    """Return the update (1, d) of a device, not clipped yet; raises ValueError for anything but one proper signal."""
    content = _content(reply)
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord) or "signal" not in record:
        raise ValueError("the reply holds no signal: is over_the_air_mod among the ClientApp's mods?")
    if len(content) != 1 or len(record) != 1:
        raise ValueError("the reply holds more than the signal: is over_the_air_mod the first of the ClientApp's mods?")
    signal = decode(record["signal"], "the signal", most_values=dimension)
    if signal.size != dimension or signal.dtype.kind != "f":
        raise ValueError(f"expected a signal of {dimension} floating-point numbers")
    update = air.undo_precoding(np.array([device]), signal[None, :])
    if not np.isfinite(update).all():
        raise ValueError("the signal holds a NaN, an Inf, or a number that is far too large")
    return update


def flatten(arrays: ArrayRecord) -> NDArray[np.float64]:
    """Return all arrays of a record one after the other; raises ValueError for none, or one that holds no floats."""
    if not arrays:
        raise ValueError("Expected an ArrayRecord that holds a model, got an empty one.")
    parts = []
    for name, array in arrays.items():
        parts.append(decode(array, "an array of the model"))
        if parts[-1].dtype.kind != "f":
            raise ValueError(
                f"Expected floating-point arrays only, got {parts[-1].dtype} for {name!r}: only what is trained can be "
                "averaged over the air; leave counters and other buffers out of the ArrayRecord."
            )
    return np.concatenate([part.astype(np.float64) for part in parts])


def unflatten(vector: NDArray[np.float32], like: Mapping[str, Array]) -> ArrayRecord:
    """Return a vector as a record of the names, shapes and types of another."""
    record, start = ArrayRecord(), 0
    for name, array in like.items():
        end = start + int(np.prod(array.shape, dtype=np.int64))
        record[name] = Array(vector[start:end].reshape(array.shape).astype(array.dtype))
        start = end
    return record


def decode(array: object, name: str, *, most_values: int | None = None) -> NDArray[Any]:
    """Return the numbers of a Flower Array as one vector; raises ValueError for all but what `numpy.save` writes.

    Flower's own reader lets NumPy evaluate the header, allocate what it claims, and open archives and pickles.
    """
    if not isinstance(array, Array) or array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
        raise ValueError(f"expected {name} to be an array that NumPy has written")
    return _files.load_npy(array.data, name=name, most_values=most_values).ravel()


def quote(text: object) -> str:
    """Return a stranger's text as what may be printed or logged: one line, printable, and not long.

    >>> quote("all is well\\n\\x1b[2Jor not")
    'all is well??[2Jor not'
    """
    if isinstance(text, ValueError):
        text = str(text)
    if not isinstance(text, str):
        return "no reason given"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_QUOTE])
    return shown + "…" * (len(text) > _LONGEST_QUOTE)


def _content(reply: Message) -> RecordDict:
    """The records of a reply; raises ValueError where it is an error, or no message at all."""
    try:
        if reply.has_error():
            raise ValueError(quote(reply.error.reason))
        content = reply.content
    except (AttributeError, LookupError):
        raise ValueError("the reply is no message") from None
    if not isinstance(content, RecordDict):
        raise ValueError("the reply holds no records")
    return content
