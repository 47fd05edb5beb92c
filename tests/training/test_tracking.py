"""TensorBoard logs contain the records of a run, also after a resume, and change nothing else."""

import json
import struct
import sys

import pytest

from airfed._extras import MissingExtra
from airfed.training.execution import LOG_FOLDER, execute, scalars
from airfed.training.formats import UNNOISED

pytestmark = pytest.mark.usefixtures("no_flush")
LOGGED = {"run__log": ["tensorboard"], "run__checkpoint_every": 3}


def read_back(path):
    """(tag, step, value) of every figure in the log of a run, in the order written; parsed here, not by its writer."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = (path / LOG_FOLDER).iterdir()
    content, place, found = file.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)  # then 4 bytes of checksum, the record, 4 bytes more
        event = Event.FromString(content[place + 12 : place + 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        place += 12 + length + 4
    return found


def expected(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(tag, each["round"] + 1, pytest.approx(value)) for each in records for tag, value in scalars(each).items()]


def test_the_log_is_the_record(make_scenario, tmp_path):
    execute(make_scenario(**LOGGED, run__averages="all"), tmp_path / "run")
    found = read_back(tmp_path / "run")
    assert found == expected(tmp_path / "run")
    assert {step for _, step, _ in found} == set(range(1, 9))
    assert {"loss", "epsilon_total", "power_transmitted", "averages/tail/loss"} <= {tag for tag, _, _ in found}


def test_a_resumed_run_has_every_round_once_and_the_same_bits(make_scenario, tmp_path, contents, stop_after):
    execute(make_scenario(**LOGGED), tmp_path / "whole")
    assert execute(make_scenario(**LOGGED), tmp_path / "run", stop=stop_after(9)).status == "stopped"
    begun = {step for _, step, _ in read_back(tmp_path / "run")}
    assert 0 < len(begun) < 8
    assert execute(make_scenario(**LOGGED), tmp_path / "run", resume=True).status == "finished"
    assert read_back(tmp_path / "run") == read_back(tmp_path / "whole") == expected(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_log_changes_no_result(make_scenario, tmp_path):
    execute(make_scenario(run__checkpoint_every=3), tmp_path / "plain")
    execute(make_scenario(**LOGGED), tmp_path / "logged")
    assert not (tmp_path / "plain" / LOG_FOLDER).exists()
    for name in ("model.safetensors", "metrics.jsonl", "devices.csv", "plan.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "logged" / name).read_bytes()
    # It is no part of what a run is: a resumed run may log it or not.
    assert execute(make_scenario(run__checkpoint_every=3), tmp_path / "logged", resume=True).status == "finished"


def test_a_private_record_gives_a_private_log(make_scenario, tmp_path):
    execute(make_scenario(**LOGGED, run__record="private"), tmp_path / "run")
    found = read_back(tmp_path / "run")
    assert found == expected(tmp_path / "run")
    assert {tag for tag, _, _ in found}.isdisjoint(UNNOISED)


def test_without_the_extra_nothing_is_begun(make_scenario, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtra, match=r"This needs airfed\[track\] \(tensorboardX is missing\)"):
        execute(make_scenario(**LOGGED), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    execute(make_scenario(), tmp_path / "plain")
