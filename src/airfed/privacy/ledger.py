"""What was spent: an append-only file, written before each round is transmitted.

One JSON object a line. The first says what is being counted ("open"), then each round is charged before it is
transmitted ("charge") and settled with the power really used after it ("settle"). Every line carries the SHA-256 of the
line before it and its own content, so that any edit breaks the chain; the checkpoints of a run remember its last line,
so that cutting lines off the end is noticed too. Totals are composed exactly: the squares of all μ are added as
fractions, and only the root is rounded, upwards.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Final

from airfed.privacy.gaussian import classic_epsilon, gaussian_epsilon
from airfed.problem import Budget

_START: Final = "0" * 64
_RTOL: Final = 1e-12  # rounding only: plans end on the safe side of their budgets


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
        epsilon_round: exact ε of this round at the budget's δ.
        mu_total, epsilon_total: of everything charged so far, this round included.
        power_metered: [W] really transmitted; None while the round is not settled, or where the record is private.
    """

    round_index: int
    attempt: int
    devices: int
    alignment: float
    mu: float
    power_planned: float
    epsilon_round: float
    mu_total: float
    epsilon_total: float
    power_metered: float | None = None


@dataclass(kw_only=True)
class Ledger:
    """An open ledger. `create` a new one, `load` an old one; `charge` before and `settle` after each round."""

    path: Path
    header: dict[str, Any]
    charges: list[Charge] = field(default_factory=list)
    head: str = _START
    _heads: set[str] = field(default_factory=set, repr=False)
    _squares: Fraction = field(default=Fraction(0), repr=False)  # Σμ²
    _latest: dict[int, int] = field(default_factory=dict, repr=False)  # round -> position of its latest charge

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Start a ledger; `header` says what is counted (budget with `delta`, relation, unit, devices, noise source).

        Raises:
            FileExistsError: there is one already.
        """
        ledger = cls(path=path, header=header)
        with path.open("xb") as stream:
            ledger._append(stream, {"kind": "open", **header})
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file's name must survive a crash, too
        finally:
            os.close(folder)
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

    @classmethod
    def resume(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Go on with the ledger of an interrupted run; where the crash came before its first line, start it.

        Raises:
            LedgerError: it was tampered with, or counts something else than `header` says.
        """
        if not path.exists() or b"\n" not in path.read_bytes():
            path.unlink(missing_ok=True)
            return cls.create(path, header)
        ledger = cls.load(path, repair=True)
        expected = json.loads(json.dumps(header))
        if {**ledger.header, "scenario": None} != {**expected, "scenario": None}:  # a name may change
            raise LedgerError(f"{path}: its first line is not that of this run.")
        return ledger

    @property
    def rounds(self) -> int:
        """How many transmissions were charged."""
        return len(self.charges)

    @property
    def mu_total(self) -> float:
        """√Σμ², rounded up: the Gaussian-DP parameter of everything charged so far."""
        return _root_up(self._squares)

    @property
    def epsilon_total(self) -> float:
        """Exact ε of everything charged so far, at the budget's δ."""
        return self.charges[-1].epsilon_total if self.charges else 0.0

    @property
    def power_planned(self) -> float:
        """[W] charged so far, worst case."""
        return math.fsum(charge.power_planned for charge in self.charges)

    @property
    def power_metered(self) -> float | None:
        """[W] really transmitted in the rounds settled so far; None where none of them is metered."""
        metered = [charge.power_metered for charge in self.charges if charge.power_metered is not None]
        return math.fsum(metered) if metered else None

    def contains(self, head: str) -> bool:
        """Return whether a line with this hash is in the ledger."""
        return head in self._heads

    def find(self, round_index: int) -> Charge | None:
        """Return the latest charge of a round, or None."""
        position = self._latest.get(round_index)
        return None if position is None else self.charges[position]

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
        most = budget.epsilon * (1 + _RTOL)
        if budget.scope == "total":
            after = gaussian_epsilon(_root_up(self._squares + Fraction(mu) ** 2), budget.delta)
            if after > most:
                raise BudgetExhausted(
                    f"The privacy budget is spent after {self.rounds} rounds: ε is {self.epsilon_total:.4g} of "
                    f"{budget.epsilon:g} at δ = {budget.delta:g}, and the next round would make it {after:.4g}. "
                    "Raise budget.epsilon, or plan fewer rounds or a smaller alignment."
                )
            return
        each = (classic_epsilon if budget.formula == "classic" else gaussian_epsilon)(mu, budget.delta)
        if each > most:
            raise BudgetExhausted(
                f"The next round would cost ε = {each:.4g} at δ = {budget.delta:g}, and a round may cost "
                f"{budget.epsilon:g}. Raise budget.epsilon, or plan a smaller alignment."
            )

    def charge(self, round_index: int, *, devices: int, alignment: float, mu: float, power: float) -> Charge:
        """Write down a round that is about to be transmitted; on return it is on the disk."""
        earlier = self.find(round_index)
        attempt = 0 if earlier is None else earlier.attempt + 1
        charge = self._charged(round_index, attempt, devices, alignment, mu, power)
        names = ("attempt", "devices", "alignment", "mu", "power_planned", "epsilon_round", "mu_total", "epsilon_total")
        entry = {"kind": "charge", "round": round_index, **{name: getattr(charge, name) for name in names}}
        with self.path.open("ab") as stream:
            self._append(stream, entry)
        self._enter(charge)
        return charge

    def settle(self, round_index: int, power_metered: float | None) -> None:
        """Write down what a charged round really transmitted [W]; a repeated round must repeat the figure.

        Args:
            round_index: i.
            power_metered: None keeps the figure, which depends on the data, out of the ledger.

        Raises:
            LedgerError: the round was never charged, or a replay transmitted something else than before.
        """
        charge = self.find(round_index)
        if charge is None:
            raise LedgerError(f"{self.path}: round {round_index} was never charged.")
        if power_metered is None:
            return
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

    def _charged(
        self, round_index: int, attempt: int, devices: int, alignment: float, mu: float, power: float
    ) -> Charge:
        """The charge with everything that follows from it and the charges before."""
        delta = self.header["delta"]
        total = _root_up(self._squares + Fraction(mu) ** 2)
        last = self.charges[-1] if self.charges else None
        same = last is not None and last.mu == mu
        return Charge(
            round_index=round_index,
            attempt=attempt,
            devices=devices,
            alignment=alignment,
            mu=mu,
            power_planned=power,
            epsilon_round=last.epsilon_round if last is not None and same else gaussian_epsilon(mu, delta),
            mu_total=total,
            epsilon_total=gaussian_epsilon(total, delta),
        )

    def _enter(self, charge: Charge) -> None:
        self._latest[charge.round_index] = len(self.charges)
        self.charges.append(charge)
        self._squares += Fraction(charge.mu) ** 2

    def _settled(self, round_index: int, power_metered: float) -> None:
        if round_index not in self._latest:
            raise LedgerError(f"{self.path}: round {round_index} is settled but was never charged.")
        position = self._latest[round_index]
        self.charges[position] = replace(self.charges[position], power_metered=power_metered)

    def _append(self, stream: IO[bytes], entry: dict[str, Any]) -> None:
        head = _link(self.head, json.dumps(entry, sort_keys=True))
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
        if head != claimed or line != json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n":
            raise LedgerError(f"{self.path}: line {number} was changed, or a line before it was.")
        self._advance(head)
        if (kind == "open") != (number == 1):
            raise LedgerError(f"{self.path}: line {number} is of the kind {kind!r}, which does not belong there.")
        if kind == "open":
            self.header = {key: value for key, value in entry.items() if key != "kind"}
        elif kind == "charge":
            self._replay_charge(number, entry)
        elif kind == "settle":
            self._settled(entry["round"], entry["power_metered"])
        else:
            raise LedgerError(f"{self.path}: line {number} is of the unknown kind {kind!r}.")

    def _replay_charge(self, number: int, entry: dict[str, Any]) -> None:
        names = ("round", "attempt", "devices", "alignment", "mu", "power_planned")
        charge = self._charged(*(entry[name] for name in names))
        for name in ("epsilon_round", "mu_total", "epsilon_total"):
            if not math.isclose(entry[name], getattr(charge, name), rel_tol=_RTOL):
                raise LedgerError(f"{self.path}: the {name} of line {number} does not follow from the rounds so far.")
        self._enter(charge)


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


def _root_up(square: Fraction) -> float:
    """The smallest double that is at least √square."""
    root = math.sqrt(float(square))
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    while root > 0 and Fraction(below := math.nextafter(root, 0.0)) ** 2 >= square:
        root = below
    return root
