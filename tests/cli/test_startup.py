"""Imports before a command starts its work, and the commands that `airfed --help` lists without importing them."""

import os
import subprocess
import sys

import pytest

from airfed.cli.app import HELP, app


def python(program, *options):
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, *options, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(*arguments):
    """Return the output of a command and the names of the modules that it imported."""
    said, names = python(
        "import sys\nfrom airfed.__main__ import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\nmain()\nprint('imported:', *sys.modules)"
    ).split("imported:")
    return said, set(names.split())


def test_importing_airfed_imports_little():
    heavy = "{'numpy', 'scipy', 'torch', 'pydantic', 'typing', 'cyclopts', 'rich'}"
    assert python(f"import airfed, sys; print(sorted({heavy} & set(sys.modules)))", "-S") == "[]\n"


def test_public_names_are_imported_when_they_are_asked_for():
    program = "import airfed; print(airfed.plan.__name__, airfed.Plan.__name__, airfed.planning.__name__)"
    assert python(program) == "plan Plan airfed.planning\n"
    program = "import airfed\ntry:\n    airfed.nonsense\nexcept AttributeError as error:\n    print(error)"
    assert python(program) == "module 'airfed' has no attribute 'nonsense'\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_no_command(option):
    said, names = imported(option)
    assert not names & {"scipy", "numpy", "pydantic", "torch", *({"rich"} if option == "--version" else ())}
    assert {name for name in names if name.startswith("airfed")} == {
        "airfed", "airfed.__main__", "airfed._extras", "airfed.cli", "airfed.cli.app",
    }  # fmt: skip
    assert said.strip()[0].isdigit() if option == "--version" else "compare" in said


def test_planning_imports_no_engine_and_no_page(repository):
    said, names = imported("plan", str(repository / "examples" / "paper.toml"))
    assert "policy optimal" in said
    assert not names & {"torch", "matplotlib", "pandas", "numba", "nicegui", "flwr", "joblib"}
    assert not names & {"scipy.optimize", "scipy.interpolate", "scipy.linalg"}  # a quarter of the command's time


@pytest.mark.parametrize("name", [name for name in app if not name.startswith("-")])
def test_the_help_that_is_listed_is_that_of_the_command(name, capsys):
    app([name, "--help"], result_action="return_value")
    said = " ".join(capsys.readouterr().out.split())
    assert f"Usage: airfed {name}" in said
    assert " ".join(app[name].help.split()) in said
    assert app[name].help == HELP[name]
