"""airfed plan, compare and new, as a user types them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from airfed.cli import main
from airfed.policies import POLICIES
from airfed.scenario import presets, template

PUBLIC = {
    "scheduled",
    "alignment",
    "rounds",
    "local_steps",
    "bound",
    "binding",
    "power",
    "power_total",
    "epsilon_round",
    "epsilon_total",
    "epsilon_paper",
}
COMPARED = [name for name, policy in POLICIES.items() if not policy.time_varying]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("AIRFED_DEBUG", raising=False)


@pytest.fixture
def airfed(capsys):
    """Run a command line: (exit code, standard output, standard error)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def write(tmp_path):
    """Write a scenario, the template with some lines changed."""

    def changed(*changes, name="s.toml"):
        text = template.SCENARIO
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return changed


def one_sentence(error):
    assert error.startswith("airfed: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert "Traceback" not in error
    return error


# What it says


def test_plan(airfed, write):
    code, out, err = airfed("plan", write())
    assert (code, err) == (0, "")
    assert "my-scenario · policy weighted" in out
    for part in ("devices, ", " rounds of ", "Limits on the", "ν = θ/ϖ"):
        assert part in out
    assert "privacy and total power are the limits." in " ".join(out.split())
    bind = [line.split("  ")[0] for line in out.splitlines() if line.rstrip().endswith(" binds")]
    assert bind == ["privacy", "total power"]
    for term in ("initial gap", "weights other than 1/N", "local drift", "receiver noise", "total"):
        assert term in out
    for line in ("Lemma 1, per round", "exact, per round", "exact, in total", "μ in total = "):
        assert line in out
    assert "of 1000 W" in out
    assert "device-level, replace-one adjacency" in out


@pytest.mark.parametrize(
    ("epsilon", "says"), [("0.5", "proved (ε < 1)"), ("2.0", "unproven (ε ≥ 1)"), ("50.0", "UNSAFE")]
)
def test_plan_warns_where_lemma_1_is_invalid(airfed, write, epsilon, says):
    scenario = write(
        ("epsilon = 5.0", f"epsilon = {epsilon}"),
        ('formula = "exact"', 'formula = "classic"'),
        ("noise_std = 1.0 ", "noise_std = 0.001 "),
    )
    assert says in airfed("plan", scenario)[1]


def test_plan_says_that_the_bound_wants_another_learning_rate(airfed, write):
    assert "proved for τ = 1/ζ" not in airfed("plan", write())[1]
    assert "proved for τ = 1/ζ" in airfed("plan", write(("learning_rate = 0.1", "learning_rate = 0.2")))[1]


def test_plan_json(airfed, write):
    code, out, err = airfed("plan", write(), "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    record = json.loads(out)
    assert set(record) >= PUBLIC
    assert record["scenario"] == "my-scenario"
    assert set(record["bound"]["terms"]) == {"initial_gap", "participation", "local_drift", "noise"}
    assert sum(record["local_steps"]) == 200
    assert record["epsilon_round"] <= 5.0


@pytest.mark.parametrize("policy", POLICIES)
def test_plan_with_another_policy(airfed, write, policy):
    scenario = write(('name = "weighted"', 'name = "threshold"\nthreshold = 0.5'))  # kept only where it means something
    code, out, _ = airfed("plan", scenario, "--policy", policy, "--json")
    assert code == 0
    assert json.loads(out)["policy"] == policy


def test_options_override_the_file(airfed, write):
    record = json.loads(airfed("plan", write(), "--rounds", 17, "--json")[1])
    assert record["rounds"] == 17
    one = json.loads(airfed("plan", write(), "--seed", 1, "--json")[1])
    two = json.loads(airfed("plan", write(), "--seed", 2, "--json")[1])
    assert one["power"] != two["power"]


def test_compare(airfed, write):
    code, out, err = airfed("compare", write())
    assert (code, err) == (0, "")
    for policy in COMPARED:
        assert f"\n{policy} " in out
    assert out.index("\nweighted ") < out.index("\npaper ")


def test_compare_json(airfed, write):
    by_bound = write(('name = "weighted" ', 'objective = "bound"\nname = "weighted" '))
    code, out, _ = airfed("compare", by_bound, "--json")
    record = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert sorted(record["policies"]) == sorted(COMPARED)
    assert record["infeasible"] == {}
    best = record["policies"]["optimal"]["bound"]["total"]
    for plan in record["policies"].values():
        assert set(plan) >= PUBLIC
        assert plan["excess"] == pytest.approx(plan["bound"]["total"] / best - 1)
        assert plan["excess"] >= -1e-12 or plan["violations"] or plan["policy"] == "weighted"
    # one channel realisation for all policies: the power of each is θ²/|h|² of the same gains
    full = record["policies"]["full"]
    gain = full["alignment"] / np.sqrt(full["power"])
    for plan in record["policies"].values():
        if plan["policy"] == "weighted":  # not aligned
            continue
        np.testing.assert_allclose(plan["power"], (plan["alignment"] / gain[plan["scheduled"]]) ** 2, rtol=1e-12)


def test_compare_warns_of_settings_that_were_chosen_on_the_devices_data(airfed, repository, tmp_path):
    private = (repository / "examples" / "private.toml").read_text()
    (tmp_path / "same.toml").write_text(private + 'surrogate = "mnist-5k-cnn-4"\n')  # ends with [policy]
    _, out, _ = airfed("compare", tmp_path / "same.toml")
    assert "ε does not cover that choice" in " ".join(out.split())
    for other in ("private", "paper"):
        _, out, _ = airfed("compare", repository / "examples" / f"{other}.toml")
        assert "does not cover" not in out


def test_compare_gives_all_policies_the_same_total_too(airfed, write):
    record = json.loads(airfed("compare", write(), "--json")[1])
    equal = record["equal_total"]
    assert equal["epsilon"] == pytest.approx(record["policies"]["full"]["epsilon_total"])
    assert all(row["epsilon_total"] <= equal["epsilon"] for row in equal["policies"].values())
    smaller = json.loads(airfed("compare", write(), "--total", "0.5", "--json")[1])["equal_total"]
    assert max(row["epsilon_total"] for row in smaller["policies"].values()) == pytest.approx(0.5)
    _, out, _ = airfed("compare", write(), "--total", "0.5")
    assert "At most ε = 0.5 in total for every policy" in out
    code, _, err = airfed("compare", write(), "--total", "-1")
    assert (code, "> 0" in err) == (2, True)
    total = write(('\nscope = "round"', '\nscope = "total"'))
    assert json.loads(airfed("compare", total, "--json")[1])["equal_total"] is None


def test_compare_continues_if_a_policy_has_no_plan(airfed, tmp_path, write):
    scenario = write(
        ('model = "rayleigh" ', 'model = "fixed" '),
        ("scale = 1.0 ", "gains = [0.0, 0.5, 1.0] "),
        ("minimum = 0.2 ", "minimum = 0.0 "),
        ("pin_minimum = true ", "pin_minimum = false "),
        ("num_devices = 100", "num_devices = 3"),
    )
    code, out, _ = airfed("compare", scenario)
    assert code == 0
    assert "full: No plan fits: device 0 has gain 0" in out
    assert set(json.loads(airfed("compare", scenario, "--json")[1])["infeasible"]) >= {"full", "paper"}


def test_compare_marks_a_printed_plan_that_breaks_a_limit(airfed, write):
    powers = np.geomspace(0.01, 1.0, 100)[np.random.default_rng(0).permutation(100)].tolist()
    scenario = write(
        ("peak_power = 1.0 ", f"peak_power = {powers} "),
        ("total_power = 1000.0", "total_power = 100000.0"),
        ("noise_std = 1.0 ", "noise_std = 0.1 "),
    )
    record = json.loads(airfed("compare", scenario, "--json")[1])["policies"]["paper"]
    assert record["violations"]
    _, out, _ = airfed("compare", scenario)
    assert "paper*" in out
    assert "* paper: This plan violates the peak_power limit" in out
    _, out, _ = airfed("plan", scenario, "--policy", "paper")
    assert "! This plan violates the peak_power limit" in out
    assert "exceeded" in out


# 80 columns


def examples(repository):
    found = [path for path in sorted((repository / "examples").glob("*.toml")) if "[fleet]" in path.read_text()]
    assert found
    return found


def test_output_fits_80_columns(airfed, write, repository):
    wide = write(
        ('name = "my-scenario"', f'name = "{"long name " * 20}"'),
        ("num_devices = 100 ", "num_devices = 20000 "),
        ("total_steps = 200 ", "total_steps = 1500 "),
        ("peak_power = 1.0 ", "peak_power = 1e-5 "),
        ("scale = 1.0 ", "scale = 1e-4 "),
        ("minimum = 0.2 ", "minimum = 1e-6 "),
        ("clip_norm = 5.0 ", "clip_norm = 1234.5 "),
        ("# rounds = 40", "rounds = 1490\n#"),
        name="wide.toml",
    )
    for path in [*examples(repository), write(), wide]:
        for command in ("plan", "compare"):
            code, out, _ = airfed(command, path)
            assert code == 0
            assert max(map(len, out.splitlines())) <= 80
            assert "…" not in out  # nothing is cut off


# Pictures


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_plot_writes_valid_image_files(airfed, write, tmp_path, command):
    for suffix, magic in ((".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-"), (".svg", b"<?xml")):
        picture = tmp_path / f"{command}{suffix}"
        scenario = write(("num_devices = 100", "num_devices = 10"), ("total_steps = 200", "total_steps = 8"))
        assert airfed(command, scenario, "--plot", picture)[0] == 0
        content = picture.read_bytes()
        assert content.startswith(magic)
        assert len(content) > 5_000


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("optimal", [("num_devices = 100", "num_devices = 1"), ("total_steps = 200", "total_steps = 1")]),
        ("full", [("total_steps = 200", "total_steps = 1")]),
        (
            "paper",
            [
                ("num_devices = 100", "num_devices = 3"),
                ("peak_power = 1.0 ", "peak_power = [1.0, 0.01, 3.0] "),
                ("total_steps = 200", "total_steps = 3"),
            ],
        ),
    ],
)
def test_plot_of_small_problems(airfed, write, tmp_path, policy, changes):
    code, _, err = airfed("plan", write(*changes), "--policy", policy, "--plot", tmp_path / "p.svg")
    assert (code, err) == (0, "")


