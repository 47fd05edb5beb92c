"""The run directory: writes are atomic, damage is detected, files of other programs are kept."""

import csv
import errno
import io
import json
import math
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, load_file, save

import airfed
from airfed import _disk
from airfed._disk import write_atomic
from airfed.training.directory import RunDirectory, RunError
from airfed.training.formats import METRICS
from airfed.training.state import Checkpoint, tensor_file

MANIFEST = {
    "airfed": "x",
    "name": "made",
    "engine": "quadratic",
    "privacy": "simulated",
    "rounds": 3,
    "scenario_sha256": "0" * 64,
    "plan_sha256": "0" * 64,
    "data_sha256": "0" * 64,
    "signal": {},
    "versions": {},
}


def checkpoint(index, dimension=40):
    parameters = np.random.default_rng(index).normal(size=dimension).astype(np.float32)
    return Checkpoint(round_index=index, parameters=parameters, ledger_head=f"head-{index}")


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    made.begin(scenario=b"seed = 0\n", plan=b"{}", manifest=MANIFEST, ledger_header={"delta": 1e-3})
    return made


def same(one, other):
    return (
        one.round_index == other.round_index
        and one.ledger_head == other.ledger_head
        and one.parameters.dtype == other.parameters.dtype == np.float32
        and one.parameters.tobytes() == other.parameters.tobytes()
    )


# -- checkpoints


def test_a_checkpoint_is_restored_exactly(directory):
    assert directory.latest() is None
    for index in (1, 2, 30, 999_999, 1_000_000):
        directory.save(checkpoint(index))
        assert same(directory.latest(), checkpoint(index))


def test_the_last_three_checkpoints_are_kept(directory):
    for index in range(1, 8):
        directory.save(checkpoint(index))
    names = sorted(file.name for file in directory.file("checkpoints").iterdir())
    assert names == [f"round-{index:06d}.safetensors" for index in (5, 6, 7)]


def newest(directory):
    return max(directory.file("checkpoints").glob("round-*"))


def test_flipped_bytes_anywhere_are_detected(directory, caplog):
    old, new = checkpoint(1), checkpoint(2)
    directory.save(old)
    directory.save(new)
    file = newest(directory)
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(content)):  # every byte of the file, a random other value
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        found = directory.latest()
        # a change that changes nothing (white space of the header) may pass; nothing else
        assert same(found, old) or same(found, new), position
        if not content[8:].startswith(b" ", position - 8):
            assert same(found, old), position
    assert "damaged" in caplog.text
    file.write_bytes(content)
    assert same(directory.latest(), new)


def test_many_flips_swaps_and_repeats_are_detected(directory):
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    file = newest(directory)
    content = file.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(100):
        damaged = np.frombuffer(content, np.uint8).copy()
        start, stop = sorted(rng.integers(0, len(content) + 1, 2))
        kind = rng.integers(3)
        if kind == 0:
            damaged[start:stop] = rng.integers(0, 256, stop - start)
        elif kind == 1:
            damaged[start:stop] = 0  # a hole, as a crashed file system leaves
        else:
            damaged = np.delete(damaged, slice(start, stop))
        if damaged.tobytes() == content:
            continue
        file.write_bytes(damaged.tobytes())
        assert same(directory.latest(), checkpoint(1))


def test_truncated_files_are_detected(directory):
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    file = newest(directory)
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        assert same(directory.latest(), checkpoint(1))


def crafted(header, data=bytes(16)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


TENSOR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 100,
        b"not a checkpoint",
        crafted({"parameters": TENSOR}),
        crafted({"parameters": TENSOR, "__metadata__": None}),
        crafted({"parameters": TENSOR, "__metadata__": "text"}),
        crafted({"parameters": TENSOR, "__metadata__": {"sha256": "0" * 64}}),
        crafted({"parameters": {**TENSOR, "dtype": "BF16", "shape": [8]}}),
        crafted({"parameters": {**TENSOR, "shape": [2**40, 2**40]}}),
        crafted({"other": TENSOR, "__metadata__": {"round": "2"}}),
        crafted([1, 2]),
        crafted(b"[" * 100_000),
        crafted(b'{"__metadata__":' + b"[" * 100_000),
        (2**63).to_bytes(8, "little"),
        save({"parameters": np.zeros(4, np.float32)}, {"round": "2", "ledger_head": "x"}),
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93.",  # a pickle
    ],
)
def test_garbage_is_passed_over(directory, content):
    directory.save(checkpoint(1))
    (directory.file("checkpoints") / "round-000002.safetensors").write_bytes(content)
    assert same(directory.latest(), checkpoint(1))


def test_a_folder_or_a_dangling_link_in_the_place_of_a_checkpoint_is_passed_over(directory):
    directory.save(checkpoint(1))
    (directory.file("checkpoints") / "round-000002.safetensors").mkdir()
    (directory.file("checkpoints") / "round-000003.safetensors").symlink_to("nowhere")
    assert same(directory.latest(), checkpoint(1))


