"""The page shows time-varying plans round by round."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("nicegui", reason="the explorer's packages are not installed (pip install airfed[web])")

from airfed.explorer import compare_tab, knobs, view
from airfed.explorer.design import MOST_BATTERIES, MOST_GAINS, Design, from_query
from airfed.planning import Plan
from airfed.scenario import ScenarioError
from airfed.text.phrases import gap_sentence, schedule_sentence

SMALL = {"fleet.num_devices": 12, "learning.total_steps": 30, "budget.total_power": 60.0, "policy.rounds": 9}
SCENARIOS = {
    "rayleigh": {"channel.coherence_rounds": 1},
    "privacy": {"channel.coherence_rounds": 1, "budget.scope": "total", "budget.epsilon": 20.0},
    "battery": {"budget.device_power": 3.0},
    "both": {"channel.coherence_rounds": 2, "budget.device_power": 3.0, "budget.scope": "total"},
    "shadowed": {"channel.common_shadowing_db": 8.0, "channel.shadowing_coherence_rounds": 1},
}


def design(name: str) -> Design:
    made = Design()
    for key, value in (SMALL | SCENARIOS[name]).items():
        made = made.change(key, value)
    return made


def plan_of(name: str) -> Plan:
    return design(name).scenario().plan()


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_page_shows_the_schedule_its_gap_and_charts_over_the_rounds(name: str) -> None:
    answer = view.show(design(name))
    assert isinstance(answer, view.View)
    plan = plan_of(name)
    assert schedule_sentence(plan).removesuffix(".") in answer.sentence
    assert gap_sentence(plan) in " ".join(answer.remarks)
    assert len(answer.cards) == 4
    for card in answer.cards:
        (options,) = card.charts
        json.dumps(options, allow_nan=False)
        assert all(each.get("name") or each["type"] == "heatmap" for each in options["series"])


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_link_restores_a_time_varying_design(name: str) -> None:
    made = design(name)
    assert from_query(parse_qsl(made.query(), keep_blank_values=True)).scenario() == made.scenario()


def test_a_constant_channel_has_no_correlation() -> None:
    made = design("rayleigh").change("channel.correlation", 0.9)
    assert made.scenario().channel.correlation == 0.9
    assert not made.change("channel.coherence_rounds", None).scenario().channel.time_varying
    assert made.change("channel.model", "uniform").scenario().channel.coherence_rounds == 1
    assert not made.change("channel.model", "fixed").scenario().channel.time_varying


def test_controls_of_time_varying_channels_appear_if_they_have_an_effect() -> None:
    keys = [
        f"channel.{name}"
        for name in ("coherence_rounds", "correlation", "common_shadowing_db", "shadowing_coherence_rounds")
    ]

    def seen(made: Design) -> list[bool]:
        return [knobs.applies(key, made) for key in keys]

    assert seen(Design()) == [True, False, True, True]
    assert seen(design("rayleigh")) == [True, True, True, True]
    assert seen(design("shadowed")) == [True, False, True, True]
    assert seen(design("rayleigh").change("channel.model", "uniform")) == [True, False, True, True]
    assert seen(Design().change("channel.model", "fixed")) == [False, False, True, True]
    assert seen(from_query({"channel.model": "[1]"})) == [True, False, True, True]


@pytest.mark.parametrize(
    ("changes", "most"),
    [({"channel.coherence_rounds": 1}, MOST_GAINS), ({"budget.device_power": 5.0}, MOST_BATTERIES)],
    ids=["gains", "batteries"],
)
def test_a_problem_that_is_too_large_is_refused_with_a_remedy(changes: dict[str, float], most: int) -> None:
    made = Design().change("learning.total_steps", 200).change("fleet.num_devices", most // 200)
    for key, value in changes.items():
        made = made.change(key, value)
    assert made.scenario().num_devices == most // 200
    large = made.change("fleet.num_devices", most // 200 + 1)
    with pytest.raises(ScenarioError, match=rf"devices times rounds .*set policy\.rounds\) must be at most {most:,} "):
        large.scenario()
    assert large.change("policy.rounds", 40).scenario().policy.rounds == 40


@pytest.mark.parametrize("value", ["-1", "0", "1e400", "NaN", "true", "<img src=x>", "[[1]]"])
@pytest.mark.parametrize(
    "key",
    [
        "channel.coherence_rounds",
        "channel.correlation",
        "channel.common_shadowing_db",
        "channel.shadowing_coherence_rounds",
        "budget.device_power",
    ],
)
def test_invalid_values_are_refused_with_the_name_of_the_key(key: str, value: str) -> None:
    made = from_query(
        {"channel.coherence_rounds": "1", **{"learning.total_steps": "5", "fleet.num_devices": "5"}, key: value}
    )
    reason = ""
    try:
        view.show(made)
    except ValueError as error:
        reason = str(error)
    assert key.partition(".")[2] in reason if reason else value == "0"
    assert "\n" not in reason


def test_enormous_powers_have_valid_charts() -> None:
    made = design("rayleigh").change("link.noise_std", 1e45).change("fleet.peak_power", 1e95)
    answer = view.show(made.change("budget.total_power", 1e100))
    assert isinstance(answer, view.View)
    json.dumps([card.charts for card in answer.cards], allow_nan=False)


def test_policies_are_compared_and_the_note_explains_the_missing_map() -> None:
    (compared,) = compare_tab.compare(design("rayleigh"))
    plans, _ = design("rayleigh").scenario().compare()
    assert {"clairvoyant", "myopic"} < set(plans)
    assert [row["policy"].rstrip("*") for row in compared.rows] == list(plans)
    sizes = next(iter(plans.values())).sizes
    assert compared.rows[0]["devices"] == (
        f"{sizes.min()}-{sizes.max()}" if sizes.min() < sizes.max() else f"{sizes[0]}"
    )
    assert "equal rounds only" in compared.note
