"""A recorded run: the only reader of a run directory.

Every file is checked on its own (`airfed.training.formats`), and against the ledger. Errors are collected, not raised,
so that a damaged run can be displayed.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from airfed import policies
from airfed._disk import is_locked
from airfed._extras import explained
from airfed.planning import Plan
from airfed.privacy.ledger import Ledger, LedgerError
from airfed.problem import Adversary
from airfed.scenario import Scenario, load
from airfed.training.charging import check_header, check_rounds, verified_ledger
from airfed.training.directory import OtherVersion, RunDirectory, RunError
from airfed.training.formats import METRICS, Manifest, PlanFigures

_RTOL: Final = 1e-9  # for sums in another order
_Read = TypeVar("_Read")


class RoundTable(list[dict[str, Any]]):
    """The rounds of a run: a list of records; a metric's name gives its column."""

    def __getitem__(self, key: Any) -> Any:
        """Return a record by its index, or the values of a metric in all rounds (NaN if not recorded)."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in METRICS:
            raise KeyError(f"The metric must be one of {', '.join(METRICS)}; got {key!r}.")
        column = [record.get(key) for record in self]
        return np.array([np.nan if value is None else value for value in column], dtype=np.float64)

    def __repr__(self) -> str:
        return f"<{len(self)} rounds: {', '.join(METRICS)}>"

    def to_pandas(self) -> Any:
        """Return the rounds as a pandas DataFrame, one column per metric."""
        import pandas

        return pandas.DataFrame({name: self[name] for name in METRICS})


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run directory, read once and checked by `Run.open`.

    `errors` contains all errors; accessing a part that could not be read raises the first of them.

    >>> import airfed, tempfile, tomllib
    >>> from airfed.scenario import parse, template
    >>> scenario = parse(tomllib.loads(template.SCENARIO)).override({
    ...     "learning.model": "quadratic", "learning.dimension": 20, "fleet.num_devices": 5, "policy.rounds": 4})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = airfed.run(scenario, f"{folder}/run", progress=False)
    ...     run = airfed.Run.open(f"{folder}/run").checked()
    >>> run.finished, run.rounds["loss"].shape, run.ledger.rounds
    (True, (4,), 4)
    """

    path: Path
    rounds: RoundTable = field(default_factory=RoundTable)
    devices: Sequence[Mapping[str, float]] = ()  # power of each scheduled device [W]; empty if not metered
    checkpoint: int | None = None  # the round from which the newest one resumes
    finished: bool  # its model was written
    errors: tuple[ValueError, ...]
    _manifest: Manifest | None = None
    _scenario: Scenario | None = None
    _figures: PlanFigures | None = None
    _plan: Plan | None = None
    _ledger: Ledger | None = None

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Return the run in a directory, finished or not; raises `RunError` if there is none."""
        directory = RunDirectory(Path(path))
        if not directory.exists:
            raise RunError(f"There is no run in {path}: run.json is missing.")
        errors: list[ValueError] = []

        def tried(read: Callable[[], _Read]) -> _Read | None:
            try:
                return read()
            except (ValueError, OSError) as error:  # RunError, LedgerError, ScenarioError, ...
                errors.append(error if isinstance(error, ValueError) else RunError(f"Cannot read {path}: {error}."))
                return None

        finished = directory.file("model.safetensors").is_file()
        manifest = tried(directory.manifest)
        if any(isinstance(error, OtherVersion) for error in errors):
            return cls(path=directory.path, finished=finished, errors=tuple(errors))
        # Before the ledger, which is always ahead of them during a run.
        recorded = tried(directory.read_metrics)
        rounds = RoundTable(recorded or ())
        newest = directory.latest()
        ledger = tried(lambda: verified_ledger(directory))
        figures = tried(directory.plan)
        scenario = tried(lambda: load(directory.file("scenario.toml")))
        plan = None
        if scenario is not None and figures is not None:
            plan = tried(lambda: _plan(scenario, figures, ledger))
        devices = tried(directory.devices) or []
        if ledger is not None:
            tried(lambda: check_rounds(rounds, ledger))
            missing = []
            if ledger.torn and not is_locked(directory.file(".lock")):
                missing.append(f"{ledger.path}: the last line is half-written; airfed run --resume repairs it.")
            if newest is not None and not ledger.contains(newest.ledger_head):
                missing.append(f"{ledger.path}: lines up to checkpoint {newest.round_index} are missing.")
            if newest is None and finished:
                missing.append(f"{path}: the checkpoints of a finished run are missing.")
            if newest is not None and recorded is not None and len(rounds) < newest.round_index:
                missing.append(f"{path}: rounds up to the newest checkpoint are missing from the metrics.")
            errors += map(LedgerError, missing)
            if plan is not None and scenario is not None:
                tried(lambda: _check_charges(scenario, plan, ledger))
                tried(lambda: _check_devices(devices, plan, rounds, directory))
        return cls(
            path=directory.path,
            _manifest=manifest,
            _scenario=scenario,
            _figures=figures,
            _plan=plan,
            rounds=rounds,
            _ledger=ledger,
            devices=devices,
            checkpoint=None if newest is None else newest.round_index,
            finished=finished,
            errors=tuple(errors),
        )

    def checked(self) -> Run:
        """Return the run, or raise its first error; errors of the ledger come first."""
        for error in sorted(self.errors, key=lambda error: not isinstance(error, LedgerError)):
            raise error
        return self

    @property
    def problem(self) -> str:
        """The message of its first error; "" if there is none."""
        return str(self.errors[0]) if self.errors else ""

    @property
    def manifest(self) -> Manifest:
        """`run.json`: versions and digests."""
        return self._there(self._manifest)

    @property
    def scenario(self) -> Scenario:
        """The scenario as resolved."""
        return self._there(self._scenario)

    @property
    def figures(self) -> PlanFigures:
        """`plan.json`: the plan as plain values."""
        return self._there(self._figures)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._there(self._plan)

    @property
    def ledger(self) -> Ledger:
        """The ledger, the source of every displayed ε and planned power."""
        return self._there(self._ledger)

    def _there(self, part: _Read | None) -> _Read:
        if part is None:
            raise self.errors[0]
        return part

    @property
    def name(self) -> str:
        """The name of its scenario."""
        return "" if self._manifest is None else self._manifest["name"]

    @property
    def running(self) -> bool:
        """Whether a process is running it now."""
        return is_locked(self.path / ".lock")

    @property
    def rounds_planned(self) -> int:
        """I; 0 if the plan cannot be read."""
        return 0 if self._figures is None else self._figures["rounds"]

    def plot(self) -> Any:
        """Return a matplotlib figure of accuracy, loss, ε and power over the training."""
        with explained():
            from airfed.plotting import figure  # lazy import of a higher layer (listed in pyproject.toml)

        return figure.runs_figure([self])

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML report of this run, and return its path."""
        with explained():
            from airfed.report import write_report

        write_report([self.checked()], Path(path))
        return Path(path)

    def audit(
        self, *, trials: int | None = None, seed: int = 0, against: Adversary | None = None, end_to_end: bool = False
    ) -> Any:
        """Attack the run's privacy claim with `airfed.audit.audit`; the result's `verdict` is "pass" or "fail"."""
        from airfed import audit

        return audit.audit(audit.Subject.of_run(self), trials=trials, seed=seed, against=against, end_to_end=end_to_end)

    def __str__(self) -> str:
        if self.errors:
            return f"{self.path}: {self.problem}"
        reached = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        state = "finished" if self.finished else "running" if self.running else "interrupted"
        return (
            f"{self.name} ({self.label}): {state} after {len(self.rounds)} of {self.rounds_planned} rounds{reached}; "
            f"ε = {self.ledger.epsilon_total:.4g} in total at δ = {self.ledger.header['delta']:g}, "
            f"{self.ledger.power_planned:.4g} W planned"
        )

    def _repr_html_(self) -> str:
        from airfed.text import tables

        return tables.as_html(lambda console: console.print(str(self), markup=False))

    @property
    def accuracy(self) -> float | None:
        """The latest test accuracy."""
        return self.last("accuracy")

    def last(self, metric: str) -> float | None:
        """Return the latest recorded value of a metric."""
        values = self.rounds[metric]
        values = values[~np.isnan(values)]
        return float(values[-1]) if values.size else None

    def series(self, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the rounds (for ε and planned power: the charges), from 1, and the values of a metric after them."""
        charges = self.ledger.charges
        if metric == "epsilon_total":
            values = np.array([charge.epsilon_total for charge in charges], dtype=np.float64)
        elif metric == "power_planned_total":
            values = np.cumsum([charge.power_planned for charge in charges], dtype=np.float64)
        else:
            values = self.rounds[metric]
        recorded = ~np.isnan(values)
        return 1.0 + np.flatnonzero(recorded).astype(np.float64), values[recorded]

    @cached_property
    def label(self) -> str:
        """The policy and its settings, which distinguish this run from others of its scenario."""
        policy = self.scenario.policy
        text: str = self.scenario.resolved_policy.name
        if policy.size is not None:
            text += f" ({policy.size})"
        if policy.rounds is not None:
            text += f", I = {policy.rounds}"
        return text

    @cached_property
    def seed_group(self) -> str:
        """A key that is equal for runs that differ only in their seed."""
        return json.dumps(self.scenario.model_dump(mode="json", exclude={"name", "seed", "run"}), sort_keys=True)

    @property
    def sort_key(self) -> tuple[int, str, int]:
        """The sort key among runs: by policy (the optimum first), then by settings, then by seed."""
        known = list(policies.EVERY)
        name = self.scenario.policy.name
        return known.index(name) if name in known else len(known), self.label, self.scenario.seed

    @property
    def steps(self) -> list[int]:
        """Cumulative number of local steps after each round."""
        return list(itertools.accumulate(record["steps"] for record in self.rounds))

    @property
    def final(self) -> dict[str, Any]:
        """The record of the last round."""
        return dict(self.rounds[-1])


def _plan(scenario: Scenario, figures: PlanFigures, ledger: Ledger | None) -> Plan:
    """Return the recorded plan, for the problem of the scenario."""
    spent = 0.0 if ledger is None else ledger.header.get("spent", 0.0)
    problem = scenario.problem(dimension=figures["dimension"], spent=spent)
    try:
        return Plan.from_dict(problem, figures, policies.METHODS)
    except (ValueError, AttributeError, IndexError) as error:
        raise RunError(f"plan.json does not follow from scenario.toml: {error}") from None


def _check_charges(scenario: Scenario, plan: Plan, ledger: Ledger) -> None:
    """Raise LedgerError if the ledger's charges differ from the plan."""
    check_header(ledger, plan, "secure" if scenario.link.noise_source == "secure" else "simulated")
    mus = plan.sequence.mus
    for charge in ledger.charges:
        # The run may come from another processor, whose last bits may differ.
        if not charge.round_index < mus.size or not math.isclose(charge.mu, mus[charge.round_index], rel_tol=1e-12):
            raise LedgerError(f"{ledger.path}: the ledger charges another μ than the plan's {plan.mu_round:.5g}.")
        if charge.mask is None:  # all devices
            continue
        if not charge.mask.charges(plan.sequence.mask(charge.round_index)):
            raise LedgerError(
                f"{ledger.path}: round {charge.round_index + 1} is charged to other devices than the plan schedules, "
                "or with other shares of μ."
            )


def _check_devices(
    devices: Sequence[Mapping[str, float]], plan: Plan, rounds: RoundTable, directory: RunDirectory
) -> None:
    """Raise RunError if `devices.csv` disagrees with the plan or the metrics."""
    if not devices or not rounds:
        return
    right = [row["device"] for row in devices] == plan.scheduled.tolist()
    planned = np.array([row["power_planned"] for row in devices])
    right = right and np.allclose(planned, plan.sequence.device_power(len(rounds)), rtol=_RTOL, atol=0.0)
    sent, metered = math.fsum(row["power_transmitted"] for row in devices), rounds[-1]["power_transmitted_total"]
    if not right or (metered is not None and not math.isclose(sent, metered, rel_tol=1e-6)):
        raise RunError(f"{directory.file('devices.csv')} disagrees with the plan or the metrics.")
