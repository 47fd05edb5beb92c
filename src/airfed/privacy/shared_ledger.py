"""A shared ledger: one file that all trainings on the same data charge, whatever their directory, seed or policy.

A run's own ledger counts that run. Whoever trains twice on the same data has spent both: μ² adds up. With
`[budget] account = "FILE"` every round of every run is charged to that file as well, before it is transmitted, and a
new plan gets what is left of the budget (ε, δ), which then covers all of them together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airfed.privacy.ledger import Ledger, LedgerError
from airfed.problem import Budget, Trust


def open_account(path: Path, budget: Budget, trust: Trust = "radio") -> Ledger:
    """Return the shared ledger at a path; where there is none, it is opened with the budget.

    Args:
        path: the file.
        budget: what all trainings together may spend.
        trust: the adversary of a training with several antennas. A ledger that was opened with trust in the combiner
            says so, and takes any other claim too: they are larger. No other takes such a claim.

    Raises:
        LedgerError: it was tampered with, or counts towards another budget, or against an adversary that sees more.
    """
    try:
        return Ledger.create(path, _header(budget, trust))
    except FileExistsError:
        return _checked(path, budget, trust)


def spent(path: Path, budget: Budget, trust: Trust = "radio") -> float:
    """Return μ of all that was charged to the shared ledger so far; 0 where there is none. Raises as `open_account`."""
    try:
        path.lstat()  # a link counts, wherever it leads
    except FileNotFoundError:
        return 0.0
    except OSError as error:
        raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
    return _checked(path, budget, trust).mu_total


def _header(budget: Budget, trust: Trust) -> dict[str, Any]:
    named = {"relation": budget.relation, "epsilon": budget.epsilon, "delta": budget.delta}
    claim = {"trust": trust} if trust == "combiner" else {}
    return {"account": True, "unit": "device", **named, "scope": "total", "formula": "exact", **claim}


def _checked(path: Path, budget: Budget, trust: Trust) -> Ledger:
    ledger = Ledger.load(path, repair=True)
    if not ledger.header.get("account"):
        raise LedgerError(f"Expected an account at {path}; this is the ledger of one training.")
    if trust == "combiner" and ledger.header.get("trust") != trust:
        raise LedgerError(
            f'Expected link.trust = "radio" with the account {path}: its ε holds against a server that keeps every '
            "antenna's signal, and this training's would not. Give it an account of its own."
        )
    for name, value in _header(budget, "radio").items():
        if ledger.header.get(name) != value:
            raise LedgerError(
                f"Expected budget.{name} = {ledger.header.get(name)!r}, with which the account {path} was opened; "
                f"got {value!r}."
            )
    return ledger
