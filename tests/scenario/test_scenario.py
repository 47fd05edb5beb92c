"""Scenarios: errors name the key; files round-trip; the digest covers everything that shapes a result."""

import re
import tomllib

import numpy as np
import pytest

from airfed import plan, scenario, seeds
from airfed.keys import in_words
from airfed.scenario import Scenario, ScenarioError, template
from airfed.scenario.sections import PHYSICS


def tables(**changes):
    """A valid scenario; `fleet__peak_power=...` changes a key, `...=None` removes it."""
    content = {
        "name": "test",
        "seed": 3,
        "fleet": {"num_devices": 4, "peak_power": 1.0},
        "channel": {"model": "rayleigh"},
        "link": {"noise_std": 0.1},
        "budget": {"epsilon": 2.0, "delta": 1e-3, "total_power": 100.0},
        "learning": {
            "total_steps": 10,
            "learning_rate": 0.1,
            "clip_norm": 1.0,
            "smoothness": 10.0,
            "strong_convexity": 0.1,
            "initial_gap": 2.3,
        },
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        table = content
        for part in path:
            table = table.setdefault(part, {})
        if value is None:
            table.pop(last)
        else:
            table[last] = value
    return content


def mistake(**changes):
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(tables(**changes)).problem()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


NUMBERS = [
    ("fleet__peak_power", "> 0"),
    ("link__noise_std", "> 0"),
    ("budget__epsilon", "> 0"),
    ("budget__delta", "> 0 and < 1"),
    ("budget__total_power", "> 0"),
    ("channel__scale", "> 0"),
    ("channel__minimum", ">= 0"),
    ("channel__csi_error", ">= 0"),
    ("learning__learning_rate", "> 0"),
    ("learning__clip_norm", "> 0"),
    ("learning__smoothness", "> 0"),
    ("learning__strong_convexity", "> 0"),
    ("learning__initial_gap", "> 0"),
    ("learning__alpha", "> 0"),
]
COUNTS = [
    "fleet__num_devices",
    "learning__total_steps",
    "learning__dimension",
    "learning__batch_size",
    "learning__shards_per_device",
    "policy__rounds",
    "policy__size",
    "run__threads",
    "run__chunk",
    "run__evaluate_every",
    "run__checkpoint_every",
]


@pytest.mark.parametrize(("key", "allowed"), NUMBERS)
def test_numbers_out_of_range_name_the_key_and_the_range(key, allowed):
    dotted = key.replace("__", ".")
    for value, shown in ((-1.0, "-1.0"), (float("nan"), "NaN")):
        message = mistake(**{key: value})
        assert re.fullmatch(rf"{dotted} must be {in_words(allowed)}( and finite)?, got {shown}\.", message)
    assert re.match(rf"{dotted} must be {in_words(allowed)}( and finite)?, got inf", mistake(**{key: float("inf")}))
    if ">=" not in allowed:
        assert f"{dotted} must be {in_words(allowed)}, got 0." in mistake(**{key: 0})


@pytest.mark.parametrize(("key", "allowed"), NUMBERS)
@pytest.mark.parametrize("value", [True, "abc", {"a": 1}])
def test_a_value_that_is_not_a_number_names_the_key(key, allowed, value):
    message = mistake(**{key: value})
    assert key.replace("__", ".") in message
    assert repr(value) in message


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -3, 1.5, 2.0, True, "3", [1]])
def test_counts_name_the_key_and_the_range(key, value):
    message = mistake(**{key: value})
    assert key.replace("__", ".") in message
    assert re.search("must be (at least 1|a whole number >= 1), got ", message)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fleet__num_devicez": 4}, "Unknown key 'fleet.num_devicez'; did you mean 'num_devices'?"),
        ({"flet": {}}, "Unknown key 'flet'; did you mean 'fleet'?"),
        ({"channel__k_factor": 1.0}, "Unknown key 'channel.k_factor'; expected one of minimum"),
        ({"learning__xyz": 1}, "Unknown key 'learning.xyz'; expected one of dataset"),
        ({"folder": "/"}, "Unknown key 'folder'"),
        ({"budget__epsilon": None}, "Missing key budget.epsilon: expected a number > 0"),
        ({"budget__delta": None}, "Missing key budget.delta: expected a number > 0 and < 1"),
        ({"learning__total_steps": None}, "Missing key learning.total_steps: expected a whole number >= 1"),
        ({"fleet__num_devices": None}, "Missing key fleet.num_devices: expected a whole number >= 1"),
        ({"link": None}, "Missing key link: expected a table"),
        ({"channel": {"model": "fixed"}}, "Missing key channel.gains: expected a list of numbers >= 0"),
        ({"channel": {"model": "uniform", "high": 1.0}}, "Missing key channel.low: expected a number >= 0"),
        ({"channel": {"model": "file"}}, "Missing key channel.path: expected a text"),
        (
            {"channel": {}},
            "Missing key channel.model: expected one of fixed, rayleigh, rician, uniform, cell, ",
        ),
        ({"channel": {"model": "raylei"}}, "channel.model must be one of 'fixed', 'rayleigh'"),
        ({"channel": {"model": 3}}, "channel.model must be one of"),
        ({"channel": 3}, "channel"),
        ({"fleet": 3}, "fleet must be a table, got 3"),
        ({"policy": [1]}, "policy must be a table"),
        ({"name": 3}, "name must be a text in quotes, got 3"),
        ({"seed": -1}, "seed must be non-negative, got -1"),
        ({"seed": 1.0}, "seed must be a whole number >= 0"),
        ({"channel__pin_minimum": 1}, "channel.pin_minimum must be true or false"),
        ({"channel__pin_minimum": True}, "channel.minimum must be positive with channel.pin_minimum"),
        ({"budget__scope": "all"}, "budget.scope must be one of 'round', 'total'; got 'all'"),
        ({"budget__formula": 1}, "budget.formula must be one of 'classic', 'exact'"),
        ({"budget__adjacency": "swap"}, "budget.adjacency must be one of 'replace_one', 'add_remove'"),
        ({"budget__scope": "total", "budget__formula": "classic"}, 'formula must be "exact" with scope="total"'),
        ({"learning__partition": "random"}, "learning.partition must be one of 'iid', 'dirichlet', 'shards'"),
        ({"learning__strong_convexity": 11.0}, "strong_convexity must be at most smoothness, 10.0; got 11.0"),
        ({"learning__dataset": 3}, "learning.dataset must be a text in quotes"),
        ({"learning__dataset": "pictures/"}, "there is no such file"),
        (
            {"policy__name": "best"},
            "policy.name must be one of weighted, optimal, paper, full, uniform, top_k, threshold, clairvoyant, myopic",
        ),
        ({"link__noise_source": "dice"}, "link.noise_source must be one of 'seeded', 'secure'"),
        ({"run__engine": "gpu"}, "run.engine must be one of"),
        # units
        (
            {"fleet__peak_power": "30"},
            "fleet.peak_power must be a bare number for W or have one of the units W, mW, uW, dBW, dBm, got '30'.",
        ),
        (
            {"fleet__peak_power": "30 dBx"},
            "fleet.peak_power must have one of the units W, mW, uW, dBW, dBm, got '30 dBx'.",
        ),
        ({"budget__total_power": "5"}, "budget.total_power must be a bare number for W or have one of the units W"),
        ({"budget__total_power": "-1 W"}, "budget.total_power must be positive, got '-1 W'"),
        (
            {"channel": {"model": "cell", "radius": "3"}},
            "channel.radius must be a bare number for m or have one of the units",
        ),
        ({"channel": {"model": "cell", "radius": "3 W"}}, "channel.radius must have one of the units m, "),
        ({"link__noise_std": "0.1 V"}, "must be a bare number, an amplitude in √W per real dimension, got '0.1 V'."),
        (
            {"link__noise_std": "-90 dBm"},
            "in √W per real dimension (complex noise of that power P has √(P/2) = 7.071e-07), got '-90 dBm'.",
        ),
        ({"link__noise_std": "0.1"}, "must be a bare number"),
        # lists
        ({"fleet__peak_power": [1.0, "x", 1.0, 1.0]}, "fleet.peak_power[1] must be a number with one of the units"),
        ({"fleet__peak_power": [1.0, 1.0, -2.0, 1.0]}, "fleet.peak_power[2] must be positive, got -2.0"),
        ({"fleet__peak_power": [1.0, True, 1.0, 1.0]}, "fleet.peak_power[1]"),
        ({"fleet__peak_power": [1.0, float("nan"), 1.0, 1.0]}, "fleet.peak_power[1] must be positive, got NaN"),
        ({"fleet__peak_power": []}, "fleet.peak_power must have at least 1 entry"),
        ({"fleet__peak_power": [1.0, 2.0]}, "peak_power must have one entry per device, 4; got 2"),
        ({"channel": {"model": "fixed", "gains": []}}, "channel.gains must have at least 1 entry"),
        ({"channel": {"model": "fixed", "gains": 1.0}}, "channel.gains must be a list"),
        ({"channel": {"model": "fixed", "gains": [1.0, -1.0]}}, "channel.gains[1] must be non-negative, got -1.0"),
        (
            {"channel": {"model": "fixed", "gains": [1.0, float("nan")]}},
            "channel.gains[1] must be non-negative and finite, got NaN",
        ),
        (
            {"channel": {"model": "fixed", "gains": [1.0, 1.0]}},
            "channel.gains must have 4 gains (fleet.num_devices), got 2",
        ),
        # contradictions that the model finds
        (
            {"channel": {"model": "uniform", "low": 2.0, "high": 1.0}},
            "channel.low must be at most channel.high=1.0, got 2.0",
        ),
        (
            {"channel": {"model": "cell", "radius": 0.5}},
            "channel.reference_distance must be at most channel.radius=0.5 (in metres), got 1.0",
        ),
        ({"channel": {"model": "rayleigh", "scale": 1e300}}, "gain[0] must be 0 or between 1e-100 and 1e+100, got "),
        (
            {"channel": {"model": "cell", "radius": 9.0, "shadowing_db": 1e6}},
            "shadowing_db must be between 0 and 100, got 1000000.0",
        ),
        # sizes
        ({"fleet__num_devices": 10**15}, "does not fit into memory: it has 1000000000000000 devices"),
        ({"fleet__num_devices": 10**30}, "fleet.num_devices must be at most 2**53, got 1000"),
        ({"fleet__num_devices": 10**400}, "fleet.num_devices must be at most 2**53, got a number of about 400 digits."),
        ({"seed": 10**400}, "seed must be at most 2**128 - 1, got a number of about 400 digits."),
        ({"seed": 2 ** (10**5)}, "seed must be at most 2**128 - 1, got a number of about 30103 digits."),
        ({"name": "a\x1b[31mb"}, r"name must be a text without control characters, got 'a\x1b[31mb'."),
        ({"name": "a\nb"}, "without control characters"),
        ({"name": "a\u202eb"}, "without control characters"),
        ({"name": "a\u2028b"}, "without control characters"),
        ({"name": "a\ud800b"}, "name"),
        (
            {"run__device": "GPU 1"},
            "run.device must be auto, cpu, cuda, cuda:1, mps or another torch device; got 'GPU 1'",
        ),
        ({"run__device": 1}, "run.device must be a text"),
        ({"learning__total_steps": 10**30}, "total_steps must be at most 2**53"),
        ({"link__noise_failure": 0.5}, "link.noise_failure must not be set without link.noise_std_lower"),
        ({"learning__clip_norm": 1e200}, "clip_norm must be between 1e-100 and 1e+100, got 1e+200"),
        ({"budget__epsilon": 1.7e308}, "epsilon must be at most 1e+100, got 1.7e+308"),
        ({"link__noise_std": 10**400}, "link.noise_std"),
    ],
)
def test_mistakes(changes, named):
    assert named in mistake(**changes)


