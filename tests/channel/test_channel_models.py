"""The contract of every channel model, and its distribution (with stated sample sizes).

A model that is registered is tested here by its declaration; add its distribution to `DISTRIBUTIONS`.
"""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from airfed import plan, scenario
from airfed.channel import MODELS, ChannelModel, Rayleigh, true_channel
from airfed.explorer import knobs
from airfed.explorer.design import CHANNELS
from airfed.scenario import ScenarioError, template

REFERENCE = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text(encoding="utf-8")
SAMPLES = 20_000
LEVEL = 1e-4  # of each Kolmogorov-Smirnov test; the seeds are fixed
GAINS = [0.5, 0.6, 0.0, 0.8, 2.0, 0.7]


def rng(seed=0):
    return np.random.default_rng(seed)


def values_of(kind, folder):
    """Keys and values that make a model, from its declaration."""
    (folder / "gains.csv").write_text("\n".join(map(str, GAINS)))
    return kind.initial_values() | dict.fromkeys(kind.file_keys(), str(folder / "gains.csv"))


@pytest.fixture(params=MODELS)
def kind(request) -> type[ChannelModel]:
    return MODELS[request.param]


@pytest.fixture
def values(kind, tmp_path):
    return values_of(kind, tmp_path)


@pytest.fixture
def model(kind, values) -> ChannelModel:
    return kind(**values)


def count(model, wanted=50):
    return wanted if model.num_gains is None else model.num_gains


def scenario_with(channel):
    """The template's scenario with another channel."""
    tables = tomllib.loads(template.SCENARIO)
    tables["fleet"] = {"peak_power": 1.0}
    if MODELS[channel["model"]].num_gains is ChannelModel.num_gains:
        tables["fleet"]["num_devices"] = 50
    return scenario.parse({**tables, "channel": channel})


# What holds of every model


def test_gains_are_finite_and_one_per_device(model):
    gains = model.draw(count(model), rng())
    assert gains.shape == (count(model),)
    assert gains.dtype == np.float64
    assert np.isfinite(gains).all()
    assert (gains >= 0).all()
    assert gains.any()


def test_one_stream_one_draw(model):
    first = model.draw(count(model), rng(3))
    np.testing.assert_array_equal(first, model.draw(count(model), rng(3)))
    if model.num_gains is None:
        assert np.all(first != model.draw(count(model), rng(4)))


def test_devices_are_independent(model):
    if model.num_gains is not None:
        return
    gains = model.draw(SAMPLES, rng())
    for lag in (1, 2, SAMPLES // 2):
        rank = stats.spearmanr(gains[:-lag], gains[lag:]).statistic
        assert abs(rank) < 5 / np.sqrt(SAMPLES - lag)  # five standard deviations


def test_a_model_with_gains_of_its_own_has_no_others(model):
    if model.num_gains is None:
        assert model.draw(1, rng()).shape == (1,)
        return
    with pytest.raises(ValueError, match=rf"must have {model.num_gains + 1} gains .* got {model.num_gains}"):
        model.draw(model.num_gains + 1, rng())


def test_the_minimum_raises_the_weak_and_may_be_pinned(kind, values, model):
    number = count(model, 500)
    free = model.draw(number, rng())
    least = float(np.median(free))
    np.testing.assert_array_equal(kind(**values, minimum=least).draw(number, rng()), np.maximum(free, least))
    small = 0.5 * float(free[free > 0].min())
    pinned = kind(**values, minimum=small, pin_minimum=True).draw(number, rng())
    assert pinned[np.argmin(free)] == small == pinned.min()
    with pytest.raises(ValueError, match=r"channel\.minimum must be positive with channel\.pin_minimum"):
        kind(**values, pin_minimum=True)


def test_models_are_values(kind, values, model):
    assert model == kind(**values)
    assert model != kind(**values, minimum=0.1)
    with pytest.raises(ValueError, match="frozen"):
        model.minimum = 0.1
    assert MODELS[model.model] is kind
    assert MODELS[model.model_dump(exclude_unset=True)["model"]] is kind


def test_numbers_of_numpy_are_numbers(kind, values, model):
    plain = {key: np.array(value) if isinstance(value, list) else value for key, value in values.items()}
    plain = {key: np.float64(value) if isinstance(value, float) else value for key, value in plain.items()}
    assert kind(**plain) == model


def test_a_scenario_has_it_back_from_toml_and_plans(kind, values, model):
    content = {"model": model.model, "minimum": 0.05, "pin_minimum": True, **values}
    first = scenario_with(content)
    assert first.channel == kind(**content)
    second = scenario.parse(tomllib.loads(first.to_toml()))
    assert second == first
    assert second.to_toml() == first.to_toml()
    assert second.digest() == first.digest()
    np.testing.assert_array_equal(first.problem().fleet.gain, second.problem().fleet.gain)
    assert plan(first.problem()).num_scheduled >= 1
    assert plan(first.problem()).to_dict() == plan(second.problem()).to_dict()


def test_a_file_is_relative_to_the_scenario_and_identified_by_its_content(kind, values, model, tmp_path):
    if not kind.file_keys():
        assert model.with_antennas(1, tmp_path / "elsewhere") == model
        return
    first = scenario_with({"model": model.model, **values})
    short = {**values, **dict.fromkeys(kind.file_keys(), "gains.csv")}
    second = scenario.parse({**first.model_dump(), "channel": {"model": model.model, **short}}, folder=tmp_path)
    np.testing.assert_array_equal(first.problem().fleet.gain, second.problem().fleet.gain)
    assert second.digest() == first.digest()
    assert second.anchored().to_toml() == first.to_toml()


def test_it_is_in_reference_and_template_and_on_the_page(kind, values, model):
    assert f'### [channel] model = "{model.model}"' in REFERENCE
    assert f"{model.model} ({next(iter(values))}" in template.SCENARIO
    shown = {key for keys in knobs.GROUPS.values() for key in keys}
    assert model.file_keys() or {f"channel.{key}" for key in values} <= shown
    assert (model.model in CHANNELS) == (not model.file_keys())
    for key in values:
        assert f"\n| `{key}` |" in REFERENCE


# What is refused


NUMBERS = [
    (name, key)
    for name, kind in MODELS.items()
    for key, value in kind.initial_values().items()
    if isinstance(value, float | list)
]


@pytest.mark.parametrize(("name", "key"), NUMBERS)
@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), -1.0, "abc", True, None, 10**400], ids=lambda bad: str(bad)[:9]
)
def test_a_bad_number_is_refused_in_one_sentence(name, key, bad, tmp_path):
    values = values_of(MODELS[name], tmp_path)
    values[key] = [0.5, bad] if isinstance(values[key], list) else bad
    for make, shown in ((MODELS[name], key), (lambda **values: scenario_with(values), f"channel.{key}")):
        with pytest.raises(ValueError, match=r"^[a-z_.]+(\[1\])?( must be |=)[^\n]*\.$") as caught:
            make(model=name, **values)
        assert shown in str(caught.value)


