"""Common mistakes on the command line: each prints one sentence that names the error, with exit code 2."""

import re

import pytest

from airfed.cli import main
from airfed.scenario import template

SMALL = (
    template.SCENARIO.replace("num_devices = 100", "num_devices = 5")
    .replace("total_steps = 200", "total_steps = 8")
    .replace('model = "cnn"', 'model = "logistic"')
)
NET = """
from torch import nn

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

def odd():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(784, 10)

        def forward(self, images):
            return self.nothing(images)

    return Odd()

ready = nn.Linear(784, 10)
"""


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Run a command line in a folder with a small scenario; its message must be one sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFED_DATA", str(tmp_path / "data"))  # whatever the machine has fetched before
    (tmp_path / "s.toml").write_text(SMALL)
    (tmp_path / "beginners_net.py").write_text(NET)

    def command(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        assert err.startswith("airfed: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        assert len(err) < 700
        return err

    return command


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("paln s.toml", 'Did you mean "plan"?'),
        ("s.toml", "Unknown command"),
        ("help", "airfed --help lists the commands"),
        ("-x", "Unknown command"),
        ("plan", "FILE"),
        ("run s.toml", "(airfed run --help lists its options)"),
        ("plan s.toml --antennas 3", "(airfed plan --help lists its options)"),
        ("audit runs/none", "There is no scenario or run directory at runs/none."),
        ("compare s.toml --total -1", "--total must be a number > 0, got -1."),
        ("compare s.toml --total nan", "--total must be a number > 0, got nan."),
        ("plan s.tml", "there is no such file (airfed new s.tml writes one)"),
        ("plan s.toml s.toml", "Unexpected arguments: s.toml."),
        ("plan s.toml --json yes", "Unexpected arguments: yes."),
        ("plan s.toml --round 3", "Did you mean --rounds?"),
        ("plan s.toml --rounds 3.5", "must be a whole number, got '3.5'"),
        ("plan s.toml --rounds 0x3", "must be a whole number, got '0x3'"),
        ("plan s.toml --rounds -2", "policy.rounds must be at least 1, got -2"),
        ("plan s.toml --seed 1e3", "must be a whole number, got '1e3'"),
        ("plan s.toml --seed 1.0", "must be a whole number, got '1.0'"),
        (f"plan s.toml --seed {'9' * 400}", "seed must be at most 2**128 - 1, got a number of about 400 digits."),
        (f"plan s.toml --seed {'9' * 5000}", "must be a whole number, got 5000 characters"),
        (f"audit s.toml --seed {'9' * 400}", "seed must be at most 2**128 - 1"),
        ("plan s.toml --policy Optimal", "policy.name must be one of"),
        ("plan /dev/zero", "Cannot read a scenario from /dev/zero: it is a device."),
        ("plan /dev/null", "it is a device"),
        ("plan beginners_net.py", "not valid TOML"),
        ("plan s.toml/x", "Cannot read s.toml/x"),
        ("run s.toml out", "--out"),
        ("run s.toml --out o --device cuda", "Unknown option: --device"),
        ("new s.toml", "s.toml exists and is not overwritten"),
        ("data fetch cifar10", 'Choose from: "mnist", "fashion-mnist", "cifar-10"'),
        ("data fetch mnist --source /nowhere", "the published files"),
        ("data get mnist", "Unknown command"),
        ("ledger nothing", "There is no run in nothing: run.json is missing."),
        ("ledger .", "There is no run in .: run.json is missing."),
        ("explore --no-browser --port 99999999", "--port must be at least 0 and at most 65535, got 99999999."),
        ("calibrate nothing.toml", "no such file"),
        ("report s.toml", "Cannot use s.toml: Not a directory."),
        ("new /proc/x.toml", "Cannot use /proc/x.toml: No such file or directory."),
        ("benchmark s.toml --out b --seeds 0", "seeds must be at least 1, got 0."),
        ("benchmark s.toml --out b --seeds 10001", "seeds must be at most 10000, got 10001."),
        (f"benchmark s.toml --out b --seeds {'9' * 20}", "seeds must be at most 2**53"),
    ],
)
def test_command_lines(said, line, words):
    assert words in said(*line.split(" "))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"logistic"', '"resnet18"', "'module:callable', got 'resnet18'"),
        ('"logistic"', '"nets.resnet18"', "did you mean 'nets:resnet18'?"),
        ('"logistic"', '"LOGISTIC"', "did you mean 'logistic'?"),
        ('"logistic"', '"nobodys_net:Net"', "there is no module 'nobodys_net' in"),
        ('"logistic"', '"beginners_net:Net"', "the module has Wide, lazy, odd"),
        ('"logistic"', '"beginners_net:Wide"', "called without arguments: TypeError"),
        ('"logistic"', '"beginners_net:ready"', "called without arguments: TypeError"),
        ('"logistic"', '"beginners_net:lazy"', "got a lazy layer"),
        ('"logistic"', '"quadratic"', "Missing key learning.dimension"),
        ('"logistic"', "5", "learning.model must be a text in quotes"),
        ('"mnist-5k"', '"MNIST"', "did you mean 'mnist'?"),
        ('"mnist-5k"', '"cifar10"', "one of mnist-5k, mnist, fashion-mnist, cifar-10, a folder with IDX or"),
        ('"mnist-5k"', '""', "learning.dataset must be one of"),
        ('"mnist-5k"', '"/nowhere/data.npz"', "there is no such file."),
        ('"mnist-5k"', '"."', "train-images-idx3-ubyte"),
        ('"mnist-5k"', '"s.toml"', "NPZ"),
        ("noise_std = 1.0", 'noise_std = "-90 dBm"', "√(P/2) = 7.071e-07"),
        ("noise_std = 1.0", 'noise_std = "1e400 W"', "an amplitude in √W per real dimension, got"),
        ("noise_std = 1.0", 'noise_std = "much"', "must be a bare number"),
        ("epsilon = 5.0", f"epsilon = {'10' * 200}", "float64 can hold, got a number of about 399 digits"),
        ("epsilon = 5.0", 'epsilon = "5"', "a number > 0, got '5'"),
        ("delta = 1e-3", "delta = 1", "budget.delta must be strictly between 0 and 1, got 1."),
        ("total_power = 1000.0", 'total_power = "1 kW"', "must have one of the units W, mW"),
        ("total_power = 1000.0", 'total_power = "1000"', "or have one of the units W"),
        ("num_devices = 5", "num_devices = 5.0", "a whole number >= 1, got 5.0"),
        (
            "num_devices = 5",
            f"num_devices = 0x{'f' * 9000}",
            "must be at most 2**53, got a number of about 10837 digits",
        ),
        ("peak_power = 1.0", f"peak_power = [0x{'f' * 9000}]", "float64 can hold, got a number of about 10837 digits"),
        ("total_steps = 8", f"total_steps = {'10' * 200}", "must be at most 2**53, got a number of about 399 digits"),
        ("seed = 0", f"seed = {'9' * 5000}", "a number has too many digits"),
        ("seed = 0", "seed = .5", "a digit on both sides"),
        ('name = "my-scenario"', "name = my-scenario", "a text needs quotes"),
        ('name = "my-scenario"', r'name = "x\u001b]0;y\u0007"', "without control characters"),
        ("[budget]", "[Budget]", "did you mean 'budget'?"),
        ("[fleet]", "[[fleet]]", "fleet must be a table"),
        ("clip_norm = 5.0", "clip = 5.0", "did you mean 'clip_norm'?"),
        (
            "strong_convexity = 0.1",
            "strong_convexity = 100",
            "strong_convexity must be at most smoothness, 10.0; got 100.0.",
        ),
        ('name = "weighted"', 'name = "weighted"\nround = 4', "did you mean 'rounds'?"),
        ("# [run]\n", '[run]\ndevice = "GPU 0"\n', "run.device must be auto, cpu, cuda, cuda:1, mps"),
    ],
)
def test_scenarios(said, tmp_path, old, new, words):
    assert SMALL.count(old) == 1
    (tmp_path / "s.toml").write_text(SMALL.replace(old, new))
    assert words in said("plan", "s.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"logistic"', '"beginners_net:odd"', "AttributeError: 'Odd' object has no attribute 'nothing'"),
        (
            "# [run]\n",
            '[run]\ndevice = "cuda:9"\nengine = "torch"\n',
            "run.device must be available to torch",
        ),
        ("num_devices = 5", "num_devices = 5000", "num_devices must be at most 4000, the number of images"),
        ("total_steps = 8", "total_steps = 8\ndimension = 5", "learning.dimension must be 7850"),
    ],
)
def test_trainings(said, tmp_path, old, new, words):
    (tmp_path / "s.toml").write_text(SMALL.replace(old, new))
    assert words in said("run", "s.toml", "--out", "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["plan", "compare", "audit", "run", "explore", "pilot", "calibrate", "benchmark"])
def test_an_experiment_is_no_scenario(command, repository, capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")] if command in ("run", "pilot", "benchmark") else []
    assert main([command, str(repository / "examples" / "demo.toml"), *out]) == 2
    assert "This is an experiment, not a scenario (it has a key base): use airfed sweep." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_scenario_is_no_experiment(repository, capsys, tmp_path):
    assert main(["sweep", str(repository / "examples" / "paper.toml"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "This is a scenario, not an experiment (it has no key base): use airfed plan or airfed run" in said


def test_a_budget_that_leaves_only_noise_is_reported(repository, capsys, tmp_path):
    text = (repository / "tests" / "tiny.toml").read_text()
    (tmp_path / "little.toml").write_text(text.replace("epsilon = 4.0", "epsilon = 1e-9"))
    assert main(["plan", str(tmp_path / "little.toml")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"is [\d.e+]+ times the clipping norm, so training will probably not learn\. The binding limit is .*privacy",
        said,
    )
    (tmp_path / "enough.toml").write_text(text)
    assert main(["plan", str(tmp_path / "enough.toml")]) == 0
    assert "probably not learn" not in capsys.readouterr().out
