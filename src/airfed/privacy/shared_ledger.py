"""A shared ledger: one file to which all trainings on the same data are charged.

The ledger of a run covers that run only. Two trainings on the same data compose: μ² adds up. With
`[budget] shared_ledger = "FILE"` every round of every run is also charged to that file before it is transmitted. A new
plan uses the rest of the budget (ε, δ), which then covers all trainings together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airfed.privacy.ledger import Ledger, LedgerError
from airfed.problem import Adversary, Budget


def open_shared_ledger(path: Path, budget: Budget, adversary: Adversary = "all_antennas") -> Ledger:
    """Return the shared ledger at a path; a new one is opened with the budget.

    Args:
        path: the file.
        budget: the budget of all trainings together.
        adversary: the adversary of a training with several antennas. A ledger opened with "combined" accepts both
            claims, since the other one is stronger. A ledger opened with "all_antennas" does not accept "combined".

    Raises:
        LedgerError: the file was changed, has another budget, or its adversary is stronger.
    """
    try:
        return Ledger.create(path, _header(budget, adversary))
    except FileExistsError:
        return _checked(path, budget, adversary)


def spent(path: Path, budget: Budget, adversary: Adversary = "all_antennas") -> float:
    """Return μ in total of a shared ledger; 0 if there is none. Raises like `open_shared_ledger`."""
    try:
        path.lstat()  # a dangling symbolic link counts as a file
    except FileNotFoundError:
        return 0.0
    except OSError as error:
        raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
    return _checked(path, budget, adversary).mu_total


def _header(budget: Budget, adversary: Adversary) -> dict[str, Any]:
    named = {"adjacency": budget.adjacency, "epsilon": budget.epsilon, "delta": budget.delta}
    claim = {"adversary": adversary} if adversary == "combined" else {}
    return {"shared_ledger": True, "unit": "device", **named, "scope": "total", "formula": "exact", **claim}


def _checked(path: Path, budget: Budget, adversary: Adversary) -> Ledger:
    ledger = Ledger.load(path, repair=True)
    if not ledger.header.get("shared_ledger"):
        raise LedgerError(f"{path} is not a shared ledger but the ledger of one training.")
    if adversary == "combined" and ledger.header.get("adversary") != adversary:
        raise LedgerError(
            f'link.adversary must be "all_antennas" with the shared ledger {path}, got "combined". Its ε holds against '
            "a server that keeps every antenna's signal. Use another shared ledger for this training."
        )
    for name, value in _header(budget, "all_antennas").items():
        if ledger.header.get(name) != value:
            raise LedgerError(
                f"budget.{name} must be {ledger.header.get(name)!r}, as in the shared ledger {path}; got {value!r}."
            )
    return ledger
