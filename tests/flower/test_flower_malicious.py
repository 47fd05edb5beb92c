"""Malicious devices: whatever one of them sends, the round continues without it, and only without it."""

import io
import json
import logging
import random
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content

from airfed.flower import OverTheAirFedAvg, messages
from airfed.flower.messages import collect
from airfed.privacy.ledger import Ledger

NODE, LIAR = 100, 102  # of device 0, and of device 2
D = 12


def npy(array, **kwargs):
    buffer = io.BytesIO()
    np.save(buffer, array, **kwargs)
    return buffer.getvalue()


def headed(text, body=b"", version=b"\x01\x00", length=None):
    """An NPY file with the given header."""
    text = text.encode() if isinstance(text, str) else text
    length = len(text) if length is None else length
    return b"\x93NUMPY" + version + length.to_bytes(2 if version == b"\x01\x00" else 4, "little") + text + body


def claiming(shape, descr="<f4", order="False", body=4 * D):
    return headed(f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n", b"\0" * body)


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, npy(np.ones(D)))
    return buffer.getvalue()


def array(data, dtype="float32", shape=(D,), stype="numpy.ndarray"):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


GOOD = npy(np.ones(D, np.float32))
DATA = {
    "empty": b"",
    "rubbish": b"rubbish",
    "random": random.Random(0).randbytes(200),
    "magic only": b"\x93NUMPY",
    "no header": GOOD[:10],
    "half a header": GOOD[:40],
    "no data": GOOD[:-48],
    "one byte less": GOOD[:-1],
    "one byte more": GOOD + b"\0",
    "version 9": b"\x93NUMPY\x09\x00" + GOOD[8:],
    "header longer than the file": headed("{", length=60000),
    "header of 4 GB": headed("{", version=b"\x02\x00", length=2**32 - 1),
    "unclosed header": headed("{'descr': '<f4', 'fortran_order': False, 'shape': (12,"),
    "unclosed quote": headed("{'descr': '<f4"),
    "header of brackets": headed("(" * 1000),
    "header of nested lists": headed("[" * 500 + "]" * 500),
    "header that calls": headed("{'descr': __import__('os').getpid(), 'fortran_order': False, 'shape': (12,), }\n"),
    "header not in ASCII": headed(b"\xff\xfe" * 30),
    "header with a NUL": headed("{'descr': '<f4\0', 'fortran_order': False, 'shape': (12,), }\n", b"\0" * 48),
    "shape 4e9": claiming("(4000000000,)"),
    "shape 2**70": claiming(f"({2**70},)"),
    "shape of 400 digits": claiming("(" + "9" * 400 + ",)"),
    "product 2**64": claiming(f"({2**32}, {2**32})"),
    "negative shape": claiming("(-12,)"),
    "shape 1.2e1": claiming("(1.2e1,)"),
    "shape True": claiming("(True,)"),
    "shape None": claiming("None"),
    "empty shape": claiming("()"),
    "40 dimensions": claiming("(" + "1, " * 39 + "12)"),
    "zero times much": claiming(f"(0, {10**17})", body=0),
    "objects": claiming("(12,)", descr="|O", body=96),
    "a pickle": npy(np.array([{"a": 1}] * D, dtype=object), allow_pickle=True),
    "texts": npy(np.array(["x"] * D)),
    "dates": npy(np.zeros(D, "datetime64[s]")),
    "a structure": npy(np.zeros(D, [("a", "<f4")])),
    "integers": npy(np.ones(D, np.int64)),
    "truth values": npy(np.ones(D, np.bool_)),
    "complex": npy(np.ones(D, np.complex64)),
    "descr of subarrays": headed("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (6,), }\n", b"\0" * 48),
    "too long": npy(np.ones(D + 1)),
    "too short": npy(np.ones(D - 1)),
    "a megabyte": npy(np.ones(2**18, np.float32)),
    "NaN": npy(np.full(D, np.nan)),
    "one Inf": npy(np.array([np.inf] + [0.0] * (D - 1))),
    "the largest float64": npy(np.full(D, np.finfo(np.float64).max)),
    "a zip of an array": zipped("arr_0.npy"),
    "an empty zip": zipped(),
    "a cut zip": zipped("arr_0.npy")[:60],
}
# Odd, but d finite numbers all the same: it counts, clipped.
HARMLESS = {
    "float64": npy(np.ones(D)),
    "float16": npy(np.ones(D, np.float16)),
    "big endian": npy(np.ones(D, ">f4")),
    "Fortran order": claiming("(12,)", order="True"),
    "two dimensions": npy(np.ones((3, 4), np.float32)),
    "Fortran order in two dimensions": npy(np.asfortranarray(np.ones((3, 4), np.float32))),
    "version 2": headed(GOOD[10:128], GOOD[128:], version=b"\x02\x00"),
}


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_an_array_is_read_as_numpy_reads_it(data):
    flat = np.load(io.BytesIO(data)).ravel()
    read = messages.decode(array(data), "it")
    assert read.dtype == flat.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, flat)


