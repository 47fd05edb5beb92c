"""Heartbeats: a process that counts in the store is alive; one that stops counting is lost."""

import threading
import time

import pytest

from airfed.training import distributed
from airfed.training.distributed import Heartbeat

dist = pytest.importorskip("torch.distributed")

BEAT = 0.02  # s


@pytest.fixture
def beats(monkeypatch):
    """Three processes that share a store; they are lost after 20 beats."""
    monkeypatch.setattr(distributed, "_BEAT", BEAT)
    store = dist.HashStore()
    made = [Heartbeat(store, rank, 3, 20 * BEAT) for rank in range(3)]
    for one in made:
        one.start()
    yield made
    for one in made:
        one.close()


def waiting(one, beats):
    """Wait for so many beats, as a process in an exchange does; return who is lost at the end."""
    for _ in range(beats):
        time.sleep(BEAT)
        lost = one.lost()
    return lost


def test_a_process_that_counts_is_alive(beats):
    assert beats[0].limit == 20
    assert waiting(beats[0], 60) == []
    assert beats[0].ended() == []


def test_only_the_process_that_stops_counting_is_lost(beats, wait_for):
    beats[1].close()
    assert wait_for(lambda: beats[0].lost() == [1])
    assert wait_for(lambda: beats[2].lost() == [1])
    assert beats[0].ended() == [1]


def test_a_process_that_slept_loses_no_other(beats):
    """All beats were answered, however long ago the last one was."""
    first = beats[0]
    first._missed = [0, 19, 0]  # the last beat before rank 1 is lost
    assert first.lost() == []
    assert waiting(first, 5) == []
    assert first._missed[1] < 19


class Broken:
    """A store that hangs, or has ended, from the third beat on."""

    def __init__(self, ended):
        self._store, self._ended, self._left = dist.HashStore(), ended, 3
        self.go_on = threading.Event()

    def set(self, key, value):
        self._left -= 1
        if self._left < 0:
            if self._ended:
                raise dist.DistNetworkError("Connection reset by peer")
            self.go_on.wait()
        self._store.set(key, value)

    def multi_get(self, keys):
        return self._store.multi_get(keys)


@pytest.mark.parametrize("ended", [True, False])
def test_if_the_store_does_not_answer_its_host_is_lost(monkeypatch, wait_for, ended):
    monkeypatch.setattr(distributed, "_BEAT", BEAT)
    store = Broken(ended)
    one = Heartbeat(store, 0, 1, 20 * BEAT)
    one.start()
    assert wait_for(lambda: one.lost() == [0])
    assert one.ended() == ([0] if ended else [])
    one.close()
    store.go_on.set()


def test_all_are_in_an_exchange_when_the_last_one_has_come_to_it(beats, wait_for):
    first, second, third = beats
    first.exchange = second.exchange = 7
    assert waiting(first, 10) == []
    assert not first.all_here()
    third.exchange = 8  # it is already further
    assert wait_for(lambda: first.lost() == [] and first.all_here())
    second.close()
    assert wait_for(lambda: not first.all_here())


def test_a_closed_heartbeat_ends_its_thread(beats):
    for one in beats:
        one.close(wait=True)
    assert not any(thread.name == "airfed-heartbeat" for thread in threading.enumerate())
