"""Tables as CSV, Markdown and LaTeX have all cells of the table in the terminal."""

import csv
import io
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from airfed.cli import ledger, main
from airfed.cli.app import app
from airfed.text import output
from airfed.text.tables import plain_table
from airfed.training.execution import execute

WITHOUT_TABLES = {"new", "report", "run", "explore"}  # the tables of `run` are those of `plan`
CELLS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)


def filled(rows, **options):
    head, *body = rows
    table = plain_table(*head, **options)
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    return table


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=2, max_size=4).map(lambda rows: [list(row) for row in rows]))
def test_every_format_has_all_cells_of_the_table(rows):
    table = filled([["a", "b", "c"], *rows])
    expected = output.cells(table)
    assert expected[0] == ["a", "b", "c"]
    assert list(csv.reader(output.exported(table, "csv").splitlines(keepends=True))) == expected

    lines = output.exported(table, "markdown").splitlines()
    read = [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    del read[1]
    if not any("\\" in cell for row in rows for cell in row):  # else one has to know Markdown
        assert read == [[cell.strip() for cell in row] for row in expected]

    page = ET.fromstring(output.html_table(table))
    assert [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")] == expected

    body = [line for line in output.exported(table, "latex").splitlines() if line.endswith(r" \\")]
    assert len(body) == len(expected)
    for line in body:
        bare = re.sub(r"\\[&%$#_{}]", "", line.removesuffix(r"\\"))  # without escaped characters
        assert bare.count("&") == 2
        assert bare.count("$") % 2 == 0
        assert bare.count("{") == bare.count("}")
        assert not re.search(r"[%#~_^]", re.sub(r"\$[^$]*\$", "", bare))


def test_a_title_is_kept_where_the_format_has_one():
    table = filled([["x"], ["1"]], title="All [b]of[/b] it")
    assert output.exported(table, "csv") == "x\n1\n"
    assert output.exported(table, "markdown") == "**All of it**\n\n|   x |\n|----:|\n|   1 |\n"
    assert output.exported(table, "latex").startswith("% All of it\n\\begin{tabular}{r}\n")


def test_every_command_that_prints_tables_accepts_a_format():
    commands = {name for name in app if not name.startswith("-")}
    assert {name for name in commands - {"data"} if "--format" not in options(app[name])} == WITHOUT_TABLES


def options(command):
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


@pytest.mark.parametrize("command", ["plan", "compare", "ledger", "calibrate", "sweep"])
def test_a_command_prints_only_tables(command, repository, tmp_path, capsys, make_scenario):
    scenario = tmp_path / "small.toml"
    scenario.write_text(make_scenario(learning__total_steps=40, policy__rounds=40, budget__scope="round").to_toml())
    given = ["--out", str(tmp_path / "out"), "--jobs", "1"] if command == "sweep" else []
    if command == "ledger":
        execute(make_scenario(learning__total_steps=40, policy__rounds=40, budget__scope="round"), tmp_path / "run")
        scenario = tmp_path / "run"
    if command == "sweep":
        scenario = tmp_path / "sweep.toml"
        scenario.write_text('name = "s"\nbase = "small.toml"\n[axes]\nseed = [0, 1]\n')
    compared = command in ("plan", "compare", "sweep")  # the others have less, or sentences, on the terminal
    if compared:
        assert main([command, str(scenario), *given]) == 0
        text = " ".join(capsys.readouterr().out.split())
    assert main([command, str(scenario), *given, "--format", "csv"]) == 0
    printed = capsys.readouterr()
    for part in printed.out.split("\n\n"):
        rows = list(csv.reader(part.splitlines()))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
        if command == "ledger":
            assert [row[0] for row in rows[1:]] == [str(number) for number in range(1, 41)]  # the terminal has ten
        if compared:
            assert all(" ".join(cell.split()) in text for row in rows for cell in row)
    assert printed.err or command == "calibrate"  # the sentences; a quadratic task has none
    assert main([command, str(scenario), *given, "--format", "csv", "--json"]) == 2
    assert "--json and --format exclude each other." in capsys.readouterr().err


def test_the_checks_of_an_audit_are_a_table(capsys):
    checks = [{"name": "clip", "passed": False, "finding": "‖x‖ = 2 [ϖ], not 1"}]
    summary = {
        "scenario": "s",
        "antennas": 1,
        "privacy": "simulated",
        "checks": checks,
        "mu_lower": None,
        "warnings": [],
        "mode": "signals",
        "not_attacked": [],
        "seconds": 1,
    }
    ledger._print_audit(output.make_console("csv"), summary | {"seconds": 1}, None)
    assert capsys.readouterr().out == 'check,verdict,finding\nclip,fail,"‖x‖ = 2 [ϖ], not 1"\n'


@pytest.mark.parametrize("form", ["csv", "latex", "markdown"])
def test_the_unit_of_a_heading_is_no_markup(form):
    table = plain_table("scheme", "air [s]", left=("scheme",))
    table.add_row("full", "0.5")
    assert "air [s]" in output.exported(table, form)
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(table)
    assert "air [s]" in console.export_text()
