"""What the page computes is the plan, and comes at once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from airfed.plotting.chart import Line
from airfed.plotting.plans import alignment_chart

from airfed import planning, policies
from airfed.explorer import comparison, knobs, pictures, shown
from airfed.explorer.comparison import front_map, levels, slice_chart
from airfed.explorer.design import Design
from airfed.planning.limits import amplifications
from airfed.plotting.series import MOST_ROUNDS
from airfed.privacy import gaussian_mu
from airfed.problem import InfeasibleError
from airfed.text.phrases import LIMITS

WORLDS = {
    "template": {},
    "power": {"link.noise_std": 1.0, "budget.total_power": 300.0, "budget.epsilon": 5.0},
    "total": {"budget.scope": "total", "budget.epsilon": 20.0, "link.noise_std": 0.3},
    "spread": {"peak_spread": 30.0, "link.noise_std": 1.0, "budget.epsilon": 20.0, "fleet.num_devices": 40},
    "one": {"fleet.num_devices": 1, "learning.total_steps": 1},
    "full": {"policy.name": "full"},
    "radio": {"fleet.num_devices": 30, "link.noise_std": 1.0, "link.antennas": 4, "budget.epsilon": 5.0},
    "rough": {"channel.estimation_error": 0.02, "link.noise_std": 1.0, "budget.epsilon": 5.0},
}


def design(name: str) -> Design:
    made = Design()
    for key, value in WORLDS[name].items():
        made = made.change(key, value)
    return made


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_view_is_the_plan(name: str) -> None:
    world = design(name).world()
    seen = pictures.look(world)
    plan = world.plan()
    assert (seen.plan.scheduled == plan.scheduled).all()
    assert (seen.plan.rounds, seen.plan.alignment) == (plan.rounds, plan.alignment)
    optimum = policies.plan(world.problem(), rounds=plan.rounds)
    (curve,) = (part for part in seen.rounds.parts if isinstance(part, Line))
    here = curve.x.tolist().index(plan.rounds)
    assert curve.y[here] == pytest.approx(optimum.bound.total, rel=1e-9)
    assert curve.x.size <= MOST_ROUNDS + 1
    if world.policy.name == "optimal":
        assert curve.y.min() == pytest.approx(plan.bound.total, rel=1e-9)
        assert seen.space.alignment[plan.num_scheduled - 1] == pytest.approx(plan.alignment, rel=1e-9)


def test_the_sentence_tells_the_decision() -> None:
    plan = pictures.look(design("power").world()).plan
    assert pictures.decision(plan) == (
        f"Schedule {plan.num_scheduled} of 100 devices, {plan.rounds} rounds of "
        f"{min(plan.local_steps)}-{max(plan.local_steps)} steps; total power is the limit; "
        f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total."
    )
    assert "1 round of 1 step;" in pictures.decision(pictures.look(design("one").world()).plan)


def test_the_next_device_is_the_strongest_that_stays_out_and_would_cost() -> None:
    seen = pictures.look(design("power").world())
    out, plan = seen.next_device, seen.plan
    assert out is not None
    gain = plan.problem.fleet.gain
    assert out.gain == np.delete(gain, plan.scheduled).max()
    assert out.bound >= plan.bound.total
    assert out.alignment == pytest.approx(seen.space.alignment[plan.num_scheduled], rel=1e-9)
    assert pictures.waiting(seen).startswith("Total power stops the next one")
    everyone = pictures.look(design("template").change("link.noise_std", 0.1).world())
    assert everyone.next_device is None
    assert pictures.waiting(everyone) == "Every reachable device transmits."


def test_of_several_antennas_every_epsilon_names_its_adversary() -> None:
    seen = pictures.look(design("radio").world())
    assert pictures.decision(seen.plan).endswith(" in total, against a server that keeps every antenna's signal.")
    assert str(shown.sentence(seen.plan)).endswith("against a server that keeps every antenna&#39;s signal.")
    assert "with any beamformer" in shown.remarks(seen.plan, 1.0)
    trusting = pictures.look(design("radio").change("link.trust", "combiner").world()).plan
    assert pictures.decision(trusting).endswith("against a server that receives the combined signal only.")
    assert "against" not in pictures.decision(pictures.look(design("power").world()).plan)


@pytest.mark.parametrize("name", ["radio", "rough"])
def test_where_devices_are_seen_stronger_privacy_stops_them_one_by_one(name: str) -> None:
    seen = pictures.look(design(name).world())
    plan, out = seen.plan, seen.next_device
    assert plan.binding == "privacy"
    limits = {line.name: line.y for line in alignment_chart(plan, seen.space).parts if isinstance(line, Line)}
    for limit, largest in plan.limits.items():  # what any m devices could have, these m cannot exceed
        assert limits[LIMITS[limit]][plan.num_scheduled - 1] >= largest * (1 - 1e-9)
    together = np.minimum.reduce([curve for label, curve in limits.items() if label != "largest θ"])
    assert (limits["largest θ"] <= together * (1 + 1e-9)).all()
    assert limits["privacy"][-1] < limits["privacy"][0]
    assert limits["privacy"][-1] == pytest.approx(plan.problem.link.noise_std * mu(plan) / 2 / worst(plan), rel=1e-9)
    if out is not None:
        assert out.alignment < plan.alignment
        assert "stops the next one" in pictures.waiting(seen)


def mu(plan: planning.Plan) -> float:
    """What the budget allows of a round."""
    return gaussian_mu(plan.problem.budget.epsilon, plan.problem.budget.delta)


def worst(plan: planning.Plan) -> float:
    """By how much stronger than θ somebody may be seen at most."""
    return float(amplifications(plan.problem).max())


def test_an_infeasible_point_raises_with_its_reason() -> None:
    silent = (
        Design().change("channel.model", "fixed").change("channel.gains", [0.0, 0.0]).change("channel.minimum", 0.0)
    )
    with pytest.raises(InfeasibleError, match="every device has gain 0"):
        pictures.look(silent.change("channel.pin_minimum", False).world())


@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_a_move_takes_no_time_to_speak_of(spread: float) -> None:
    moved = design("power").change("fleet.num_devices", 1000).change("peak_spread", spread)
    pictures.look(moved.world())
    times = []
    for step in range(5):  # ε differs each time: nothing is remembered
        started = time.process_time()
        seen = pictures.look(moved.change("budget.epsilon", 5.0 + 0.01 * step).world())
        assert seen.plan.epsilon_round > 0
        assert seen.plan.epsilon_total > 0
        times.append(time.process_time() - started)
    assert min(times) < 5, times  # of processor time; less than a tenth of a second on a quiet machine


@pytest.mark.parametrize("name", ["power", "spread"])
def test_more_budget_never_hurts(name: str) -> None:
    world = design(name).world()
    front = comparison.front(world)
    assert (np.diff(front.loss, axis=0) <= 1e-9 * front.loss[1:]).all()
    assert (np.diff(front.loss, axis=1) <= 1e-9 * front.loss[:, 1:]).all()
    here = front.loss[front.power_index, front.epsilon_index]
    assert here == pytest.approx(policies.plan(world.problem()).bound.total, rel=1e-9)
    found = comparison.sensitivity(world)
    assert found.now == pytest.approx(here)
    assert found.double_power <= found.watt <= found.now
    assert found.double_epsilon <= found.epsilon <= found.now


def test_the_sensitivity_to_a_watt_is_the_difference_of_two_plans() -> None:
    moved = design("power")
    more = policies.plan(moved.change("budget.total_power", 301.0).world().problem()).bound.total
    loss = policies.plan(moved.change("budget.epsilon", 6.0).world().problem()).bound.total
    found = comparison.sensitivity(moved.world())
    assert (found.watt, found.epsilon) == (pytest.approx(more, rel=1e-9), pytest.approx(loss, rel=1e-9))


def by_accuracy() -> Design:
    made = Design().change("fleet.num_devices", 1000).change("budget.scope", "total").change("budget.epsilon", 2.0)
    made = made.change("budget.delta", 1e-5).change("link.noise_std", 1.0).change("policy.objective", "measured")
    return made.change("learning.model", "cnn")


def test_a_plan_by_accuracy_is_compared_by_accuracy() -> None:
    world = by_accuracy().world()
    plan = world.plan()
    assert plan.objective == "measured"
    found = comparison.sensitivity(world)
    assert (found.of, found.now) == ("accuracy", plan.predicted_accuracy)
    front = comparison.front(world)
    assert front.of == "accuracy"
    assert 1 - front.loss[front.power_index, front.epsilon_index] == plan.predicted_accuracy
    assert front.text(0.107) == "89.3%"
    answer = shown.compare(by_accuracy())
    assert isinstance(answer, shown.Compared)
    assert "bound" not in answer.sensitivities
    assert f"from {found.now:.1%} to {found.epsilon:.1%}." in answer.sensitivities
    assert f"<td>{found.now:.1%}</td>" in answer.table
    for markup in (front_map(front, 800.0), slice_chart(front, 380.0, over="epsilon")):
        assert f"{found.now:.1%}" in markup or "expected accuracy" in markup


def test_policies_without_a_plan_tell_why() -> None:
    weak = design("power").change("policy.name", "threshold").change("policy.threshold", 99.0)
    world = weak.world()
    plans, reasons = world.compare()
    assert "optimal" in plans
    assert "largest gain" in reasons["threshold"]


def test_levels_of_a_flat_map_are_none() -> None:
    assert levels(np.full((3, 3), 2.0), 2.0) == []


@pytest.mark.parametrize("knob", [k for group in knobs.GROUPS for k in group.items if isinstance(k, knobs.Knob)])
def test_a_slider_stands_where_its_value_is(knob: knobs.Knob) -> None:
    if knob.kind in ("list", "text"):
        return
    for position in (0, 1, 250, 500, 999, knobs.STEPS):
        value = knob.value(position)
        again = knob.position(value)
        assert again is not None
        if value is None:  # nothing is written down at the end of an open one, and nowhere else
            assert knob.open
            assert (position, again) == (knobs.STEPS, knobs.STEPS)
        else:
            assert knob.value(again) == pytest.approx(value, rel=0.011, abs=1)
        assert knob.parse(knobs.shown(value)) == value
    assert knob.position("30 dBm") is None
    assert knob.position(float("nan")) is None


def test_every_knob_is_a_key_of_the_scenario() -> None:
    start = Design()
    for group in knobs.GROUPS:
        for item in group.items:
            off = isinstance(item, knobs.Knob) and item.open
            if knobs.applies(item.key, start) and item.key not in ("peak_spread", "policy.rounds"):
                assert (start.get(item.key) is None) == off, item.key