def test_all_damaged_is_none(directory):
    for index in (1, 2, 3):
        directory.save(checkpoint(index))
    for file in directory.file("checkpoints").iterdir():
        file.write_bytes(b"")
    assert directory.latest() is None


def test_a_checkpoint_has_the_same_bytes_every_time(directory):
    contents = set()
    for _ in range(20):
        directory.save(checkpoint(1))
        contents.add(newest(directory).read_bytes())
    assert len(contents) == 1


# -- whole files


class Fault:
    """Raise "no space left on device" at the n-th call of the functions that it wraps."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def __call__(self):
        self.calls += 1
        if self.calls - 1 == self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, what):
    file = tmp_path / "file"
    write_atomic(file, b"old")
    fault = Fault(0)
    if what == "fsync":
        monkeypatch.setattr(os, "fsync", lambda descriptor: fault())
    elif what == "replace":
        monkeypatch.setattr(Path, "replace", lambda self, target: fault())
    else:
        monkeypatch.setattr(_disk, "flush", lambda stream, content: (stream.write(content[:1]), fault()))
    with pytest.raises(OSError, match="No space left"):
        write_atomic(file, b"new content")
    assert file.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("write", [write_atomic, partial(write_atomic, new=True)])
def test_a_folder_is_no_place_for_a_file(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    for path in (Path("."), tmp_path):
        with pytest.raises(OSError, match=r"directory|busy|exists"):
            write(path, b"x")
    assert not list(tmp_path.iterdir())


def test_a_file_is_flushed_before_it_takes_its_place(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("fsync"), fsync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), replace(self, to))[1])
    write_atomic(tmp_path / "file", b"content")
    assert events == ["fsync", "rename", "fsync"]  # the content, the name, the folder that holds the name


# -- who may use a folder


def test_a_new_or_an_empty_folder_is_free(tmp_path):
    RunDirectory(tmp_path / "a" / "b").check(resume=False)
    RunDirectory(tmp_path).check(resume=False)
    RunDirectory(tmp_path).check(resume=True)  # a start cut short before its first file
    assert list(tmp_path.iterdir()) == []  # checking writes nothing


def test_a_run_is_not_begun_twice(directory):
    with pytest.raises(RunError, match=r"already contains a run.*--resume"):
        directory.check(resume=False)
    directory.check(resume=True)
    directory.file("notes.txt").write_text("mine")  # one may put things beside a run
    directory.check(resume=True)


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(RunError, match=r"There is no run to resume in"):
        RunDirectory(tmp_path / "none").check(resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, resume):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file is a file, not a directory"):
        RunDirectory(tmp_path / "file").check(resume=resume)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "scenario.toml", "plan.json", "checkpoints", ".hidden"])
def test_a_directory_with_other_files_is_refused_even_if_they_have_our_names(tmp_path, name, resume):
    (tmp_path / name).write_text("precious")
    with pytest.raises(RunError, match=rf"is neither empty nor a run: it contains '{re.escape(name)}'"):
        RunDirectory(tmp_path).check(resume=resume)
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize(
    "name",
    ["checkpoints/round-000003.safetensors", "ledger.jsonl", "metrics.jsonl", "metrics.csv", "model.safetensors"],
)
def test_a_folder_in_the_place_of_a_file_stops_a_resume_before_a_round_is_charged(directory, name):
    directory.save(checkpoint(4))
    directory.file(name).unlink(missing_ok=True)
    directory.file(name).mkdir()
    with pytest.raises(RunError, match=rf"^/.*/{name} must be a file, but it is not\. Move it away\.$"):
        directory.check(resume=True)


def test_a_file_in_the_place_of_the_checkpoints_stops_a_resume_and_none_is_no_hindrance(directory):
    directory.file("checkpoints").rmdir()
    directory.file("checkpoints").write_text("")
    with pytest.raises(RunError, match="checkpoints must be a directory, but it is not"):
        directory.check(resume=True)
    directory.file("checkpoints").unlink()
    directory.save(checkpoint(4))
    directory.check(resume=True)


@pytest.mark.parametrize("line", ["1,0.5,0.1", "1,0.5", "1", "1,0.5,0.1,", "1,0.5,0.1,nan", "x,0.5,1,1"])
def test_a_damaged_line_of_devices_is_one_sentence(directory, line):
    head = "device,gain,power_planned,power_transmitted\n0,0.5,0.1,0.1\n"
    directory.file("devices.csv").write_text(head + line + "\n")
    with pytest.raises(RunError, match=r"devices\.csv is damaged"):
        directory.devices()


@pytest.mark.parametrize(("name", "read"), [("metrics.jsonl", "read_metrics"), ("devices.csv", "devices")])
def test_a_folder_in_the_place_of_a_table_is_not_an_empty_table(directory, name, read):
    directory.file(name).mkdir()
    with pytest.raises(RunError, match=rf"^/.*/{name} is not a file\.$"):
        getattr(directory, read)()


def test_a_beginning_that_was_cut_short_may_begin_again(tmp_path):
    found = RunDirectory(tmp_path / "run")
    found.path.mkdir()
    with found.locked():
        pass
    for name in ("scenario.toml", "plan.json", ".run.json.part", "checkpoints/"):
        path = found.file(name)
        path.mkdir() if name.endswith("/") else path.write_text("half")
        found.check(resume=False)
        found.check(resume=True)
    found.file("thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"thesis\.tex"):
        found.check(resume=False)


def test_only_one_process_at_a_time(tmp_path):
    one, two = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with one.locked(), pytest.raises(RunError, match="Another process is running"), two.locked():
        pytest.fail("both hold the lock")
    with two.locked():
        pass


def test_half_written_files_of_a_killed_run_are_swept_away(directory):
    for name in (".metrics.jsonl.part", "checkpoints/.round-000004.safetensors.part"):
        directory.file(name).write_bytes(b"half")
    with directory.locked():
        assert not list(directory.path.rglob("*.part"))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, code):
    def fail(self, **options):
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "mkdir", fail)
    found = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=rf"Cannot write to .*run: {os.strerror(code)}"), found.locked():
        pytest.fail("it was made all the same")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 99}', b"\xff\xfe", b"null"])
def test_a_damaged_manifest_is_one_sentence(directory, content):
    directory.file("run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"run\.json|later version"):
        directory.manifest()


# -- metrics


def record(index, **changes):
    figures = dict.fromkeys(METRICS, 0.5)
    whole = {"round": index, "steps": 2, "refused": 0, "missing": 0}
    return figures | whole | {"loss": 1 / (index + 1), "accuracy": None, **changes}


def test_metrics_come_back_as_they_were(directory):
    assert directory.read_metrics() == []
    for index in range(5):
        directory.append_metrics(record(index))
    assert directory.read_metrics() == [record(index) for index in range(5)]
    directory.rewind_metrics(3)
    assert directory.read_metrics() == [record(index) for index in range(3)]


def test_rewinding_does_not_change_the_remaining_rounds(directory):
    for index in range(50):
        directory.append_metrics(record(index, loss=math.pi * 10.0 ** (index - 25)))
    before = directory.file("metrics.jsonl").read_bytes()
    directory.rewind_metrics(50)
    assert directory.file("metrics.jsonl").read_bytes() == before


def test_a_torn_last_line_is_passed_over_at_every_length(directory):
    for index in range(3):
        directory.append_metrics(record(index))
    file = directory.file("metrics.jsonl")
    content = file.read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    for length in range(start, len(content)):
        file.write_bytes(content[:length])
        assert directory.read_metrics() == [record(0), record(1)]
        directory.rewind_metrics(2)
        assert file.read_bytes() == content[:start]


def test_a_damaged_line_in_the_middle_is_named(directory):
    for index in range(3):
        directory.append_metrics(record(index))
    file = directory.file("metrics.jsonl")
    file.write_bytes(file.read_bytes().replace(b'{"round": 1', b'{"rou'))
    with pytest.raises(RunError, match="line 2 is damaged"):
        directory.read_metrics()


def test_missing_rounds_are_detected(directory):
    for index in (0, 2):
        directory.append_metrics(record(index))
    with pytest.raises(RunError, match=r"must contain 3 rounds, but contains 2"):
        directory.rewind_metrics(3)


def test_numbers_that_are_not_finite_are_never_written(directory):
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            directory.append_metrics(record(0, loss=value))
    assert directory.read_metrics() == []


def test_the_model_and_the_table_at_the_end(directory):
    for index in range(4):
        directory.append_metrics(record(index))
    tensors = {"b.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.array([-1.5], np.float32)}
    contents = set()
    for _ in range(10):
        directory.finish(tensor_file(tensors, {"scenario": "naïve [bold]", "round": "4", "more": "x"}))
        contents.add(directory.file("model.safetensors").read_bytes())
    assert len(contents) == 1  # the same bytes every time
    loaded = load_file(directory.file("model.safetensors"))
    assert load(contents.pop()).keys() == loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], tensor)
    rows = list(csv.DictReader(io.StringIO(directory.file("metrics.csv").read_text())))
    assert [{k: float(v) if v else None for k, v in row.items()} for row in rows] == directory.read_metrics()


def test_no_source_file_ever_reads_a_pickle():
    forbidden = re.compile(
        r"\b(pickle|cPickle|dill|shelve|marshal)\b(?!\s*=\s*False)|torch\.load|allow_pickle\s*=\s*True|np\.load\("
    )
    own = {"worker.py", "workers.py"}  # of the explorer: what they read comes through a pipe of their own making
    for file in Path(airfed.__file__).parent.rglob("*.py"):
        if file.parent.name == "explorer" and file.name in own:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            code = line.split("#")[0]
            if "np.load(" in code and "allow_pickle=False" in code:
                continue
            if re.match(r"\s*(import|from)\s", code) or "(" in code:
                assert not forbidden.search(code), f"{file}:{number}: {line}"