def test_reading_raises_nothing_but_value_errors_and_allocates_nothing():
    rng = random.Random(1)
    seeds = [*HARMLESS.values(), GOOD, npy(np.ones((3, 4))), *DATA.values()]
    tracemalloc.start()
    for _ in range(5_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[place : place + 1] = rng.randbytes(1)
                case 1:
                    del data[place : place + rng.randrange(1, 20)]
                case 2:
                    data[place:place] = rng.choice([b"9", b"9" * 30, b"(", b"'", b"\n", b",", b"-", b"\0", b"f8"])
                case 3:
                    data[place:place] = data[rng.randrange(len(data) + 1) :][:30]
        with suppress(ValueError):
            messages.decode(array(bytes(data)), "it")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def replying(make):
    return lambda message, reply: Message(RecordDict(make()), reply_to=message)


def signalling(signal):
    return replying(lambda: {"over-the-air": ArrayRecord({"signal": signal})})


def broken(change):
    """A valid reply whose attributes a client in this process has changed."""

    def fault(message, reply):
        change(reply)
        return reply

    return fault


def set_metadata(**values):
    return broken(lambda reply: reply.metadata.__dict__.update({f"_{name}": value for name, value in values.items()}))


UNREADABLE = (AttributeError, IndexError, KeyError, MemoryError, RecursionError, TypeError, ValueError)
signal = Array(np.ones(D, np.float32))
REPLIES = {
    "no reply": lambda message, reply: None,
    "an error": lambda message, reply: Message(Error(code=0, reason="the battery is empty"), reply_to=message),
    "an error of 10 MB": lambda message, reply: Message(Error(code=0, reason="x" * 10**7), reply_to=message),
    "an error that draws": lambda message, reply: Message(
        Error(code=0, reason="\x1b[2J\x1b[31mINFO: all is well\r\nWARNING: round 7\u202e\ud800\x00"), reply_to=message
    ),
    "an error without a reason": lambda message, reply: Message(Error(code=2**70), reply_to=message),
    "no records": replying(dict),
    "no arrays": replying(lambda: {"over-the-air": ArrayRecord()}),
    "no signal": replying(lambda: {"over-the-air": ArrayRecord({"noise": signal})}),
    "two signals": replying(lambda: {"over-the-air": ArrayRecord({"signal": signal, "again": signal})}),
    "two ArrayRecords": replying(
        lambda: {"over-the-air": ArrayRecord({"signal": signal}), "more": ArrayRecord({"signal": signal})}
    ),
    "a name with control characters": replying(lambda: {"over-the-air\x1b[2J\n": ArrayRecord({"signal": signal})}),
    "megabytes of config": replying(
        lambda: {"over-the-air": ArrayRecord({"signal": signal}), "config": ConfigRecord({"x": "y" * 10**7})}
    ),
    "metrics": replying(
        lambda: {"over-the-air": ArrayRecord({"signal": signal}), "metrics": MetricRecord({"loss": 0.1})}
    ),
    "a config in place of the signal": replying(lambda: {"over-the-air": ConfigRecord({"signal": GOOD})}),
    "a metric in place of the signal": replying(lambda: {"over-the-air": MetricRecord({"signal": 1.0})}),
    "an answer to a question": replying(lambda: {"over-the-air": MetricRecord({"device": 2})}),
    "the whole model": replying(lambda: {"arrays": ArrayRecord({"model": signal})}),
    "another stype": signalling(array(GOOD, stype="torch.Tensor")),
    "an empty stype": signalling(array(GOOD, stype="")),
    "a stype with control characters": signalling(array(GOOD, stype="\x1b[2J")),
    "data that is no bytes": broken(lambda reply: reply.content["over-the-air"]["signal"].__dict__.update(data="text")),
    "an array without data": broken(lambda reply: reply.content["over-the-air"]["signal"].__dict__.update(data=None)),
    "no content": broken(lambda reply: reply.__dict__.update(_content=None)),
    "content of another kind": broken(lambda reply: reply.__dict__.update(_content={"over-the-air": 1})),
    "an error of another kind": broken(lambda reply: reply.__dict__.update(_error="error")),
    "no metadata": broken(lambda reply: reply.__dict__.pop("_metadata")),
    "metadata that is none": broken(lambda reply: reply.__dict__.update(_metadata=None)),
    "no message": lambda message, reply: "hello",
    "a number": lambda message, reply: 5,
    "of another node": set_metadata(src_node_id=NODE),
    "of an unknown node": set_metadata(src_node_id=12345),
    "of no node": set_metadata(src_node_id=None),
    "of a list of nodes": set_metadata(src_node_id=[LIAR]),
    "to another message": set_metadata(reply_to_message_id="message 0"),
    "to no message": set_metadata(reply_to_message_id=None),
    "of an earlier round": set_metadata(group_id="0"),
    "of no round": set_metadata(group_id=[]),
    **{f"unreadable: {kind.__name__}": lambda message, reply, kind=kind: kind("x") for kind in UNREADABLE},
    **{f"signal: {name}": signalling(array(data)) for name, data in DATA.items()},
}


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("fault", REPLIES.values(), ids=REPLIES)
def test_a_round_continues_without_an_invalid_reply(
    setup, start, own_training, own_app, make_grid, tmp_path, caplog, fault
):
    grid = make_grid(own_app, range(5), faults={(LIAR, 1): fault})
    trained = start(grid, tmp_path / "ledger.jsonl")
    np.testing.assert_allclose(trained, own_training(missing={(2, 1)}), rtol=1e-5, atol=1e-6)
    charges = Ledger.load(tmp_path / "ledger.jsonl").charges
    assert [(charge.round_index, charge.attempt) for charge in charges] == [(0, 0), (1, 0), (2, 0)]
    assert all(charge.mu == setup.plan.mu_round for charge in charges)
    (line,) = warnings_of(caplog)
    assert line.startswith("round 2: device")
    assert len(line) < 300
    assert line.isprintable()


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_a_signal_in_another_layout_counts(start, own_app, make_grid, tmp_path, caplog, data):
    start(make_grid(own_app, range(5), faults={(LIAR, 1): signalling(array(data))}), tmp_path / "ledger.jsonl")
    assert warnings_of(caplog) == []


class TestStrays:
    """Replies that a grid delivers without a request."""

    @pytest.fixture
    def strategy(self, setup, same_noise, clock, tmp_path):
        options = {"aircomp": setup.aircomp, "noise": same_noise, "wait_for_devices": 0.0, "clock": clock}
        return OverTheAirFedAvg(setup.plan, tmp_path / "ledger.jsonl", **options)

    def replies(self, strategy, grid, initial_arrays, server_round=1):
        outgoing = strategy.configure_train(server_round, initial_arrays, ConfigRecord(), grid)
        grid.push_messages(outgoing)
        return [collect(grid, message) for message in outgoing]

    def test_they_are_counted_and_change_nothing(self, strategy, own_app, make_grid, initial_arrays, setup, caplog):
        class Recorded:
            def charge(self, index):
                pass

            def send(self, index, signal):
                return "once"

            def settle(self, done):
                self.done = done

        models = []
        for repeat in (0, 1):
            strategy.recorder = Recorded()
            grid = make_grid(own_app, range(5))
            genuine = self.replies(strategy, grid, initial_arrays)
            others = [stray(genuine[0]) for stray in STRAYS] * repeat
            arrays, _ = strategy.aggregate_train(1, [*others, *genuine, *genuine * repeat])
            models.append(messages.flatten(arrays))
            assert strategy.recorder.done.aggregate.arrived == 4
        np.testing.assert_array_equal(*models)
        assert warnings_of(caplog) == [f"round 1: ignored {len(STRAYS) + 4} replies that do not belong to its messages"]

    def test_late_replies_of_an_earlier_round_count_in_no_other(
        self, strategy, own_app, make_grid, initial_arrays, caplog
    ):
        grid = make_grid(own_app, range(5))
        late = self.replies(strategy, grid, initial_arrays)
        arrays, _ = strategy.aggregate_train(1, late[:3])
        genuine = self.replies(strategy, grid, arrays, server_round=2)
        strategy.aggregate_train(2, [*late, *genuine[:1]])
        assert warnings_of(caplog) == [
            "round 1: devices [4] did not reply in time",
            "round 2: ignored 4 replies that do not belong to its messages",
            "round 2: devices [2, 3, 4] did not reply in time",
        ]


def copied(**values):
    def stray(reply):
        lying = Message(RecordDict({"over-the-air": ArrayRecord({"signal": signal})}), NODE, "train")
        metadata = {**reply.metadata.__dict__, **{f"_{name}": value for name, value in values.items()}}
        lying.metadata.__dict__.update(metadata)
        return lying

    return stray


STRAYS = [
    copied(src_node_id=12345),
    copied(src_node_id=None),
    copied(src_node_id=[1]),
    copied(src_node_id="100"),
    copied(reply_to_message_id="another"),
    copied(reply_to_message_id={}),
    copied(group_id="7"),
    lambda reply: None,
    lambda reply: object(),
    lambda reply: b"bytes",
    lambda reply: Message.__new__(Message),
]


class WireGrid:
    """A grid with one reply as bytes: Flower's reader parses what a malicious SuperNode has pushed."""

    def __init__(self, contents, identity):
        self.contents, self.identity = contents, identity

    def pull_messages(self, message_ids):
        reply = inflate_object_from_contents(self.identity, dict(self.contents))
        reply.metadata.__dict__["_message_id"] = self.identity
        return [reply]


def deflated(message):
    return {identity: thing.deflate() for identity, thing in get_all_nested_objects(message).items()}, message.object_id


def rewritten(contents, root, victim, body=None, kind=None, children=None):
    """The objects of a message with one of them changed, and with it the ids of all above it."""
    contents, old = dict(contents), victim
    head, _, old_body = contents.pop(victim).partition(b"\0")
    old_kind, old_children, _ = head.split(b" ")
    parts = (old_kind if kind is None else kind, old_children if children is None else children)
    body = old_body if body is None else body
    while True:
        new = b" ".join([*parts, str(len(body)).encode()]) + b"\0" + body
        identity = get_object_id(new)
        contents[identity] = new
        if old == root:
            return contents, identity
        above = next(key for key, content in contents.items() if key != identity and old.encode() in content)
        head, _, body = contents.pop(above).replace(old.encode(), identity.encode()).partition(b"\0")
        parts, old = head.split(b" ")[:2], above


def damaged(body, rng):
    data = bytearray(body)
    for _ in range(rng.choice([1, 1, 3])):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[place : place + 1] = rng.randbytes(1)
            case 1:
                del data[place : place + rng.randrange(1, 9)]
            case 2:
                data[place:place] = rng.randbytes(3)
            case 3:
                data = bytearray(rng.choice([b"null", b"[]", b"{}", b"1", b"[" * 100_000, b'"x"', b""]))
            case 4:
                try:
                    table = json.loads(bytes(data))
                except (ValueError, RecursionError):
                    continue
                if isinstance(table, dict) and table:
                    odd = [None, -1, "x", [], {}, [10**30], [-1], [0.5], True, [0] * 50, "\ud800"]
                    table[rng.choice(list(table))] = rng.choice(odd)
                    data = bytearray(json.dumps(table).encode())
    return bytes(data)


def test_a_malicious_supernode_only_spoils_its_own_reply(setup):
    """Flower's reader raises a dozen kinds of exceptions for objects that its SuperLink lets pass."""
    rng = random.Random(3)
    asked = messages.question(LIAR, ttl=60.0)
    asked.metadata.__dict__["_message_id"] = "asked"
    kinds = [b"ArrayChunk", b"Array", b"ArrayRecord", b"ConfigRecord", b"Message", b"MetricRecord", b"RecordDict"]
    contents = [
        {"over-the-air": ArrayRecord({"signal": signal})},
        {"over-the-air": MetricRecord({"device": 2})},
        {"a": ConfigRecord({"x": [1, 2], "y": b"q"}), "over-the-air": ArrayRecord({"signal": signal})},
    ]
    honest = [deflated(Message(RecordDict(content), reply_to=asked)) for content in contents]
    honest.append(deflated(Message(Error(code=1, reason="tired"), reply_to=asked)))
    read = refused = passed = 0
    for _ in range(4000):
        objects, root = rng.choice(honest)
        victim = rng.choice(list(objects))
        match rng.randrange(6):
            case 0:
                change = {"kind": rng.choice(kinds)}
            case 1:
                others = [key.encode() for key in objects if key != victim] or [b""]
                change = {"children": b",".join(rng.choices(others, k=rng.randrange(3)))}
            case _:
                change = {"body": damaged(objects[victim].partition(b"\0")[2], rng)}
        try:
            pushed, identity = rewritten(objects, root, victim, **change)
            for content in pushed.values():
                validate_object_content(content)  # as the SuperLink does
        except (ValueError, StopIteration, RecursionError):
            continue
        passed += 1
        reply = collect(WireGrid(pushed, identity), asked)
        assert messages.sender(reply) == messages.address(asked)  # whoever it pretends to be
        try:
            messages.received_update(reply, setup.aircomp.at(-1), 2, D)
            read += 1
        except ValueError:
            refused += 1
    assert passed > 2000
    assert read > 0 < refused


def test_a_forged_sender_does_not_replace_another_device():
    asked = messages.question(LIAR, ttl=60.0)
    asked.metadata.__dict__["_message_id"] = "asked"
    forged = Message(RecordDict({"over-the-air": ArrayRecord({"signal": signal})}), reply_to=asked)
    forged.metadata.__dict__["_src_node_id"] = NODE
    reply = collect(WireGrid(*deflated(forged)), asked)
    assert reply.metadata.src_node_id == LIAR
    assert reply.error.reason == "the reply states another sender or message"
