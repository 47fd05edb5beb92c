"""airfed run: train, meter and record."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from airfed.cli.plan import Json, PolicyOption, RoundsOption, ScenarioFile, SeedOption, flag, read
from airfed.text import output, tables
from airfed.text.live import LiveLine
from airfed.text.phrases import ADVERSARIES, count, epsilon_spread, hints, privacy_terms

if TYPE_CHECKING:
    from airfed.training.setup import Setup

LOST = 5  # exit code: another process of the run, or its host, was lost


def run(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The run directory: a new one, or with --resume that of an interrupted run.")],
    resume: Annotated[bool, flag("Resume an interrupted run.")] = False,
    policy: PolicyOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    json: Json = False,
) -> int:
    from airfed.training import distributed  # lazy: other commands do not need an engine
    from airfed.training.execution import execute

    scenario = read(file, policy=policy, rounds=rounds, seed=seed)
    leads = os.environ.get("RANK", "0") == "0"
    console = output.make_console(stderr=json, quiet=not leads)
    handler = RichHandler(console=console, show_path=False, show_time=False)
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler])
    line = LiveLine(console)

    def start(setup: Setup, first_round: int) -> None:
        tables.print_plan(console, scenario.name, setup.plan)
        console.print(f"\nengine: {setup.task.trained_by} · privacy: {setup.noise.privacy}")
        if first_round:
            done = first_round == setup.plan.rounds
            console.print("all rounds are finished" if done else f"resuming at round {first_round + 1}")
        line.begin(setup.plan, first_round)

    started = time.monotonic()
    try:
        with distributed.join(scenario.run.process_timeout) as group, signals() as caught, line:
            callbacks: Any = {"on_start": start, "on_round": line.update, "stop": lambda: bool(caught)}
            outcome = execute(scenario, out, resume=resume, group=group, **callbacks)
    except distributed.LostProcess as error:
        print(f"airfed: {error}", file=sys.stderr)
        distributed.leave(LOST)
    if not leads:
        return 0
    summary = _summary(outcome, out)
    if json:
        output.print_json(summary)
    else:
        _print_summary(console, summary, time.monotonic() - started)
    if outcome.status == "stopped" and caught:
        return 128 + caught[0]
    if outcome.status == "lost":
        distributed.leave(LOST)
    return 0 if outcome.status in ("finished", "exhausted") else 2


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of ending; the second one ends the process."""
    caught: list[int] = []

    def note(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _summary(outcome: Any, out: Path) -> dict[str, Any]:
    from airfed.privacy.gaussian import epsilon_range

    plan, records, ledger = outcome.setup.plan, outcome.records, outcome.ledger
    last, budget = records[-1] if records else {}, plan.problem.budget
    several = plan.problem.fleet.antennas > 1 and plan.method.analog
    differ = not plan.equal_mu and ledger.num_devices is not None
    return {
        "status": outcome.status,
        "message": outcome.message,
        "out": str(out),
        "engine": outcome.setup.task.engine.name,
        "privacy": outcome.setup.noise.privacy,
        "rounds": len(records),
        "rounds_planned": plan.rounds,
        "charged": ledger.rounds,
        "num_scheduled": plan.num_scheduled,
        "loss": last.get("loss"),
        "accuracy": last.get("accuracy"),
        "power_planned": ledger.power_planned if ledger.rounds else None,
        "power_transmitted": last.get("power_transmitted_total"),
        "power_budget": budget.total_power,
        "private": plan.private,
        "epsilon_round": plan.epsilon_round,
        "epsilon_total": ledger.epsilon_total if ledger.rounds else None,
        **({"epsilon_devices": epsilon_range(ledger.device_mus(), budget.delta)} if differ else {}),
        "delta": budget.delta,
        "adjacency": budget.adjacency,
        "unit": "device",
        **({"antennas": plan.problem.fleet.antennas, "adversary": plan.problem.link.adversary} if several else {}),
        "hints": hints(plan, records, classes=outcome.setup.task.classes),
    }


def _print_summary(console: Console, summary: dict[str, Any], seconds: float) -> None:
    rounds, charged = summary["rounds"], summary["charged"]
    planned = count(summary["rounds_planned"], "round")
    console.print(f"\n[bold]{summary['status']}[/bold] after {rounds} of {planned}, {seconds:.1f} s")
    if summary["message"]:
        console.print(summary["message"], markup=False)
    if charged != rounds:
        console.print(f"{count(charged, 'round')} charged; planned power and ε include all of them")
    if charged:
        accuracy, loss = summary["accuracy"], summary["loss"]
        if accuracy is not None:
            console.print(f"accuracy {accuracy:.2%} (test)" + ("" if loss is None else f", loss {loss:.4f} (training)"))
        elif loss is not None:
            console.print(f"loss {loss:.6g}")
        metered = summary["power_transmitted"]
        sent = "" if metered is None else f"{metered:.4g} W transmitted, "  # not in a private record
        worst = f"{summary['power_planned']:.4g} W planned (worst case)"
        console.print(f"power: {sent}{worst},\nsummed over devices and rounds")
        if summary["private"]:
            against = f"; against {ADVERSARIES[summary['adversary']]}" if "adversary" in summary else ""
            terms = f"{privacy_terms(summary['delta'], summary['adjacency'])}; {summary['privacy']}{against}"
            spent = f"{summary['epsilon_round']:.4g} per round, {summary['epsilon_total']:.4g} in total"
            console.print(f"privacy: ε = {spent} ({terms})")
            if "epsilon_devices" in summary:
                console.print(epsilon_spread(summary["epsilon_devices"]))
        else:
            console.print("[bold red]privacy: none; the ε of this method is infinite[/bold red]")
    for hint in summary["hints"]:
        console.print(f"hint: {hint}", markup=False)
    console.print(f"record: {escape(summary['out'])}")
