"""The round loop: federated averaging with noise, repeatable to the bit, refused without noise."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import problems
from airfed import scenario
from airfed.aircomp import AirComp
from airfed.learning.quadratic import QuadraticEngine, QuadraticTask
from airfed.learning.reference import ReferenceEngine
from airfed.network import builtin
from airfed.planning import Amplitudes, Plan
from airfed.training import loop as training
from airfed.training.distributed import ProcessGroup, SharedTrainer
from airfed.training.loop import Diverged, NoRecorder, Stopped, federated_averaging
from airfed.training.noise import SeededNoise
from airfed.training.setup import prepare


@pytest.fixture(autouse=True)
def _one_thread():
    """Use one thread: with kernels this small, torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A small image data set that can be learned: three kinds of 8×8 pictures."""
    rng = np.random.default_rng(0)
    kinds = rng.uniform(0, 255, (3, 8, 8))
    arrays = {}
    for part, count in (("train", 120), ("test", 30)):
        labels = np.arange(count) % 3
        noisy = np.clip(kinds[labels] + rng.normal(0, 40, (count, 8, 8)), 0, 255)
        arrays |= {f"{part}_images": noisy.astype(np.uint8), f"{part}_labels": labels}
    path = tmp_path_factory.mktemp("images") / "three.npz"
    np.savez(path, **arrays)
    return path


def make_scenario(dataset, *, seed=0, policy=None, run=None, **learning):
    return scenario.parse(
        {
            "seed": seed,
            "fleet": {"num_devices": 10, "peak_power": 1.0},
            "channel": {"model": "rayleigh", "minimum": 0.2},
            "link": {"noise_std": 0.01},
            "budget": {"epsilon": 8.0, "delta": 1e-3, "total_power": 1000.0},
            "learning": {
                "dataset": str(dataset),
                "model": "logistic",
                "total_steps": 12,
                "learning_rate": 0.2,
                "clip_norm": 5.0,
                "smoothness": 10.0,
                "strong_convexity": 0.1,
                "initial_gap": 1.1,
                **learning,
            },
            "policy": policy or {"rounds": 6},
            "run": {"engine": "torch", **(run or {})},
        }
    )


def train(setup, **options):
    """The models after each round."""
    try:
        rounds = federated_averaging(
            setup.plan,
            setup.aircomp,
            setup.task.engine,
            setup.noise,
            parameters=setup.task.initial_parameters,
            **options,
        )
        return list(rounds)
    finally:
        setup.task.engine.close()


def make_plan(
    *, dimension, gain, alignment, rounds, total_steps=None, noise_std=0.01, clip_norm=10.0, tau=0.1, zeta=10.0
):
    problem = problems.make(
        gain,
        **{"noise": noise_std, "dimension": dimension, "steps": total_steps or rounds, "clip": clip_norm, "rate": tau},
        **{"smoothness": zeta, "convexity": 0.1 * zeta, "epsilon": 2.0, "total_power": 1e6},
    )
    devices = np.arange(len(gain))
    table = Amplitudes.aligned(devices, num_devices=len(gain), level=alignment, rounds=rounds)
    return Plan(problem=problem, policy="test", amplitudes=table)


class Stub:
    """An engine with artificial updates: function(round, devices) → (m, d)."""

    name = "stub"

    def __init__(self, function, *, chunk=2):
        self.function, self.chunk = function, chunk

    def updates(self, parameters, devices, *, steps, round_index):
        for start in range(0, len(devices), self.chunk):
            part = devices[start : start + self.chunk]
            yield part, self.function(round_index, part)

    def close(self):
        pass


def ones(dimension):
    return lambda index, devices: np.full((len(devices), dimension), 0.1, np.float32)


# -- federated averaging


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_with_negligible_noise_it_is_plain_federated_averaging(images, model, batch_size):
    setup = prepare(make_scenario(images, model=model, batch_size=batch_size))
    task, shape = setup.task, setup.plan.problem.learning
    # σ far below every digit that float32 has; nothing is clipped
    plan = make_plan(
        dimension=task.dimension, gain=setup.plan.problem.fleet.gain, alignment=0.1, rounds=5, total_steps=12,
        noise_std=1e-14, clip_norm=1000.0, tau=shape.learning_rate,
    )  # fmt: skip
    rounds = list(
        federated_averaging(plan, AirComp(plan=plan), task.engine, SeededNoise(b""), parameters=task.initial_parameters)
    )
    task.engine.close()
    reference = ReferenceEngine(
        builtin(model, input_shape=task.dataset.image_shape, classes=task.dataset.classes),
        task.dataset.train_images,
        task.dataset.train_labels,
        task.shards,
        learning_rate=shape.learning_rate,
        batch_size=batch_size,
    )
    weights = task.initial_parameters
    for done, steps in zip(rounds, (3, 3, 2, 2, 2), strict=True):
        updates = reference.updates(weights, plan.scheduled, steps=steps, round_index=done.index)
        local_models = [weights - shape.learning_rate * g.astype(np.float64) for _, part in updates for g in part]
        weights = np.mean(local_models, axis=0).astype(np.float32)
        assert done.steps == steps
        assert done.aggregate.clipped == 0
    np.testing.assert_allclose(rounds[-1].parameters, weights, rtol=0, atol=1e-6)
    assert np.max(np.abs(weights - task.initial_parameters)) > 1e-2  # it did move


def test_training_learns_and_clips(images):
    setup = prepare(make_scenario(images, total_steps=60))
    before = setup.task.evaluate(setup.task.initial_parameters)
    done = train(setup)[-1]
    setup = prepare(make_scenario(images))  # its engine is closed
    after = setup.task.evaluate(done.parameters)
    setup.task.engine.close()
    assert before["loss"] == pytest.approx(math.log(3))
    assert after["loss"] < 0.5
    assert after["accuracy"] > 0.9


def test_two_runs_with_one_seed_are_bit_identical_for_all_threads_and_chunks(images):
    for batch_size in (None, 4):
        models = {
            train(prepare(make_scenario(images, batch_size=batch_size, run={"threads": threads, "chunk": chunk})))[
                -1
            ].parameters.tobytes()
            for threads, chunk in ((1, 32), (1, 32), (2, 1), (2, 3), (3, 7))
        }
        assert len(models) == 1


def test_other_seeds_and_batch_sizes_give_other_models(images):
    models = [
        train(prepare(make_scenario(images, seed=seed, batch_size=size)))[-1].parameters.tobytes()
        for seed, size in ((0, None), (1, None), (0, 4), (0, 5))
    ]
    assert len(set(models)) == 4


def test_two_policies_on_one_seed_see_the_same_channels_data_and_initial_model(images):
    policies = [{"name": "optimal"}, {"name": "full", "rounds": 3}, {"name": "uniform", "size": 4, "rounds": 6}]
    setups = [prepare(make_scenario(images, model="mlp", policy=policy)) for policy in policies]
    first = setups[0]
    assert len({tuple(s.plan.scheduled) for s in setups}) > 1
    for other in setups[1:]:
        np.testing.assert_array_equal(other.plan.problem.fleet.gain, first.plan.problem.fleet.gain)
        assert other.task.data_digest == first.task.data_digest
        np.testing.assert_array_equal(other.task.shards, first.task.shards)
        assert other.task.initial_parameters.tobytes() == first.task.initial_parameters.tobytes()
    for setup in setups:
        setup.task.engine.close()


def test_the_phase_and_the_true_channel_do_not_depend_on_the_policy(images):
    coefficients = {}
    for policy in ({"name": "full", "rounds": 3}, {"name": "top_k", "size": 4, "rounds": 6}):
        changed = make_scenario(images, policy=policy).override({"channel.csi_error": 0.1})
        setup = prepare(changed)
        setup.task.engine.close()
        relative = setup.aircomp.at(-1).coefficient / setup.aircomp.at(-1).alignment_coefficient  # h/ĥ, whatever θ is
        coefficients[policy["name"]] = dict(zip(setup.plan.scheduled.tolist(), relative, strict=True))
    for device, value in coefficients["top_k"].items():
        assert value == pytest.approx(coefficients["full"][device], rel=1e-12)
        assert abs(value - 1) > 1e-6


@pytest.mark.parametrize("change", [{"seed": 1}, {"budget.epsilon": 7.0}, {"learning.partition": "shards"}])
def test_another_scenario_or_other_data_gets_other_noise(images, change):
    one = prepare(make_scenario(images))
    other = prepare(make_scenario(images).override(change))
    assert not np.any(one.noise.draw(0, 100, 1.0) == other.noise.draw(0, 100, 1.0))
    one.task.engine.close()
    other.task.engine.close()


def test_going_on_from_a_later_round_gives_the_same_bits(images):
    whole = train(prepare(make_scenario(images, batch_size=4)))
    setup = prepare(make_scenario(images, batch_size=4))
    rest = list(
        federated_averaging(
            setup.plan, setup.aircomp, setup.task.engine, setup.noise, parameters=whole[2].parameters, first_round=3
        )
    )
    setup.task.engine.close()
    assert [done.index for done in rest] == [3, 4, 5]
    assert rest[-1].parameters.tobytes() == whole[-1].parameters.tobytes()


def test_superpositions_of_two_processes_merge_to_the_same_bits():
    rng = np.random.default_rng(0)
    gain = rng.uniform(0.3, 1.0, 9)
    updates = rng.normal(size=(9, 40)).astype(np.float32)
    plan = make_plan(dimension=40, gain=gain, alignment=0.1, rounds=2)
    aircomp, start = AirComp(plan=plan), np.zeros(40, np.float32)

    class Pair(ProcessGroup):
        size = 2

        def share(self, devices):
            return devices[:4]

        def merge(self, superposition):
            superposition.add(plan.scheduled[4:], updates[4:])  # what the other process sent

    def function(index, devices):
        return updates[devices]

    group, noise = Pair(), SeededNoise(b"")
    one = list(federated_averaging(plan, aircomp, Stub(function), noise, parameters=start))
    trainer = SharedTrainer(Stub(function), group, lambda: False)
    two = list(federated_averaging(plan, aircomp, trainer, noise, parameters=start, merge=group.merge))
    assert one[-1].parameters.tobytes() == two[-1].parameters.tobytes()


def test_the_ledger_is_charged_before_anything_is_computed_or_transmitted():
    plan = make_plan(dimension=8, gain=[0.5, 0.5], alignment=0.1, rounds=3)
    events = []

    def function(index, devices):
        events.append(("train", index))
        return ones(8)(index, devices)

    for done in federated_averaging(
        plan,
        AirComp(plan=plan),
        Stub(function),
        SeededNoise(b""),
        Diary(events),
        parameters=np.zeros(8, np.float32),
    ):
        events.append(("done", done.index))
    assert events == [(what, index) for index in range(3) for what in ("charge", "train", "send", "settle", "done")]


class Diary(NoRecorder):
    """A recorder that records its callers."""

    def __init__(self, events):
        self.events = events

    def charge(self, index):
        self.events.append(("charge", index))

    def send(self, index, signal):
        self.events.append(("send", index))
        assert len(signal) == 64
        return f"try {index}"

    def settle(self, done):
        self.events.append(("settle", done.index))


def test_a_round_that_fails_before_it_is_received_is_never_marked_as_sent():
    plan = make_plan(dimension=8, gain=[0.5, 0.5], alignment=0.1, rounds=3)
    events = []

    def function(index, devices):
        if index == 1:
            raise MemoryError
        return ones(8)(index, devices)

    start = np.zeros(8, np.float32)
    rounds = federated_averaging(
        plan, AirComp(plan=plan), Stub(function), SeededNoise(b""), Diary(events), parameters=start
    )
    with pytest.raises(MemoryError):
        list(rounds)
    assert events == [("charge", 0), ("send", 0), ("settle", 0), ("charge", 1)]


def test_the_recorders_name_of_a_transmission_keys_its_noise():
    plan = make_plan(dimension=8, gain=[0.5, 0.5], alignment=0.1, rounds=1)
    aircomp, start, trainer = AirComp(plan=plan), np.zeros(8, np.float32), Stub(ones(8))
    (plain,) = federated_averaging(plan, aircomp, trainer, SeededNoise(b""), parameters=start)
    (named,) = federated_averaging(plan, aircomp, trainer, SeededNoise(b""), Diary([]), parameters=start)
    assert not np.any(plain.aggregate.received == named.aggregate.received)


def noise_of(updates, *, alignment=0.1, noise_std=0.01):
    """Return the noise that one seeded source adds in two rounds of given updates."""
    plan = make_plan(dimension=8, gain=[0.5, 0.5], alignment=alignment, rounds=2, noise_std=noise_std)
    drawn, real = [], SeededNoise.draw

    class Kept(SeededNoise):
        def draw(self, *given, **named):
            drawn.append(real(self, *given, **named))
            return drawn[-1]

    start = np.zeros(8, np.float32)
    list(federated_averaging(plan, AirComp(plan=plan), Stub(updates), Kept(b""), parameters=start))
    return np.concatenate(drawn) / noise_std


@pytest.mark.parametrize(
    "other",
    [
        {"updates": lambda index, devices: np.nextafter(ones(8)(index, devices), 1)},
        {"updates": ones(8), "alignment": 0.2},  # the same integers, of quanta twice as large
        {"updates": ones(8), "noise_std": 0.02},
    ],
    ids=["updates", "alignment", "sigma"],
)
def test_two_signals_never_get_the_same_noise_though_all_that_is_keyed_beforehand_agrees(other):
    first = noise_of(ones(8))
    assert np.array_equal(first, noise_of(ones(8)))
    assert not np.any(first == noise_of(**other))


def test_a_stop_is_noticed_between_chunks():
    plan = make_plan(dimension=8, gain=[0.5] * 8, alignment=0.1, rounds=3)
    seen = []

    def function(index, devices):
        seen.append(index)
        return ones(8)(index, devices)

    rounds = federated_averaging(
        plan, AirComp(plan=plan), Stub(function), SeededNoise(b""), parameters=np.zeros(8, np.float32),
        stop=lambda: len(seen) == 6,
    )  # fmt: skip
    assert next(rounds).index == 0
    with pytest.raises(Stopped):
        next(rounds)
    assert seen == [0] * 4 + [1] * 2


# -- the noise is always there


class Mutant:
    """A faulty noise source."""

    def __init__(self, change):
        self.change, self.true = change, SeededNoise(b"mutant")

    def draw(self, index, dimension, noise_std, *, transmission=""):
        return self.change(self.true.draw(index, dimension, noise_std))


@pytest.mark.parametrize(
    ("change", "dimension"),
    [
        (lambda r: 0 * r, 1),
        (lambda r: 0 * r, 5000),
        (lambda r: r / 2, 150),
        (lambda r: r / 2, 21840),
        (lambda r: r / math.sqrt(2), 600),  # a complex receiver's convention
        (lambda r: r * math.sqrt(2), 1200),
        (lambda r: 0.95 * r, 21840),
        (lambda r: r * np.nan, 5000),
        (lambda r: np.r_[np.inf, r[1:]], 5000),
        (lambda r: 1e3 * r, 2),
    ],
)
def test_noise_of_the_wrong_size_stops_the_round(change, dimension):
    plan = make_plan(dimension=dimension, gain=[0.5] * 3, alignment=0.1, rounds=2)
    rounds = federated_averaging(
        plan, AirComp(plan=plan), Stub(ones(dimension)), Mutant(change), parameters=np.zeros(dimension, np.float32)
    )
    with pytest.raises(RuntimeError, match="noise"):
        next(rounds)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 100, 1000, 21840, 10**6])
def test_healthy_noise_raises_no_alarm_in_a_hundred_thousand_rounds(dimension):
    def surprise(log_variance):
        return dimension / 2 * (math.expm1(log_variance) - log_variance) - training._NOISE_SURPRISE

    low = math.exp(optimize.brentq(surprise, -600, 0))
    high = math.exp(optimize.brentq(surprise, 0, 7))
    chi2 = stats.chi2(dimension)
    assert 1e5 * (chi2.cdf(low * dimension) + chi2.sf(high * dimension)) < 1e-9
    source = SeededNoise(b"healthy")
    for index in range(500 if dimension < 10**4 else 10**6 // dimension):
        training._check_noise(source.draw(index, dimension, 0.3), 0.3)


# -- the quadratic task: everything is known


def test_the_expected_gap_is_the_one_that_theory_gives_exactly():
    # 300 trainings of 12 rounds; with one local step and all devices the gap's mean has a closed form.
    # The gap's own standard deviation is about 20%, so the mean of 300 is known to 1.2%: 6% is five of that.
    task = QuadraticTask(dimension=60, num_devices=8, smoothness=4.0, strong_convexity=0.5, seed=3)
    tau, rounds, repeats = 0.2, 12, 300
    plan = make_plan(
        dimension=60, gain=np.linspace(0.3, 1.0, 8), alignment=0.25, rounds=rounds, noise_std=0.02, clip_norm=100.0,
        tau=tau, zeta=4.0,
    )  # fmt: skip
    aircomp, engine = AirComp(plan=plan), QuadraticEngine(task, learning_rate=tau)
    gaps = []
    for repeat in range(repeats):
        noise = SeededNoise(repeat.to_bytes(4, "little"))
        *_, last = federated_averaging(plan, aircomp, engine, noise, parameters=np.zeros(60, np.float32))
        assert last.aggregate.clipped == 0
        gaps.append(task.loss(last.parameters) - task.minimum)
    curvature = task._moments[0]
    shrink = 1 - tau * curvature
    std = 0.02 / (8 * plan.alignment_coefficient)  # σ/(|K|ν)
    start = shrink ** (2 * rounds) * task.optimum**2
    spread = (tau * std) ** 2 * sum(shrink ** (2 * i) for i in range(rounds))
    floor, expected = 0.5 * np.sum(curvature * spread), 0.5 * np.sum(curvature * (start + spread))
    assert floor > 0.5 * expected  # the noise is most of it
    assert np.mean(gaps) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("rounds", "size"), [(20, None), (10, None), (10, 9)])
def test_theorem_1_bounds_the_gap(rounds, size):
    gaps, bounds = [], []
    for seed in range(8):
        zeta, rho = 1.0, 0.5
        task = QuadraticTask(dimension=20, num_devices=12, smoothness=zeta, strong_convexity=rho, seed=seed)
        largest = zeta * (np.linalg.norm(task.optimum - task.center) + math.sqrt(20))  # norm of a gradient at w*
        policy = {"name": "full"} if size is None else {"name": "top_k", "size": size}
        built = scenario.parse(
            {
                "seed": seed,
                "fleet": {"num_devices": 12, "peak_power": 1.0},
                "channel": {"model": "rayleigh", "minimum": 0.2},
                "link": {"noise_std": 0.5},
                "budget": {"epsilon": 4.0, "delta": 1e-3, "total_power": 1000.0},
                "learning": {
                    "model": "quadratic",
                    "dimension": 20,
                    "total_steps": 20,
                    "learning_rate": 1 / zeta,
                    "clip_norm": 2.5 * largest,
                    "smoothness": zeta,
                    "strong_convexity": rho,
                    "initial_gap": task.initial_gap,
                },
                "policy": {"rounds": rounds, **policy},
            }
        )
        setup = prepare(built)
        *_, last = train(setup)
        gaps.append(setup.task.evaluate(last.parameters)["loss"])
        bounds.append(setup.plan.bound.total)
    assert np.mean(gaps) <= np.mean(bounds)
    assert np.mean(gaps) > 0


def test_the_quadratic_model_refuses_keys_that_it_would_ignore(images):
    learning = {"model": "quadratic", "dimension": 20}
    for change in ({"run": {}, "batch_size": 4}, {"run": {"engine": "torch"}}):
        run = change.pop("run")
        built = make_scenario(images, **learning, **change).override({"run.engine": run.get("engine")})
        with pytest.raises(scenario.ScenarioError, match="has its own engine"):
            prepare(built)


# -- when it goes wrong


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_device_counts_as_zero_and_training_continues(value, same_noise):
    def function(index, devices):
        updates = ones(500)(index, devices)
        updates[devices == 1, 3] = value
        return updates

    plan = make_plan(dimension=500, gain=[0.5] * 4, alignment=0.1, rounds=3)
    rounds = list(
        federated_averaging(plan, AirComp(plan=plan), Stub(function), same_noise, parameters=np.zeros(500, np.float32))
    )
    assert [done.aggregate.refused.tolist() for done in rounds] == [[1]] * 3
    clean = rounds[0].aggregate.received - same_noise.draw(0, 500, 0.01)
    np.testing.assert_allclose(clean / (4 * plan.alignment_coefficient), 0.1 * 3 / 4, rtol=1e-6)


@pytest.mark.parametrize("missing", [False, True])
def test_a_round_without_a_usable_update_is_a_divergence(missing):
    class Broken(Stub):
        def updates(self, parameters, devices, *, steps, round_index):
            if round_index < 2 or not missing:
                yield from super().updates(parameters, devices, steps=steps, round_index=round_index)

    def function(index, devices):
        return ones(50)(index, devices) * (np.nan if index == 2 else 1)

    plan = make_plan(dimension=50, gain=[0.5] * 3, alignment=0.1, rounds=5)
    rounds = federated_averaging(
        plan, AirComp(plan=plan), Broken(function), SeededNoise(b""), parameters=np.zeros(50, np.float32)
    )
    assert [next(rounds).index, next(rounds).index] == [0, 1]
    with pytest.raises(Diverged, match="Round 3: no device sent a usable update"):
        next(rounds)


def test_a_model_that_leaves_float32_is_a_divergence():
    plan = make_plan(dimension=50, gain=[0.5] * 3, alignment=0.1, rounds=5, tau=1e30, clip_norm=1e12)
    rounds = federated_averaging(
        plan, AirComp(plan=plan), Stub(lambda index, devices: np.full((len(devices), 50), 9e9)), SeededNoise(b""),
        parameters=np.zeros(50, np.float32),
    )  # fmt: skip
    with pytest.raises(Diverged, match=r"Round 1: the model is no longer finite.*learning_rate"):
        list(rounds)


# -- scenarios


def test_a_data_set_is_looked_for_beside_its_scenario(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = make_scenario(images).model_dump(mode="json", exclude_none=True)
    tables["learning"]["dataset"] = images.name
    setup = prepare(scenario.parse(tables, folder=images.parent))
    setup.task.engine.close()
    assert setup.task.dataset.classes == 3
    with pytest.raises(ValueError, match="there is no such file"):
        prepare(scenario.parse(tables, folder=tmp_path))


def test_a_batch_larger_than_a_devices_data_is_refused(images):
    with pytest.raises(ValueError, match="batch_size must be at most 12, the images per device, got 13"):
        prepare(make_scenario(images, batch_size=13))


USER = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 5)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.last = nn.Linear(5, 3, bias=False)

    def forward(self, images):
        return self.last(torch.tanh(self.first(images.flatten(1))))
"""