def test_a_long_bad_value_is_cut():
    assert len(mistake(fleet__peak_power={"x": "y" * 10_000})) < 200
    assert len(mistake(name=list(range(10_000)))) < 200


# Files


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"a = [", "not valid TOML"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"x = " + b"[" * 5_000 + b"]" * 5_000, "not valid TOML"),
        (b"x = " + b"9" * 5_000, "not valid TOML"),
        (b"", "Missing key fleet"),
    ],
)
def test_bad_files(tmp_path, content, named):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=named) as caught:
        scenario.load(path)
    assert "bad.toml" in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ScenarioError, match="there is no such file"):
        scenario.load(tmp_path / "none.toml")
    with pytest.raises(ScenarioError, match="it is a folder"):
        scenario.load(tmp_path)
    with pytest.raises(ScenarioError, match="Cannot read"):
        scenario.load("nul\0character")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xef\xbb\xbf" + template.SCENARIO.replace("\n", "\r\n").encode())
    assert scenario.load(path).name == "my-scenario"


@pytest.mark.parametrize(
    "name",
    [
        'with "quotes"',
        "back\\slash",
        "Größe ε 無線 🛰",
        "",
        "'''",
        '"""',
        "#",
    ],
)
def test_round_trip_of_names(name):
    for column in (name, f"{name}\n\t\x00\x1f\x7f\x85\u2028"):
        first = scenario.parse(tables(name=name, channel={"model": "file", "path": f"{name}.csv", "column": column}))
        content = tomllib.loads(first.to_toml())
        assert content["name"] == name
        assert content["channel"]["column"] == column
        assert scenario.parse(content) == first


