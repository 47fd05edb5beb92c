"""One run over several processes: the same bits for every number of them, and no loss if one is killed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib

import numpy as np
import pytest

from airfed.aircomp import AirCompRound
from airfed.learning.engine import worker_count
from airfed.privacy.ledger import Ledger
from airfed.scenario import parse, template
from airfed.training import distributed
from airfed.training.directory import RunError
from airfed.training.distributed import LostProcess, ProcessGroup, SharedNoise, check_equal, join
from airfed.training.noise import SeededNoise
from airfed.training.setup import prepare


def run(processes, scenario, out, *extra):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, "-m", "airfed", "run", str(scenario), "--out", str(out), *extra]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_alone_nothing_is_exchanged():
    group = ProcessGroup()
    devices = np.arange(5)
    assert np.array_equal(group.share(devices), devices)
    assert not group.any(False)
    noise = SharedNoise(SeededNoise(b"key"), group)
    assert np.array_equal(noise.draw(3, 10, 1.0), SeededNoise(b"key").draw(3, 10, 1.0))
    assert noise.privacy == "simulated"
    assert noise.repeatable


class Second(ProcessGroup):
    """The second of two processes; the first one has another setup."""

    rank, size = 1, 2

    def __init__(self, first):
        self._first = first
        self._said = None
        check_equal(self, first)  # as rank 0: its own values

    def broadcast(self, values):
        self._said = values if self._said is None else self._said
        return self._said


def prepared(tmp_path, **changes):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from airfed.planning import Amplitudes, Plan, once\n"
        "def planned(problem, table):\n"
        "    return Plan(problem=problem, policy='mine', amplitudes=Amplitudes.of_table(table))\n"
        "@once\n"
        "def some(problem, *, first=0, count=3, level=0.01, last=0.01, times=4):\n"
        "    table = np.zeros((times, problem.fleet.num_devices))\n"
        "    table[:, first : first + count] = level\n"
        "    table[:, first + count - 1] = last\n"
        "    return planned(problem, table)\n"
        "@once\n"
        "def turns(problem, *, first=0.01, middle=2):\n"
        "    table = np.zeros((2, problem.fleet.num_devices))\n"
        "    table[0, :middle] = first\n"
        "    table[1, middle:3] = 0.03 - first\n"
        "    return planned(problem, table)\n"
    )
    scenario = parse(tomllib.loads(template.SCENARIO), folder=tmp_path).override(
        {
            "learning.model": "quadratic",
            "learning.dimension": 20,
            "fleet.num_devices": 8,
            "policy.name": "mine:some",
            **changes,
        }
    )
    return prepare(scenario)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize(
    "options", [{"level": 0.03, "last": 0.03}, {"last": 0.009}, {"first": 1}, {"count": 2}, {"times": 5}], ids=str
)
def test_a_process_that_decides_otherwise_does_not_transmit(tmp_path, noise, options):
    first = prepared(tmp_path, **{"link.noise_source": noise})
    group = Second(first)
    check_equal(group, prepared(tmp_path, **{"link.noise_source": noise}))
    with pytest.raises(RunError, match="The plan of process 1 differs from that of process 0"):
        check_equal(group, prepared(tmp_path, **{"link.noise_source": noise, "policy.options": options}))


@pytest.mark.parametrize(
    "changes", [{"learning.clip_norm": 7.0}, {"learning.adaptive_clipping": {"rate": 0.3}}], ids=["norm", "rule"]
)
def test_a_process_that_clips_otherwise_does_not_transmit(tmp_path, changes):
    secure = {"link.noise_source": "secure", "learning.adaptive_clipping": {}}
    group = Second(prepared(tmp_path, **secure))
    check_equal(group, prepared(tmp_path, **secure))
    with pytest.raises(RunError, match="The plan of process 1 differs from that of process 0"):
        check_equal(group, prepared(tmp_path, **secure | changes))


@pytest.mark.parametrize("options", [{"first": 0.02}, {"middle": 1}], ids=str)
def test_a_process_whose_rounds_have_another_order_does_not_transmit(tmp_path, options):
    """Reorder the rounds of a plan whose devices send once each: devices, θ and totals stay the same."""
    turns = {"link.noise_source": "secure", "policy.name": "mine:turns"}
    group = Second(prepared(tmp_path, **turns))
    check_equal(group, prepared(tmp_path, **turns))
    with pytest.raises(RunError, match="The plan of process 1 differs from that of process 0"):
        check_equal(group, prepared(tmp_path, **turns, **{"policy.options": options}))


def test_a_process_that_trains_otherwise_does_not_share_seeded_noise(tmp_path):
    other = {"learning.learning_rate": 0.02}
    with pytest.raises(RunError, match="processor of process 1 differ from those of process 0"):
        check_equal(Second(prepared(tmp_path)), prepared(tmp_path, **other))
    secure = {"link.noise_source": "secure"}
    check_equal(Second(prepared(tmp_path, **secure)), prepared(tmp_path, **secure, **other))


@pytest.mark.parametrize("aligned", [True, False])
def test_partial_superpositions_merge_to_the_whole(aligned):
    rng = np.random.default_rng(0)
    count, dimension = 17, 40
    coefficient = np.full(count, 0.3) if aligned else rng.uniform(0.1, 0.9, count)
    aircomp = AirCompRound(
        scheduled=np.arange(count),
        clip_norm=1.0,
        alignment_coefficient=0.3,
        transmit_amplitude=rng.uniform(0.5, 2.0, count),
        coefficient=coefficient.astype(complex),
        arrival=coefficient.astype(complex)[:, None],
        beamformer=np.ones(1, complex),
        transmit_phase=np.zeros(count),
        constant_power=np.zeros(count),
    )
    updates = rng.normal(0, 0.4, (count, dimension)).astype(np.float32)
    updates[3, 5] = np.nan
    whole = aircomp.open_round(dimension)
    whole.add(np.arange(count), updates)
    parts = [aircomp.open_round(dimension) for _ in range(3)]
    for index, part in enumerate(parts):
        mine = np.arange(count)[index::3]
        part.add(mine, updates[mine])
    merged = parts[0]
    merged.integers = sum(part.integers for part in parts)
    merged.norm_max = max(part.norm_max for part in parts)
    noise = rng.normal(size=dimension)
    expected, got = whole.receive(noise), merged.receive(noise)
    assert np.array_equal(expected.received, got.received)
    for name in ("fading_error", "signal_to_noise", "power", "arrived", "usable", "clipped", "norm_mean", "norm_max"):
        assert getattr(expected, name) == getattr(got, name)
    assert expected.power == pytest.approx(expected.energy.sum(), rel=1e-12)
    assert expected.norm_mean == pytest.approx(np.nanmean(expected.norms), rel=1e-12)


def test_the_traffic_does_not_grow_with_the_number_of_devices():
    sizes = set()
    for count in (2, 200):
        ones = np.ones(count)
        aircomp = AirCompRound(
            scheduled=np.arange(count),
            clip_norm=1.0,
            alignment_coefficient=1.0,
            transmit_amplitude=ones,
            coefficient=ones.astype(complex),
            arrival=ones.astype(complex)[:, None],
            beamformer=np.ones(1, complex),
            transmit_phase=np.zeros(count),
            constant_power=np.zeros(count),
        )
        sizes.add(aircomp.open_round(10).integers.size)
    assert sizes == {15}


@pytest.fixture
def environment(monkeypatch):
    """Set torchrun's variables for one process of two."""

    def describe(rank, port):
        words = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in words.items():
            monkeypatch.setenv(name, str(value))
        for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
            monkeypatch.delenv(name, raising=False)

    return describe


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [(0, "Rank 1 of 2 has not started within 0.5 s"), (1, "No process has answered at 127.0.0.1:")],
)
def test_a_process_that_never_starts_is_named(environment, monkeypatch, rank, sentence):
    pytest.importorskip("torch")
    monkeypatch.setattr(distributed, "_START_TIMEOUT", 0.5)
    environment(rank, free_port())
    with pytest.raises(LostProcess, match=sentence), join(0.5):
        raise AssertionError("nobody else is there")


