"""Who is heard: everybody who answers with the right word, whatever strangers do; nobody else."""

import socket
import threading
from dataclasses import replace

import pytest

from airfed.running.heartbeat import Heartbeat, Peer, ask, own_address

LONG = 60.0  # s, for an answer on a busy machine


@pytest.fixture
def beats():
    made = [Heartbeat(rank, "127.0.0.1") for rank in range(3)]
    yield made
    for one in made:
        one.close()


def test_who_is_there_answers(beats):
    peers = [one.here for one in beats]
    assert ask(peers, LONG) == {0, 1, 2}
    assert [Peer.from_text(peer.rank, peer.to_text()) for peer in peers] == peers


def test_another_process_at_the_same_port_is_not_the_one_that_was_there(beats):
    impostor = replace(beats[0].here, word=bytes(16))
    assert ask([impostor, beats[1].here], LONG) == {1}


def test_who_has_closed_is_lost_and_nobody_else(beats, wait_for):
    first, second, third = beats
    first.watch([one.here for one in beats], 2.0)
    assert first.lost() == []
    second.close()
    assert wait_for(lambda: first.lost() == [second.here])
    assert first.silent(LONG) == [second.here]
    assert str(second.here) == f"rank 1 on {socket.gethostname()} (127.0.0.1)"
    assert ask([third.here], LONG) == {2}


def test_one_that_comes_back_in_time_is_not_lost(beats, wait_for, monkeypatch):
    first, second, _ = beats
    first.watch([first.here, second.here], 1e6)
    assert wait_for(lambda: first._missed == {1: 0})
    first._missed[1] = 19  # the last question before it is lost
    monkeypatch.setattr(first, "_closed", _Once())
    first._ask(LONG)
    assert first._missed == {1: 0}


class _Once:
    """An event that is set after the first look at it."""

    def __init__(self):
        self.looks = 0

    def is_set(self):
        self.looks += 1
        return self.looks > 1

    def wait(self, seconds):
        return True


def test_strangers_are_not_heeded(beats):
    here = beats[0].here
    kept = []
    for words in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(10_000)):
        for _ in range(20):
            stranger = socket.create_connection((here.address, here.port))
            kept.append(stranger)
            try:
                stranger.sendall(words)
            except OSError:  # it was told the word and hung up on
                continue
    assert ask([here], LONG) == {0}
    for stranger in kept:
        stranger.close()


def test_one_that_accepts_and_says_nothing_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        peer = Peer(rank=1, host="here", address="127.0.0.1", port=mute.getsockname()[1], word=b"word")
        assert ask([peer], 0.2) == set()


def test_what_cannot_be_reached_is_silent():
    unreachable = Peer(rank=1, host="nowhere", address="255.255.255.255", port=9, word=b"word")
    assert ask([unreachable], LONG) == set()


def test_a_closed_heartbeat_ends_its_threads(wait_for):
    one = Heartbeat(0, "127.0.0.1")
    one.watch([one.here], 1.0)
    one.close()
    assert wait_for(lambda: not [t for t in threading.enumerate() if t.name in ("airfed-answer", "airfed-ask")])


def test_the_own_address_is_the_one_on_the_way_to_the_other():
    assert own_address("127.0.0.1", 1) == "127.0.0.1"
    with pytest.raises(ValueError, match="Expected MASTER_ADDR to be a host that can be reached"):
        own_address("no.invalid", 1)