# Mistakes


def test_mistakes_in_the_file(airfed, write, tmp_path):
    bad = {
        ("peak_power = 1.0 ", "peak_power = -1.0 "): "fleet.peak_power must be positive, got -1.0",
        ("peak_power = 1.0 ", 'peak_power = "30" '): "or have one of the units W",
        ("num_devices = 100", "num_devices = 0"): "fleet.num_devices must be at least 1, got 0",
        ("num_devices = 100", "num_devicez = 100"): "did you mean 'num_devices'",
        ("noise_std = 1.0 ", "noise_std = nan "): "link.noise_std must be positive and finite, got NaN",
        ("[link]", "[lnik]"): "Unknown key 'lnik'; did you mean 'link'?",
        ('name = "weighted"', 'name = "best"'): "policy.name",
        ("epsilon = 5.0 ", "epsilon = "): "not valid TOML",
        ("# rounds = 40", "rounds = 400\n#"): "rounds must be at most total_steps, 200; got 400",
        ("# rounds = 40", "size = 4\n#"): "policy='weighted' has no setting size",
        ("num_devices = 100", "num_devices = 1000000000000000"): "does not fit into memory",
        ("total_steps = 200", "total_steps = 1000000000000000"): "total_steps must be at most 1000000",
    }
    for change, named in bad.items():
        for command in ("plan", "compare"):
            code, out, err = airfed(command, write(change))
            if "no setting size" in named and command == "compare":
                assert code == 0  # there the size belongs to the policies that have one
                continue
            assert (code, out) == (2, "")
            assert named in one_sentence(err)


