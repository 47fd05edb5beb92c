"""Messages between server and devices, and the registry of nodes and their device indices.

A training message has the global model, the project's own "config", and a `RoundConfig` under "over-the-air". A reply
has only the transmitted signal x_k. A question has only the key "ask", and the answer is the device index.

Every value is checked before use. A Flower grid parses all received replies at once and trusts the stated sender; here
each reply is pulled separately, and the SuperLink returns only the reply of the node that got the message.
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
from airfed.aircomp import AirCompRound

RECORD: Final = "over-the-air"
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
FAILED: Final = 6  # Flower's code for a mod whose precondition does not hold
Address = tuple[int, str, str]  # node, message id, group id

_LOG = logging.getLogger("flwr")
_LONGEST_QUOTE: Final = 200
_INTEGER_BITS: Final = 63  # limit of Flower
_MAX_COUNT: Final = 2**31 - 1  # of rounds and local steps
_MIN_AMPLITUDE, _MAX_AMPLITUDE = 1e-30, 1e30  # √W; no underflow or overflow in float32
_REPLY_PAUSE: Final = 1.0  # s between two polls for replies
_NODE_PAUSE: Final = 0.5  # s between two polls for nodes and answers
_ANSWER_TIMEOUT, _RETRY_AFTER = 60.0, 600.0  # s
# Exceptions of Flower for replies that it cannot parse, found with 30,000 damaged ones, and resource limits.
_UNREADABLE: Final = (AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """Configuration of a device in a round of the plan."""

    round_index: int  # i, from 0; keys the mini-batches
    local_steps: int  # E_i
    learning_rate: float  # τ
    clip_norm: float  # ϖ
    amplitude: float  # √(φ_k P_k) [√W], transmit amplitude of an update of norm ϖ
    phase: float | None = None  # −arg(fᴴh_k) [rad] with several antennas; with one antenna the radio knows it

    def __post_init__(self) -> None:
        _validate.whole(round_index=self.round_index)
        _validate.positive_integer(local_steps=self.local_steps)
        if (largest := max(self.round_index, self.local_steps)) > _MAX_COUNT:
            raise ValueError(
                f"round_index and local_steps must be at most {_MAX_COUNT}, got {int(largest).bit_length()} bits."
            )
        _validate.moderate(learning_rate=self.learning_rate, clip_norm=self.clip_norm, amplitude=self.amplitude)
        if not _MIN_AMPLITUDE <= self.amplitude <= _MAX_AMPLITUDE:
            raise ValueError(
                f"amplitude must be between {_MIN_AMPLITUDE:g} and {_MAX_AMPLITUDE:g}, got {self.amplitude!r}."
            )
        if self.phase is not None and not (isinstance(self.phase, float) and abs(self.phase) <= math.pi):
            raise ValueError(f"phase must be a float between -π and π, got {quote(repr(self.phase))}.")

    def to_record(self) -> ConfigRecord:
        """Return the configuration as a record of a message."""
        return ConfigRecord({name.replace("_", "-"): value for name, value in vars(self).items() if value is not None})

    @classmethod
    def of(cls, message: Message) -> RoundConfig:
        """Return the configuration in a training message; raise ValueError if it is missing or invalid."""
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise ValueError(f"The message has no record {RECORD!r}. Use the strategy OverTheAirFedAvg.")
        names = [field.name.replace("_", "-") for field in fields(cls) if field.name != "phase"]
        if set(record) - {"phase"} != set(names):
            raise ValueError(
                f"The record {RECORD!r} must have {', '.join(names)}, and optionally phase, and nothing else."
            )
        values: dict[str, Any] = {name.replace("-", "_"): value for name, value in record.items()}
        return cls(**values)


def question(node_id: int, *, ttl: float) -> Message:
    """Return the message that asks a node for its device index; type "train", because every app then calls its mods."""
    content = RecordDict({RECORD: ConfigRecord({"ask": "device"})})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)


def answer(message: Message, device: int) -> Message:
    """Return the reply to a question."""
    return Message(RecordDict({RECORD: MetricRecord({"device": device})}), reply_to=message)


def answered_device(reply: Message) -> int:
    """Return the device index in the reply to a question; raise ValueError if it has none."""
    record = _content(reply).get(RECORD)
    device = record.get("device") if isinstance(record, MetricRecord) else None
    if isinstance(device, bool) or not isinstance(device, int) or device.bit_length() > _INTEGER_BITS:
        raise ValueError("its reply has no index; add over_the_air_mod to the mods of its ClientApp")
    return device


def training(
    node_id: int, arrays: ArrayRecord, config: ConfigRecord, own: RoundConfig, *, ttl: float | None, group_id: str = ""
) -> Message:
    """Return the training message for a device."""
    content = RecordDict({ARRAYS: arrays, CONFIG: config, RECORD: own.to_record()})
    return Message(content=content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl, group_id=group_id)


def transmission(message: Message, signal: NDArray[np.float64]) -> Message:
    """Return the reply to a training message: only x_k, in float32."""
    record = ArrayRecord({"signal": Array(signal.astype(np.float32))})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def refusal(message: Message, why: object) -> Message:
    """Return an error reply to a message."""
    return Message(Error(code=FAILED, reason=quote(why)), reply_to=message)


def address(message: Message) -> Address:
    """Return the address of a message; see `sender`."""
    metadata = message.metadata
    return metadata.dst_node_id, metadata.message_id, metadata.group_id


def sender(reply: Message) -> Address | None:
    """Return the stated address of a reply, or None if it is invalid."""
    try:
        metadata = reply.metadata
        claim = metadata.src_node_id, metadata.reply_to_message_id, metadata.group_id
    except (AttributeError, LookupError):  # not a message
        return None
    return claim if isinstance(claim[0], int) and all(isinstance(part, str) for part in claim[1:]) else None


def received_update(reply: Message, aircomp: AirCompRound, device: int, dimension: int) -> NDArray[np.float64]:
    """Return the update (1, d) of a device, not clipped; raise ValueError unless the reply is one valid signal."""
    content = _content(reply)
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord) or "signal" not in record:
        raise ValueError("the reply has no signal; add over_the_air_mod to the mods of the ClientApp")
    if len(content) != 1 or len(record) != 1:
        raise ValueError("the reply has more than the signal; over_the_air_mod must be the first mod")
    signal = decode(record["signal"], "the signal", max_values=dimension)
    if signal.size != dimension or signal.dtype.kind != "f":
        raise ValueError(f"the signal must have {dimension} floating-point numbers")
    update = aircomp.undo_precoding(np.array([device]), signal[None, :])
    if not np.isfinite(update).all():
        raise ValueError("the signal has a NaN, an Inf, or a number that is far too large")
    return update


def flatten(arrays: ArrayRecord) -> NDArray[np.float64]:
    """Return the concatenated arrays of a record; raise ValueError if there are none, or one is not of floats."""
    if not arrays:
        raise ValueError("The ArrayRecord of the model must have at least one array, got none.")
    parts = []
    for name, array in arrays.items():
        parts.append(decode(array, "an array of the model"))
        if parts[-1].dtype.kind != "f":
            raise ValueError(
                f"The arrays of the model must be floating-point, got {parts[-1].dtype} for {name!r}. Leave counters "
                "and other buffers out of the ArrayRecord: only trained parameters can be averaged over the air."
            )
    return np.concatenate([part.astype(np.float64) for part in parts])


def unflatten(vector: NDArray[np.float32], like: Mapping[str, Array]) -> ArrayRecord:
    """Return a vector as a record with the names, shapes and types of another."""
    record, start = ArrayRecord(), 0
    for name, array in like.items():
        end = start + int(np.prod(array.shape, dtype=np.int64))
        record[name] = Array(vector[start:end].reshape(array.shape).astype(array.dtype))
        start = end
    return record


def decode(array: object, name: str, *, max_values: int | None = None) -> NDArray[Any]:
    """Return the numbers of a Flower Array as one vector, read safely; Flower's own reader trusts the header."""
    if not isinstance(array, Array) or array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
        raise ValueError(f"{name} must be an array written by NumPy")
    return _files.load_npy(array.data, name=name, max_values=max_values).ravel()


