"""One run over several processes: the same bits, whatever their number, and no loss when one dies."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from airfed.air import Air
from airfed.privacy.ledger import Ledger
from airfed.running.cluster import Solo
from airfed.running.noise import SeededNoise
from airfed.running.shared import SharedNoise

SCENARIO = """
name = "cluster"
[fleet]
num_devices = 23
peak_power = 1.0
[channel]
model = "rayleigh"
minimum = 0.1
estimation_error = 0.01
[link]
noise_std = 1.0
[budget]
epsilon = 5.0
delta = 1e-3
total_power = 1000.0
[learning]
model = "quadratic"
dimension = 30
total_steps = {steps}
learning_rate = 0.5
clip_norm = 4.0
smoothness = 2.0
strong_convexity = 0.5
initial_gap = 10.0
[policy]
name = "full"
rounds = {rounds}
"""
FILES = ("model.safetensors", "metrics.jsonl", "metrics.csv", "ledger.jsonl")


def write(path, *, rounds, steps):
    path.write_text(SCENARIO.format(rounds=rounds, steps=steps))
    return path


def command(processes, scenario, out, *extra):
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    )
    return [sys.executable, *launcher, "-m", "airfed", "run", str(scenario), "--out", str(out), *extra]


def run(processes, scenario, out, *extra):
    return subprocess.run(command(processes, scenario, out, *extra), capture_output=True, text=True, timeout=240)


def content(out):
    return {name: (out / name).read_bytes() for name in FILES}


def test_alone_nothing_is_exchanged():
    group = Solo()
    devices = np.arange(5)
    assert group.share(devices) is devices
    assert not group.any(False)
    noise = SharedNoise(SeededNoise(b"key"), group)
    assert np.array_equal(noise.draw(3, 10, 1.0), SeededNoise(b"key").draw(3, 10, 1.0))
    assert noise.privacy == "simulated"
    assert noise.repeatable


@pytest.mark.parametrize("aligned", [True, False])
def test_partial_superpositions_merge_to_the_whole(aligned):
    rng = np.random.default_rng(0)
    count, dimension = 17, 40
    coefficient = np.full(count, 0.3) if aligned else rng.uniform(0.1, 0.9, count)
    air = Air(
        scheduled=np.arange(count),
        clip_norm=1.0,
        alignment_coefficient=0.3,
        transmit_amplitude=rng.uniform(0.5, 2.0, count),
        coefficient=coefficient.astype(complex),
        noise_std=1.0,
    )
    updates = rng.normal(0, 0.4, (count, dimension)).astype(np.float32)
    updates[3, 5] = np.nan
    whole = air.open_round(dimension)
    whole.add(np.arange(count), updates)
    parts = [air.open_round(dimension) for _ in range(3)]
    for index, part in enumerate(parts):
        mine = np.arange(count)[index::3]
        part.add(mine, updates[mine])
    merged = parts[0]
    merged.integers = sum(part.integers for part in parts)
    merged.norm_max = max(part.norm_max for part in parts)
    noise = rng.normal(size=dimension)
    expected, got = whole.receive(noise), merged.receive(noise)
    assert np.array_equal(expected.received, got.received)
    for name in ("fading_error", "signal_to_noise", "power", "heard", "usable", "clipped", "norm_mean", "norm_max"):
        assert getattr(expected, name) == getattr(got, name)
    assert expected.power == pytest.approx(expected.energy.sum(), rel=1e-12)
    assert expected.norm_mean == pytest.approx(np.nanmean(expected.norms), rel=1e-12)


def test_what_is_exchanged_does_not_grow_with_the_devices():
    sizes = set()
    for count in (2, 200):
        ones = np.ones(count)
        air = Air(
            scheduled=np.arange(count),
            clip_norm=1.0,
            alignment_coefficient=1.0,
            transmit_amplitude=ones,
            coefficient=ones.astype(complex),
            noise_std=1.0,
        )
        sizes.add(air.open_round(10).integers.size)
    assert sizes == {15}


@pytest.mark.slow
def test_one_two_and_four_processes_give_the_same_bits(tmp_path):
    scenario = write(tmp_path / "scenario.toml", rounds=6, steps=12)
    for processes in (1, 2, 4):
        result = run(processes, scenario, tmp_path / f"p{processes}")
        assert result.returncode == 0, result.stderr
    alone = content(tmp_path / "p1")
    assert content(tmp_path / "p2") == alone
    assert content(tmp_path / "p4") == alone


@pytest.mark.slow
def test_a_lost_process_ends_the_run_and_another_number_of_processes_goes_on(tmp_path):
    scenario = write(tmp_path / "scenario.toml", rounds=600, steps=600)
    out = tmp_path / "run"
    started = subprocess.Popen(
        command(2, scenario, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        metrics = out / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
            assert time.monotonic() < deadline
            assert started.poll() is None, started.stdout.read()
            time.sleep(0.02)
        os.kill(_pid_of_rank(started.pid, 1), signal.SIGKILL)
        text, _ = started.communicate(timeout=120)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    assert started.returncode != 0
    assert "Another process of this run has ended" in " ".join(text.split())
    assert any((out / "checkpoints").iterdir())
    assert 5 <= Ledger.load(out / "ledger.jsonl", repair=True).rounds < 600

    resumed = run(3, scenario, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    alone = run(1, scenario, tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    assert content(out) == content(tmp_path / "alone")


@pytest.mark.slow
def test_a_run_that_cannot_begin_ends_in_every_process(tmp_path):
    scenario = write(tmp_path / "scenario.toml", rounds=2, steps=4)
    out = tmp_path / "run"
    assert run(1, scenario, out).returncode == 0
    again = run(2, scenario, out)
    assert again.returncode != 0
    assert "Expected no run in" in again.stderr


def _pid_of_rank(launcher, rank):
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            with open(f"/proc/{process}/environ", "rb") as stream:
                variables = stream.read().split(b"\0")
            with open(f"/proc/{process}/stat") as stream:
                parent = int(stream.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ProcessLookupError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(process)
    raise AssertionError("no such process")
