"""airfed ledger and audit: what was spent, and whether the privacy claim holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from airfed.cli import devices
from airfed.cli.plan import Json, Seed, TableFormat, whole_number
from airfed.text import exports, output
from airfed.text.phrases import ADVERSARIES, count, privacy_terms
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.privacy.ledger import Ledger

_MOST_TRIALS: Final = 10**8  # hours
_SHOWN: Final = 5  # rounds at each end of the ledger


def ledger(
    path: Annotated[Path, Parameter(help="A run directory, or an account that several runs charge.")],
    /,
    *,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    """Print and verify what a run has spent; exits with 4 if its ledger, or a file it names, was tampered with."""
    from airfed.privacy.ledger import Ledger, LedgerError
    from airfed.training.run import Run

    try:
        if path.is_file():
            _check_ledger(path)
            book = Ledger.load(path)
            summary = _summary(book) | devices.summary(book)
        else:
            run = Run.open(path).checked()
            summary = _summary(run.ledger) | {
                **devices.summary(run.ledger, run.plan),
                "checkpoint": run.checkpoint,
                "trained": len(run.rounds),
            }
    except LedgerError as error:
        if json:
            output.print_json({"verified": False, "message": str(error)})
        output.say(f"airfed: {error}", file=sys.stderr)
        return 4
    if json:
        output.print_json(summary)
    else:
        _print_ledger(exports.make_console(format), summary)
    return 0


def audit(
    path: Annotated[Path, Parameter(help="A scenario, or a run directory.")],
    /,
    *,
    trials: Annotated[
        int | None, Parameter(help="Canaries a side, at least (default 100000).", converter=whole_number)
    ] = None,
    seed: Seed = None,
    against: Annotated[
        Literal["radio", "combiner"] | None,
        Parameter(
            help="Who attacks several antennas: who keeps all their signals, or the combined one (default: whom "
            "the claim is made against)."
        ),
    ] = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the ROC curve of the attack (png, pdf, svg).")] = None,
) -> int:
    """Try to break the privacy claim; exits with 4 if that succeeds."""
    from airfed.audit import audit as attack
    from airfed.audit.audit import TRIALS, subject_of

    trials = TRIALS if trials is None else trials
    if not 1 <= trials <= _MOST_TRIALS:
        raise ValueError(f"Expected --trials {trials} to be at least 1 and at most {_MOST_TRIALS}.")
    if seed is not None and seed < 0:
        raise ValueError(f"Expected --seed {seed} to be at least 0.")
    subject = subject_of(path, seed=seed)
    if plot is not None:
        from airfed.plotting import figure

        figure.check_name(plot)  # before the attack, which takes a while
    columns = (SpinnerColumn(), TextColumn("attacking the code that transmits"))
    with Progress(*columns, console=output.make_console(stderr=True), transient=True) as progress:
        progress.add_task("")
        found = attack(subject, trials=trials, seed=seed or 0, against=against)
    if plot is not None:
        figure.save(figure.roc_figure(found.to_dict()), plot)
    if json:
        output.print_json(found.to_dict())
    else:
        _print_audit(exports.make_console(format), found.to_dict(), plot)
    return 0 if found.verdict == "pass" else 4


def _check_ledger(path: Path) -> None:
    """Raise unless a file begins as ledgers do: another one is the user's mistake, not somebody's tampering."""
    with path.open("rb") as stream:
        start = stream.read(1)
    if start != b"{":
        raise ValueError(f"Expected a run directory, or an account, at {path}; this is another file.")


_NEEDED: Final = ("epsilon", "delta", "scope", "formula", "relation", "unit")


def _summary(book: Ledger) -> dict[str, Any]:
    from airfed.privacy.ledger import LedgerError

    missing = [name for name in _NEEDED if name not in book.header]
    if missing or ("account" not in book.header and not {"privacy", "scenario"} <= book.header.keys()):
        raise LedgerError(f"{book.path}: its first line does not say what is counted.")
    rounds = [
        {
            "round": charge.round_index,
            "attempt": charge.attempt,
            "devices": charge.devices,
            "alignment": charge.alignment,
            "mu": charge.mu,
            "epsilon_round": charge.epsilon_round,
            "mu_total": charge.mu_total,
            "epsilon_total": charge.epsilon_total,
            "power_planned": charge.power_planned,
            "power_metered": charge.power_metered,
            **({"run": charge.run} if charge.run else {}),
        }
        for charge in book.charges
    ]
    return {
        "verified": True,
        **book.header,
        "head": book.head,
        "charged": book.rounds,
        "mu_total": book.mu_total,
        "epsilon_total": book.epsilon_total,
        "power_planned": book.power_planned,
        "power_metered": book.power_metered,
        "rounds": rounds,
    }


def _print_ledger(console: Console, summary: dict[str, Any]) -> None:
    rounds = summary["rounds"]
    charged = f"{count(summary['charged'], 'round')} charged"
    if summary.get("account"):
        runs = len({row.get("run") for row in rounds})
        console.print(f"[bold]account[/bold] · {charged} by {count(runs, 'run')}\n")
    elif "trained" in summary:
        name = escape(str(summary["scenario"]))
        console.print(
            f"[bold]{name}[/bold] · {charged}, {summary['trained']} trained · privacy: {summary['privacy']}\n"
        )
    else:
        console.print(f"[bold]ledger[/bold] · {charged} · privacy: {summary['privacy']}\n")
    table = plain_table("round", "devices", "θ", "μ", "ε", "ε so far", "W planned", "W metered")
    cut = len(rounds) > 2 * _SHOWN + 1 and not exports.exporting(console)
    for row in rounds[:_SHOWN] if cut else rounds:
        table.add_row(*_ledger_row(row))
    if cut:
        table.add_row("…")
        for row in rounds[-_SHOWN:]:
            table.add_row(*_ledger_row(row))
    console.print(table)
    devices.print_summary(console, summary)
    budget = summary["epsilon"]
    metered = summary["power_metered"]
    spent = "" if metered is None else f", {metered:.4g} W metered"
    private = summary.get("private", True)
    total = f"ε = {summary['epsilon_total']:.4g} in all (μ = {summary['mu_total']:.4g}) {_basis(summary)}"
    if "per_device" in summary:
        total = f"device {summary['per_device']['epsilon']['most_exposed']}, the most exposed: {total}"
    console.print(f"\n{total}" if private else "")
    if not private:
        console.print("[bold red]not private: the scheme has no ε; these figures stand for infinity[/bold red]")
    elif summary["scope"] == "total":
        covers = "all trainings together" if summary.get("account") else "the whole training"
        console.print(f"budget: {summary['epsilon_total'] / budget:.1%} of ε = {budget:g} for {covers}")
        if summary.get("spent"):
            console.print(f"of which its account had spent μ = {summary['spent']:.4g} before")
    else:
        worst = max((row["epsilon_round"] for row in rounds), default=0.0)
        formula = f"budget: ε = {budget:g} for each round by the {summary['formula']} formula"
        console.print(f"{formula}; exact, at most {worst:.4g}")
    console.print(f"power: {_power(summary)}{spent}")
    console.print(_channel(summary), end="")
    if summary.get("privacy") == "simulated":
        console.print("[dim]simulated: the noise comes from a seed that is stored with the run[/dim]")
    seen = ""
    if "checkpoint" in summary:
        newest = summary["checkpoint"]
        seen = " no checkpoint yet," if newest is None else f" the checkpoint after round {newest} is in it,"
        seen = f";{seen}\nand scenario, plan and metrics agree with it"
    console.print(f"[bold green]verified[/bold green]: the chain of hashes is whole{seen}")


def _power(summary: dict[str, Any]) -> str:
    """What counts towards the power budget, in words."""
    planned = f"{summary['power_planned']:.4g} W charged"
    if "total_power" not in summary:
        return planned
    return f"{planned}, {summary['power_planned'] / summary['total_power']:.1%} of {summary['total_power']:g} W"


def _ledger_row(row: dict[str, Any]) -> list[str]:
    attempt = f" (again, {row['attempt']})" if row["attempt"] else ""
    metered = row["power_metered"]
    return [
        f"{row['round'] + 1}{attempt}",
        f"{row['devices']}",
        f"{row['alignment']:.4g}",
        f"{row['mu']:.4g}",
        f"{row['epsilon_round']:.4g}",
        f"{row['epsilon_total']:.4g}",
        f"{row['power_planned']:.4g}",
        "-" if metered is None else f"{metered:.4g}",
    ]


def _channel(summary: dict[str, Any]) -> str:
    if not summary.get("estimation_error"):
        return ""
    if summary["trust_estimates"]:
        return "[bold red]! channel errors are not accounted for: ε does not hold[/bold red]\n"
    return (
        f"[dim]imperfect CSI, NMSE {summary['estimation_error']:g}: ε holds except with probability "
        f"{summary['estimation_failure']:g}[/dim]\n"
    )


def _basis(summary: dict[str, Any]) -> str:
    text = f"at {privacy_terms(summary['delta'], summary['relation'])}"
    several = summary.get("antennas", 1) > 1 or summary.get("account")
    return f"{text}\nagainst {ADVERSARIES[summary['trust']]}" if several and "trust" in summary else text


def _other(summary: dict[str, Any]) -> bool:
    """Whether another server attacks than the one that privacy is claimed against."""
    return bool(summary["antennas"] > 1 and summary["against"] != summary.get("trust", summary["against"]))


def _print_audit(console: Console, summary: dict[str, Any], plot: Path | None) -> None:
    attacked = f" · attacked by {ADVERSARIES[summary['against']]}" if summary["antennas"] > 1 else ""
    console.print(f"[bold]{escape(summary['scenario'])}[/bold] · privacy: {summary['privacy']}{attacked}\n")
    if exports.exporting(console):
        table = plain_table("check", "verdict", "finding", left=("check", "verdict", "finding"))
        for check in summary["checks"]:
            table.add_row(check["name"], "pass" if check["passed"] else "fail", escape(check["finding"]))
        console.print(table)
    for check in summary["checks"]:
        mark = "[green]ok[/green]  " if check["passed"] else "[bold red]FAIL[/bold red]"
        finding = f"[bold]{check['name']}[/bold]: {escape(check['finding'])}"
        if exports.exporting(console):
            console.print(f"{mark} {finding}")
        else:  # what does not fit a line goes on below the name
            line = Table.grid(padding=(0, 1, 0, 0))
            line.add_row(mark, finding)
            console.print(line)
    if summary["mu_lower"] is not None:
        console.print("")
        table = plain_table("99% lower bounds", "μ", "claimed", "ε", "claimed", left=("99% lower bounds",))
        for name, part in (("one round", ""), ("all rounds" if summary["rounds"] > 1 else "the only round", "total_")):
            keys = (f"mu_{part}lower", f"mu_{part}claimed", f"epsilon_{part}lower", f"epsilon_{part}claimed")
            table.add_row(name, *(f"{summary[key]:.5g}" for key in keys))
        console.print(table)
        claimed = "claimed " if _other(summary) else ""
        console.print(f"[dim]{claimed}{_basis(summary).replace(chr(10), ', ')}[/dim]")
    for warning in summary["warnings"]:
        console.print(f"[yellow]! {escape(warning)}[/yellow]")
    if plot is not None:
        console.print(f"drawn: {plot}")
    failed = sum(not check["passed"] for check in summary["checks"])
    other = "; the claim was made against another server" if _other(summary) else ""
    found = f"fail: {count(failed, 'check')} failed{other}" if failed else "pass: the claim stands"
    colour = "red" if failed else "green"
    console.print(f"\n[bold {colour}]{found}[/bold {colour}] ({summary['seconds']:.1f} s)")