@pytest.mark.parametrize(
    ("gains", "named"),
    [
        ("[0.5, nan]", "channel.gains[1] must be non-negative and finite, got NaN"),
        ("[]", "at least 1 entry"),
        ("[0.5, -1]", "channel.gains[1] must be non-negative, got -1"),
    ],
)
def test_bad_gains(airfed, write, gains, named):
    scenario = write(('model = "rayleigh" ', 'model = "fixed" '), ("scale = 1.0 ", f"gains = {gains} "))
    code, out, err = airfed("plan", scenario)
    assert (code, out) == (2, "")
    assert named in one_sentence(err)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "none.toml"], "there is no such file"),
        (["compare", "none.toml"], "there is no such file"),
        (["plan", "."], "it is a folder"),
        (["plan"], "FILE"),
        (["plan", "SCENARIO", "extra"], "extra"),
        (["plan", "SCENARIO", "--policy", "best"], "policy.name must be one of"),
        (["plan", "SCENARIO", "--policy"], "--policy"),
        (["plan", "SCENARIO", "--policy", "threshold"], "threshold"),
        (["plan", "SCENARIO", "--rounds", "201"], "rounds must be at most total_steps, 200; got 201"),
        (["plan", "SCENARIO", "--rounds", "0"], "policy.rounds must be at least 1, got 0"),
        (["plan", "SCENARIO", "--rounds", "x"], "--rounds"),
        (["plan", "SCENARIO", "--seed", "-1"], "seed must be non-negative, got -1"),
        (["plan", "SCENARIO", "--frob"], "--frob"),
        (["plan", "SCENARIO", "--plot", "/nowhere/p.png"], "Cannot write /nowhere/p.png"),
        (["plan", "SCENARIO", "--plot", "p.txt"], ".png, .pdf or .svg, got p.txt"),
        (["plan", "SCENARIO", "--plot", "p"], ".png, .pdf or .svg"),
        (["compare", "SCENARIO", "--plot", "p.exe"], ".png, .pdf or .svg"),
        (["compare", "SCENARIO", "--policy", "full"], "--policy"),
        (["frobnicate"], "frobnicate"),
        (["new"], "FILE"),
        (["new", "/nowhere/s.toml"], "Cannot write /nowhere/s.toml"),
    ],
)
def test_mistakes_on_the_command_line(airfed, write, arguments, named):
    path = write(("num_devices = 100", "num_devices = 5"))
    code, out, err = airfed(*[path if argument == "SCENARIO" else argument for argument in arguments])
    assert (code, out) == (2, "")
    assert named in one_sentence(err)


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_no_feasible_plan(airfed, write, command):
    scenario = write(
        ('model = "rayleigh" ', 'model = "fixed" '),
        ("scale = 1.0 ", "gains = [0.0, 0.0] "),
        ("minimum = 0.2 ", "minimum = 0.0 "),
        ("pin_minimum = true ", "pin_minimum = false "),
        ("num_devices = 100", "num_devices = 2"),
    )
    code, out, err = airfed(command, scenario)
    assert (code, out) == (3, "")
    assert "No plan fits" in one_sentence(err)
    code, out, err = airfed(command, write(("total_power = 1000.0", "total_power = 1e-320")))
    assert (code, out) == (3, "")
    assert "total power" in one_sentence(err)


