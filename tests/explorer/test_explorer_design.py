"""Designs survive URL, file and shell command, and are validated like scenario files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airfed import scenario
from airfed.explorer import design as designs
from airfed.explorer.design import CHANNELS, Design, ScenarioError, from_query, from_scenario, from_text
from airfed.scenario import template

NUMBERS = {
    "budget.epsilon": st.floats(0.01, 100),
    "budget.delta": st.floats(1e-9, 0.5),
    "budget.total_power": st.floats(0.1, 1e6),
    "link.noise_std": st.floats(0.01, 10),
    "fleet.num_devices": st.integers(1, 5000),
    "fleet.peak_power": st.one_of(
        st.floats(0.01, 100), st.just("30 dBm"), st.lists(st.floats(0.1, 9), min_size=1, max_size=5)
    ),
    "learning.total_steps": st.integers(1, 5000),
    "channel.model": st.sampled_from(sorted(CHANNELS)),
    "channel.minimum": st.floats(0, 1),
    "channel.pin_minimum": st.booleans(),
    "budget.scope": st.sampled_from(["round", "total"]),
    "policy.rounds": st.one_of(st.none(), st.integers(1, 20)),
    "name": st.text(max_size=20),
    "seed": st.integers(0, 2**40),
}


def reload(design: Design) -> Design:
    return from_query(parse_qsl(design.query(), keep_blank_values=True))


def test_the_default_design_is_the_template_and_has_an_empty_query() -> None:
    design = Design()
    assert design.query() == ""
    assert design.scenario() == scenario.parse(tomllib.loads(template.SCENARIO))


@given(changes=st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.data(), max_size=6), data=st.data())
def test_a_link_restores_the_design(changes: dict[str, object], data: st.DataObject) -> None:
    design = Design()
    for key in changes:
        design = design.change(key, data.draw(NUMBERS[key], label=key))
    again = reload(design)
    assert again.query() == design.query()
    assert again.tables == {**design.tables, "run": again.tables["run"]}


@pytest.mark.parametrize("model", sorted(CHANNELS))
def test_every_channel_model_can_be_selected(model: str) -> None:
    loaded = Design().change("channel.model", "uniform").change("channel.model", model).scenario()
    assert loaded.channel.model == model
    assert loaded.problem().fleet.num_devices == (len(CHANNELS["fixed"]["gains"]) if model == "fixed" else 100)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"learning.model": "os:system"}, "learning.model must be one of cnn, mlp, logistic"),
        ({"learning.dataset": "/etc"}, "learning.dataset must be one of mnist-5k"),
        ({"learning.dataset": "../secret.npz"}, "learning.dataset must be one of"),
        ({"channel.model": "file", "channel.path": "/etc/passwd"}, "channel.model must be one of"),
        ({"budget.shared_ledger": "/etc/passwd", "budget.scope": "total"}, "budget.shared_ledger must not be set"),
        ({"learning.model": "/tmp/evil/net:make", "learning.dimension": "5"}, "learning.model must be one of"),
        ({"fleet.num_devices": "1" + "0" * 400}, "fleet.num_devices"),
        ({"seed": "-" + "9" * 4000}, "seed"),
        ({"fleet.num_devices": "100001"}, "fleet.num_devices must be at most 100,000"),
        ({"learning.total_steps": "1000000"}, "learning.total_steps must be at most 20,000"),
        ({"budget.epsilon": "-1"}, "budget.epsilon must be positive, got -1"),
        ({"budget.epsilon": "NaN"}, "budget.epsilon"),
        ({"budget.epsilonn": "1"}, "did you mean 'epsilon'"),
        ({"budget.scope": "total", "budget.formula": "classic"}, 'formula must be "exact" with scope="total"'),
        ({"folder": "/"}, "Unknown key 'folder'"),
        ({"budget.epsilon": "[" * 50_000}, "budget.epsilon"),
        ({"channel.model": "[1]"}, "channel.model"),
        ({"": "1"}, "Unknown key"),
        ({"fleet": "1"}, "fleet"),
    ],
)
def test_an_invalid_link_is_refused_with_one_sentence(query: dict[str, str], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=r"^[^\n]*$") as caught:
        from_query(query).scenario()
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["a = [", "x = 1", "[" * 5000, "", 'name = "a"\n[learning]\nmodel = "a:b"'])
def test_invalid_toml_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        from_text(text)


def test_a_pasted_scenario_cannot_name_a_custom_model() -> None:
    with pytest.raises(ScenarioError, match=r"learning\.model"):
        from_text(template.SCENARIO.replace('"cnn"', '"os:system"'))


def test_a_saved_scenario_loads_unchanged() -> None:
    design = (
        Design().change("channel.model", "cell").change("fleet.peak_power", [1.0, 8.0] * 50).change("policy.rounds", 12)
    )
    loaded = design.scenario()
    assert from_text(loaded.to_toml()).scenario().to_toml() == loaded.to_toml()


def test_the_shell_command_contains_the_whole_scenario() -> None:
    design = Design().change("name", "quo'te \"EOF").change("budget.epsilon", 3.25)
    head, *body, last, command, rest = design.command("compare").split("\n")
    assert (head, last, rest) == ("cat > explored.toml <<'EOF'", "EOF", "")
    assert command == "airfed compare explored.toml"
    assert "EOF" not in body
    assert scenario.parse(tomllib.loads("\n".join(body))) == design.scenario()


def test_a_long_list_does_not_fit_into_a_link() -> None:
    gains = np.linspace(0.1, 1, 3000).tolist()
    with pytest.raises(ScenarioError, match="too long for a link"):
        Design().change("channel.model", "fixed").change("channel.gains", gains).query()


def test_the_users_scenario_may_read_gains_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "gains.npy", np.array([0.5, 1.5, 0.1]))
    text = template.SCENARIO.replace("num_devices = 100", "num_devices = 3")
    tables = tomllib.loads(text)
    tables["channel"] = {"model": "file", "path": "gains.npy", "minimum": 0.2}
    design = from_scenario(scenario.parse(tables, folder=tmp_path))
    assert design.scenario().problem().fleet.gain.tolist() == [0.5, 1.5, 0.2]
    tables["channel"]["path"] = "none.npy"
    stranger = {"channel.model": "file", "channel.path": str(tmp_path / "none.npy"), "fleet.num_devices": "3"}
    with pytest.raises(ScenarioError, match=r"channel\.path must not be set in the explorer"):
        from_query(stranger, design.own).scenario()
    away = design.change("channel.model", "cell")
    assert away.scenario().num_devices == 3
    assert away.change("channel.model", "file").scenario().problem().fleet.gain.tolist() == [0.5, 1.5, 0.2]
    with pytest.raises(ScenarioError, match="there is no such file"):
        from_scenario(scenario.parse(tables, folder=tmp_path))


def own_scenario(folder: Path) -> scenario.Scenario:
    (folder / "net.py").write_text("raise AssertionError('planning imports nothing')\n")
    tables = tomllib.loads(template.SCENARIO)
    tables["learning"] |= {"model": "net:make", "dimension": 7850}
    tables["budget"] |= {"shared_ledger": "shared.jsonl", "scope": "total", "formula": "exact"}
    return scenario.parse(tables, folder=folder)


def test_a_custom_model_and_a_shared_ledger_are_admitted_from_the_command_line_only(tmp_path: Path) -> None:
    design = from_scenario(own_scenario(tmp_path))
    problem = design.scenario().problem()
    assert problem.learning.dimension == 7850
    assert design.scenario().learning.model == f"{tmp_path}/net:make"
    again = from_query(parse_qsl(design.query(), keep_blank_values=True), design.own)
    assert again.scenario() == design.scenario()
    assert from_text(design.scenario().to_toml(), design.own).scenario() == design.scenario()
    with pytest.raises(ScenarioError, match=r"learning\.model must be one of"):
        from_query(parse_qsl(design.query(), keep_blank_values=True)).scenario()
    with pytest.raises(ScenarioError, match=r"learning\.model must be one of"):
        design.change("learning.model", "os:system").scenario()
    with pytest.raises(ScenarioError, match=r"budget\.shared_ledger must not be set"):
        design.change("budget.shared_ledger", "/etc/other").scenario()


def test_an_invalid_value_is_kept_until_it_is_corrected() -> None:
    wrong = Design().change("budget.scope", "total").change("budget.formula", "classic")
    with pytest.raises(ScenarioError):
        wrong.scenario()
    assert wrong.change("budget.scope", "round").scenario().budget.formula == "classic"


def test_change_does_not_modify_the_design() -> None:
    before = Design()
    before.change("budget.epsilon", 9.0).change("channel.model", "fixed")
    assert before == Design()
    assert designs.Design().get("budget.epsilon") == 5.0
