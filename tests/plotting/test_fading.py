"""Charts and text of time-varying plans show the numbers of the plan."""

from __future__ import annotations

import json
import re
import tracemalloc
import xml.etree.ElementTree as ET
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import problems
from airfed import Fleet, policies
from airfed.cli import main
from airfed.cli import plan as plan_command
from airfed.planning import Amplitudes, Plan, limits
from airfed.planning.policy import Sensitivities
from airfed.planning.surrogate import Prediction
from airfed.plotting import figure, series
from airfed.scenario import Scenario, template
from airfed.text import phrases as words
from airfed.text import tables

SEEDS = st.integers(0, 10**6)


def a_plan(
    seed: int = 0,
    devices: int = 12,
    rounds: int = 9,
    *,
    scope: str = "round",
    battery: bool = False,
    never: int = 0,
    beyond: float = 1.0,
    sizes: tuple[int, ...] = (),
    **changes: object,
) -> Plan:
    """Return a random plan whose tightest limit binds; `beyond` > 1 breaks it; `never` devices are never scheduled.

    With `sizes`, the first so many devices are scheduled in each round.
    """
    rng = np.random.default_rng(seed)
    batteries = tuple(rng.uniform(0.5, 2.0, devices).tolist()) if battery else None
    problem = problems.make(
        rng.rayleigh(0.7, (rounds, devices)) + 0.02,
        power=rng.uniform(0.5, 2.0, devices),
        **{"noise": 1.0, "steps": 2 * rounds + 1, "clip": 1.0, "convexity": 0.1, "gap": 2.0},
        **{"total_power": 0.3 * devices, "scope": scope, "device_power": batteries},
    )
    scheduled = rng.random((rounds, devices)) < rng.uniform(0.1, 0.9)
    scheduled[:, 0] = True
    scheduled[:, devices - never :] = False
    if sizes:
        scheduled = np.arange(devices) < np.array(sizes)[:, None]
    theta = rng.uniform(0.2, 1.0, rounds)
    loose = Plan(problem=problem, policy="mine", amplitudes=Amplitudes(level=theta, share=scheduled))
    theta = theta * (beyond * min(loose.limits.values()) / loose.alignment)
    return replace(loose, amplitudes=Amplitudes(level=theta, share=scheduled), **changes)  # type: ignore[arg-type]


def mask(plan: Plan) -> np.ndarray:
    """Which device is scheduled in which round, (rounds, devices)."""
    return plan.amplitude > 0