def quote(text: object) -> str:
    """Return an untrusted text for a message or log: one line, printable, and short.

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
    """Return the records of a reply; raise ValueError if it is an error or not a message."""
    try:
        if reply.has_error():
            raise ValueError(quote(reply.error.reason))
        content = reply.content
    except (AttributeError, LookupError):
        raise ValueError("the reply is not a message") from None
    if not isinstance(content, RecordDict):
        raise ValueError("the reply has no records")
    return content


def send(grid: Grid, outgoing: list[Message]) -> list[Message]:
    """Send messages, and return those that the grid accepted, with their ids."""
    taken = set(grid.push_messages(outgoing)) if outgoing else set()
    return [message for message in outgoing if message.metadata.message_id in taken]


def collect(grid: Grid, message: Message) -> Message | None:
    """Return the reply to a message, None if there is none yet, and an error reply if it is invalid."""
    try:
        replies = list(grid.pull_messages([message.metadata.message_id]))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():  # of the node, or of the grid: the message has expired, or the node has left
            return refusal(message, reply.error.reason)
    except _UNREADABLE as error:
        return refusal(message, f"the reply cannot be read ({type(error).__name__})")
    if sender(reply) != address(message):
        return refusal(message, "the reply states another sender or message")
    return reply


class SafeGrid:
    """A Flower grid that parses each reply separately; `clock` is the module `time` except in tests."""

    def __init__(self, grid: Grid, clock: Any = time) -> None:
        self._grid, self._clock = grid, clock

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that arrive before the timeout [s]."""
        waiting, replies = send(self._grid, list(messages)), []
        deadline = self._clock.monotonic() + (math.inf if timeout is None else timeout)
        while waiting:
            arrived = [collect(self._grid, message) for message in waiting]
            replies += [reply for reply in arrived if reply is not None]
            waiting = [message for message, reply in zip(waiting, arrived, strict=True) if reply is None]
            left = deadline - self._clock.monotonic()
            if left <= 0.0:
                break
            if waiting:
                self._clock.sleep(min(_REPLY_PAUSE, left))
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class _Asked(NamedTuple):
    """Time of a question to a node, and the question until it is answered."""

    at: float
    question: Message | None


