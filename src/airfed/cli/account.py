"""airfed ledger and audit: what was spent, and whether the privacy claim holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed.cli.plan import Json, Seed, TableFormat, whole_number
from airfed.text import output
from airfed.text.phrases import ADVERSARIES, count, privacy_terms
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.planning import Plan
    from airfed.privacy.ledger import Ledger

_MOST_TRIALS: Final = 10**8  # hours
_SHOWN: Final = 5  # rounds at each end of the ledger
_LISTED: Final = 1000  # devices at most, one by one
_EMPTIEST: Final = 5  # batteries that are named
_QUANTILES: Final = {"minimum": 0.0, "median": 0.5, "p90": 0.9, "maximum": 1.0}


def ledger(
    path: Annotated[Path, Parameter(help="A run directory, or an account that several runs charge.")],
    /,
    *,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    from airfed.privacy.ledger import Ledger, LedgerError
    from airfed.training.run import Run

    try:
        if path.is_file():
            with path.open("rb") as stream:
                if stream.read(1) != b"{":  # the user's mistake, not somebody's tampering
                    raise ValueError(f"Expected a run directory, or an account, at {path}; this is another file.")
            book = Ledger.load(path)
            summary = _summary(book) | _per_device(book)
        else:
            run = Run.open(path).checked()
            summary = _summary(run.ledger) | _per_device(run.ledger, run.plan)
            summary |= {"checkpoint": run.checkpoint, "trained": len(run.rounds)}
    except LedgerError as error:
        if json:
            output.print_json({"verified": False, "message": str(error)})
        output.say(f"airfed: {error}", file=sys.stderr)
        return 4
    if json:
        output.print_json(summary)
    else:
        _print_ledger(output.make_console(format), summary)
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
        Parameter(help="Adversary of several antennas: keeps all signals, or the combined one (default: the claim's)."),
    ] = None,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the ROC curve of the attack (png, pdf, svg).")] = None,
) -> int:
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
    with output.make_console(stderr=True).status("attacking the code that transmits"):
        found = attack(subject, trials=trials, seed=seed or 0, against=against)
    if plot is not None:
        figure.save(figure.roc_figure(found.to_dict()), plot)
    if json:
        output.print_json(found.to_dict())
    else:
        _print_audit(output.make_console(format), found.to_dict(), plot)
    return 0 if found.verdict == "pass" else 4


_FIGURES: Final = ("alignment", "mu", "epsilon_round", "mu_total", "epsilon_total", "power_planned", "power_metered")


def _summary(book: Ledger) -> dict[str, Any]:
    from airfed.privacy.ledger import LedgerError

    needed = {"epsilon", "delta", "scope", "formula", "relation", "unit"}
    if not needed | (set() if "account" in book.header else {"privacy", "scenario"}) <= book.header.keys():
        raise LedgerError(f"{book.path}: its first line does not say what is counted.")
    rounds = [
        {"round": charge.round_index, **{name: getattr(charge, name) for name in ("attempt", "devices", *_FIGURES)}}
        | ({"run": charge.run} if charge.run else {})
        for charge in book.charges
    ]
    return {
        "verified": True,
        **book.header,
        "head": book.head,
        "charged": book.rounds,
        **{name: getattr(book, name) for name in ("mu_total", "epsilon_total", "power_planned", "power_metered")},
        "rounds": rounds,
    }


def _print_ledger(console: Console, summary: dict[str, Any]) -> None:
    rounds = summary["rounds"]
    charged = f"{count(summary['charged'], 'round')} charged"
    if summary.get("account"):
        name, about = "account", f"{charged} by {count(len({row.get('run') for row in rounds}), 'run')}"
    elif "trained" in summary:
        name, about = escape(str(summary["scenario"])), f"{charged}, {summary['trained']} trained"
    else:
        name, about = "ledger", charged
    privacy = "" if summary.get("account") else f" · privacy: {summary['privacy']}"
    console.print(f"[bold]{name}[/bold] · {about}{privacy}\n")
    table = plain_table("round", "devices", "θ", "μ", "ε", "ε so far", "W planned", "W metered")
    cut = len(rounds) > 2 * _SHOWN + 1 and not output.exporting(console)
    for row in [*rounds[:_SHOWN], None, *rounds[-_SHOWN:]] if cut else rounds:
        table.add_row(*(["…"] if row is None else _ledger_row(row)))
    console.print(table)
    _print_devices(console, summary)
    budget, private = summary["epsilon"], summary.get("private", True)
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
        worst = f"exact, at most {max((row['epsilon_round'] for row in rounds), default=0.0):.4g}"
        console.print(f"budget: ε = {budget:g} for each round by the {summary['formula']} formula; {worst}")
    power = f"{summary['power_planned']:.4g} W charged"
    if "total_power" in summary:
        power += f", {summary['power_planned'] / summary['total_power']:.1%} of {summary['total_power']:g} W"
    metered = "" if summary["power_metered"] is None else f", {summary['power_metered']:.4g} W metered"
    console.print(f"power: {power}{metered}")
    if summary.get("estimation_error") and summary["trust_estimates"]:
        console.print("[bold red]! channel errors are not accounted for: ε does not hold[/bold red]")
    elif summary.get("estimation_error"):
        failure = f"ε holds except with probability {summary['estimation_failure']:g}"
        console.print(f"[dim]imperfect CSI, NMSE {summary['estimation_error']:g}: {failure}[/dim]")
    if summary.get("privacy") == "simulated":
        console.print("[dim]simulated: the noise comes from a seed that is stored with the run[/dim]")
    seen, newest = "", summary.get("checkpoint")
    if "checkpoint" in summary:
        seen = "no checkpoint yet" if newest is None else f"the checkpoint after round {newest} is in it"
        seen = f"; {seen},\nand scenario, plan and metrics agree with it"
    console.print(f"[bold green]verified[/bold green]: the chain of hashes is whole{seen}")


def _ledger_row(row: dict[str, Any]) -> list[str]:
    attempt = f" (again, {row['attempt']})" if row["attempt"] else ""
    figures = ("-" if row[name] is None else f"{row[name]:.4g}" for name in _FIGURES if name != "mu_total")
    return [f"{row['round'] + 1}{attempt}", f"{row['devices']}", *figures]


def _basis(summary: dict[str, Any]) -> str:
    text = f"at {privacy_terms(summary['delta'], summary['relation'])}"
    several = "trust" in summary and (summary.get("antennas", 1) > 1 or summary.get("account"))
    return f"{text}\nagainst {ADVERSARIES[summary['trust']]}" if several else text


def _per_device(book: Ledger, plan: Plan | None = None) -> dict[str, Any]:
    """Return {"per_device": …} of a ledger that charges some devices (with batteries by its plan), or nothing."""
    if book.num_devices is None:
        return {}
    return {"per_device": {"number": book.num_devices, "epsilon": _epsilon(book)} | _battery(book, plan)}


def _print_devices(console: Console, of: dict[str, Any]) -> None:
    """Print the `per_device` of a ledger's summary, where there are any."""
    if (found := of.get("per_device")) is None:
        return
    epsilon, battery = found["epsilon"], found.get("battery")
    table = plain_table("devices", "minimum", "median", "90%", "maximum", "of device", left=("devices",))
    table.add_row("ε", *(f"{epsilon[name]:.4g}" for name in _QUANTILES), f"{epsilon['most_exposed']}")
    if battery is not None:
        cells = [f"{battery[name]:.1%}" for name in _QUANTILES]
        table.add_row("battery used", *cells, f"{battery['emptiest'][0]['device']}")
    console.print("", table)
    console.print(f"{epsilon['never']} of {count(found['number'], 'device')} never scheduled")
    if battery is not None:
        rows = [f"{row['device']} ({row['used']:.1%})" for row in battery["emptiest"]]
        console.print(f"emptiest batteries: {', '.join(rows)}")