@pytest.mark.parametrize(("name", "key"), NUMBERS)
@pytest.mark.parametrize("extreme", [0.0, 1e-300, 1e300])
def test_an_extreme_number_is_drawn_or_refused_in_one_sentence(name, key, extreme, tmp_path):
    values = values_of(MODELS[name], tmp_path)
    values[key] = [0.5, extreme] if isinstance(values[key], list) else extreme
    try:
        gains = scenario_with({"model": name, **values}).problem().fleet.gain
    except ScenarioError as error:
        gains, message = np.zeros(1), str(error)
    else:
        message = "all must be as it is."
    assert np.isfinite(gains).all()
    assert re.fullmatch(r"([a-z_.]+(\[\d\])?|The path loss from [^\n]*)( must be |=)[^\n]*\.", message)


def test_an_unknown_key_is_refused_in_one_sentence(kind, values, model):
    with pytest.raises(ValueError, match=r"^Unknown key 'sacle'; [^\n]*$"):
        kind(**values, sacle=1.0)
    with pytest.raises(ScenarioError, match=r"^Unknown key 'channel\.sacle'; [^\n]*$"):
        scenario_with({"model": model.model, **values}).override({"channel.sacle": 1.0})


def test_a_missing_required_key_is_named(kind, values):
    for key in values:
        if kind.model_fields[key].is_required():
            with pytest.raises(ValueError, match=rf"^Missing key {key}: expected a [^\n]*\.$"):
                kind(**{name: value for name, value in values.items() if name != key})


