"""What the page computes is the plan, and comes at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")

from airfed import planning, policies
from airfed.explorer import compare_tab, knobs, view
from airfed.explorer.charts import Options, candidates
from airfed.explorer.design import Design
from airfed.planning.limits import amplifications
from airfed.planning.policy import next_device
from airfed.plotting.series import MOST_ROUNDS
from airfed.privacy import gaussian_mu
from airfed.text.phrases import LIMITS, change_text

WORLDS = {
    "template": {},
    "power": {"link.noise_std": 1.0, "budget.total_power": 300.0, "budget.epsilon": 5.0},
    "total": {"budget.scope": "total", "budget.epsilon": 20.0, "link.noise_std": 0.3},
    "spread": {
        "fleet.peak_power": [0.2, 6.0] * 20,
        "link.noise_std": 1.0,
        "budget.epsilon": 20.0,
        "fleet.num_devices": 40,
    },
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


def seen(made: Design) -> view.View:
    found = view.show(made)
    assert isinstance(found, view.View), found
    return found


def plan_of(name: str) -> planning.Plan:
    return design(name).world().plan()


def series(options: Options) -> dict[str, Any]:
    """The points of each series by its name."""
    return {each["name"]: np.array(each["data"], dtype=float) for each in options["series"]}


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_view_is_the_plan(name: str) -> None:
    world = design(name).world()
    found, plan = seen(design(name)), world.plan()
    assert found.sentence == view.decision(plan)
    curve = series(found.cards[2].charts[0])["bound"]
    optimum = policies.plan(world.problem(), rounds=plan.rounds)
    assert curve[curve[:, 0].tolist().index(plan.rounds), 1] == pytest.approx(optimum.bound.total, rel=1e-9)
    assert len(curve) <= MOST_ROUNDS + 1
    upper = series(found.cards[1].charts[0])
    assert upper["chosen"].tolist() == [[plan.num_scheduled, pytest.approx(plan.alignment)]]
    if world.policy.name == "optimal":
        assert curve[:, 1].min() == pytest.approx(plan.bound.total, rel=1e-9)
        assert upper["largest θ"][plan.num_scheduled - 1, 1] == pytest.approx(plan.alignment, rel=1e-9)


def test_the_sentence_tells_the_decision() -> None:
    plan = plan_of("power")
    assert view.decision(plan) == (
        f"Schedule {plan.num_scheduled} of 100 devices, {plan.rounds} rounds of "
        f"{min(plan.local_steps)}-{max(plan.local_steps)} steps; total power is the limit; "
        f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total."
    )
    assert "1 round of 1 step;" in view.decision(plan_of("one"))


def test_the_next_device_is_the_strongest_that_stays_out_and_would_cost() -> None:
    plan = plan_of("power")
    out = next_device(plan)
    assert out is not None
    assert out.gain == np.delete(plan.problem.fleet.gain, plan.scheduled).max()
    assert out.bound >= plan.bound.total
    assert view.next_sentence(plan)[0].startswith("Total power stops the next one")
    everyone = design("template").change("link.noise_std", 0.1).world().plan()
    assert view.next_sentence(everyone) == ("No further device is reachable.", "")


def test_of_several_antennas_every_epsilon_names_its_adversary() -> None:
    found = seen(design("radio"))
    assert found.sentence.endswith(" in total, against a server that keeps every antenna's signal.")
    assert "with any beamformer" in " ".join(found.remarks)
    trusting = design("radio").change("link.trust", "combiner").world().plan()
    assert view.decision(trusting).endswith("against a server that receives the combined signal only.")
    assert "against" not in view.decision(plan_of("power"))


@pytest.mark.parametrize("name", ["radio", "rough"])
def test_where_devices_are_seen_stronger_privacy_stops_them_one_by_one(name: str) -> None:
    plan = plan_of(name)
    assert plan.binding == "privacy"
    drawn = series(candidates(plan, planning.candidates(plan))[0])
    curves = {label: np.nan_to_num(points[:, 1]) for label, points in drawn.items() if label != "chosen"}
    for limit, largest in plan.limits.items():  # what any m devices could have, these m cannot exceed
        assert curves[LIMITS[limit]][plan.num_scheduled - 1] >= largest * (1 - 1e-9)
    together = np.minimum.reduce([curve for label, curve in curves.items() if label != "largest θ"])
    assert (curves["largest θ"] <= together * (1 + 1e-9)).all()
    assert curves["privacy"][-1] < curves["privacy"][0]
    mu = gaussian_mu(plan.problem.budget.epsilon, plan.problem.budget.delta)
    worst = float(amplifications(plan.problem).max())
    assert curves["privacy"][-1] == pytest.approx(plan.problem.link.noise_std * mu / 2 / worst, rel=1e-9)
    out = next_device(plan)
    if out is not None:
        assert out.alignment < plan.alignment
        assert "stops the next one" in view.next_sentence(plan)[0]


def test_an_infeasible_point_is_refused_with_its_reason() -> None:
    silent = Design().change("channel.model", "fixed").change("channel.gains", [0.0, 0.0])
    with pytest.raises(ValueError, match="every device has gain 0"):
        view.show(silent.change("channel.minimum", 0.0).change("channel.pin_minimum", False))


@pytest.mark.parametrize("power", [1.0, [0.2, 6.0] * 500], ids=["equal", "spread"])
def test_a_move_takes_no_time_to_speak_of(power: float | list[float]) -> None:
    moved = design("power").change("fleet.num_devices", 1000).change("fleet.peak_power", power)
    seen(moved)
    times = []
    for step in range(5):  # ε differs each time: nothing is remembered
        started = time.process_time()
        seen(moved.change("budget.epsilon", 5.0 + 0.01 * step))
        times.append(time.process_time() - started)
    assert min(times) < 5, times  # of processor time; less than a tenth of a second on a quiet machine


def shades(options: Options) -> Any:
    """The cells of the map by row and column; -inf where no plan fits."""
    found = np.full((len(options["yAxis"]["data"]), len(options["xAxis"]["data"])), -np.inf)
    for cell in options["series"][0]["data"]:
        column, row, shade = cell["value"]
        found[row, column] = shade
    return found


@pytest.mark.parametrize("name", ["power", "spread"])
def test_more_budget_never_hurts(name: str) -> None:
    world = design(name).world()
    bound = np.exp(-shades(compare_tab.front_map(design(name))))
    assert (np.diff(bound, axis=0) <= 1e-9 * bound[1:]).all()
    assert (np.diff(bound, axis=1) <= 1e-9 * bound[:, 1:]).all()
    here = bound[bound.shape[0] // 2, bound.shape[1] // 2]
    assert here == pytest.approx(policies.plan(world.problem()).bound.total, rel=1e-9)


def test_what_a_budget_buys_is_the_difference_of_two_plans() -> None:
    def bound(**budgets: float) -> float:
        made = design("power")
        for key, value in budgets.items():
            made = made.change(f"budget.{key}", value)
        return policies.plan(made.world().problem()).bound.total

    watt, epsilon = compare_tab.bought(design("power").world())
    assert watt["buys"] == change_text("bound", bound(), bound(total_power=301.0))
    assert watt["twice the budget buys"] == change_text("bound", bound(), bound(total_power=600.0))
    assert epsilon["buys"] == change_text("bound", bound(), bound(epsilon=6.0))
    assert epsilon["twice the budget buys"] == change_text("bound", bound(), bound(epsilon=10.0))


def by_accuracy() -> Design:
    made = Design().change("fleet.num_devices", 1000).change("budget.scope", "total").change("budget.epsilon", 2.0)
    made = made.change("budget.delta", 1e-5).change("link.noise_std", 1.0).change("policy.objective", "measured")
    return made.change("learning.model", "cnn")


def test_a_plan_by_accuracy_is_compared_by_accuracy() -> None:
    world = by_accuracy().world()
    plan = world.plan()
    assert plan.objective == "measured"
    options = compare_tab.front_map(by_accuracy())
    assert shades(options)[6, 6] == plan.predicted_accuracy
    assert plan.predicted_accuracy is not None
    reached = f"{plan.predicted_accuracy:.1%}"
    assert options["series"][1]["name"].startswith(f"present design: accuracy {reached}, ")
    assert all(" W: accuracy " in cell["name"] for cell in options["series"][0]["data"])
    answer = compare_tab.compare(by_accuracy())
    assert isinstance(answer, compare_tab.Compared)
    assert answer.bought[1]["buys"].startswith(f"expected accuracy {reached} → ")
    assert answer.rows[0]["expected accuracy"] == reached
    assert all("above the optimum" not in row for row in answer.rows)


def test_policies_are_compared_by_what_the_plan_was_chosen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_tab, "above", lambda ratio: "12.3%")  # it looks like an accuracy
    answer = compare_tab.compare(design("power"))
    assert isinstance(answer, compare_tab.Compared)
    assert {row["above the optimum"] for row in answer.rows} == {"12.3%"}


def test_policies_without_a_plan_tell_why() -> None:
    weak = design("power").change("policy.name", "threshold").change("policy.threshold", 99.0)
    world = weak.world()
    plans, reasons = world.compare()
    assert "optimal" in plans
    assert "largest gain" in reasons["threshold"]


@pytest.mark.parametrize("key", [key for keys in knobs.GROUPS.values() for key in keys])
def test_a_slider_stands_where_its_value_is(key: str) -> None:
    knob = knobs.Knob(key)
    if knob.ends is None:
        return
    low, high = knob.ends
    for position in (low, 0.75 * low + 0.25 * high, high):
        value = knob.value(position)
        assert knob.parse(knobs.shown(value)) == value
        if value is None:  # nothing is written down at the end of an open one, and nowhere else
            assert knob.control.open
            assert position == knob.position(value) == high
        else:
            again = knob.position(value)
            assert again is not None
            assert knob.value(again) == pytest.approx(value, rel=0.011, abs=1) or again == high
    assert knob.position("30 dBm") is None
    assert knob.position(float("nan")) is None
    assert knob.position(0) is not None


def test_what_is_typed_is_a_number_a_list_or_a_text() -> None:
    knob = knobs.Knob("fleet.peak_power")
    assert [knob.parse(typed) for typed in ("30 dBm", ".5", "0, 0.5", "[1]", " ")] == [
        "30 dBm",
        0.5,
        [0, 0.5],
        [1],
        None,
    ]
    assert knobs.Knob("fleet.num_devices").parse("1e2") == 100


def test_every_knob_is_a_key_of_the_scenario() -> None:
    start, unset = Design(), {"policy.rounds", "policy.clip_norm"}
    for key in {key for keys in knobs.GROUPS.values() for key in keys} - unset:
        if knobs.applies(key, start):
            assert (start.get(key) is None) == knobs.Knob(key).control.open, key
