"""The README and the pages: commands exist, keys are known, code runs, named files exist, words are found."""

import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import airfed
from airfed.cli import main
from airfed.cli.app import app
from airfed.experiments import points
from airfed.policies import EVERY
from airfed.scenario import template
from airfed.scenario.scenario import flatten

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
ELSEWHERE = {"benchmark", "pilot", "figures", "explore", "audit"}  # take longer, and have their own tests
SMALL = {
    "fleet.num_devices": 8,
    "learning.model": "logistic",
    "learning.total_steps": 4,
    "run.threads": 1,
    "channel.pin_minimum": False,
    "policy.rounds": 2,
    "policy.objective": "bound",
}
MORE = ("CHANGELOG", "CONTRIBUTING", "SECURITY")
WRAPPED = (
    *("index", "start", "install", "model", "notation", "equations", "pitfalls", "versions", "design", "glossary"),
    *("privacy", "privacy-math", "privacy-operators"),
)


def blocks(page, kind):
    """Return the fenced blocks of a kind, each without its title."""
    return re.findall(rf"^```{kind}\b[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page):
    """Yield the airfed commands of a page's shell blocks, as lists of words."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"&&|;|\||(?<!\S)&(?!\S)", line.partition(" #")[0]):
            if part.split()[:1] == ["airfed"]:
                yield shlex.split(part.partition(">")[0])[1:]


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=lambda page: page.stem)
def test_every_command_of_a_page_parses(page):
    for words in commands(page):
        if "--version" not in words:
            app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = set()
    for words in commands(ROOT / "README.md"):
        if words[0] not in ELSEWHERE:
            assert main(words) == 0, (words, capsys.readouterr().err)
        if words[0] == "new":
            file = Path(words[1])
            file.write_text(airfed.load(file).override(SMALL).to_toml())
        done.add(words[0])
    assert {"new", "plan", "compare", "run", "ledger", "report"} <= done


def test_the_example_of_the_readme_prints_what_the_readme_shows(tmp_path, monkeypatch, capsys):
    (code,), (shown,) = blocks(ROOT / "README.md", "python"), blocks(ROOT / "README.md", "text")
    planning, training = code.split("\n\nrun = ")
    monkeypatch.chdir(ROOT)
    exec(planning, names := {})
    assert capsys.readouterr().out == "".join(line + "\n" for line in shown.splitlines()[:2])
    # The training takes a minute, so a smaller scenario runs here; its results depend on the processor.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("airfed.training.run.Run.audit", lambda run: type("Audit", (), {"verdict": "pass"}))
    names["scenario"] = names["scenario"].override(SMALL)
    exec(f"run = {training}", names)
    printed = capsys.readouterr().out.splitlines()[-2:]
    assert [re.sub(r"[\d.]+", "0", line) for line in printed] == [
        re.sub(r"[\d.]+", "0", line) for line in shown.splitlines()[2:]
    ]
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_the_example_of_the_readme_is_private():
    plan = airfed.load(ROOT / "examples" / "private.toml").plan()
    assert plan.epsilon_total <= 2
    assert plan.problem.budget.delta == 1e-5


def test_the_readme_has_two_make_commands_and_six_links():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make demo\b", text, re.MULTILINE)
    assert re.search(r"^make test\b", text, re.MULTILINE)
    section = text.partition("## Read on\n")[2].partition("\n## ")[0]
    links = re.findall(r"\]\(([^)]+)\)", section)
    assert len(links) == 6
    assert all((ROOT / link).is_file() for link in links)


def test_a_budget_per_round_adds_up_as_the_readme_says():
    plan = airfed.load(ROOT / "examples" / "paper.toml").plan()
    shown = f"ε = {plan.epsilon_round:.2f} per round and ε = {plan.epsilon_total:.1f} after {plan.rounds} rounds"
    assert shown in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.stem)
def test_every_key_of_a_page_is_known(page, tmp_path):
    (tmp_path / "my.toml").write_text(template.SCENARIO)
    for block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        if "base" in tables:
            tables["base"] = str(tmp_path / "my.toml")
            assert points.expand(points.parse(tables, folder=tmp_path))
            continue
        known = {f"{table}.{name}".lstrip(".") for table, kind in template.sections() for name in kind.model_fields}
        assert {key for key in flatten(tables) if not key.startswith("policy.options")} <= known


def test_the_code_of_the_how_to_pages_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    given = {"np": np, "amplitudes": np.exp(1j * rng.random((12, 8)))}
    given |= {name: rng.random((4, 784)) for name in ("x", "x_test")} | dict.fromkeys(("y", "y_test"), np.arange(4))
    for page in sorted((ROOT / "docs" / "howto").glob("*.md")):
        for block in blocks(page, "python"):
            exec(block, given)
    assert np.load("trace.npy").shape == (12, 8)
    assert set(np.load("mine.npz")) == {"train_images", "train_labels", "test_images", "test_labels"}
    assert sum(part.numel() for part in given["net"]().parameters()) == 784 * 64 + 64 + 64 * 10 + 10
    assert not list(given["normalised"]().buffers())
    scenario = airfed.load(ROOT / "examples" / "paper.toml")
    assert scenario.plan(policy=given["strongest"], options={"share": 0.3}).num_scheduled == 30
    assert scenario.plan(policy=given["forty_rounds"]).rounds == 40


@pytest.mark.parametrize("name", ["start", "model", "privacy-math", "antennas", "fading"])
def test_the_code_of_a_page_prints_what_the_page_shows(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "my.toml").write_text(template.SCENARIO)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / f"{name}.md"
    (code,) = blocks(page, "python")
    exec(code, {})
    assert f"```text\n{capsys.readouterr().out}```" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "notebooks").glob("*.py"))], ids=lambda p: p.name)
def test_a_scenario_is_planned_by_its_own_method(page):
    assert not re.search(r"\bplan\([^\n]*\.problem\(", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / f"{name}.md" for name in MORE)], ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|docs|studies|benchmarks|examples)/[\w/.-]+\.(?:py|md|toml))`", text)
    if page.stem == "design":
        named += [f"src/airfed/{path}" for path in re.findall(r"`([\w/]+\.py)`", text) if not path.startswith("tests")]
        assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / f"{name}.md" for name in MORE)], ids=lambda page: page.stem)
def test_lines_have_at_most_120_characters(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.lstrip().startswith(("|", "!["))] == []


def test_every_word_of_the_field_is_in_a_heading_or_a_search_tag_of_its_page_and_in_the_glossary(words):
    hooks = (ROOT / "docs" / "_site" / "hooks.py").read_text(encoding="utf-8")
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").lower()
    for word, name in words.items():
        page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        places = " ".join(re.findall(r"^#+ (.*)$", page, re.MULTILINE))
        if name not in WRAPPED:  # tags for pages whose headings say it differently
            places += re.search(rf'"{name}.md": \[(.*?)\]', hooks, re.DOTALL)[1]
        assert all(re.search(rf"\b{part}", places, re.IGNORECASE) for part in word.split()), word
        assert word.lower() in glossary, word


def test_the_page_on_privacy_lists_who_must_be_honest_for_every_method():
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    section = page.partition("## Who must be honest\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| ")]
    header, *rows = rows
    assert [cell.strip() for cell in header] == [
        *("method", "adjacency", "receiver and radio", "server", "the other devices", "the device itself"),
        "what if one deviates",
    ]
    assert all(len(row) == len(header) and all(cell.strip() for cell in row) for row in rows)
    methods = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(methods) == sorted(EVERY)  # each once
    problem = airfed.load(ROOT / "tests" / "tiny.toml").problem()
    removed = replace(problem, budget=replace(problem.budget, adjacency="add_remove"))
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[0]):
            settings = {"threshold": 0.3} if name == "threshold" else {}
            assert ("none" in row[1]) == (not airfed.plan(problem, policy=name, **settings).private), name
            if "add-remove" in row[1] or "none" in row[1]:
                airfed.plan(removed, policy=name, **settings)
            else:
                with pytest.raises(airfed.InfeasibleError, match="add-remove adjacency"):
                    airfed.plan(removed, policy=name, **settings)
