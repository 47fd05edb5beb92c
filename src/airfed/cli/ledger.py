"""airfed ledger, audit and report: the privacy that a run has spent, attacks on its claim, and its page."""

from __future__ import annotations

import sys
from itertools import chain
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airfed._disk import write_atomic
from airfed.cli.plan import Json, SeedOption, TableFormat, whole
from airfed.text import output
from airfed.text.phrases import ADVERSARIES, SHARED_NOISE, count, measured_noise, privacy_terms
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.planning import Plan
    from airfed.privacy.ledger import Ledger

_MOST_TRIALS: Final = 10**8  # these take hours
_SHOWN: Final = 5  # rounds printed at each end of the ledger
_LISTED: Final = 1000  # devices that JSON lists one by one, at most
_EMPTIEST: Final = 5  # batteries listed
_QUANTILES: Final = {"minimum": 0.0, "median": 0.5, "p90": 0.9, "maximum": 1.0}


def ledger(
    path: Annotated[Path, Parameter(help="A run directory, or a shared ledger (budget.shared_ledger).")],
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
                if stream.read(1) != b"{":  # a wrong argument, not tampering
                    raise ValueError(f"{path} is neither a run directory nor a shared ledger.")
            loaded = Ledger.load(path)
            summary = _summary(loaded) | _per_device(loaded)
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
        int | None, whole("Canary trials per hypothesis, at least (default: 100000; 2500 with --end-to-end).")
    ] = None,
    seed: SeedOption = None,
    against: Annotated[
        Literal["all_antennas", "combined"] | None,
        Parameter(help="With several antennas: the signals that the adversary has (default: as in link.adversary)."),
    ] = None,
    end_to_end: Annotated[
        bool, Parameter(help="Attack the trained models of many small trainings instead of the signals.", negative="")
    ] = False,
    json: Json = False,
    format: TableFormat = None,
    plot: Annotated[Path | None, Parameter(help="Draw the attack's ROC curve to this file (png, pdf, svg).")] = None,
) -> int:
    from airfed.audit import audit as attack
    from airfed.audit.audit import subject_of

    if trials is not None and not 1 <= trials <= _MOST_TRIALS:
        raise ValueError(f"--trials must be at least 1 and at most {_MOST_TRIALS}, got {trials}.")
    if seed is not None and seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}.")
    subject = subject_of(path, seed=seed)
    if plot is not None:
        from airfed.plotting import figure

        figure.check_name(plot)  # before the attack, which takes a while
    attacked = "trained models" if end_to_end else "the code that transmits"
    with output.make_console(stderr=True).status(f"attacking {attacked}"):
        result = attack(subject, trials=trials, seed=seed or 0, against=against, end_to_end=end_to_end)
    found = result.to_dict()
    if plot is not None:
        figure.save(figure.roc_figure(found), plot)
    if json:
        output.print_json(found)
    else:
        _print_audit(output.make_console(format), found, plot)
    if subject.run is not None and not subject.run.errors and against is None and not end_to_end:  # the report shows it
        kept = {"ledger": subject.run.ledger.head} | {key: found[key] for key in ("verdict", "epsilon_total_lower")}
        try:
            write_atomic(path / "audit.json", dumps(kept).encode())
        except OSError as error:
            output.say(f"airfed: not kept for the report: {path / 'audit.json'}: {error.strerror}.", file=sys.stderr)
    return 0 if found["verdict"] == "pass" else 4


_COLUMNS: Final = ("alignment", "mu", "epsilon_round", "mu_total", "epsilon_total", "power_planned", "power_metered")


