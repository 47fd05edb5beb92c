"""Where the rounds of a Flower training are charged and settled."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from airfed.planning import Plan
from airfed.privacy.ledger import Ledger
from airfed.running.execution import ledger_header
from airfed.running.loop import Round
from airfed.running.noise import SecureNoise


class Books(Protocol):
    """Where rounds are charged and settled: `LedgerBooks`, or a whole run directory (`Recorder`)."""

    def charge(self, index: int) -> None:
        """Write down a round that is about to be sent out.

        Raises:
            BudgetExhausted: it does not fit the budget any more.
        """

    def settle(self, done: Round) -> Any:
        """Write down what a round has really transmitted."""


class LedgerBooks:
    """The books of a project that has no airfed scenario: the ledger alone.

    Args:
        path: the ledger's file. An existing one is gone on with, so that what was spent before counts.
        plan: whose budget is spent.
        privacy: of the noise source: "secure" or "simulated".
    """

    def __init__(self, path: Path, plan: Plan, *, privacy: str = SecureNoise.privacy) -> None:
        self.plan = plan
        self.ledger = Ledger.resume(path, ledger_header(plan, scenario="", privacy=privacy))

    def charge(self, index: int) -> None:
        """Charge everyone who is scheduled; a round that is sent out again is charged again."""
        plan = self.plan
        power = float(np.sum(plan.power))
        self.ledger.check(plan.problem.budget, mu=plan.mu_round, power=power)
        self.ledger.charge(index, devices=plan.num_scheduled, alignment=plan.alignment, mu=plan.mu_round, power=power)

    def settle(self, done: Round) -> None:
        """Write down the power that was really transmitted."""
        self.ledger.settle(done.index, done.reception.power)
