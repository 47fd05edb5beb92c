"""What travels between server and devices, in which records, and which node is which device.

A training message holds the global model under "arrays", whatever the project puts under "config", and an `Order` under
"over-the-air": one per device, because every device has its own amplitude and phase. A reply holds the transmitted
signal x_k and nothing else. A question holds only the key "ask", and is answered with the device's index.

Every value is checked before it is used, and nothing is allocated for a size that was only claimed. Flower's grids open
all replies that have come at once, and take the sender's word for who it is: one that cannot be read raises in the
server, and the others are lost with it. Here the SuperLink is asked for the reply to one message at a time, and hands
over only what the node has sent to which that message went.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from airfed import _files, _validate
from airfed.aircomp import Air

RECORD: Final = "over-the-air"
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
FAILED: Final = 6  # Flower's code for a mod whose precondition does not hold
Address = tuple[int, str, str]  # a node, the id of the message that it got, and that message's group

_LOG = logging.getLogger("flwr")
_LONGEST_QUOTE: Final = 200
_INTEGER_BITS: Final = 63  # of what Flower can carry
_MOST: Final = 2**31 - 1  # rounds and local steps; far beyond any plan
_FAINTEST, _LOUDEST = 1e-30, 1e30  # √W; a signal in float32 neither vanishes nor overflows
_REPLY_PAUSE: Final = 1.0  # s between two looks for replies
_NODE_PAUSE: Final = 0.5  # s between two looks at who has joined, and who has answered
# All that Flower raises for a reply it cannot read, as 30,000 damaged ones have shown, and what no reader is safe from.
_UNREADABLE: Final = (AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


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


def send(grid: Grid, outgoing: list[Message]) -> list[Message]:
    """Send messages, and return those that were taken; they have an id from now on."""
    taken = set(grid.push_messages(outgoing)) if outgoing else set()
    return [message for message in outgoing if message.metadata.message_id in taken]


def collect(grid: Grid, message: Message) -> Message | None:
    """Return the reply to a message, or None as long as there is none; anything else that has come is an error."""
    try:
        replies = list(grid.pull_messages([message.metadata.message_id]))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():  # the node's, or the grid's own: the message has expired, or the node has gone
            return refusal(message, reply.error.reason)
    except _UNREADABLE as error:
        return refusal(message, f"the reply cannot be read ({type(error).__name__})")
    if sender(reply) != address(message):
        return refusal(message, "the reply pretends to be another one")
    return reply


class SafeGrid:
    """A Flower grid that opens each reply by itself; `clock` is the module `time` but in tests."""

    def __init__(self, grid: Grid, clock: Any = time) -> None:
        self._grid, self._clock = grid, clock

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that have come in time [s]."""
        waiting, replies = send(self._grid, list(messages)), []
        deadline = float("inf") if timeout is None else self._clock.monotonic() + timeout
        while waiting:
            heard = [collect(self._grid, message) for message in waiting]
            replies += [reply for reply in heard if reply is not None]
            waiting = [message for message, reply in zip(waiting, heard, strict=True) if reply is None]
            left = deadline - self._clock.monotonic()
            if left <= 0.0:
                break
            if waiting:
                self._clock.sleep(min(_REPLY_PAUSE, left))
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class _Asked(NamedTuple):
    """When a node was asked, and the question while it waits for its answer."""

    at: float
    question: Message | None


class Roster:
    """The nodes that are there, by the index of the device that each of them is.

    A node is asked once which device it is, and again only when a device is missing and `retry_after` has passed. A
    round that has all its devices waits for nobody. One that misses a device waits for nodes that have not answered
    yet, but at most `answer_timeout` in every `retry_after`, however many such nodes there are.

    Times are in s; `clock` is the module `time` but in tests.
    """

    def __init__(
        self, *, num_devices: int, answer_timeout: float = 60.0, retry_after: float = 600.0, clock: Any = time
    ) -> None:
        self.num_devices, self.answer_timeout, self.retry_after = num_devices, answer_timeout, retry_after
        self._clock = clock
        self._devices: dict[int, int] = {}  # of each node that has answered; of two with one index the first counts
        self._asked: dict[int, _Asked] = {}  # by node
        self._doubtful: set[int] = set()
        self._patient_from = clock.monotonic()  # when waiting for answers is allowed again

    def find(self, grid: Grid, devices: Iterable[int], *, wait: float = 0.0) -> dict[int, int]:
        """Return the node id of each of the devices that is there; wait so long [s] for those that are missing."""
        wanted, start = list(devices), self._clock.monotonic()
        patient = start >= self._patient_from
        while True:
            self._look(grid, wanted)
            nodes = self._nodes()
            found = {device: nodes[device] for device in wanted if device in nodes}
            elapsed = self._clock.monotonic() - start
            silent = [node for node, asked in self._asked.items() if asked.question is not None]
            waits_for_answers = patient and bool(silent) and elapsed < self.answer_timeout
            if len(found) == len(wanted) or not (elapsed < wait or waits_for_answers):
                break
            self._clock.sleep(_NODE_PAUSE)
        if patient and silent and len(found) < len(wanted):
            self._patient_from = self._clock.monotonic() + self.retry_after
            _LOG.warning("%d nodes have not said which device they are; nobody waits for them", len(silent))
        return found

    def doubt(self, nodes: Iterable[int]) -> None:
        """Take note of the nodes that sent nothing usable in the last round: another of the same index goes first."""
        self._doubtful = set(nodes)
        self._put_last()

    def _put_last(self) -> None:
        for node in self._doubtful & self._devices.keys():
            self._devices[node] = self._devices.pop(node)

    def _nodes(self) -> dict[int, int]:
        """The first node of each device."""
        return {device: node for node, device in reversed(self._devices.items())}

    def _look(self, grid: Grid, wanted: list[int]) -> None:
        """Forget who has gone and, unless all who are wanted are well, ask who is new, and listen."""
        present = set(grid.get_node_ids())
        self._devices = {node: device for node, device in self._devices.items() if node in present}
        self._asked = {node: asked for node, asked in self._asked.items() if node in present}
        if set(wanted) <= {device for device, node in self._nodes().items() if node not in self._doubtful}:
            return
        now = self._clock.monotonic()
        unknown = sorted(present - self._devices.keys())
        due = [node for node in unknown if node not in self._asked or now - self._asked[node].at >= self.retry_after]
        if due:
            taken = send(grid, [question(node, ttl=self.retry_after) for node in due])
            questions = {question.metadata.dst_node_id: question for question in taken}
            self._asked |= {node: _Asked(at=now, question=questions.get(node)) for node in due}
        for node, asked in list(self._asked.items()):
            reply = None if asked.question is None else collect(grid, asked.question)
            if reply is not None:
                self._asked[node] = _Asked(at=asked.at, question=None)
                self._enter(node, reply)

    def _enter(self, node: int, reply: Message) -> None:
        try:
            device = answered_device(reply)
        except ValueError as error:
            _LOG.warning("node %d does not say which device it is: %s", node, quote(error))
            return
        if not 0 <= device < self.num_devices:
            _LOG.warning("node %d says it is device %d; the plan has 0 to %d", node, device, self.num_devices - 1)
            return
        if device in self._devices.values():
            _LOG.warning("node %d says it is device %d, which is there already; only one is used", node, device)
        self._devices[node] = device
        self._put_last()