def _summary(ledger: Ledger) -> dict[str, Any]:
    from airfed.privacy.ledger import LedgerError

    needed = {"epsilon", "delta", "scope", "formula", "adjacency", "unit"}
    if not needed | (set() if "shared_ledger" in ledger.header else {"privacy", "scenario"}) <= ledger.header.keys():
        raise LedgerError(f"{ledger.path}: keys are missing in the first line, the header.")
    rounds = [
        {"round": charge.round_index, **{name: getattr(charge, name) for name in ("attempt", "devices", *_COLUMNS)}}
        | ({"run": charge.run} if charge.run else {})
        for charge in ledger.charges
    ]
    return {
        "verified": True,
        **ledger.header,
        "head": ledger.head,
        "charged": ledger.rounds,
        **{name: getattr(ledger, name) for name in ("mu_total", "epsilon_total", "power_planned", "power_metered")},
        "rounds": rounds,
    }


def _print_ledger(console: Console, summary: dict[str, Any]) -> None:
    rounds = summary["rounds"]
    charged, shared = f"{count(summary['charged'], 'round')} charged", summary.get("shared_ledger")
    if shared:
        name, about = "shared ledger", f"{charged} by {count(len({row.get('run') for row in rounds}), 'run')}"
    else:
        trained = f", {summary['trained']} trained" if "trained" in summary else ""
        name = escape(str(summary["scenario"])) if trained else "ledger"
        about = f"{charged}{trained} · privacy: {summary['privacy']}"
    console.print(f"[bold]{name}[/bold] · {about}\n")
    table = plain_table("round", "devices", "θ", "μ", "ε/round", "ε so far", "W planned", "W sent")
    cut = len(rounds) > 2 * _SHOWN + 1 and not output.exporting(console)
    for row in [*rounds[:_SHOWN], None, *rounds[-_SHOWN:]] if cut else rounds:
        table.add_row(*(["…"] if row is None else _ledger_row(row)))
    console.print(table)
    _print_devices(console, summary)
    budget, private = summary["epsilon"], summary.get("private", True)
    total = f"ε = {summary['epsilon_total']:.4g} in total (μ in total = {summary['mu_total']:.4g})\n{_basis(summary)}"
    if "per_device" in summary:
        total = f"most exposed device ({summary['per_device']['epsilon']['most_exposed']}): {total}"
    console.print(f"\n{total}" if private else "")
    if not private:
        console.print("[bold red]not private: the ε of this method is infinite; ignore the ε and μ above[/bold red]")
    elif summary["scope"] == "total":
        covers = "all trainings together" if shared else "the whole training"
        console.print(f"budget: {summary['epsilon_total'] / budget:.1%} of ε = {budget:g} for {covers}")
        if summary.get("spent"):
            console.print(f"the shared ledger had spent μ = {summary['spent']:.4g} before this training")
    else:
        worst = f"largest exact ε of a round: {max((row['epsilon_round'] for row in rounds), default=0.0):.4g}"
        console.print(f"budget: ε = {budget:g} per round, by the {summary['formula']} formula; {worst}")
    power = f"{summary['power_planned']:.4g} W planned"
    if "total_power" in summary:
        power += f" ({summary['power_planned'] / summary['total_power']:.1%} of {summary['total_power']:g} W)"
    sent = "" if summary["power_metered"] is None else f", {summary['power_metered']:.4g} W sent"
    console.print(f"power: {power}{sent}, summed over devices and rounds")
    if error := summary.get("csi_error"):
        if summary["assume_perfect_csi"]:
            console.print("[bold red]! the CSI error is not accounted for: ε does not hold[/bold red]")
        else:
            failure = f"ε holds except with probability {summary['csi_failure']:g}"
            console.print(f"imperfect CSI, NMSE {error:g}: {failure}", style="dim")
    if "noise_std_lower" in summary:
        console.print(measured_noise(summary), style="dim")
    if "noise_covariance" in summary:
        console.print(SHARED_NOISE, style="dim")
    if shared:
        failures = "of measured noise and of imperfect CSI, stated in the ledger of each run, add to δ"
        console.print(f"failure probabilities {failures}", style="dim")
    if "warning" in summary:
        console.print(f"[yellow]! {escape(summary['warning'])}[/yellow]")
    if summary.get("privacy") == "simulated":
        console.print("simulated: the noise comes from a seed that is stored with the run", style="dim")
    checked = ""
    if "checkpoint" in summary:
        newest = summary["checkpoint"]
        files = "plan and metrics" if newest is None else f"plan, metrics and the checkpoint after round {newest}"
        checked = f";\nscenario, {files} match it"
    console.print(f"[bold green]verified[/bold green]: the hash chain is intact{checked}")


