"""What a run directory says, read once and checked."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airfed import planning, scenario
from airfed.planning import Plan
from airfed.privacy.ledger import Ledger
from airfed.running.directory import RunDirectory, RunError
from airfed.scenario import Scenario

_COLUMNS: Final = (
    "round",
    "steps",
    "loss",
    "accuracy",
    "epsilon_total",
    "power_planned_total",
    "power_transmitted_total",
)


class ReportError(ValueError):
    """A run directory cannot be reported on; the message is the user's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """One run, as recorded.

    Args:
        path: its directory.
        scenario, plan: what was asked for and what was decided.
        manifest: versions and digests.
        rounds: the metrics, one dictionary a round.
        ledger: what was charged.
        devices: planned and transmitted power of each scheduled device over the run [W]; empty where the run did not
            meter single devices.
    """

    path: Path
    scenario: Scenario
    plan: Plan
    manifest: dict[str, Any]
    rounds: list[dict[str, Any]]
    ledger: Ledger
    devices: list[dict[str, float]]

    @property
    def label(self) -> str:
        """What tells this run from others of its scenario: the policy and its settings."""
        policy = self.scenario.policy
        text: str = policy.name
        if policy.size is not None:
            text += f" ({policy.size})"
        if policy.rounds is not None:
            text += f", I = {policy.rounds}"
        return text

    @property
    def group(self) -> str:
        """The same for runs that differ in nothing but their seed."""
        content = self.scenario.model_dump(mode="json", exclude={"name", "seed", "run"})
        return json.dumps(content, sort_keys=True)

    @property
    def place(self) -> tuple[int, str, int]:
        """Where the run stands among others: by policy (the optimum first), then by settings, then by seed."""
        return list(planning.POLICIES).index(self.scenario.policy.name), self.label, self.scenario.seed

    @property
    def steps(self) -> list[int]:
        """Local steps done after each round."""
        total, done = 0, []
        for record in self.rounds:
            total += record["steps"]
            done.append(total)
        return done

    @property
    def final(self) -> dict[str, Any]:
        """The last round."""
        return self.rounds[-1]


def read_run(path: Path) -> RunRecord:
    """Return the record of a run directory.

    Raises:
        ReportError: it is no run, was written half, by another version, or lacks a column; the message says which.
    """
    directory = RunDirectory(path)
    try:
        manifest = directory.manifest()
        rounds = directory.read_metrics()
        world = scenario.load(directory.file("scenario.toml"))
        recorded = json.loads(directory.file("plan.json").read_bytes())
        ledger = Ledger.load(directory.file("ledger.jsonl"))
        plan = planning.from_policy(world.problem(dimension=recorded["dimension"]), world.policy, seed=world.seed)
    except (RunError, OSError, ValueError) as error:
        raise ReportError(f"{path} is not a complete run: {error}") from None
    except KeyError as error:
        raise ReportError(f"{path}: plan.json has no {error}; another airfed version wrote it.") from None
    if not rounds:
        raise ReportError(f"{path} is not a complete run: no round has been recorded yet.")
    missing = [name for name in _COLUMNS if name not in rounds[0]]
    if missing:
        raise ReportError(f"{path} is not a complete run: its metrics have no {missing[0]!r}.")
    if not math.isclose(plan.alignment, recorded["alignment"], rel_tol=1e-9) or plan.rounds != recorded["rounds"]:
        raise ReportError(f"{path}: plan.json does not follow from scenario.toml; another airfed version wrote it.")
    return RunRecord(
        path=path,
        scenario=world,
        plan=plan,
        manifest=manifest,
        rounds=rounds,
        ledger=ledger,
        devices=_devices(directory.file("devices.csv")),
    )


def _devices(path: Path) -> list[dict[str, float]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream)]
