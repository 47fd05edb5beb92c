"""The view shows the plan of the scenario, quickly."""

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

SCENARIOS = {
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
    "all_antennas": {"fleet.num_devices": 30, "link.noise_std": 1.0, "link.antennas": 4, "budget.epsilon": 5.0},
    "imperfect_csi": {"channel.csi_error": 0.02, "link.noise_std": 1.0, "budget.epsilon": 5.0},
}


def design(name: str) -> Design:
    made = Design().change("policy.name", "optimal").change("policy.objective", "bound")
    for key, value in SCENARIOS[name].items():
        made = made.change(key, value)
    return made


def seen(made: Design) -> view.View:
    found = view.show(made)
    assert isinstance(found, view.View), found
    return found


def plan_of(name: str) -> planning.Plan:
    return design(name).scenario().plan()


def series(options: Options) -> dict[str, Any]:
    """The points of each series by its name."""
    return {each["name"]: np.array(each["data"], dtype=float) for each in options["series"]}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_view_shows_the_plan(name: str) -> None:
    loaded = design(name).scenario()
    found, plan = seen(design(name)), loaded.plan()
    assert found.sentence == view.headline(plan)
    curve = series(found.cards[2].charts[0])["bound"]
    optimum = policies.plan(loaded.problem(), rounds=plan.rounds)
    assert curve[curve[:, 0].tolist().index(plan.rounds), 1] == pytest.approx(optimum.bound.total, rel=1e-9)
    assert len(curve) <= MOST_ROUNDS + 1
    upper = series(found.cards[1].charts[0])
    assert upper["plan"].tolist() == [[plan.num_scheduled, pytest.approx(plan.alignment)]]
    if loaded.policy.name == "optimal":
        assert curve[:, 1].min() == pytest.approx(plan.bound.total, rel=1e-9)
        assert upper["largest θ"][plan.num_scheduled - 1, 1] == pytest.approx(plan.alignment, rel=1e-9)


def test_the_headline_states_the_schedule() -> None:
    plan = plan_of("power")
    assert view.headline(plan) == (
        f"Schedule {plan.num_scheduled} of 100 devices, {plan.rounds} rounds of "
        f"{min(plan.local_steps)}-{max(plan.local_steps)} local steps; total power is the limit; "
        f"ε = {plan.epsilon_round:.3g} per round, {plan.epsilon_total:.3g} in total."
    )
    assert "1 round of 1 local step;" in view.headline(plan_of("one"))


def test_the_next_device_is_the_strongest_one_not_scheduled_and_raises_the_bound() -> None:
    plan = plan_of("power")
    out = next_device(plan)
    assert out is not None
    assert out.gain == np.delete(plan.problem.fleet.gain, plan.scheduled).max()
    assert out.bound >= plan.bound.total
    assert view.next_sentence(plan)[0].startswith("Total power excludes the next device")
    full_participation = design("template").change("link.noise_std", 0.1).scenario().plan()
    assert view.next_sentence(full_participation) == ("No further device is reachable.", "")


def test_with_several_antennas_the_headline_names_the_adversary() -> None:
    found = seen(design("all_antennas"))
    assert found.sentence.endswith(" in total, against a server that keeps every antenna's signal.")
    assert "with any beamformer" in " ".join(found.remarks)
    combined = design("all_antennas").change("link.adversary", "combined").scenario().plan()
    assert view.headline(combined).endswith("against a server that receives the combined signal only.")
    assert "against" not in view.headline(plan_of("power"))


@pytest.mark.parametrize("name", ["all_antennas", "imperfect_csi"])
def test_amplified_devices_have_their_own_privacy_limits(name: str) -> None:
    plan = plan_of(name)
    assert plan.binding == "privacy"
    drawn = series(candidates(plan, planning.candidates(plan))[0])
    curves = {label: np.nan_to_num(points[:, 1]) for label, points in drawn.items() if label != "plan"}
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
        assert "excludes the next device" in view.next_sentence(plan)[0]


def test_an_infeasible_design_is_refused_with_the_reason() -> None:
    unreachable = (
        Design().change("policy.name", "optimal").change("channel.model", "fixed").change("channel.gains", [0.0, 0.0])
    )
    with pytest.raises(ValueError, match="every device has gain 0"):
        view.show(unreachable.change("channel.minimum", 0.0).change("channel.pin_minimum", False))


@pytest.mark.parametrize("power", [1.0, [0.2, 6.0] * 500], ids=["equal", "spread"])
def test_planning_for_the_page_is_fast(power: float | list[float]) -> None:
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