def _epsilon(book: Ledger) -> dict[str, Any]:
    """The distribution of ε. It grows with μ, so that quantiles are chosen by μ."""
    from airfed.privacy import gaussian_epsilon

    mus, delta = book.device_mus(), book.header["delta"]
    figures = {name: gaussian_epsilon(mu, delta) for name, mu in _distribution(mus).items()}
    listed = {"each": book.device_epsilons().tolist()} if mus.size <= _LISTED else {}
    return {"never": int(np.sum(mus == 0)), **figures, "most_exposed": int(np.argmax(mus)), **listed}


def _battery(book: Ledger, plan: Plan | None) -> dict[str, Any]:
    """The distribution of the shares that are used, where there are batteries."""
    from airfed.training.charging import Batteries

    if plan is None or (used := Batteries(plan, book).used) is None:
        return {}
    order = np.lexsort((np.arange(used.size), -used))[:_EMPTIEST]
    emptiest = [{"device": int(device), "used": float(used[device])} for device in order]
    listed = {"each": used.tolist()} if used.size <= _LISTED else {}
    return {"battery": {**_distribution(used), "emptiest": emptiest, **listed}}


def _distribution(values: NDArray[np.float64]) -> dict[str, float]:
    """Values that devices have; p90 is one that nine of ten do not exceed."""
    found = np.quantile(values, list(_QUANTILES.values()), method="inverted_cdf")
    return dict(zip(_QUANTILES, found.tolist(), strict=True))


