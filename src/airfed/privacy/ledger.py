"""What was spent: an append-only file, written before each round is transmitted.

One JSON object a line. The first says what is being counted ("open"), then each round is charged before it is
transmitted ("charge") and settled with the power really used after it ("settle"). Every line carries the SHA-256 of the
line before it and its own content, so that any edit breaks the chain.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from airfed.privacy.gaussian import gaussian_epsilon
from airfed.problem import Budget

_START = "0" * 64
_RTOL = 1e-12  # rounding only: plans end on the safe side of their budgets


class LedgerError(ValueError):
    """The ledger does not hold together, or does not belong to this run."""


class BudgetExhausted(ValueError):
    """The next round would exceed a budget; the message says what is left and what to change."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One round as charged.

    Args:
        round_index: i.
        attempt: 0 for the first transmission of the round, 1 and up for later ones with fresh noise.
        devices: how many devices are charged: all scheduled ones, whether they answered or not.
        alignment: θ.
        mu: the round's Gaussian-DP parameter.
        power_planned: [W] worst case of this round over all devices.
        power_metered: [W] really transmitted; None while the round is not settled.
    """

    round_index: int
    attempt: int
    devices: int
    alignment: float
    mu: float
    power_planned: float
    power_metered: float | None = None


@dataclass(kw_only=True)
class Ledger:
    """An open ledger. `create` a new one, `load` an old one; `charge` before and `settle` after each round."""

    path: Path
    header: dict[str, Any]
    charges: list[Charge] = field(default_factory=list)
    head: str = _START
    _heads: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Start a ledger; `header` says what is counted (budget, relation, unit, devices, noise source)."""
        ledger = cls(path=path, header=header)
        with path.open("xb") as stream:
            ledger._append(stream, {"kind": "open", **header})
        return ledger

    @classmethod
    def load(cls, path: Path, *, repair: bool = False) -> Ledger:
        """Read and verify a ledger.

        Args:
            path: the file.
            repair: cut off a last line that a crash left half-written (it was never acted upon).

        Raises:
            LedgerError: a line was edited, removed, reordered or is not a ledger line; the message names it.
        """
        ledger = cls(path=path, header={})
        intact = 0
        for number, line, complete in _lines(path):
            if not complete:
                if not repair:
                    raise LedgerError(f"{path}: line {number} is half-written; airfed run --resume repairs it.")
                os.truncate(path, intact)
                break
            ledger._replay(number, line)
            intact += len(line)
        if not ledger.header:
            raise LedgerError(f"{path}: expected a ledger, got an empty file.")
        return ledger

    @property
    def rounds(self) -> int:
        """How many transmissions were charged."""
        return len(self.charges)

    @property
    def mu_total(self) -> float:
        """√Σμ²: the exact Gaussian-DP parameter of everything charged so far."""
        return _compose(charge.mu for charge in self.charges)

    @property
    def power_planned(self) -> float:
        """[W] charged so far, worst case."""
        return math.fsum(charge.power_planned for charge in self.charges)

    @property
    def power_metered(self) -> float:
        """[W] really transmitted in the rounds settled so far."""
        return math.fsum(charge.power_metered or 0.0 for charge in self.charges)

    def contains(self, head: str) -> bool:
        """Return whether a line with this hash is in the ledger."""
        return head in self._heads

    def find(self, round_index: int) -> Charge | None:
        """Return the latest charge of a round, or None."""
        return next((c for c in reversed(self.charges) if c.round_index == round_index), None)

    def check(self, budget: Budget, *, mu: float, power: float) -> None:
        """Raise unless one more round of the given μ and planned power [W] fits the budget.

        Raises:
            BudgetExhausted: it does not; says what is left and what to change.
        """
        spent = self.power_planned
        if spent + power > budget.total_power * (1 + _RTOL):
            raise BudgetExhausted(
                f"The power budget is spent after {self.rounds} rounds: {budget.total_power - spent:.4g} W are left "
                f"and the next round needs {power:.4g} W. "
                "Raise budget.total_power, or plan fewer rounds or a smaller alignment."
            )
        if budget.scope == "total":
            after = gaussian_epsilon(_compose([self.mu_total, mu]), budget.delta)
            if after > budget.epsilon * (1 + _RTOL):
                now = gaussian_epsilon(self.mu_total, budget.delta)
                raise BudgetExhausted(
                    f"The privacy budget is spent after {self.rounds} rounds: ε is {now:.4g} of {budget.epsilon:g} at "
                    f"δ = {budget.delta:g}, and the next round would make it {after:.4g}. "
                    "Raise budget.epsilon, or plan fewer rounds or a smaller alignment."
                )

    def charge(self, charge: Charge, *, delta: float) -> None:
        """Write down a round that is about to be transmitted; on return it is on the disk."""
        total = _compose([self.mu_total, charge.mu])
        entry = {
            "kind": "charge",
            "round": charge.round_index,
            "attempt": charge.attempt,
            "devices": charge.devices,
            "alignment": charge.alignment,
            "mu": charge.mu,
            "power_planned": charge.power_planned,
            "epsilon_round": gaussian_epsilon(charge.mu, delta),
            "mu_total": total,
            "epsilon_total": gaussian_epsilon(total, delta),
        }
        with self.path.open("ab") as stream:
            self._append(stream, entry)
        self.charges.append(charge)

    def settle(self, round_index: int, power_metered: float) -> None:
        """Write down what a charged round really transmitted [W]; a repeated round must repeat the figure.

        Raises:
            LedgerError: the round was never charged, or a replay transmitted something else than before.
        """
        charge = self.find(round_index)
        if charge is None:
            raise LedgerError(f"{self.path}: round {round_index} was never charged.")
        if charge.power_metered is not None:
            if charge.power_metered != power_metered:
                raise LedgerError(
                    f"{self.path}: round {round_index} was transmitted with {charge.power_metered!r} W before, and "
                    f"with {power_metered!r} W now: this is not the same run."
                )
            return
        with self.path.open("ab") as stream:
            self._append(stream, {"kind": "settle", "round": round_index, "power_metered": power_metered})
        self._settled(round_index, power_metered)

    def _settled(self, round_index: int, power_metered: float) -> None:
        for index in reversed(range(len(self.charges))):
            old = self.charges[index]
            if old.round_index == round_index:
                self.charges[index] = Charge(**{**old.__dict__, "power_metered": power_metered})
                return

    def _append(self, stream: IO[bytes], entry: dict[str, Any]) -> None:
        body = json.dumps(entry, sort_keys=True)
        head = _link(self.head, body)
        stream.write(json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
        self._advance(head)

    def _advance(self, head: str) -> None:
        self.head = head
        self._heads.add(head)

    def _replay(self, number: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
            claimed = entry.pop("hash")
            kind = entry["kind"]
        except (ValueError, KeyError, AttributeError, TypeError):
            raise LedgerError(f"{self.path}: line {number} is not a ledger line.") from None
        head = _link(self.head, json.dumps(entry, sort_keys=True))
        if head != claimed:
            raise LedgerError(f"{self.path}: line {number} was changed, or a line before it was.")
        self._advance(head)
        if kind == "open" and number == 1:
            self.header = {key: value for key, value in entry.items() if key != "kind"}
        elif kind == "charge":
            names = ("attempt", "devices", "alignment", "mu", "power_planned")
            self.charges.append(Charge(round_index=entry["round"], **{name: entry[name] for name in names}))
        elif kind == "settle":
            self._settled(entry["round"], entry["power_metered"])
        else:
            raise LedgerError(f"{self.path}: line {number} is of the unknown kind {kind!r}.")


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Number, bytes and completeness of each line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(f"Expected a ledger at {path}; there is none.") from None
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        yield number, line, line.endswith(b"\n")


def _link(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def _compose(mus: Any) -> float:
    """√Σμ², rounded up."""
    return math.nextafter(math.sqrt(math.fsum(mu * mu for mu in mus)) * (1 + 2.0**-52), math.inf)
