"""airfed as a user installs it: the built wheel in fresh environments, with no extra or with one alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

import pytest

import airfed
from airfed.scenario import template

pytestmark = pytest.mark.slow

WORLD = re.sub(
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


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """The built package; skips where pip finds nothing to build it with."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(repository)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode and re.search("No matching distribution|Could not find a version|NewConnection", done.stderr):
        pytest.skip("pip reaches no registry of packages: nothing can be installed")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def install(wheel, repository, tmp_path_factory):
    """Makes an environment with the wheel and one extra or none, and a folder with a run and files to use it on.

    NumPy and the rest of the core are unpacked once; an extra is installed into a copy.
    """

    def packages(python):
        return next((python.parents[1] / "lib").glob("python*/site-packages"))

    def make(extra=""):
        folder = Path(tempfile.mkdtemp(dir=large))
        venv.create(folder / "env", with_pip=False)
        python = folder / "env" / "bin" / "python"
        if extra:
            shutil.copytree(packages(core), packages(python), dirs_exist_ok=True)
        options = ("--no-compile", "--constraint", str(repository / "constraints.txt"))
        command = [sys.executable, *PIP, "--python", str(python), "install", *options, f"{wheel}{extra}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return python

    def settle(extra=""):
        home = tmp_path_factory.mktemp("home")
        (home / "s.toml").write_text(WORLD)
        (home / "images.toml").write_text(template.SCENARIO)
        (home / "experiment.toml").write_text(EXPERIMENT)
        airfed.run(airfed.load(home / "s.toml").override({"policy.rounds": 3}), home / "run", progress=False)
        return Installation(home, str(make(extra) if extra else core))

    with tempfile.TemporaryDirectory() as large:  # a gigabyte: not for the folders of the tests, which may be in memory
        core = make()
        yield settle


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
    report = install("[report]")
    report.works("report", "run", "--out", "report.html")
    assert "<svg" in (report.folder / "report.html").read_text()
    report.works("plan", "s.toml", "--plot", "plan.png")
    report.works("figures", "fig2", "--quick", "--out", "figures")
    assert (report.folder / "plan.png").stat().st_size > 10_000
    report.needs("sweep", "joblib", "sweep", "experiment.toml", "--out", "sweep")


def test_the_page_alone(install):
    web = install("[web]")
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
