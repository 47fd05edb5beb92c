"""airfed as a user installs it: the built wheel with the dependencies of no extra or one, and nothing else."""

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airfed
from airfed.scenario import template

pytestmark = pytest.mark.slow

SCENARIO = re.sub(
    r"num_devices = \d+",
    "num_devices = 5",
    template.SCENARIO.replace('model = "cnn"', 'model = "quadratic"\ndimension = 20'),
)
EXPERIMENT = 'name = "tiny"\nbase = "s.toml"\n\n[axes]\nseed = [0, 1]\n'
PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet")


class Installation:
    """An environment of its own, used from a folder of its own."""

    def __init__(self, folder, python):
        self.folder, self.python = folder, python
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "AIRFED"))}
        self.environment = {**variables, "COLUMNS": "200"}

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [self.python, "-m", "airfed", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def works(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, (arguments, err)
        return out

    def needs(self, extra, package, *arguments):
        process = self.start(*arguments)
        _, err = process.communicate(timeout=600)
        sentence = f"airfed: This needs airfed[{extra}] ({package} is missing): pip install 'airfed[{extra}]'.\n"
        assert (process.returncode, err) == (2, sentence), arguments


def required(name, extras=frozenset()):
    """A distribution and all that it needs, as its metadata declare it, among what is installed here."""
    found, waiting = {}, [(name, extras)]
    while waiting:
        name, extras = each = waiting.pop()
        if each not in found:
            found[each] = importlib.metadata.distribution(name)
            for need in map(Requirement, found[each].requires or ()):
                if need.marker is None or any(need.marker.evaluate({"extra": one}) for one in ("", *extras)):
                    waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    return found.values()


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """The folder of the built package, unpacked; skips where pip finds nothing to build it with."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(repository)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode and re.search("No matching distribution|Could not find a version|NewConnection", done.stderr):
        pytest.skip("pip reaches no registry of packages: nothing can be installed")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    command = [sys.executable, *PIP, "install", "--no-deps", "--target", str(folder / "airfed"), str(built)]
    subprocess.run(command, check=True, timeout=900)
    return folder / "airfed"


@pytest.fixture(scope="module")
def install(wheel, tmp_path_factory):
    """Makes an environment with the wheel and one extra or none, and a folder with a run and files to use it on.

    What the wheel declares, and what that declares, is linked from where the tests run: nothing else can be imported.
    """
    run = tmp_path_factory.mktemp("run") / "run"

    def make(folder, *extras):
        venv.create(folder, with_pip=False)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        (own,) = importlib.metadata.distributions(path=[str(wheel)])
        for need in map(Requirement, own.requires):
            if need.marker is None or any(need.marker.evaluate({"extra": one}) for one in ("", *extras)):
                for one in required(canonicalize_name(need.name), frozenset(need.extras)):
                    for top in {file.parts[0] for file in one.files} - {"..", "__pycache__"}:
                        link = packages / top
                        if not link.is_symlink():
                            link.symlink_to(one.locate_file(top))
        for entry in wheel.iterdir():
            (packages / entry.name).symlink_to(entry)
        return folder / "bin" / "python"

    def settle(*extras):
        home = tmp_path_factory.mktemp("home")
        (home / "s.toml").write_text(SCENARIO)
        (home / "images.toml").write_text(template.SCENARIO)
        (home / "experiment.toml").write_text(EXPERIMENT)
        if not run.exists():
            airfed.run(airfed.load(home / "s.toml").override({"policy.rounds": 3}), run, progress=False)
        shutil.copytree(run, home / "run")
        return Installation(home, str(make(tmp_path_factory.mktemp("env"), *extras)))

    return settle


def test_the_core_alone(install):
    core = install()
    assert "bound" in core.works("plan", "images.toml")
    assert "optimal" in core.works("compare", "images.toml")
    core.works("new", "my.toml")
    assert "verified" in core.works("ledger", "run")
    assert json.loads(core.works("audit", "run", "--trials", "2000", "--json"))["verdict"] == "pass"
    core.works("run", "s.toml", "--out", "mine")  # the quadratic task is plain NumPy
    core.needs("sim", "mlxtend", "run", "images.toml", "--out", "other")
    core.needs("report", "matplotlib", "plan", "s.toml", "--plot", "plan.png")
    core.needs("report", "jinja2", "report", "run")
    core.needs("sweep", "joblib", "sweep", "experiment.toml", "--out", "sweep")
    core.needs("web", "uvicorn", "explore", "--no-browser")
    assert not {"other", "sweep"} & {entry.name for entry in core.folder.iterdir()}


def test_the_report_alone(install):
    report = install("report")
    report.works("report", "run", "--out", "report.html")
    assert "<svg" in (report.folder / "report.html").read_text()
    report.works("plan", "s.toml", "--plot", "plan.png")
    report.works("figures", "fig2", "--quick", "--out", "figures")
    assert (report.folder / "plan.png").stat().st_size > 10_000
    report.needs("sweep", "joblib", "sweep", "experiment.toml", "--out", "sweep")


def test_the_page_alone(install):
    web = install("web")
    process = web.start("explore", "s.toml", "--no-browser", "--port", "0", start_new_session=True)
    try:
        said = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/\S*", said)
        assert address, (said, process.stderr.read())
        visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
        with visitor.open(address[0], timeout=60) as page:
            assert page.status == 200
            assert b"airfed" in page.read()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=600)
    web.needs("report", "matplotlib", "plan", "s.toml", "--plot", "plan.png")
