import numpy as np
import pytest

from airfed.planning import Amplitudes, Plan
from airfed.text.phrases import MOST_HINTS, hints


@pytest.fixture
def plan(random_problem):
    problem = random_problem(np.random.default_rng(3), devices=12, total_steps=8)
    table = Amplitudes.aligned(np.arange(10), num_devices=12, level=1e-9, rounds=4)
    return Plan(problem=problem, policy="optimal", amplitudes=table)


def rounds(*losses, **changes):
    """The records of a good training, with the given changes."""
    good = {
        "accuracy": 0.9,
        "test_loss": losses[-1],
        "update_norm_mean": 3.0,
        "update_norm_max": 4.0,
        "clipped_share": 0.1,
        "refused": 0,
        "missing": 0,
        "signal_to_noise_db": -29.0,
    }
    return [{"round": index, "loss": loss, **good, **changes} for index, loss in enumerate(losses)]


def test_a_good_training_needs_no_hint(plan):
    assert hints(plan, rounds(2.3, 1.0, 0.3), classes=10) == []
    assert hints(plan, rounds(0.01, 1e-5)) == []
    assert hints(plan, [], classes=10) == []
    # what would explain a poor one is no complaint by itself
    assert hints(plan, rounds(2.3, 0.3, clipped_share=1.0, signal_to_noise_db=-40.0), classes=10) == []


def test_accuracy_at_chance_and_its_reasons(plan):
    clip = plan.problem.learning.clip_norm
    found = hints(
        plan,
        rounds(2.3, 2.2, accuracy=0.11, clipped_share=1.0, update_norm_mean=9 * clip, update_norm_max=9 * clip),
        classes=10,
    )
    assert found[0] == "The accuracy, 11.0%, is at chance level for 10 classes."
    assert found[1].startswith("Every update was clipped, from a norm of ")
    assert f"clip_norm = {clip:g}: raise it" in found[1]
    assert found[2].startswith("The received aggregate was 29 dB below the noise: a larger ")
    assert {"privacy": "budget.epsilon", "peak_power": "fleet.peak_power", "total_power": "budget.total_power"}[
        plan.binding
    ] in found[2]


def test_a_far_too_large_clip_norm_gives_a_hint(plan):
    clip = plan.problem.learning.clip_norm
    found = hints(plan, rounds(2.3, 2.2, update_norm_max=0.0123 * clip), classes=10)
    assert found[0].startswith("The loss hardly fell, from 2.3 to 2.2")
    assert "raises the SNR at equal power and privacy" in found[1]


def test_a_rising_loss_asks_for_shorter_steps_and_nothing_else(plan):
    found = hints(plan, rounds(2.0, 50.0, clipped_share=0.95, update_norm_mean=1e3, update_norm_max=1e4), classes=10)
    assert found[0] == "The loss rose from 2 to 50: try a smaller learning_rate."
    assert found[1].startswith("Nearly every update was clipped")
    assert "raise" not in found[1]


def test_one_round_is_compared_with_chance_level(plan):
    assert hints(plan, rounds(9.4), classes=10)[0] == ("The loss, 9.4, is above 2.3, the chance level for 10 classes.")


def test_devices_that_do_not_answer_or_send_rubbish(plan):
    assert hints(plan, rounds(2.3, 0.2, missing=0)) == []
    assert hints(plan, rounds(2.3, 0.2, missing=3))[0].startswith("3 of 10 devices were missing in the average round")
    assert hints(plan, rounds(2.3, 0.2, refused=2))[0].startswith("Updates with NaN or Inf arrived in 2 of 2 rounds")


def test_at_most_three_hints_and_none_about_unrecorded_metrics(plan):
    worst = {"accuracy": 0.1, "clipped_share": 1.0, "update_norm_mean": 1e9, "missing": 5, "refused": 1}
    assert len(hints(plan, rounds(2.3, 2.9, **worst), classes=10)) == MOST_HINTS
    unnoised = ("loss", "update_norm_mean", "update_norm_max", "clipped_share", "refused", "missing")
    private = [
        {**record, **dict.fromkeys(unnoised), "signal_to_noise_db": None}
        for record in rounds(2.3, 2.3, accuracy=0.1, test_loss=2.3)
    ]
    assert hints(plan, private, classes=10) == ["The accuracy, 10.0%, is at chance level for 10 classes."]
    for record in rounds(2.3, 2.3):
        for name in list(record):
            hints(plan, [{key: value for key, value in record.items() if key != name}], classes=10)


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300])
def test_odd_norms_are_no_trouble(plan, value):
    found = hints(plan, rounds(2.3, 2.3, update_norm_max=value, update_norm_mean=value), classes=10)
    assert all("nan" not in sentence and "inf" not in sentence for sentence in found)