@pytest.fixture
def user_model(tmp_path, monkeypatch):
    name = f"user_net_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(USER)
    monkeypatch.chdir(tmp_path)
    yield f"{name}:Net"
    sys.modules.pop(name, None)


def test_a_users_own_model_trains(images, user_model):
    setup = prepare(make_scenario(images, model=user_model, total_steps=40))
    assert setup.task.dimension == setup.plan.problem.learning.dimension == 64 * 5 + 5 + 15
    before = setup.task.evaluate(setup.task.initial_parameters)["loss"]
    rounds = list(
        federated_averaging(
            setup.plan, setup.aircomp, setup.task.engine, setup.noise, parameters=setup.task.initial_parameters
        )
    )
    assert setup.task.evaluate(rounds[-1].parameters)["loss"] < 0.7 * before
    tensors = setup.task.named_tensors(rounds[-1].parameters)
    setup.task.engine.close()
    assert {name: part.shape for name, part in tensors.items()} == {
        "first.weight": (5, 64),
        "first.bias": (5,),
        "last.weight": (3, 5),
    }
    assert np.concatenate([part.ravel() for part in tensors.values()]).tobytes() == rounds[-1].parameters.tobytes()
    again = prepare(make_scenario(images, model=user_model, total_steps=40))
    assert again.task.initial_parameters.tobytes() == setup.task.initial_parameters.tobytes()
    again.task.engine.close()


def test_a_dimension_that_is_not_the_models_is_refused(images, user_model):
    with pytest.raises(scenario.ScenarioError, match=r"learning.dimension must be 340.*got 341"):
        prepare(make_scenario(images, model=user_model, dimension=341))
    setup = prepare(make_scenario(images, model=user_model, dimension=340))
    setup.task.engine.close()