def test_an_environment_that_makes_no_sense_is_one_sentence(environment, monkeypatch):
    pytest.importorskip("torch")
    environment("first", 1)
    with pytest.raises(ValueError, match="RANK must be a whole number, as torchrun sets it, got 'first'"), join():
        pass
    environment(0, 1)
    monkeypatch.setenv("MASTER_ADDR", "nobody.invalid")
    with pytest.raises(ValueError, match="MASTER_ADDR must be a host"), join():
        pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment(0, taken.getsockname()[1])
        with pytest.raises(ValueError, match="Cannot connect to the other processes at "), join():
            pass


def test_an_address_that_only_its_own_host_reaches_is_refused():
    names = ["rank 0 on host0 (127.0.1.1)", "rank 1 on host1 (10.0.0.2)"]
    with pytest.raises(ValueError, match=r"cannot reach rank 0 on host0 \(127.0.1.1\) at its loopback address"):
        distributed._check_reachable(names)
    distributed._check_reachable(names[:1])
    distributed._check_reachable(names[1:])


def test_the_own_address_is_the_one_on_the_way_to_the_other():
    assert distributed.own_address("127.0.0.1", 1) == "127.0.0.1"
    with pytest.raises(ValueError, match="MASTER_ADDR must be a host that this one can reach"):
        distributed.own_address("no.invalid", 1)


class Alive:
    """A heartbeat of processes that are all alive, and wait in the same exchange."""

    interval, limit, exchange = 0.01, 5, 0

    def __init__(self, here):
        self.asked, self._here = 0, here

    def lost(self):
        self.asked += 1
        return []

    def all_here(self):
        return self._here(self.asked)


def waiting_cluster(beat):
    made = distributed.TorchProcessGroup.__new__(distributed.TorchProcessGroup)
    made._heartbeat, made._timeout = beat, 50.0
    return made