def _ledger_row(row: dict[str, Any]) -> list[str]:
    attempt = f" (repeat {row['attempt']})" if row["attempt"] else ""
    values = ("-" if row[name] is None else f"{row[name]:.4g}" for name in _COLUMNS if name != "mu_total")
    return [f"{row['round'] + 1}{attempt}", f"{row['devices']}", *values]


def _basis(summary: dict[str, Any]) -> str:
    text = f"at {privacy_terms(summary['delta'], summary['adjacency'])}"
    several = "adversary" in summary and (summary.get("antennas", 1) > 1 or summary.get("shared_ledger"))
    return f"{text}\nagainst {ADVERSARIES[summary['adversary']]}" if several else text


def _per_device(ledger: Ledger, plan: Plan | None = None) -> dict[str, Any]:
    """Return {"per_device": …}, with batteries if a plan has them; {} if all devices are charged alike."""
    from airfed.privacy import gaussian_epsilon
    from airfed.training.charging import Batteries

    if ledger.num_devices is None:
        return {}
    mus, delta = ledger.device_mus(), ledger.header["delta"]
    quantiles = {name: gaussian_epsilon(mu, delta) for name, mu in _distribution(mus).items()}  # ε grows with μ
    epsilon = {"never": int(np.sum(mus == 0)), **quantiles, "most_exposed": int(np.argmax(mus))}
    found = {"number": ledger.num_devices, "epsilon": epsilon | _each(ledger.device_epsilons())}
    if plan is not None and (used := Batteries(plan, ledger).used) is not None:
        order = np.lexsort((np.arange(used.size), -used))[:_EMPTIEST]
        emptiest = [{"device": int(device), "used": float(used[device])} for device in order]
        found["battery"] = {**_distribution(used), "emptiest": emptiest, **_each(used)}
    return {"per_device": found}


def _distribution(values: NDArray[np.float64]) -> dict[str, float]:
    """Return quantiles over devices, each the value of a device."""
    found = np.quantile(values, list(_QUANTILES.values()), method="inverted_cdf")
    return dict(zip(_QUANTILES, found.tolist(), strict=True))