def test_a_traceback_is_printed_on_request(write, monkeypatch):
    monkeypatch.setenv("AIRFED_DEBUG", "1")
    with pytest.raises(ValueError, match="no such file"):
        main(["plan", "none.toml"])


# airfed new


def test_new(airfed, tmp_path):
    path = tmp_path / "mine.toml"
    code, out, err = airfed("new", path)
    assert (code, err) == (0, "")
    assert str(path) in out
    assert path.read_text(encoding="utf-8") == template.SCENARIO
    assert airfed("plan", path)[0] == 0
    path.write_text("precious")
    code, out, err = airfed("new", path)
    assert (code, out) == (2, "")
    assert "exists and is not overwritten" in one_sentence(err)
    assert path.read_text() == "precious"
    code, out, _ = airfed("new", tmp_path / "other.toml", "--json")
    assert json.loads(out) == {"written": str(tmp_path / "other.toml")}


def test_new_like_a_known_paper(airfed, tmp_path):
    path = tmp_path / "known.toml"
    code, out, err = airfed("new", path, "--preset", "ncairfl")
    assert (code, err) == (0, "")
    assert path.read_text(encoding="utf-8") == presets.preset("ncairfl")
    code, out, err = airfed("plan", path)
    assert (code, err) == (0, "")
    assert "ncairfl · policy optimal" in out
    code, out, err = airfed("new", tmp_path / "none.toml", "--preset", "nobody")
    assert code == 2
    assert err == f"airfed: The preset must be one of {', '.join(presets.NAMES)}; got 'nobody'.\n"
    assert not (tmp_path / "none.toml").exists()
    code, out, err = airfed("new", "--help")
    assert all(name in out for name in presets.NAMES)


# The program itself


def run(*arguments, code=None, **environment):
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "airfed", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}, check=False
    )


def test_the_program_sets_its_exit_code(write):
    done = run("plan", "none.toml")
    assert done.returncode == 2
    one_sentence(done.stderr)


def test_a_reader_that_has_seen_enough(write):
    command = f"{sys.executable} -m airfed plan {write()} --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "matplotlib", "numba", "mlxtend", "plotly", "flwr", "pandas"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def test_planning_needs_no_torch_and_no_plotting(write):
    scenario = write(("num_devices = 100", "num_devices = 5"))
    program = BLOCK + (
        "from airfed import Budget, Fleet, InfeasibleError, Learning, Link, Plan, Problem, plan\n"
        "from airfed.cli import main\n"
        f"assert main(['plan', {str(scenario)!r}, '--json']) == 0\n"
        f"assert main(['compare', {str(scenario)!r}]) == 0\n"
        f"assert main(['plan', {str(scenario)!r}, '--plot', 'p.png']) == 2\n"
    )
    done = run(code=program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "This needs airfed[report] (matplotlib is missing)" in done.stderr