@pytest.mark.parametrize("value", [1e-300, 5e-324, 1e22, 0.1 + 0.2, 1e100, 123456789012345680.0])
def test_round_trip_of_numbers(value):
    first = scenario.parse(tables(budget__total_power=value, seed=10**38))
    again = scenario.parse(tomllib.loads(first.to_toml()))
    assert again.budget.total_power == value
    assert again.seed == 10**38


def test_lists_round_trip():
    first = scenario.parse(tables(fleet__peak_power=["30 dBm", 0.5, "1 mW", 2]))
    assert first.fleet.peak_power == [1.0, 0.5, 1e-3, 2.0]
    assert scenario.parse(tomllib.loads(first.to_toml())).fleet == first.fleet


# From a scenario to a problem


def test_units_reach_the_problem():
    problem = scenario.parse(tables(fleet__peak_power="20 dBm", budget__total_power="5000 mW")).problem()
    assert problem.fleet.peak_power.tolist() == pytest.approx([0.1] * 4, rel=1e-14)
    assert problem.budget.total_power == 5.0


def test_gains_come_from_the_channel_stream():
    loaded = scenario.parse(tables())
    expected = seeds.stream(3, "channel").rayleigh(np.sqrt(0.5), 4)
    np.testing.assert_array_equal(loaded.problem().fleet.gain, expected)
    assert not np.array_equal(loaded.override({"seed": 4}).problem().fleet.gain, expected)