@pytest.mark.parametrize(("name", "policy"), [("power", "optimal"), ("power", "weighted"), ("spread", "optimal")])
def test_a_larger_budget_never_raises_the_bound(name: str, policy: str) -> None:
    made = design(name).change("policy.name", policy)
    card = compare_tab.front_map(made)
    assert card.text.startswith(f"Policy {policy}. ")
    bound = np.exp(-shades(card.charts[0]))
    assert (np.diff(bound, axis=0) <= 1e-9 * bound[1:]).all()
    assert (np.diff(bound, axis=1) <= 1e-9 * bound[:, 1:]).all()
    here = bound[bound.shape[0] // 2, bound.shape[1] // 2]
    assert here == pytest.approx(policies.plan(made.scenario().problem(), policy=policy).bound.total, rel=1e-9)


@pytest.mark.parametrize("policy", ["optimal", "weighted"])
def test_a_sensitivity_is_the_difference_of_two_plans(policy: str) -> None:
    def bound(**budgets: float) -> float:
        made = design("power")
        for key, value in budgets.items():
            made = made.change(f"budget.{key}", value)
        return policies.plan(made.scenario().problem(), policy=policy).bound.total

    def change(key: str, more: float) -> str:
        return change_text("bound", bound(), bound(**{key: more}))

    _, sensitivities = compare_tab.compare(design("power").change("policy.name", policy))
    watt, twice = change("total_power", 301.0), change("total_power", 600.0).removeprefix("bound ")
    assert f"One more watt: {watt}; twice the power: {twice}." in sensitivities.text
    assert change("epsilon", 6.0) in sensitivities.text
    assert change("epsilon", 10.0).removeprefix("bound ") in sensitivities.text


@pytest.mark.parametrize("policy", ["optimal", "weighted"])
def test_the_curve_over_the_rounds_passes_through_the_plan(policy: str) -> None:
    made = design("power").change("policy.name", policy)
    plan, options = made.scenario().plan(), seen(made).cards[2].charts[0]
    drawn = dict(series(options)["bound"].tolist())
    assert drawn[plan.rounds] == pytest.approx(plan.bound.total, rel=1e-9)


def by_accuracy() -> Design:
    made = (
        Design()
        .change("policy.name", "optimal")
        .change("fleet.num_devices", 1000)
        .change("budget.scope", "total")
        .change("budget.epsilon", 2.0)
    )
    made = made.change("budget.delta", 1e-5).change("link.noise_std", 1.0).change("policy.objective", "accuracy")
    return made.change("learning.model", "cnn")


def test_plans_with_the_accuracy_objective_are_compared_by_accuracy() -> None:
    loaded = by_accuracy().scenario()
    plan = loaded.plan()
    assert plan.objective == "accuracy"
    (options,) = compare_tab.front_map(by_accuracy()).charts
    assert shades(options)[6, 6] == plan.predicted_accuracy
    assert plan.predicted_accuracy is not None
    reached = f"{plan.predicted_accuracy:.1%}"
    assert options["series"][1]["name"].startswith(f"current budgets: accuracy {reached}, ")
    assert all(" W: accuracy " in cell["name"] for cell in options["series"][0]["data"])
    frontier = compare_tab.frontier_card(by_accuracy()).charts[0]["series"]
    assert dict(frontier[-1]["data"])[2.0] == plan.predicted_accuracy
    assert frontier[-1]["markLine"]["data"] == [{"xAxis": 2.0}]
    assert [each["name"] for each in frontier[-2:]] == ["any linear method", "plan"]
    assert all(
        most >= reached for (_, most), (_, reached) in zip(*(each["data"] for each in frontier[-2:]), strict=True)
    )
    compared, sensitivities = compare_tab.compare(by_accuracy())
    assert f"ε: expected accuracy {reached} → " in sensitivities.text
    assert compared.rows[0]["expected"] == reached
    assert all("above" not in row for row in compared.rows)


def test_policies_without_an_expected_accuracy_are_compared_by_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airfed.text.tables.above", lambda ratio: "12.3%")  # it looks like an accuracy
    compared, _ = compare_tab.compare(design("power").change("learning.learning_rate", 0.05))  # no surrogate fits
    assert {row["above"] for row in compared.rows} == {"12.3%"}
    assert all("expected" in row for row in compare_tab.compare(design("power"))[0].rows)


def test_policies_without_a_plan_give_the_reason() -> None:
    weak = design("power").change("policy.name", "threshold").change("policy.threshold", 99.0)
    loaded = weak.scenario()
    plans, reasons = loaded.compare()
    assert "optimal" in plans
    assert "largest gain" in reasons["threshold"]


@pytest.mark.parametrize("key", [key for keys in knobs.GROUPS.values() for key in keys])
def test_slider_positions_and_values_are_inverse(key: str) -> None:
    knob = knobs.Knob(key)
    if not knob.ends:
        return
    low, high = knob.ends
    for position in (low, 0.75 * low + 0.25 * high, high):
        value = knob.value(position)
        assert knob.parse(knobs.shown(value)) == value
        if value is None:  # only the high end of an open slider has no value
            assert knob.control.open
            assert position == knob.position(value) == high
        else:
            again = knob.position(value)
            assert again is not None
            assert knob.value(again) == pytest.approx(value, rel=0.011, abs=1) or again == high
    assert knob.position("30 dBm") is None
    assert knob.position(float("nan")) is None
    assert knob.position(0) is not None


def test_typed_values_are_numbers_lists_or_texts() -> None:
    knob = knobs.Knob("fleet.peak_power")
    assert [knob.parse(typed) for typed in ("30 dBm", ".5", "0, 0.5", "[1]", " ")] == [
        "30 dBm",
        0.5,
        [0, 0.5],
        [1],
        None,
    ]
    assert knobs.Knob("fleet.num_devices").parse("1e2") == 100


def test_every_control_has_a_key_in_the_template_or_is_off() -> None:
    start, unset = Design().change("policy.name", "optimal"), {"policy.rounds", "policy.clip_norm", "policy.objective"}
    for key in {key for keys in knobs.GROUPS.values() for key in keys} - unset:
        if knobs.applies(key, start):
            assert (start.get(key) is None) == knobs.Knob(key).control.open, key
