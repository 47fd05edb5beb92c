"""The mapping of nodes to devices, and how little an unknown node can cost."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from airfed.flower.messages import NodeRegistry


@pytest.fixture
def registry(clock):
    return NodeRegistry(num_devices=5, clock=clock)


def unresponsive(message, reply):
    return None


def saying(content):
    return lambda message, reply: Message(RecordDict({"over-the-air": content}), reply_to=message)


def asked(grid):
    return [message.metadata.dst_node_id for batch in grid.sent for message in batch]


def test_nodes_say_which_device_they_are(own_app, make_grid, registry, clock, caplog):
    grid = make_grid(own_app, [4, 1])
    assert registry.find(grid, [1, 2]) == {1: 101}
    assert asked(grid) == [101, 104]
    assert registry.find(grid, [1, 4]) == {1: 101, 4: 104}
    assert asked(grid) == [101, 104]  # who has answered is not asked again
    grid.nodes[900] = (own_app, {"partition-id": 2})
    grid.nodes[901] = (own_app, {"partition-id": 1})
    grid.nodes[902] = (own_app, {"partition-id": 5})
    grid.nodes[903] = (own_app, {})
    assert registry.find(grid, [1, 2]) == {1: 101, 2: 900}
    assert "device index 1, as another node" in caplog.text
    assert "device index 5; the plan has 0 to 4" in caplog.text
    assert "--node-config" in caplog.text
    del grid.nodes[101]
    assert registry.find(grid, [1]) == {1: 901}  # the second takes over once the first has gone
    assert clock.now == 0.0


def test_a_round_with_all_its_devices_does_not_wait_for_other_nodes(own_app, make_grid, registry, clock):
    grid = make_grid(own_app, range(5), malicious={50: unresponsive})
    grid.nodes[50] = (own_app, {})
    for _ in range(3):
        assert len(registry.find(grid, range(5))) == 5
    assert clock.now == 0.0


def test_unanswering_nodes_cost_a_bounded_time(own_app, make_grid, registry, clock):
    grid = make_grid(own_app, [0, 2])
    for turn in range(20):  # of a minute each
        stranger = 500 + turn
        grid.nodes[stranger], grid.malicious[stranger] = (own_app, {}), unresponsive
        assert registry.find(grid, [0, 2, 3]) == {0: 100, 2: 102}
        clock.sleep(60.0)
    lost = clock.now - 20 * 60.0
    assert 60.0 <= lost <= 3 * 60.5  # answer_timeout in each retry_after
    counts = [asked(grid).count(500 + turn) for turn in range(20)]
    assert min(counts) == 1
    assert max(counts) <= 3


def test_an_unanswering_node_is_asked_again_if_a_device_is_missing_and_time_has_passed(
    own_app, make_grid, registry, clock
):
    grid = make_grid(own_app, [0, 3], malicious={103: unresponsive})
    assert registry.find(grid, [0, 3]) == {0: 100}
    assert clock.now == pytest.approx(60.0, abs=1.0)
    grid.malicious.clear()
    assert registry.find(grid, [0, 3]) == {0: 100}
    assert clock.now == pytest.approx(60.0, abs=1.0)
    clock.sleep(600.0)
    assert registry.find(grid, [0, 3]) == {0: 100, 3: 103}
    assert asked(grid) == [100, 103, 103]


def test_an_answer_that_comes_late_counts_from_then_on(own_app, make_grid, registry, clock):
    late = {}

    def slow(message, reply):
        late[message.metadata.message_id] = reply

    grid = make_grid(own_app, [0, 3], malicious={103: slow})
    assert registry.find(grid, [0, 3]) == {0: 100}
    before = clock.now
    grid.mail.update(late)
    assert registry.find(grid, [0, 3]) == {0: 100, 3: 103}
    assert clock.now == before
    assert asked(grid) == [100, 103]


def test_the_first_round_waits_for_missing_devices(own_app, make_grid, registry, clock):
    grid = make_grid(own_app, [0])

    class Joining:
        def sleep(self, seconds):
            clock.now += seconds
            if clock.now > 30.0:
                grid.nodes.setdefault(103, (own_app, {"partition-id": 3}))

        def monotonic(self):
            return clock.now

    registry = NodeRegistry(num_devices=5, clock=Joining())
    assert registry.find(grid, [0, 3], wait=120.0) == {0: 100, 3: 103}
    assert 30.0 < clock.now < 32.0


def test_a_device_that_returns_with_another_id_is_used_once_its_old_node_fails(own_app, make_grid, registry, clock):
    grid = make_grid(own_app, [0, 2])
    assert registry.find(grid, [0, 2]) == {0: 100, 2: 102}
    grid.nodes[777] = (own_app, {"partition-id": 2})  # restarted; Flower still believes in the old one
    assert registry.find(grid, [0, 2]) == {0: 100, 2: 102}
    registry.deprioritise([102])
    assert registry.find(grid, [0, 2]) == {0: 100, 2: 777}
    registry.deprioritise([])
    assert registry.find(grid, [0, 2]) == {0: 100, 2: 777}  # and stays
    registry.deprioritise([777])
    assert registry.find(grid, [0, 2]) == {0: 100, 2: 102}  # two that fail take turns
    registry.deprioritise([100])
    assert registry.find(grid, [0, 2])[0] == 100  # nobody else is there
    assert clock.now == 0.0


INVALID_ANSWERS = {
    "nothing": saying(MetricRecord()),
    "a float": saying(MetricRecord({"device": 2.0})),
    "a list": saying(MetricRecord({"device": [2]})),
    "negative": saying(MetricRecord({"device": -1})),
    "too large": saying(MetricRecord({"device": 2**70})),
    "enormous": saying(MetricRecord({"device": 10**5000})),
    "a text": saying(ConfigRecord({"device": "2"})),
    "an error": lambda message, reply: Message(Error(code=1, reason="\x1b[31m" + "x" * 10**6), reply_to=message),
    "an error without a reason": lambda message, reply: Message(Error(code=1), reply_to=message),
    "unreadable": lambda message, reply: KeyError("arraychunk_ids"),
}


@pytest.mark.parametrize("answer", INVALID_ANSWERS.values(), ids=INVALID_ANSWERS)
def test_an_invalid_answer_does_not_hide_other_nodes(own_app, make_grid, registry, clock, caplog, answer):
    grid = make_grid(own_app, [0, 2], malicious={102: answer})
    assert registry.find(grid, [0, 2]) == {0: 100}
    assert clock.now == 0.0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("node 102 ")
    assert len(line) < 300
    assert line.isprintable()