class NodeRegistry:
    """The connected nodes by device index.

    Every node is asked once for its device index, and again only if a device is missing and `_RETRY_AFTER` has passed.
    If a device is missing, a round waits for nodes that have not answered yet, but in total at most `_ANSWER_TIMEOUT`
    in every `_RETRY_AFTER`. `clock` is the module `time` except in tests.
    """

    def __init__(self, *, num_devices: int, clock: Any = time) -> None:
        self.num_devices, self._clock = num_devices, clock
        self._devices: dict[int, int] = {}  # node -> device; of two nodes with the same index, the first is used
        self._asked: dict[int, _Asked] = {}  # by node
        self._unreliable: set[int] = set()
        self._wait_again_at = clock.monotonic()  # time from which waiting for answers is allowed

    def find(self, grid: Grid, devices: Iterable[int], *, wait: float = 0.0) -> dict[int, int]:
        """Return the node ids of the connected devices; wait up to `wait` [s] for missing ones."""
        wanted, start = list(devices), self._clock.monotonic()
        may_wait = start >= self._wait_again_at
        while True:
            self._refresh(grid, wanted)
            nodes = self._nodes()
            found = {device: nodes[device] for device in wanted if device in nodes}
            elapsed = self._clock.monotonic() - start
            unanswered = [node for node, asked in self._asked.items() if asked.question is not None]
            waits_for_answers = may_wait and bool(unanswered) and elapsed < _ANSWER_TIMEOUT
            if len(found) == len(wanted) or not (elapsed < wait or waits_for_answers):
                break
            self._clock.sleep(_NODE_PAUSE)
        if may_wait and unanswered and len(found) < len(wanted):
            self._wait_again_at = self._clock.monotonic() + _RETRY_AFTER
            _LOG.warning("%d nodes have not sent their device index; not waiting for them", len(unanswered))
        return found

    def deprioritise(self, nodes: Iterable[int]) -> None:
        """Prefer other nodes of the same index to these, which sent no valid signal in the last round."""
        self._unreliable = set(nodes)
        self._move_last()

    def _move_last(self) -> None:
        for node in self._unreliable & self._devices.keys():
            self._devices[node] = self._devices.pop(node)

    def _nodes(self) -> dict[int, int]:
        """Return the first node of each device."""
        return {device: node for node, device in reversed(self._devices.items())}

    def _refresh(self, grid: Grid, wanted: list[int]) -> None:
        """Remove nodes that have left; unless all wanted devices are reliable, ask new nodes and read answers."""
        present = set(grid.get_node_ids())
        self._devices = {node: device for node, device in self._devices.items() if node in present}
        self._asked = {node: asked for node, asked in self._asked.items() if node in present}
        if set(wanted) <= {device for device, node in self._nodes().items() if node not in self._unreliable}:
            return
        now = self._clock.monotonic()
        unknown = sorted(present - self._devices.keys())
        due = [node for node in unknown if node not in self._asked or now - self._asked[node].at >= _RETRY_AFTER]
        if due:
            taken = send(grid, [question(node, ttl=_RETRY_AFTER) for node in due])
            questions = {question.metadata.dst_node_id: question for question in taken}
            self._asked |= {node: _Asked(at=now, question=questions.get(node)) for node in due}
        for node, asked in list(self._asked.items()):
            reply = None if asked.question is None else collect(grid, asked.question)
            if reply is not None:
                self._asked[node] = _Asked(at=asked.at, question=None)
                self._register(node, reply)

    def _register(self, node: int, reply: Message) -> None:
        try:
            device = answered_device(reply)
        except ValueError as error:
            _LOG.warning("node %d has no device index: %s", node, quote(error))
            return
        if not 0 <= device < self.num_devices:
            _LOG.warning("node %d has device index %d; the plan has 0 to %d", node, device, self.num_devices - 1)
            return
        if device in self._devices.values():
            _LOG.warning("node %d has device index %d, as another node; only one is used", node, device)
        self._devices[node] = device
        self._move_last()
