"""What the page computes is the plan, and comes at once."""

from __future__ import annotations

import time

import numpy as np
import pytest

import airfed
from airfed import planning
from airfed.explorer import knobs, tradeoffs, view
from airfed.explorer.design import Design
from airfed.explorer.pictures_compare import levels
from airfed.explorer.shown import remarks
from airfed.problem import InfeasibleError
from airfed.showing.plans import MOST_ROUNDS
from airfed.showing.words import ADVERSARIES

WORLDS = {
    "template": {},
    "power": {"link.noise_std": 1.0, "budget.total_power": 300.0, "budget.epsilon": 5.0},
    "total": {"budget.scope": "total", "budget.epsilon": 20.0, "link.noise_std": 0.3},
    "spread": {"peak_spread": 30.0, "link.noise_std": 1.0, "budget.epsilon": 20.0, "fleet.num_devices": 40},
    "one": {"fleet.num_devices": 1, "learning.total_steps": 1},
    "full": {"policy.name": "full"},
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
    seen = view.look(world)
    plan = world.plan()
    assert (seen.plan.scheduled == plan.scheduled).all()
    assert (seen.plan.rounds, seen.plan.alignment) == (plan.rounds, plan.alignment)
    optimum = planning.plan(world.problem(), rounds=plan.rounds)
    here = seen.curve.rounds.tolist().index(plan.rounds)
    assert seen.curve.total[here] == pytest.approx(optimum.bound.total, rel=1e-9)
    assert seen.curve.rounds.size <= MOST_ROUNDS + 1
    if world.policy.name == "optimal":
        assert seen.curve.total.min() == pytest.approx(plan.bound.total, rel=1e-9)
        assert seen.space.alignment[plan.num_scheduled - 1] == pytest.approx(plan.alignment, rel=1e-9)


def test_the_sentence_tells_the_decision() -> None:
    plan = view.look(design("power").world()).plan
    assert view.decision(plan) == (
        f"Schedule {plan.num_scheduled} of 100 devices, {plan.rounds} rounds of "
        f"{min(plan.local_steps)}-{max(plan.local_steps)} steps; total power is the limit; "
        f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total."
    )
    assert "1 round of 1 step;" in view.decision(view.look(design("one").world()).plan)


def test_the_next_device_is_the_strongest_that_stays_out_and_would_cost() -> None:
    seen = view.look(design("power").world())
    out, plan = seen.next_device, seen.plan
    assert out is not None
    gain = plan.problem.fleet.gain
    assert out.gain == np.delete(gain, plan.scheduled).max()
    assert out.bound >= plan.bound.total
    assert out.alignment == pytest.approx(seen.space.alignment[plan.num_scheduled], rel=1e-9)
    assert view.waiting(seen).startswith("Total power stops the next one")
    everyone = view.look(design("template").change("link.noise_std", 0.1).world())
    assert everyone.next_device is None
    assert view.waiting(everyone) == "Every device that can be heard transmits."


def test_an_infeasible_point_raises_with_its_reason() -> None:
    silent = (
        Design().change("channel.model", "fixed").change("channel.gains", [0.0, 0.0]).change("channel.minimum", 0.0)
    )
    with pytest.raises(InfeasibleError, match="every device has gain 0"):
        view.look(silent.change("channel.pin_minimum", False).world())


@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_a_move_takes_no_time_to_speak_of(spread: float) -> None:
    moved = design("power").change("fleet.num_devices", 1000).change("peak_spread", spread)
    view.look(moved.world())
    times = []
    for step in range(5):  # ε differs each time: nothing is remembered
        started = time.process_time()
        seen = view.look(moved.change("budget.epsilon", 5.0 + 0.01 * step).world())
        assert seen.plan.epsilon_round > 0
        assert seen.plan.epsilon_total > 0
        times.append(time.process_time() - started)
    assert min(times) < 5, times  # of processor time; less than a tenth of a second on a quiet machine


@pytest.mark.parametrize("name", ["power", "spread"])
def test_more_budget_never_hurts(name: str) -> None:
    world = design(name).world()
    front = tradeoffs.front(world)
    assert (np.diff(front.bound, axis=0) <= 1e-9 * front.bound[1:]).all()
    assert (np.diff(front.bound, axis=1) <= 1e-9 * front.bound[:, 1:]).all()
    here = front.bound[front.power_index, front.epsilon_index]
    assert here == pytest.approx(planning.plan(world.problem()).bound.total, rel=1e-9)
    price = tradeoffs.price(world)
    assert price.now == pytest.approx(here)
    assert price.double_power <= price.watt <= price.now
    assert price.double_epsilon <= price.epsilon <= price.now


def test_the_price_of_a_watt_is_the_difference_of_two_plans() -> None:
    moved = design("power")
    more = planning.plan(moved.change("budget.total_power", 301.0).world().problem()).bound.total
    loss = planning.plan(moved.change("budget.epsilon", 6.0).world().problem()).bound.total
    price = tradeoffs.price(moved.world())
    assert (price.watt, price.epsilon) == (pytest.approx(more, rel=1e-9), pytest.approx(loss, rel=1e-9))


def test_policies_without_a_plan_tell_why() -> None:
    weak = design("power").change("policy.name", "threshold").change("policy.threshold", 99.0)
    world = weak.world()
    plans, reasons = world.compare()
    assert "optimal" in plans
    assert "largest gain" in reasons["threshold"]


@pytest.mark.parametrize("trust", ["radio", "combiner"])
def test_the_remarks_say_whom_an_epsilon_is_claimed_against(trust: str) -> None:
    rng = np.random.default_rng(0)
    channel = rng.normal(size=(6, 3)) + 1j * rng.normal(size=(6, 3))
    plan = airfed.plan(
        airfed.Problem(
            fleet=airfed.Fleet(channel=channel, peak_power=1.0),
            link=airfed.Link(noise_std=1.0, trust=trust),
            learning=airfed.Learning(
                **{"dimension": 20, "total_steps": 5, "clip_norm": 1.0, "learning_rate": 0.1},
                **{"smoothness": 10.0, "strong_convexity": 1.0, "initial_gap": 2.0},
            ),
            budget=airfed.Budget(epsilon=3.0, delta=1e-3, total_power=10.0),
        )
    )
    assert f"against {ADVERSARIES[trust]}" in remarks(plan, 1.0).unescape()


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
