"""Output in the terminal: clean text, strict JSON, one sentence for a missing extra, and Ctrl-C."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from rich.table import Table

from airfed.cli import main
from airfed.scenario import template
from airfed.text import output

EVIL = "a\x1b[31mred\x07\r\nline\u202e\u2028\x9b\x7f"


def harmless(text):
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", text)


def test_terminal_control_characters_are_escaped():
    assert output.clean(EVIL) == r"a\x1b[31mred\x07\r\nline\u202e\u2028\x9b\x7f"
    assert output.clean("Größe ε 無線 🛰 \ud800") == r"Größe ε 無線 🛰 \ud800"
    assert output.clean("a\nb", keep="\n") == "a\nb"


def test_a_console_cleans_lines_tables_and_logs(monkeypatch):
    stream = io.StringIO()
    console = output.make_console()
    console.file = stream
    console.print(f"[bold]{EVIL}[/bold]", EVIL)
    table = Table()
    table.add_column(EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.log(EVIL)
    assert harmless(stream.getvalue())
    assert r"\x1b[31mred" in stream.getvalue()


def test_json_is_strict(capsys):
    output.print_json({"a": float("inf"), "b": [float("nan"), 1.5, (float("-inf"),)], "c": {"d": 2}, "e": EVIL})
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert harmless(text)

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {"a": None, "b": [None, 1.5, [None]], "c": {"d": 2}, "e": EVIL}


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", EVIL],
        ["plan", f"--{EVIL}"],
        [EVIL],
        ["run", f"{EVIL}.toml", "--out", EVIL],
        ["plan", "s.toml", "--policy", EVIL],
        ["plan", "s.toml", "--seed", EVIL],
        ["plan", "s.toml", "--plot", EVIL],
        ["ledger", EVIL],
        ["new", f"/nowhere/{EVIL}"],
    ],
)
def test_no_mistake_brings_control_characters_to_the_terminal(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(template.SCENARIO)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert harmless(err)


@pytest.mark.parametrize(
    "change",
    [
        ('name = "my-scenario"', r'name = "a\u001b[31mb"'),
        ('name = "my-scenario"', r'"a\u001b[31mb" = 3'),
        ("[link]", r'["a\u001b[31mb"]'),
        ('dataset = "mnist-5k"', r'dataset = "a\u001b[31mb"'),
        ('model = "cnn"', r'model = "a\u001b[31mb"'),
        ('model = "rayleigh" ', r'model = "file"' + "\n" + r'path = "a\u001b[31mb.csv" #'),
    ],
)
def test_no_scenario_brings_control_characters_to_the_terminal(change, capsys, tmp_path):
    text = template.SCENARIO.replace(*change)
    assert text != template.SCENARIO
    (tmp_path / "s.toml").write_text(text)
    assert main(["plan", str(tmp_path / "s.toml")]) == 2
    err = capsys.readouterr().err
    assert harmless(err)
    assert err.count("\n") == 1


def test_a_name_of_a_new_file_is_quoted_for_the_next_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my scenario.toml"]) == 0
    assert "next: airfed plan 'my scenario.toml'" in capsys.readouterr().out


# Extras


def test_a_missing_extra_is_one_sentence(capsys, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text(template.SCENARIO)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    for name in ("airfed.plotting.figure",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["plan", str(tmp_path / "s.toml"), "--plot", str(tmp_path / "p.png")]) == 2
    expected = "airfed: This needs airfed[report] (matplotlib is missing): pip install 'airfed[report]'.\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("name", ["airfed.nothing", "torch.nothing", "polars", None])
def test_other_import_errors_are_not_reported_as_a_missing_extra(name, monkeypatch):
    def missing(*arguments, **options):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("airfed.cli.plan.read", missing)
    with pytest.raises(ModuleNotFoundError, match=f"^No module named {name!r}$"):
        main(["plan", "s.toml"])


@pytest.mark.parametrize("content", ["def make():\n    pass\n", "import torch\n"])
def test_an_own_model_without_torch_is_one_sentence(content, capsys, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(content)
    (tmp_path / "s.toml").write_text(template.SCENARIO.replace('model = "cnn"', 'model = "net:make"'))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "airfed.learning.models", raising=False)
    monkeypatch.delattr("airfed.learning.models", raising=False)
    assert main(["plan", str(tmp_path / "s.toml")]) == 2
    expected = "airfed: This needs airfed[sim] (torch is missing): pip install 'airfed[sim]'.\n"
    assert capsys.readouterr().err == expected


# Ctrl-C


def test_an_interrupt_in_a_command_is_reported(capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("airfed.cli.plan.read", interrupted)
    assert main(["plan", "s.toml"]) == 130
    assert capsys.readouterr().err == "airfed: stopped.\n"


BLOCK = """
import sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            print("importing", flush=True)
            try:
                for _ in range(6000):  # a signal just before a sleep begins is delivered when it ends
                    time.sleep(0.01)
            except KeyboardInterrupt:
                raise ImportError("half imported") from None
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("name", ["numpy", "pydantic", "cyclopts", "rich", "airfed.planning"])
@pytest.mark.parametrize("start", ["-m airfed", "-c import sys; from airfed.__main__ import main; sys.exit(main())"])
def test_an_interrupt_during_imports_is_reported(tmp_path, name, start):
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(name=name))
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, *start.split(" ", 1), "plan", "s.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "airfed: stopped.\n")


def test_where_interrupts_are_ignored_they_stay_so(tmp_path):
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from airfed.__main__ import main; sys.argv[1:] = ['--version']; main()\n"
        "print(repr(signal.getsignal(signal.SIGINT)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "SIG_IGN" in done.stdout