def test_an_exchange_that_all_have_entered_ends_within_the_timeout():
    never, beat = threading.Event(), Alive(lambda asked: asked != 3)
    with pytest.raises(LostProcess, match="Not all processes have reached each other for 50 s"):
        waiting_cluster(beat)._run(never.wait)
    assert beat.asked == 3 + beat.limit
    never.set()


def test_an_exchange_waits_for_a_process_that_computes():
    done, beat = threading.Event(), Alive(lambda asked: asked > 20 and done.set() is not None)
    waiting_cluster(beat)._run(done.wait)
    assert beat.asked > 20


def test_processes_on_one_host_share_its_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for processes, threads in (("", 8), ("1", 8), ("2", 4), ("3", 2), ("9", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert worker_count(None) == threads
        assert worker_count(5) == 5


@pytest.mark.slow
def test_one_and_four_processes_give_the_same_bits(gated):
    """With several antennas and adaptive clipping; the other tests start two or three processes without them."""
    gated.prepare(process_timeout=60.0)
    text = gated.scenario.read_text().replace("csi_error = 0.01\n", "").replace("[link]\n", "[link]\nantennas = 4\n")
    gated.scenario.write_text(text + "[learning.adaptive_clipping]\nshare = 0.2\n")
    gated.whole = gated.folder / "alone"
    result = run(4, gated.scenario, gated.out)
    assert result.returncode == 0, result.stderr
    assert gated.record() == gated.undisturbed()
    assert b'"clip_norm"' in gated.record()["metrics.jsonl"]


@pytest.mark.slow
def test_the_charges_of_different_amplitudes_do_not_depend_on_the_processes(gated):
    gated.prepare(process_timeout=60.0)
    text = (
        gated.scenario.read_text()
        .replace('"full"', '"threshold_power"')
        .replace("peak_power = 1.0", "peak_power = 0.2")
    )
    gated.scenario.write_text(text)
    gated.whole = gated.folder / "alone"
    result = run(2, gated.scenario, gated.out)
    assert result.returncode == 0, result.stderr
    assert gated.record() == gated.undisturbed()
    ledger = Ledger.load(gated.out / "ledger.jsonl")
    assert np.unique(ledger.device_mus()).size > 2


def start(gated, *ranks):
    """Start these processes of two without torchrun, and wait until they are held in a round."""
    port = str(free_port())
    started = []
    for rank in ranks:
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        process = gated.processes.start(sys.executable, *gated.script, log=f"{rank}.log", environment=variables)
        started.append(process)
    gated.held(*ranks)
    return started


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "kind"), [(0, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGSTOP)])
def test_a_lost_process_ends_the_run_and_one_process_resumes_it(gated, victim, kind):
    gated.prepare(process_timeout=5.0)
    started = start(gated, 0, 1)
    other = 1 - victim
    started[victim].send_signal(kind)
    gated.go()
    assert started[other].wait(300) == 5
    text = gated.processes.text(f"{other}.log")
    named = f"Rank {victim} on {socket.gethostname()} (127.0.0.1)"
    assert f"{named} has ended or cannot be reached." in text or f"{named} has not responded for 5 s." in text
    assert kind == signal.SIGKILL or "has not responded" in text
    assert victim == 0 or "Stopped before round 3; use --resume to continue." in text
    assert gated.rounds == 2
    started[victim].send_signal(signal.SIGCONT)  # who comes back too late ends as well
    assert started[victim].wait(300) == (-signal.SIGKILL if kind == signal.SIGKILL else 5)
    assert gated.resumed() == gated.undisturbed()


@pytest.mark.slow
def test_computing_or_sleeping_for_longer_than_the_timeout_is_no_loss(gated):
    process_timeout = 5.0
    gated.prepare(process_timeout=process_timeout)
    started = start(gated, 0, 1)
    gated.go(0)
    time.sleep(1.5 * process_timeout)  # one computes, and the other waits for it
    for process in started:
        process.send_signal(signal.SIGSTOP)  # as a computer does that is put to sleep
    time.sleep(1.5 * process_timeout)
    for process in started:
        process.send_signal(signal.SIGCONT)
    gated.go()
    assert [process.wait(300) for process in started] == [0, 0], gated.processes.text("0.log")
    assert gated.record() == gated.undisturbed()


@pytest.mark.slow
def test_under_torchrun_a_lost_process_ends_the_run_and_another_number_resumes_it(gated):
    gated.prepare(process_timeout=60.0)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    started = gated.processes.start(sys.executable, *launcher, *gated.script, log="torchrun.log")
    gated.held(0, 1)
    (victim,) = gated.processes.alive("RANK=1", "LOCAL_RANK=1")
    os.kill(victim, signal.SIGKILL)
    gated.go()
    assert started.wait(300) != 0
    assert Ledger.load(gated.out / "ledger.jsonl", repair=True).rounds == 3

    resumed = run(3, gated.scenario, gated.out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert gated.record() == gated.undisturbed()


@pytest.mark.slow
def test_a_run_that_cannot_begin_ends_in_every_process(gated):
    gated.prepare(process_timeout=60.0)
    gated.undisturbed()
    again = run(2, gated.scenario, gated.whole)
    assert again.returncode != 0
    assert "already contains a run" in again.stderr
