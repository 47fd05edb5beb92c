"""Batteries: what each device has spent of its own budget of power, over all that the ledger has charged."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airfed.planning import Plan
from airfed.planning.amplitudes import PlannedRound
from airfed.privacy.ledger import BudgetExhausted, Charge, Ledger, LedgerError, Members

Floats = NDArray[np.float64]
_RTOL: Final = 1e-12  # rounding only, and again as much for every thousand rounds: plans end on the safe side
_SUM_RTOL: Final = 1e-9  # of sums over devices, perhaps on another processor


class Batteries:
    """What the devices of a plan have spent, following a ledger as it grows.

    A round counts as often as it was charged, each time with what the plan has a device transmit in it, at most.

    Args:
        plan: whose rounds are charged.
        ledger: all of its charges are of that plan.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan, self._ledger = plan, ledger
        self._spent = np.zeros(plan.problem.fleet.num_devices)
        self._counted = 0  # charges

    @property
    def capacity(self) -> Floats | None:
        """[W] that each device may spend over the training, (N,); None where there are no batteries."""
        given = self._plan.problem.budget.device_power
        return None if given is None else np.broadcast_to(np.asarray(given, dtype=np.float64), self._spent.shape)

    @property
    def spent(self) -> Floats:
        """[W] that each device has spent, (N,).

        Raises:
            LedgerError: a charge is of another plan, which had other powers.
        """
        plan = self._plan
        for charge in self._ledger.charges[self._counted :]:
            decided = self._decided(charge)
            if charge.members is None:  # any round: all are alike, or it was half a line
                self._spent[plan.scheduled] += plan.power
            else:
                self._spent[decided.scheduled] += decided.power
            self._counted += 1
        found = self._spent.view()
        found.flags.writeable = False
        return found

    @property
    def used(self) -> Floats | None:
        """The share of its battery that each device has spent, (N,); None where there are no batteries."""
        return None if (capacity := self.capacity) is None else self.spent / capacity

    def check(self, index: int) -> None:
        """Raise unless everybody who is scheduled can transmit in a round.

        Raises:
            BudgetExhausted: a battery would not last; says whose, what is left and what to change.
        """
        if (capacity := self.capacity) is None:
            return
        decided = self._plan.sequence[index]
        at, spent = decided.scheduled, self.spent
        allowed = capacity[at] * (1 + _RTOL * (1 + self._counted / 1000))
        short = np.flatnonzero(spent[at] + decided.power > allowed)
        if not short.size:
            return
        first = int(short[0])
        device = int(at[first])
        others = f" (and {short.size - 1} more)" if short.size > 1 else ""
        raise BudgetExhausted(
            f"The battery of device {device}{others} does not last for round {index + 1}: "
            f"{max(capacity[device] - spent[device], 0.0):.4g} W of {capacity[device]:.4g} W are left and the round "
            f"needs {decided.power[first]:.4g} W. "
            "Raise budget.device_power, or plan fewer rounds or a smaller alignment."
        )

    def _decided(self, charge: Charge) -> PlannedRound:
        """What the plan says of a charged round; a bare ledger may hold those of other trainings."""
        if charge.round_index < self._plan.rounds:
            decided = self._plan.sequence[charge.round_index]
            alike = math.isclose(charge.alignment, decided.alignment, rel_tol=_RTOL)
            if alike and charge.devices == decided.scheduled.size and self._same(charge, decided):
                return decided
        raise LedgerError(
            f"{self._ledger.path}: its round {charge.round_index + 1} is of another plan, so that what is left in the "
            "batteries is not known. Give another ledger."
        )

    def _same(self, charge: Charge, decided: PlannedRound) -> bool:
        """Whether those are charged, with the power, whom the plan has transmit."""
        same = math.isclose(charge.power_planned, float(np.sum(decided.power)), rel_tol=_SUM_RTOL)
        if charge.members is None:  # everybody; or half a line, whose power is that of the largest round
            return same or not self._plan.constant
        return same and charge.members == Members.of(decided.scheduled, self._spent.size)
