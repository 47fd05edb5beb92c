"""Averages of models: weighted means with weights known in advance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed.training.state import AVERAGES, Averages


def begun(rounds, names=AVERAGES, size=3):
    return Averages(rounds=rounds, names=names, latest=np.full(size, 9.0, dtype=np.float32))


def drawn(rounds, seed=0, size=3):
    return np.random.default_rng(seed).normal(size=(rounds, size)).astype(np.float32)


def weight(name, rounds, done):
    """The weights of the models so far, from the definition."""
    age = np.arange(done)[::-1]
    if name == "none" or (name == "tail" and done <= rounds // 2):
        return (age == 0).astype(float)
    if name == "tail":
        return (np.arange(done) >= rounds // 2).astype(float)
    return np.exp(-age / (rounds / 5))


@given(rounds=st.integers(1, 60), seed=st.integers(0, 9))
def test_after_any_round_each_is_the_mean_with_its_weights(rounds, seed):
    models, averages = drawn(rounds, seed), begun(rounds)
    for done in range(1, rounds + 1):
        averages = averages.after(models[done - 1])
        for name in AVERAGES:
            mean = np.average(models[:done].astype(np.float64), axis=0, weights=weight(name, rounds, done))
            np.testing.assert_allclose(averages.model(name), mean, rtol=1e-6, atol=1e-7)
    assert averages.model("none").tobytes() == models[-1].tobytes()


@given(rounds=st.integers(1, 10**6), done=st.integers(1, 50), value=st.floats(-1024, 1024, width=32))
def test_the_mean_of_one_model_is_that_model(rounds, done, value):
    averages = begun(rounds)
    for _ in range(min(done, rounds)):
        averages = averages.after(np.full(3, value, dtype=np.float32))
    for name in AVERAGES:
        np.testing.assert_allclose(averages.model(name), np.float32(value), rtol=1e-6, atol=1e-40)


@given(rounds=st.integers(1, 30), data=st.data())
def test_the_stored_sums_suffice_to_resume(rounds, data):
    models, cut = drawn(rounds), data.draw(st.integers(0, rounds))
    whole = halfway = begun(rounds)
    for index, model in enumerate(models):
        if index == cut:
            halfway = Averages(
                rounds=rounds, names=AVERAGES, latest=halfway.latest, done=halfway.done, sums=dict(halfway.sums)
            )
        whole, halfway = whole.after(model), halfway.after(model)
    for name in AVERAGES:
        assert whole.model(name).tobytes() == halfway.model(name).tobytes()


def test_before_the_first_round_there_is_the_initial_model():
    for name in AVERAGES:
        assert begun(4).model(name).tolist() == [9.0, 9.0, 9.0]


def test_sums_that_do_not_fit_are_refused():
    averages = begun(4)
    for model in drawn(3):
        averages = averages.after(model)
    good = {"rounds": 4, "names": AVERAGES, "latest": averages.latest, "done": 3, "sums": averages.sums}
    Averages(**good)
    tail, exponential = averages.sums["tail"], averages.sums["exponential"]
    for bad in (
        {"sums": {}},
        {"sums": {"tail": tail}},
        {"sums": {"tail": tail, "exponential": exponential[:2]}},
        {"sums": {"tail": tail, "exponential": exponential, "other": tail}},
        {"done": 1},
        {"names": ("none", "tail")},
    ):
        with pytest.raises(ValueError, match="sums must be those of the averages"):
            Averages(**good | bad)


def test_an_average_that_is_not_computed_is_refused():
    with pytest.raises(ValueError, match="name must be one of the averages none; got 'tail'"):
        begun(4, names=("none",)).model("tail")