def test_a_new_model_is_one_class(tmp_path):
    """Checks, scenario, plan, reference, template and page have it; nothing else is written."""
    (tmp_path / "new_model.py").write_text(
        textwrap.dedent("""\
            import tomllib
            from typing import Annotated, Literal

            import numpy as np

            from airfed.channel import ChannelModel
            from airfed.keys import Control, Key, Positive


            class Two(ChannelModel):
                \"\"\"Two kinds of devices.\"\"\"

                model: Literal["two"] = "two"
                ratio: Annotated[Positive, Key("strong over weak", "r"), Control("Ratio", 1.0, 9.0, start=4.0)] = 2.0

                def magnitudes(self, num_devices, rng):
                    return np.where(rng.random(num_devices) < 0.5, 1.0, self.ratio)


            from airfed import plan
            from airfed.explorer import knobs
            from airfed.explorer.design import Design
            from airfed.scenario import ScenarioError, parse, template

            assert "two (ratio)" in template.SCENARIO
            assert "# r: strong over weak" in template.commented("[channel]\\nratio = 2.0")
            assert any("channel.ratio" in keys for keys in knobs.GROUPS.values())
            assert knobs.Knob("channel.ratio").control.label == "Ratio"
            scenario = Design().change("channel.model", "two").scenario()
            assert knobs.applies("channel.ratio", Design().change("channel.model", "two"))
            assert not knobs.applies("channel.ratio", Design())
            assert set(scenario.problem().fleet.gain) == {0.2, 1.0, 4.0}
            assert parse(tomllib.loads(scenario.to_toml())) == scenario
            assert plan(scenario.problem()).num_scheduled >= 1
            try:
                scenario.override({"channel.ratio": 0})
            except ScenarioError as error:
                print(error)
            """)
    )
    done = subprocess.run([sys.executable, tmp_path / "new_model.py"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("channel.ratio must be positive, got 0.\n", "")


# Distributions


def in_a_cell(seed):
    """Gains in a cell of 50 m, by rejection from a square and complex fading."""
    draw = rng(seed)
    distance = np.hypot(*draw.uniform(-50, 50, (2, 100_000)))
    distance = distance[(distance < 50) & (distance > 2.0)][:SAMPLES]
    shadow = 10 ** (draw.normal(0, 6.0, SAMPLES) / 20)
    fading = np.abs(draw.normal(size=SAMPLES) + 1j * draw.normal(size=SAMPLES)) / np.sqrt(2)
    return 0.7 * (distance / 2.0) ** -1.75 * shadow * fading


def in_a_ring(seed):
    """Gains between 20 and 50 m, by rejection from a square, a line of sight and the formula of free space."""
    draw = rng(seed)
    distance = np.hypot(*draw.uniform(-50, 50, (2, 100_000)))
    distance = distance[(distance < 50) & (distance > 20)][:SAMPLES]
    shadow = 10 ** (draw.normal(0, 3.0, SAMPLES) / 20)
    fading = np.abs(np.sqrt(8) + draw.normal(size=SAMPLES) + 1j * draw.normal(size=SAMPLES)) / np.sqrt(10)  # K = 4
    return np.sqrt(10**0.5) * 299_792_458 / (4 * np.pi * 2e9 * distance) * shadow * fading  # 5 dB of antennas


RING = {"frequency": 2e9, "radius": 50.0, "inner_radius": 20.0, "shadowing_db": 3.0, "k_factor": 4.0}
WIDE = {"radius": 50.0, "path_loss_exponent": 3.5, "shadowing_db": 6.0, "reference_distance": 2.0, "scale": 0.7}
DISTRIBUTIONS = {
    "fixed": [({"gains": GAINS}, GAINS)],
    "rayleigh": [({"scale": scale}, stats.rayleigh(scale=scale / np.sqrt(2)).cdf) for scale in (0.3, 1.0, 7.0)],
    "rician": [
        ({"scale": 2.0, "k_factor": k}, stats.rice(b=np.sqrt(2 * k), scale=2.0 * np.sqrt(0.5 / (k + 1))).cdf)
        for k in (0.0, 1.0, 10.0)
    ],
    "uniform": [({"low": 0.2, "high": 1.5}, stats.uniform(0.2, 1.3).cdf)],
    "cell": [
        (WIDE, in_a_cell(5)),
        ({"radius": 100.0, "path_loss_exponent": 1e-9}, stats.rayleigh(scale=1 / np.sqrt(2)).cdf),
    ],
    "path_loss": [({**RING, "antenna_gain": 5.0}, in_a_ring(6))],
    "file": [({}, GAINS)],
}
"""What a model draws: a distribution function, or a sample (the gains themselves where it has gains of its own)."""


def test_distribution(kind, values, model):
    assert model.model in DISTRIBUTIONS, "add the distribution of the new model"
    for changes, distribution in DISTRIBUTIONS[model.model]:
        changed = kind(**(changes or values))
        gains = changed.draw(count(changed, SAMPLES), rng())
        if changed.num_gains is not None:
            assert gains.tolist() == distribution
        else:
            test = stats.kstest if callable(distribution) else stats.ks_2samp
            assert test(gains, distribution).pvalue > LEVEL, changes


# What the devices do not know


def test_true_channel_error_has_the_stated_power():
    # 20,000 devices: the mean of |e|² has a relative standard deviation of 0.7%.
    rng = np.random.default_rng(0)
    gain, phase = Rayleigh(scale=2.0).draw(SAMPLES, rng), rng.uniform(0, 2 * np.pi, SAMPLES)
    error = true_channel(gain, phase, nmse=0.1, rng=rng) - gain * np.exp(1j * phase)
    assert np.mean(np.abs(error) ** 2) == pytest.approx(0.1 * np.mean(gain**2), rel=0.035)
    spread = np.sqrt(0.05 * np.mean(gain**2))  # circularly symmetric: equal, independent parts
    assert stats.kstest(error.real, stats.norm(0, spread).cdf).pvalue > LEVEL
    assert stats.kstest(error.imag, stats.norm(0, spread).cdf).pvalue > LEVEL
    assert abs(np.corrcoef(error.real, error.imag)[0, 1]) < 5 / np.sqrt(SAMPLES)


def test_perfect_knowledge():
    gain, phase = np.array([0.5, 2.0]), np.array([0.0, 1.0])
    known = true_channel(gain, phase, nmse=0.0, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(known, gain * np.exp(1j * phase))
