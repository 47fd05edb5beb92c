"""A surrogate, and plans that are chosen by it."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import isotonic_regression

from airfed import Fleet, InfeasibleError, plan
from airfed._files import DataError
from airfed.planning import Plan, Surrogate, limits, load_surrogate
from airfed.planning.surrogate import _monotone, _Multilinear
from airfed.policies import POLICIES

ROUNDS, CLIPS, NOISE = (1, 3, 10, 20), (0.5, 1.0, 4.0), (1e-3, 1e-2, 0.1, 1.0, 10.0)


def surface(rounds, clip_norm, noise, participation=1.0):
    """Falls with the noise; best at some 6 rounds and ϖ = 1; falls with every device left out."""
    level = 0.9 - 0.05 * np.log(rounds / 6) ** 2 - 0.1 * np.log(clip_norm) ** 2 - 0.1 * (1 - participation)
    return np.clip(level / (1 + 3 * noise * np.sqrt(rounds)), 0, 1)


def surrogate(participation=(1.0,), rounds=ROUNDS, clip_norm=CLIPS, noise=NOISE, **changes):
    """Tail averaging is worth 0.05 ln(I/3)."""
    axes = {"participation": participation, "rounds": rounds, "clip_norm": clip_norm, "noise": noise}
    grid = np.meshgrid(*axes.values(), indexing="ij")
    plain = surface(grid[1], grid[2], grid[3], grid[0])
    accuracy = np.stack([plain, np.clip(plain + 0.05 * np.log(grid[1] / 3), 0, 1)])
    values = {
        "averages": ("none", "tail"),
        "accuracy": accuracy,
        "spread": np.full(accuracy.shape, 0.01),
        "loss": 2 - accuracy,
        "loss_spread": np.full(accuracy.shape, 0.02),
    }
    return Surrogate(**{**axes, **values, **changes})


def test_interpolation_and_regression_are_those_of_scipy():
    """To the bit, on grids of two to five points, at grid points, between and outside them, and with ties."""
    rng, outside = np.random.default_rng(7), 0
    for _ in range(100):
        axes = [np.cumsum(rng.random(rng.integers(2, 6)) + 0.01) for _ in range(4)]
        values = np.round(rng.random([*(axis.size for axis in axes), 3]), int(rng.integers(1, 16)))
        for increasing in (False, True):
            monotone = np.apply_along_axis(
                lambda row, up=increasing: isotonic_regression(row, increasing=up).x, 3, values
            )
            assert np.array_equal(_monotone(values.swapaxes(3, 4), increasing=increasing).swapaxes(3, 4), monotone)
        points = np.stack([rng.choice([*axis, *rng.uniform(0, axis[-1] + 0.1, 5)], 40) for axis in axes], axis=-1)
        expected = RegularGridInterpolator(axes, values, bounds_error=False, fill_value=np.nan)(points)
        assert np.array_equal(_Multilinear(tuple(axes), values)(points), expected, equal_nan=True)
        outside += np.isnan(expected).any(axis=1).sum()
    assert 300 < outside < 3000


def test_no_more_than_everything_is_expected():
    rng = np.random.default_rng(0)
    places = {"rounds": rng.uniform(1, 20, 1000), "clip_norm": rng.uniform(0.5, 4, 1000), "noise": rng.random(1000)}
    mean = surrogate(accuracy=np.ones((2, 1, 4, 3, 5))).predict(**places)
    assert 1 - 1e-12 < mean.min() <= mean.max() <= 1


def test_grid_points_return_their_measured_accuracy():
    measured = surrogate()
    for rounds, clip_norm, noise in product(ROUNDS, CLIPS, NOISE):
        mean = measured.predict(rounds=rounds, clip_norm=clip_norm, noise=noise)
        plain = surface(rounds, clip_norm, noise)
        assert mean == pytest.approx([plain, np.clip(plain + 0.05 * np.log(rounds / 3), 0, 1)], rel=1e-12)
        place = {"rounds": rounds, "clip_norm": clip_norm, "noise": noise, "participation": 1.0}
        found = measured.prediction(**place, average="tail")
        assert (found.accuracy, found.loss) == pytest.approx((mean[1], 2 - mean[1]))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.floats(0.5, 4.0), st.floats(1e-6, 10.0), st.floats(1e-6, 10.0))
def test_more_noise_is_never_better_even_if_pilots_were(rounds, clip_norm, one, other):
    rng = np.random.default_rng(0)
    noisy = surrogate(accuracy=rng.random((2, 1, 4, 3, 5)))
    less, more = sorted((one, other))
    means = [float(noisy.predict(rounds=rounds, clip_norm=clip_norm, noise=noise)[0]) for noise in (less, more)]
    assert means[0] >= means[1] - 1e-12
    assert 0 <= min(means) <= max(means) <= 1


@pytest.mark.parametrize("same_data", [True, False])
def test_a_higher_accuracy_never_has_a_lower_low_end(same_data):
    """Choose the surrogate so that one plan has both the highest expected accuracy and the highest low end."""
    accuracy = np.linspace(0, 1, 101)
    noise = np.geomspace(1e-3, 10, accuracy.size)
    values = np.broadcast_to(accuracy[::-1], (1, 1, 1, 1, accuracy.size))
    same = {"averages": ("none",), **dict.fromkeys(("accuracy", "spread", "loss", "loss_spread"), values)}
    flat = surrogate(rounds=(5,), clip_norm=(1.0,), noise=noise, same_data=same_data, **same)
    place = {"rounds": 5, "clip_norm": 1.0, "participation": 1.0, "average": "none"}
    found = [flat.prediction(**place, noise=each) for each in noise[::-1]]
    assert [each.accuracy for each in found] == pytest.approx(accuracy)
    assert all(each.low <= each.accuracy <= each.high for each in found)
    assert np.all(np.diff([each.low for each in found]) >= 0)
    assert found[80].high - found[80].low > (0.1 if same_data else 0.3)


@pytest.mark.parametrize(
    "place", [{"rounds": 21}, {"rounds": 0.5}, {"clip_norm": 0.4}, {"clip_norm": 5.0}, {"noise": 11.0}]
)
def test_there_is_no_prediction_outside_the_grid(place):
    measured = surrogate()
    there = {"rounds": 5, "clip_norm": 1.0, "noise": 0.1, "participation": 0.3, "average": "none", **place}
    assert measured.prediction(**there) is None
    assert measured.prediction(**{**there, "rounds": 5, "clip_norm": 1.0, "noise": 1e-9}).accuracy > 0.8


def test_the_share_counts_where_it_was_measured():
    assert surrogate().prediction(rounds=5, clip_norm=1.0, noise=0.1, participation=0.1, average="none") is not None
    skewed = surrogate(participation=(0.25, 0.5, 1.0))
    place = {"rounds": 3, "clip_norm": 1.0, "noise": 0.1, "average": "none"}
    values = [skewed.prediction(**place, participation=participation).accuracy for participation in (0.25, 0.4, 1.0)]
    assert values == sorted(values)
    assert skewed.prediction(**place, participation=0.2) is None


def test_a_file_of_it_is_the_same(tmp_path):
    measured = surrogate(participation=(0.5, 1.0), about={"model": "cnn", "seeds": [0, 1]})
    (tmp_path / "r.json").write_text(measured.to_json())
    again = load_surrogate(tmp_path / "r.json")
    assert again.about == measured.about
    assert again.averages == measured.averages
    for name in ("participation", "rounds", "clip_norm", "noise", "accuracy", "spread", "loss", "loss_spread"):
        assert np.array_equal(getattr(again, name), getattr(measured, name))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content | {"format": 99},
        lambda content: content | {"format": 2},
        lambda content: {key: value for key, value in content.items() if key != "noise"},
        lambda content: content | {"noise": [1, 2]},
        lambda content: content | {"noise": [5e-324, *content["noise"][1:]]},
        lambda content: content | {"noise": [1.0, 1.0 + 2**-52, 2.0, 3.0, 4.0]},  # one logarithm
        lambda content: content | {"noise": [str(noise) for noise in content["noise"]]},
        lambda content: content | {"participation": [2.0]},
        lambda content: content | {"rounds": [0.5, *content["rounds"][1:]]},
        lambda content: content | {"clip_norm": [*content["clip_norm"][:-1], 1e200]},
        lambda content: content | {"loss": np.full(np.shape(content["loss"]), 1.7e308).tolist()},
        lambda content: content | {"noise": content["noise"][::-1]},
        lambda content: content | {"rounds": [0, 1, 2, 3]},
        lambda content: content | {"accuracy": [1.5]},
        lambda content: content | {"accuracy": "high"},
        lambda content: content | {"accuracy": [[1], [2, 3]]},
        lambda content: content | {"rounds": [float("nan")] * 4},
        lambda content: content | {"about": 3},
        lambda content: content | {"averages": ["none", "none"]},
        lambda content: content | {"averages": []},
        lambda content: content | {"averages": 3},
        lambda content: content | {"loss": "much"},
        lambda content: [content],
    ],
)
def test_an_invalid_surrogate_is_refused_in_one_sentence(tmp_path, change):
    file = tmp_path / "r.json"
    file.write_text(json.dumps(change(json.loads(surrogate().to_json()))))
    with pytest.raises(DataError, match=r"^.* is not a surrogate, such as airfed pilot writes: .*\.$"):
        load_surrogate(file)
    for text in ("", "{", "[" * 100_000, "9" * 5000):
        file.write_text(text)
        with pytest.raises(DataError):
            load_surrogate(file)
    with pytest.raises(DataError, match="no such file"):
        load_surrogate(tmp_path / "nothing.json")


def test_absurd_numbers_of_pilots_are_not_repeated():
    about = surrogate(about={"devices": 60, "images_per_device": 4})
    assert about.basis.endswith("lay inside; the pilot runs had 60 devices with 4 images each")
    for number in (True, -5, 0, 4.0, "4"):
        assert surrogate(about={"devices": number, "images_per_device": 4}).basis.endswith("lay inside")
        assert surrogate(about={"devices": 60, "images_per_device": number}).basis.endswith("lay inside")


def best_by_hand(problem, measured):
    """The highest expected accuracy over all subsets, numbers of rounds, clipping norms and averages."""
    best = -np.inf
    all_devices = range(problem.fleet.num_devices)
    rounds = np.arange(1, problem.learning.total_steps + 1)
    rounds = rounds[rounds <= measured.rounds[-1]]
    for size in range(1, problem.fleet.num_devices + 1):
        every = [
            limits.largest_alignment(problem, np.array(devices), rounds) for devices in combinations(all_devices, size)
        ]
        noise = problem.link.noise_std / (size * np.max(every, axis=0))
        for norm in measured.clip_norm:
            place = {"rounds": rounds, "clip_norm": norm, "noise": noise}
            mean = measured.predict(**place, participation=size / problem.fleet.num_devices)
            best = max(best, float(np.nanmax(mean, initial=-np.inf)))
    return best


@pytest.mark.parametrize("participation", [(1.0,), (0.01, 0.3, 1.0)])
@pytest.mark.parametrize("decades", [0.0, 2.0])
@pytest.mark.parametrize(("scope", "formula"), [("round", "classic"), ("total", "exact")])
def test_the_measured_plan_is_the_best_of_everything(random_problem, participation, decades, scope, formula):
    measured = surrogate(participation=participation, noise=(1e-6, 1e-3, 0.1, 1e3))
    for index in range(4):
        problem = random_problem(np.random.default_rng(index), decades=decades, scope=scope, formula=formula)
        result = plan(problem, objective=measured)
        assert result.violations == ()
        assert result.objective == "accuracy"
        assert result.predicted_accuracy == pytest.approx(best_by_hand(problem, measured), rel=1e-9)
        assert result.clip_norm in measured.clip_norm
        assert result.clip_norm == result.problem.learning.clip_norm
        assert result.prediction.low <= result.predicted_accuracy <= result.prediction.high
        for average in ("none", "tail"):
            other = plan(problem, objective=measured, average=average)
            assert other.average == average
            assert other.predicted_accuracy <= result.predicted_accuracy + 1e-12


def with_steps(problem):
    return replace(problem, learning=replace(problem.learning, total_steps=20))


def test_the_average_is_taken_where_it_helps(random_problem):
    measured = surrogate(noise=(1e-6, 1e-3, 0.1, 1e3))
    for index in range(4):
        problem = with_steps(random_problem(np.random.default_rng(index)))
        assert plan(problem, objective=measured, rounds=10).average == "tail"
        assert plan(problem, objective=measured, rounds=2).average == "none"
        assert plan(problem, rounds=10).average == "none"


def test_a_fixed_value_must_be_a_grid_value(random_problem):
    problem = random_problem(np.random.default_rng(0))
    with pytest.raises(InfeasibleError, match=r"covers the averages none, tail \(average is exponential\)"):
        plan(problem, objective=surrogate(noise=(1e-6, 1e3)), average="exponential")


def test_every_policy_takes_the_best_rounds_and_norm_for_its_devices(random_problem):
    measured = surrogate(noise=(1e-6, 1e-3, 0.1, 1e3))
    for index in range(6):
        problem = random_problem(np.random.default_rng(index))
        best = {
            name: plan(problem, policy=name, objective=measured).predicted_accuracy for name in ("weighted", "optimal")
        }
        assert best["optimal"] <= best["weighted"] + 1e-12
        for policy in POLICIES:
            threshold = {"threshold": 0.0} if policy == "threshold" else {}
            result = plan(problem, policy=policy, objective=measured, **threshold)
            if not result.violations and policy != "weighted":
                assert result.predicted_accuracy <= best["optimal"] + 1e-12
            fixed = plan(problem, policy=policy, objective=measured, rounds=3, **threshold)
            assert fixed.rounds == 3
            if policy != "paper":  # it decides its rounds by its own objective
                assert fixed.predicted_accuracy <= result.predicted_accuracy + 1e-12


def test_values_outside_the_grid_are_not_planned(random_problem):
    problem = random_problem(np.random.default_rng(0))
    with pytest.raises(InfeasibleError, match="covers 3 to 10 rounds"):
        plan(problem, objective=surrogate(rounds=(3, 10)), rounds=2)
    with pytest.raises(InfeasibleError, match="covers up to 1e-11"):
        plan(problem, objective=surrogate(noise=(1e-12, 1e-11)))


def test_rounds_that_keep_the_limits_are_preferred_to_those_that_break_them(random_problem):
    measured = surrogate(noise=(1e-6, 1e-3, 0.1, 1e3))
    for index in range(20):
        problem = with_steps(random_problem(np.random.default_rng(index), scope="total", formula="exact"))
        devices = np.arange(problem.fleet.num_devices)
        theta = float(limits.largest_alignment(problem, devices, np.array([2]))[0])
        for factor, kept in ((1.0, True), (1e3, False)):
            own = np.full(devices.shape, factor * theta)
            decided = plan(problem, policy=lambda _, own=own: own, objective=measured)
            assert (not decided.violations) == kept


def test_without_any_gain_there_is_no_plan_by_measurement(random_problem):
    problem = random_problem(np.random.default_rng(0))
    unreachable = replace(problem, fleet=Fleet(gain=np.zeros(problem.fleet.num_devices), peak_power=1.0))
    for participation in ((1.0,), (0.25, 1.0)):
        with pytest.raises(InfeasibleError, match="every device has gain 0"):
            plan(unreachable, objective=surrogate(participation=participation))


def test_a_participation_ratio_outside_the_grid_is_reported(random_problem):
    problem = random_problem(np.random.default_rng(0))
    measured = surrogate(participation=(0.9, 1.0), noise=(1e-6, 1e3))
    with pytest.raises(InfeasibleError, match=r"ratio would be at most .*, and the surrogate covers 0\.9 to 1\."):
        plan(problem, policy="top_k", size=1, objective=measured)


def test_a_record_of_it_is_the_same_plan(random_problem):
    problem = random_problem(np.random.default_rng(1))
    result = plan(problem, objective=surrogate(noise=(1e-6, 1e-3, 0.1, 1e3)))
    recorded = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    again = Plan.from_dict(problem, recorded)
    assert again.to_dict() == result.to_dict()
    assert again.prediction == result.prediction


def test_the_norm_can_be_fixed(random_problem):
    measured = surrogate(noise=(1e-6, 1e-3, 0.1, 1e3))
    problem = random_problem(np.random.default_rng(2))
    best = plan(problem, objective=measured)
    for clip_norm in (0.5, 0.8, 1.0, 4.0):
        fixed = plan(problem, objective=measured, clip_norm=clip_norm)
        assert fixed.clip_norm == clip_norm
        assert fixed.predicted_accuracy <= best.predicted_accuracy + 1e-12
        there = measured.prediction(
            rounds=fixed.rounds,
            clip_norm=clip_norm,
            noise=fixed.noise_share,
            participation=fixed.num_scheduled / problem.fleet.num_devices,
            average=fixed.average,
        )
        assert fixed.predicted_accuracy == pytest.approx(there.accuracy, rel=1e-9)
    assert plan(problem, objective=measured, clip_norm=best.clip_norm).to_dict()["rounds"] == best.rounds
    with pytest.raises(InfeasibleError, match=r"clipping norms from 0.5 to 4 \(clip_norm is 5\)"):
        plan(problem, objective=measured, clip_norm=5.0)
    with pytest.raises(ValueError, match="clip_norm cannot be given for a plan by the bound"):
        plan(problem, clip_norm=1.0)