def test_the_number_of_devices_may_follow_from_a_list(tmp_path):
    assert (
        scenario.parse(tables(fleet__num_devices=None, fleet__peak_power=[1.0, 2.0])).problem().fleet.num_devices == 2
    )
    fixed = {"model": "fixed", "gains": [1.0, 2.0, 3.0]}
    assert scenario.parse(tables(fleet__num_devices=None, channel=fixed)).problem().fleet.num_devices == 3
    (tmp_path / "g.csv").write_text("0.5\n0.6\n")
    from_file = tables(fleet__num_devices=None, channel={"model": "file", "path": "g.csv"})
    assert scenario.parse(from_file, folder=tmp_path).problem().fleet.num_devices == 2


def test_a_bad_file_of_gains_is_a_scenario_error(tmp_path):
    (tmp_path / "g.csv").write_text("0.5\nabc\n")
    loaded = scenario.parse(tables(channel={"model": "file", "path": "g.csv"}), folder=tmp_path)
    with pytest.raises(ScenarioError, match="line 2"):
        loaded.problem()
    missing = scenario.parse(tables(channel={"model": "file", "path": "none.csv"}), folder=tmp_path)
    with pytest.raises(ScenarioError, match="there is no such file"):
        missing.problem()


@pytest.mark.parametrize(("model", "dimension"), [("cnn", 21840), ("mlp", 50890), ("logistic", 7850)])
def test_built_in_models_know_their_dimension(model, dimension):
    loaded = scenario.parse(tables(learning__model=model))
    assert loaded.dimension == loaded.problem().learning.dimension == dimension
    assert loaded.problem(dimension=5).learning.dimension == 5
    assert scenario.parse(tables(learning__model="a:b", learning__dimension=7)).dimension == 7


# Changes


def test_override():
    loaded = scenario.parse(tables())
    changed = loaded.override({"policy.rounds": 7, "seed": 9, "channel.minimum": 0.1})
    assert (changed.policy.rounds, changed.seed, changed.channel.minimum) == (7, 9, 0.1)
    assert (loaded.policy.rounds, loaded.seed) == (None, 3)
    assert changed.override({"policy.rounds": None}).policy.rounds is None
    assert changed.folder == loaded.folder
    with pytest.raises(ScenarioError, match=r"policy\.rounds must be at least 1, got 0"):
        loaded.override({"policy.rounds": 0})
    with pytest.raises(ScenarioError, match=r"Unknown key 'policy\.round'"):
        loaded.override({"policy.round": 1})
    with pytest.raises(ScenarioError, match=r"seed\.x"):
        loaded.override({"seed.x": 1})


# The digest


@pytest.mark.parametrize(
    ("key", "value"), [("budget.power", "expected"), ("policy.growth", 4.0), ("policy.clip_decay", 0.5)]
)
def test_a_key_that_was_removed_is_named_in_a_sentence(key, value):
    with pytest.raises(ScenarioError, match=rf"^The key '{key}' was removed: [^\n]+\.$"):
        scenario.parse(tomllib.loads(template.SCENARIO)).override({key: value})