def _print_audit(console: Console, summary: dict[str, Any], plot: Path | None) -> None:
    attacked = f" · attacked by {ADVERSARIES[summary['against']]}" if summary["antennas"] > 1 else ""
    console.print(f"[bold]{escape(summary['scenario'])}[/bold] · privacy: {summary['privacy']}{attacked}\n")
    exporting, other = output.exporting(console), summary["antennas"] > 1 and summary["against"] != summary["trust"]
    if exporting:
        table = plain_table("check", "verdict", "finding", left=("check", "verdict", "finding"))
        for check in summary["checks"]:
            table.add_row(check["name"], "pass" if check["passed"] else "fail", escape(check["finding"]))
        console.print(table)
    for check in summary["checks"]:
        mark = "[green]ok[/green]  " if check["passed"] else "[bold red]FAIL[/bold red]"
        finding = f"[bold]{check['name']}[/bold]: {escape(check['finding'])}"
        line = Table.grid(padding=(0, 1, 0, 0))  # what does not fit a line goes on below the name
        line.add_row(mark, finding)
        console.print(f"{mark} {finding}" if exporting else line)
    if summary["mu_lower"] is not None:
        console.print("")
        table = plain_table("99% lower bounds", "μ", "claimed", "ε", "claimed", left=("99% lower bounds",))
        for name, part in (("one round", ""), ("all rounds" if summary["rounds"] > 1 else "the only round", "total_")):
            keys = (f"mu_{part}lower", f"mu_{part}claimed", f"epsilon_{part}lower", f"epsilon_{part}claimed")
            table.add_row(name, *(f"{summary[key]:.5g}" for key in keys))
        console.print(table)
        console.print(f"[dim]{'claimed ' if other else ''}{_basis(summary).replace(chr(10), ', ')}[/dim]")
    for warning in summary["warnings"]:
        console.print(f"[yellow]! {escape(warning)}[/yellow]")
    if plot is not None:
        console.print(f"drawn: {plot}")
    failed = sum(not check["passed"] for check in summary["checks"])
    elsewhere = "; the claim was made against another server" if other else ""
    fell = f"fail: {count(failed, 'check')} failed{elsewhere}"
    found, colour = (fell, "red") if failed else ("pass: the claim stands", "green")
    console.print(f"\n[bold {colour}]{found}[/bold {colour}] ({summary['seconds']:.1f} s)")