def _each(values: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return the value of each device, if they are few."""
    return {"each": values.tolist()} if values.size <= _LISTED else {}


def _print_devices(console: Console, summary: dict[str, Any]) -> None:
    """Print the `per_device` of a ledger's summary, if it has one."""
    if (found := summary.get("per_device")) is None:
        return
    epsilon, battery = found["epsilon"], found.get("battery")
    table = plain_table("per device", "minimum", "median", "90%", "maximum", "device", left=("per device",))
    table.add_row("ε in total", *(f"{epsilon[name]:.4g}" for name in _QUANTILES), f"{epsilon['most_exposed']}")
    if battery is not None:
        cells = [f"{battery[name]:.1%}" for name in _QUANTILES]
        table.add_row("battery used", *cells, f"{battery['emptiest'][0]['device']}")
    console.print("", table)
    console.print(f"never scheduled: {epsilon['never']} of {count(found['number'], 'device')}", style="dim")
    if battery is not None:
        rows = [f"{row['device']} ({row['used']:.1%})" for row in battery["emptiest"]]
        console.print(f"batteries used most, by device: {', '.join(rows)}")


def _print_audit(console: Console, summary: dict[str, Any], plot: Path | None) -> None:
    attacked = f" · adversary: {ADVERSARIES[summary['against']]}" if summary["antennas"] > 1 else ""
    console.print(f"[bold]{escape(summary['scenario'])}[/bold] · privacy: {summary['privacy']}{attacked}\n")
    exporting, other = output.exporting(console), summary["antennas"] > 1 and summary["against"] != summary["adversary"]
    table = plain_table("check", "verdict", "finding", left=("check", "verdict", "finding"))
    for check in summary["checks"]:
        table.add_row(check["name"], "pass" if check["passed"] else "fail", escape(check["finding"]))
        mark = "[green]ok[/green]  " if check["passed"] else "[bold red]FAIL[/bold red]"
        finding = f"[bold]{check['name']}[/bold]: {escape(check['finding'])}"
        line = Table.grid(padding=(0, 1, 0, 0))  # a long finding continues below its name
        line.add_row(mark, finding)
        console.print(f"{mark} {finding}" if exporting else line)
    if exporting:
        console.print(table)
    if any("threshold" in check["finding"] for check in summary["checks"]):
        console.print("[dim]A check fails if its value is above the threshold; a p fails below it.[/dim]")
    if summary["mu_lower"] is not None:
        console.print("")
        columns = ("attack", "scores", "μ, at least", "μ claimed", "ε, at least", "ε claimed")
        table = plain_table(*columns, left=("attack",))
        for name, part, found in (("per round", "", "round"), ("in total", "total_", "total")):
            mu, epsilon = summary[f"mu_{part}claimed"], summary[f"epsilon_{part}claimed"]
            free = summary["evidence"][found]["lower_clopper_pearson"]
            gaussian = (summary[f"mu_{part}lower"], mu, summary[f"epsilon_{part}lower"], epsilon)
            any_scores = (free, mu, summary[f"epsilon_{part}lower_clopper_pearson"], epsilon)
            for scores, figures in (("Gaussian", gaussian), ("any", any_scores)):
                table.add_row(name, scores, *(f"{figure:.5g}" for figure in figures))
        console.print(table)
        assumed = "Gaussian: assumes Gaussian scores (epsilon_lower in JSON); any: no assumption (Clopper-Pearson)"
        console.print(f"[dim]at least: lower bounds, 99% confidence. {assumed}[/dim]")
        console.print(f"[dim]{'claimed ' if other else ''}{_basis(summary).replace(chr(10), ', ')}[/dim]")
    for warning in summary["warnings"]:
        console.print(f"[yellow]! {escape(warning)}[/yellow]")
    hint = "; --end-to-end attacks models and engines" if summary["mode"] == "signals" else ""
    console.print(f"[dim]not attacked: {', '.join(summary['not_attacked'])}{hint}[/dim]")
    if plot is not None:
        console.print(f"drawn: {plot}")
    failed = sum(not check["passed"] for check in summary["checks"])
    elsewhere = "; the claim is made against another adversary" if other else ""
    failure = f"fail: {count(failed, 'check')} failed{elsewhere}"
    verdict, colour = (failure, "red") if failed else ("pass: no attack breaks the claim", "green")
    console.print(f"\n[bold {colour}]{verdict}[/bold {colour}] ({summary['seconds']:.1f} s)")


def report(
    directories: Annotated[
        list[Path], Parameter(help="Run directories, or folders that contain some, such as a sweep's.", negative="")
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> int:
    from airfed.report import ReportError, read_run, write_report
    from airfed.training.directory import RunDirectory, runs_below

    found = [[given] if RunDirectory(given).exists else runs_below(given) or [given] for given in directories]
    runs, skipped = [], []
    for directory in dict.fromkeys(chain.from_iterable(found)):
        try:
            runs.append(read_run(directory))
        except ReportError as error:
            skipped.append(str(error))
    if not runs:
        raise ReportError(skipped[0] if skipped else "Give at least one run directory.")
    for sentence in skipped:
        output.say(f"airfed: skipped: {sentence}", file=sys.stderr)
    write_report(runs, out)
    summary = {"written": str(out), "runs": len(runs), "skipped": skipped}
    if json:
        output.print_json(summary)
    else:
        output.say(f"written: {out} ({count(len(runs), 'run')})")
    return 0