@given(SEEDS, st.integers(1, 40), st.integers(1, 30))
def test_cells_are_the_participation_mask(seed: int, devices: int, rounds: int) -> None:
    plan = a_plan(seed, devices, rounds, never=devices // 3)
    shares, _, _ = series.power_shares(plan)
    painted = ~np.isnan(shares)
    sends = np.count_nonzero(mask(plan), axis=0)
    order = np.argsort(-sends, kind="stable")
    assert painted.tolist() == mask(plan).T[order].tolist()
    assert painted.sum(axis=1).tolist() == sorted(sends.tolist(), reverse=True)
    for entry in plan.sequence:
        column = shares[:, entry.index]
        expected = np.full(devices, np.nan)
        expected[entry.scheduled] = entry.power / plan.problem.fleet.peak_power[entry.scheduled]
        np.testing.assert_allclose(column, expected[order], rtol=1e-12)


@given(SEEDS, st.integers(50, 200), st.integers(90, 330))
@settings(max_examples=20)
def test_merged_cells_keep_the_power_and_stay_few(seed: int, devices: int, rounds: int) -> None:
    plan = a_plan(seed, devices, rounds)
    shares, tall, wide = series.power_shares(plan)
    rows, columns = shares.shape
    assert (tall, wide) == (-(-devices // 60), -(-rounds // 100))
    assert (rows - 1) * tall < devices <= rows * tall
    assert (columns - 1) * wide < rounds <= columns * wide
    held = np.array(
        [[min(tall, devices - r * tall) * min(wide, rounds - c * wide) for c in range(columns)] for r in range(rows)]
    )
    total = sum(float(np.sum(e.power / plan.problem.fleet.peak_power[e.scheduled])) for e in plan.sequence)
    assert np.nansum(shares * held) == pytest.approx(total)
    order = np.argsort(-np.count_nonzero(mask(plan), axis=0), kind="stable")
    ranked = mask(plan).T[order]
    r, c = rows - 1, columns - 1  # the last ones may hold fewer
    assert np.isnan(shares[r, c]) == (not ranked[r * tall :, c * wide :].any())


def drawn(draw: figure.Draw) -> tuple[figure.Axes, dict[str, np.ndarray]]:
    """The axes, and the values of every named line."""
    axes = figure.Figure().subplots()
    draw(axes)
    return axes, {name: y for name, _, y in figure._named(axes)}


@given(SEEDS, st.integers(1, 30), st.integers(1, 60))
@settings(max_examples=15)
def test_theta_and_sizes_are_the_plans(seed: int, devices: int, rounds: int) -> None:
    plan = a_plan(seed, devices, rounds)
    axes, lines = drawn(lambda axes: figure.plot_levels(axes, plan))
    assert lines["θ"].tolist() == plan.amplitudes.level.tolist()
    assert lines["privacy"].tolist() == plan.round_limits["privacy"].tolist()
    assert lines["peak power"].tolist() == plan.round_limits["peak_power"].tolist()
    low, high = axes.get_ylim()
    assert all(low < line.min() <= line.max() < high for line in lines.values())
    axes, bars = drawn(lambda axes: figure.plot_sizes(axes, plan))
    assert axes.patches[0].get_data().values.tolist() == plan.sizes.tolist()
    assert bars["scheduled devices"].tolist() == plan.sizes.tolist()


@given(SEEDS, st.integers(1, 20), st.integers(1, 300), st.sampled_from(["round", "total"]), st.booleans())
@settings(max_examples=15)
def test_the_remaining_budgets_are_the_unspent_ones(
    seed: int, devices: int, rounds: int, scope: str, battery: bool
) -> None:
    plan = a_plan(seed, devices, rounds, scope=scope, battery=battery)
    places, left = series.budgets_left(plan)
    assert (places[0], places[-1]) == (0, rounds)
    assert set(left) == {
        "total_power",
        *(["privacy", "privacy_median"] if scope == "total" else []),
        *(["device_power", "device_power_median"] if battery else []),
    }
    budget = plan.problem.budget
    for values in left.values():
        assert values.size == places.size
        assert values[0] == 1.0
        assert np.all(np.diff(values) <= 1e-12)
        assert values.min() >= 0.0
    spent = {"total_power": plan.power_total / budget.total_power}
    if scope == "total":
        spent["privacy"] = (plan.mu_total / limits.allowed_mu(budget)) ** 2
        assert np.all(left["privacy"] <= left["privacy_median"])
    if battery:
        used = plan.sequence.device_power(rounds) / np.array(budget.device_power)[plan.scheduled]
        spent["device_power"] = used.max()
        assert left["device_power_median"][-1] == pytest.approx(1 - np.median(used), abs=1e-9)
    for name, share in spent.items():
        assert left[name][-1] == pytest.approx(1 - share, abs=1e-9)
    if plan.binding in left:  # the binding limit is spent
        assert left[plan.binding][-1] == pytest.approx(0.0, abs=1e-9)
    _, lines = drawn(lambda axes: figure.plot_budgets(axes, plan))
    assert [y.tolist() for y in lines.values()] == [values.tolist() for values in left.values()]


def test_a_broken_budget_is_visible() -> None:
    plan = a_plan(3, battery=True, beyond=1.2)
    assert plan.violations
    _, left = series.budgets_left(plan)
    broken = left[plan.binding]
    assert broken[-1] == pytest.approx(1 - 1.2**2)
    axes, _ = drawn(lambda axes: figure.plot_budgets(axes, plan))
    assert axes.get_ylim()[0] == pytest.approx(broken[-1])


def test_the_map_shows_the_devices_of_a_round() -> None:
    plan = a_plan(2, 12, 9)
    text = figure.svg(lambda axes: figure.plot_power_map(axes, plan), "map", height=300, salt="a")
    entry = plan.sequence[3]
    expected = f"round: 4\ndevices: {entry.scheduled.size}\nθ: {entry.alignment:.4g}\nW: {entry.power_planned:.4g}"
    assert re.findall("<title>(.*?)</title>", text, flags=re.DOTALL)[3] == expected
    assert "data:image/png;base64" in text


@pytest.mark.parametrize(("devices", "rounds"), [(1, 1), (12, 130), (130, 9)])
def test_the_figure_has_all_pictures_and_its_legend_covers_none(devices: int, rounds: int) -> None:
    plan = a_plan(4, devices, rounds, scope="total", battery=True)
    sheet = plan.plot()
    sheet.draw_without_rendering()
    titles = [axes.get_title(loc="left") for axes in sheet.axes]
    assert [title for title in titles if title] == list(figure.plan_panels(plan, None))
    legend = sheet.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_tightbbox()) for axes in sheet.axes)


@given(SEEDS, st.integers(1, 30), st.integers(1, 30), st.booleans())
@settings(max_examples=30)
def test_text_fits_80_columns_and_has_the_numbers_of_the_plan(
    seed: int, devices: int, rounds: int, battery: bool
) -> None:
    plan = a_plan(seed, devices, rounds, battery=battery, never=devices // 3)
    text = str(plan)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    sends = np.count_nonzero(mask(plan)[:, plan.most_exposed])
    when = f"{sends} of {rounds} rounds" if rounds > 1 else "the only round"
    for fact in (
        f"Schedule {words.span(plan.sizes)} of {devices} devices per round, {words.count(rounds, 'round')} of ",
        f"{words.LIMITS[plan.binding]} is the limit.",
        f"most exposed round {plan.epsilon_round:.5g} ",
        f"in total, most exposed device {plan.epsilon_total:.5g} μ in total = {plan.mu_total:.5g}",
        f"sum over devices and rounds {plan.power_total:.5g}",
        f"at most {plan.sequence.device_power(rounds).max():.5g}",
        f"device {plan.most_exposed}, scheduled in {when}.",
    ):
        assert fact in flat
    inactive = devices - plan.num_scheduled
    assert (f"{words.count(inactive, 'device')} {'is' if inactive == 1 else 'are'} never scheduled." in flat) == (
        inactive > 0
    )
    assert ("most used battery" in flat) == battery
    assert "μ√I" not in text
    assert "the best aligned plan" not in text


@given(st.floats(0.0, 40.0))
@settings(max_examples=30)
def test_the_gap_is_never_understated(gap: float) -> None:
    plan = a_plan(6)
    plan = replace(plan, lower_bound=plan.bound.total / (1 + gap))
    said = words.gap_sentence(plan)
    found = re.match(
        r"At most ([\d.e-]+)(%| times) above the best aligned plan that knows all gains, whose bound is at least ", said
    )
    assert found is not None
    share = float(found[1]) / (100 if found[2] == "%" else 1)
    assert plan.gap * (1 - 1e-2 * (found[2] != "%")) - 1e-12 <= share <= 1.01 * plan.gap + 1.01e-3
    assert said in " ".join(str(plan).split())
    assert words.gap_sentence(replace(plan, lower_bound=2 * plan.bound.total)) == ""


def test_equal_rounds_are_described_once() -> None:
    plan = a_plan(7, 4, 3)
    theta = np.full(3, float(plan.amplitudes.level.min()))
    alike = replace(plan, amplitudes=Amplitudes(level=theta, share=np.ones((1, 4), dtype=bool)))
    assert words.schedule_sentence(alike).startswith("Schedule 4 of 4 devices per round, 3 rounds of 2-3 local steps; ")
    assert "smallest" not in str(alike)
    assert "this plan, smallest" in str(plan)


def test_policies_side_by_side_fit_80_columns() -> None:
    large = a_plan(8, 23_456, 2, battery=True, sizes=(12_345, 20_600))
    plans = {"optimal": large, "clairvoyant": large, "threshold": a_plan(9, 23_456, 130)}
    text = tables.as_text(lambda console: tables.print_comparison(console, "name", plans, {}))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(tuple(plans))}
    assert rows["optimal"][1] == "12k-21k"
    assert rows["threshold"][1] == words.span(plans["threshold"].sizes, "-")
    flat = " ".join(text.split())
    assert "of the most exposed round and of the most exposed device" in flat
    better = {"optimal": plans["threshold"], "clairvoyant": plans["optimal"]}
    ratio = large.bound.total / plans["threshold"].bound.total - 1
    assert ratio < -0.01
    shown = tables.as_text(lambda console: tables.print_comparison(console, "name", better, {}))
    assert f"{ratio:.1%}" in shown
    figure.comparison_figure(plans).draw_without_rendering()


def test_json_lists_the_devices_of_each_round(tmp_path, capsys, monkeypatch) -> None:
    plan = a_plan(10)
    file = tmp_path / "s.toml"
    file.write_text(template.SCENARIO)
    monkeypatch.setattr(Scenario, "plan", lambda scenario: plan)

    def printed() -> dict:
        assert main(["plan", str(file), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = printed()
    assert found["scheduled_listed"] is True
    assert [entry["scheduled"] for entry in found["sequence"]] == [np.flatnonzero(row).tolist() for row in mask(plan)]
    assert [entry["epsilon"] for entry in found["sequence"]] == [entry.epsilon for entry in plan.sequence]
    assert Plan.from_dict(plan.problem, found).to_dict() == plan.to_dict()
    monkeypatch.setattr(plan_command, "_MOST_LISTED", int(plan.sizes.sum()) - 1)
    found = printed()
    assert found["scheduled_listed"] is False
    assert not any("scheduled" in entry for entry in found["sequence"])
    assert Plan.from_dict(plan.problem, found).to_dict() == plan.to_dict()
    picture = tmp_path / "plan.png"
    assert main(["plan", str(file), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "One more" not in capsys.readouterr().out


def unequal() -> Plan:
    """A plan whose devices arrive with different amplitudes."""
    plan = a_plan(11, 6, 4)
    table = np.where(plan.amplitude > 0, plan.amplitude * np.linspace(0.3, 1.0, 6), 0.0)
    return replace(plan, amplitudes=Amplitudes.of_table(table))


@pytest.mark.parametrize("plan", [a_plan(12), a_plan(12, scope="total", battery=True), unequal()])
def test_no_view_of_a_plan_makes_a_dense_table(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Amplitudes, "dense", property(lambda self: pytest.fail("a dense table was made")))
    assert str(plan)
    assert plan._repr_html_()
    assert plan.plot()


def test_a_plan_of_a_large_fleet_is_drawn_in_the_memory_of_some_rows() -> None:
    rng = np.random.default_rng(0)
    devices, rounds = 100_000, 60
    problem = a_plan(0, 2, rounds).problem
    problem = replace(problem, fleet=Fleet(gain=rng.rayleigh(0.7, devices) + 0.02, peak_power=1.0))
    level = np.linspace(0.5, 1.0, rounds) * 1e-3
    plan = Plan(problem=problem, policy="mine", amplitudes=Amplitudes(level=level, share=np.ones((1, devices), bool)))
    tracemalloc.start()
    assert plan.plot()
    assert str(plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * devices * rounds / 2


@pytest.mark.parametrize("name", policies.BASELINES)
def test_the_rounds_of_every_baseline_are_drawn(name: str) -> None:
    plan = policies.plan(a_plan(13).problem, policy=name, rounds=5)
    assert not plan.constant
    for title, draw in figure.plan_panels(plan, None).items():
        assert "nan" not in figure.svg(draw, title, height=300, salt=title)
    assert f"{plan.power_total:.5g}" in str(plan)


def test_a_notebook_shows_a_plan_as_tables() -> None:
    expected = Prediction(accuracy=0.8, low=0.7, high=0.9)
    plan = replace(a_plan(14), notes=("<script>alert(1)</script>",), prediction=expected)
    page = ET.fromstring(plan._repr_html_())
    titles = [next(table.iter("th")).text for table in page.iter("table")]
    assert titles == [
        *("Limits on θ [√W], rounds scaled alike", "Bound on the optimality gap (Theorem 1)"),
        *("Power in the worst case", "Privacy"),
    ]
    assert not list(page.iter("pre"))
    assert not list(page.iter("script"))
    said = " ".join("".join(page.itertext()).split())
    assert words.schedule_sentence(plan) in said
    assert "! <script>alert(1)</script>" in said
    assert "\\n" not in said
    assert f"{plan.epsilon_total:.5g}" in said
    assert len(repr(plan).splitlines()) == 3
    assert max(map(len, repr(plan).splitlines())) <= 80


@pytest.mark.parametrize(
    ("figures", "lines"),
    [
        (
            ("accuracy", 0.885, 0.885, 0.891, 0.885, 0.902, "privacy"),
            (
                "One more watt, or twice the power: expected accuracy unchanged (88.5%).",
                "One more unit of ε: expected accuracy 88.5% → 89.1%; twice the ε: 88.5% → 90.2%.",
            ),
        ),
        (
            ("bound", 200.0, 199.9, 200.0, 150.0, 200.0, "total_power"),
            (
                "One more watt: bound -0.05%; twice the power: -25.0%.",
                "One more unit of ε, or twice the ε: bound unchanged.",
            ),
        ),
    ],
)
def test_sensitivities_are_those_of_the_objective_of_the_plan(figures: tuple, lines: tuple[str, ...]) -> None:
    names = [field.name for field in fields(Sensitivities)]
    found = Sensitivities(**dict(zip(names, figures, strict=True)))
    text = tables.as_text(lambda console: tables.print_sensitivities(console, a_plan(15), found))
    assert tuple(text.splitlines()) == lines
