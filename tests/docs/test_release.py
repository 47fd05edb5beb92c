"""A release: the version is declared once, and every file that names it, or a make target, agrees."""

import re
import tomllib

import airfed


def test_the_version_is_that_of_the_project_the_citation_and_the_changelog(repository):
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    assert airfed.__version__ == version
    assert f"\nversion: {version}\n" in (repository / "CITATION.cff").read_text()
    assert f"version = {{{version}}}" in (repository / "README.md").read_text(encoding="utf-8")
    assert f"that is {version}." in (repository / "SECURITY.md").read_text(encoding="utf-8")
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[0] == "Unreleased"
    assert re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert version not in (repository / "src" / "airfed" / "__init__.py").read_text(encoding="utf-8")


def test_every_make_call_names_a_target(repository):
    targets = set(re.findall(r"^([\w$()/.-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    files = [*repository.glob(".github/workflows/*.yml"), repository / ".ci" / "run", repository / "Dockerfile"]
    named = {name for file in files for name in re.findall(r'\bmake"?,? "?(\.?[a-z/.]+)', file.read_text())}
    assert {"lint", "test", "dist", "core"} <= named
    assert {name.replace(".venv", "$(VENV)") for name in named - {"on", "it"}} <= targets


def test_declared_pythons_are_those_that_are_tested(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    declared = {each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each}
    workflow = (repository / ".github" / "workflows" / "test.yml").read_text()
    assert declared == set(re.findall(r'"(3\.\d+)"', workflow))