def leaves(model, prefix=""):
    for key, value in model.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def another(key, value):
    words = {
        "budget.scope": "total",
        "budget.adjacency": "add_remove",
        "budget.formula": "classic",
        "learning.partition": "shards",
        "learning.dataset": "mnist",
        "learning.model": "mlp",
        "link.noise_source": "secure",
        "channel.pin_minimum": True,
        "channel.assume_perfect_csi": True,
        "learning.batch_size": 5,
        "learning.images": 60,
        "learning.candidates": ["mlp"],
        "learning.train": ["dense0"],
        "learning.dimension": 99,
        "learning.network": {"hidden": [3]},
        "learning.ridge": {"samples": 80},
        "learning.adaptive_clipping": {"share": 0.1},
        "budget.device_power": 7.0,
        "budget.device_energy": 7.0,
        "link.iq": False,
        "link.beamforming": "equal_gain",
        "link.adversary": "combined",
        "link.noise_std_lower": 0.05,
        "link.noise_covariance": 0.5,
        "learning.validation_images": 5,
        "channel.angle_spread": 5.0,
    }
    return words[key] if key in words else value * 1.5 if isinstance(value, float) else value + 1


def test_the_digest_knows_everything_that_shapes_a_result():
    base = scenario.parse(
        tables(
            channel={
                **{"model": "cell", "radius": 9.0, "minimum": 0.1, "shadowing_db": 1.0, "csi_error": 0.1},
                **{
                    "coherence_rounds": 2,
                    "correlation": 0.1,
                    "common_shadowing_db": 1.0,
                    "shadowing_coherence_rounds": 3,
                },
            }
        )
    )
    physics = base.override({"link": {"bandwidth": 1e6, "noise_figure": 3.0, "temperature": 300.0}})
    seen = {base.digest(), physics.digest()}
    for key, value in leaves(physics.model_dump()["link"], "link."):
        if value is not None and key != "link.noise_source":
            certain = {"channel.csi_error": 0.0} if key == "link.antennas" else {}
            if key == "link.noise_failure":
                certain = {"link.noise_std_lower": 1e-9}
            changed = physics.override({key: another(key, value), **certain})
            assert changed.digest() not in seen, key
            seen.add(changed.digest())
    changed = physics.override({"link.temperature": None, "link.noise_density": 5e-20})
    assert changed.digest() not in seen
    seen.add(changed.digest())
    for more in (
        {"budget.air_time": 5.0},
        {"budget.device_energy": 5.0},
        {"fleet.peak_power": None, "fleet.peak_power_per_symbol": 1.0},
    ):
        changed = physics.override(more)
        assert changed.digest() not in seen
        seen.add(changed.digest())
    for key, value in leaves(base.model_dump()):
        needs_bandwidth = ("budget.air_time", "budget.device_energy")
        if key in ("name", "channel.model", "budget.shared_ledger", *needs_bandwidth) or key.startswith(
            ("policy.", "run.", "fleet.peak_power_per_symbol")
        ):
            continue
        if key.removeprefix("link.") in PHYSICS:
            continue
        certain = {"channel.csi_error": 0.0} if key in ("link.antennas", "link.noise_covariance") else {}
        if key == "link.noise_covariance":
            certain |= {"link.antennas": 2}
        if key == "link.noise_failure":
            certain = {"link.noise_std_lower": 0.05}
        changed = base.override({key: another(key, value), **certain})
        assert changed.digest() not in seen, key
        seen.add(changed.digest())
    other_model = base.override({"channel": {"model": "rayleigh", "minimum": 0.1}})
    assert other_model.digest() not in seen


def test_the_digest_does_not_know_name_policy_and_run(tmp_path):
    base = scenario.parse(tables())
    for changes in (
        {"name": "other"},
        {"policy.name": "full"},
        {"policy.name": "uniform", "policy.size": 2},
        {"policy.rounds": 3},
        {"run.chunk": 7, "run.threads": 2},
    ):
        assert base.override(changes).digest() == base.digest()
    assert scenario.parse(tables(), folder=tmp_path).digest() == base.digest()
    # defaults written down or left out are the same scenario
    assert scenario.parse(tomllib.loads(base.to_toml())).digest() == base.digest()


# What comes along


def test_the_template_parses_and_plans():
    loaded = scenario.parse(tomllib.loads(template.SCENARIO))
    assert 1 <= plan(loaded.problem()).num_scheduled < loaded.num_devices  # it starts where the decision matters


def test_the_examples_parse_and_plan(repository):
    examples = sorted((repository / "examples").glob("*.toml"))
    assert examples
    for path in examples:
        if path.read_text().find("[fleet]") < 0:
            continue  # an experiment, not a scenario
        loaded = scenario.load(path)
        assert isinstance(loaded, Scenario)
        assert plan(loaded.problem()).num_scheduled >= 1
