"""What was spent: an append-only file, written before each round is transmitted.

One JSON object a line. The first says what is being counted ("open"), then each round is charged before it is
transmitted ("charge"), marked once noise is about to be drawn for it ("sent"), and settled with the power really used
after it ("settle"). A charge that was never marked was never used, and covers the next try. Every line carries the
SHA-256 of the line before it and its own content, so that any edit breaks the chain; the checkpoints of a run remember
its last line, so that cutting lines off the end is noticed too. Totals are composed exactly: the squares of all μ are
added as fractions, and only the root is rounded, upwards.

Before every line is written the file is locked and read on to its end: what another process has charged to it counts.
Nothing deletes or shortens a ledger. A last line that a crash left half-written is replaced by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Final

from airfed._disk import flush, write_new
from airfed.privacy.gaussian import classic_epsilon, gaussian_epsilon
from airfed.problem import Budget

_START: Final = "0" * 64
_RTOL: Final = 1e-12  # rounding only: plans end on the safe side of their budgets
_LARGEST: Final = 2**30  # bytes of a ledger
_LONGEST: Final = 64 * 2**20  # bytes of a line: the first one lists the devices


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
        sent: whether noise was, or was about to be, drawn for it.
        signal: digest of what was sent, where a repetition must be the very same signal.
        run: whose round it is, in an account that several runs charge.
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
    sent: bool = False
    signal: str = ""
    run: str = ""


_KNOWN: Final = {
    "relation": ("replace", "add_remove"),
    "scope": ("round", "total"),
    "formula": ("classic", "exact"),
    "privacy": ("simulated", "secure"),
}
_WRITTEN: Final = (
    "attempt",
    "devices",
    "alignment",
    "mu",
    "power_planned",
    "epsilon_round",
    "mu_total",
    "epsilon_total",
)


@dataclass(kw_only=True)
class Ledger:
    """An open ledger. `create` a new one, `load` an old one; `charge` before and `settle` after each round."""

    path: Path
    header: dict[str, Any]
    charges: list[Charge] = field(default_factory=list)
    head: str = _START
    torn: bool = False  # a crash left half a line at the end; the next line takes its place
    _heads: set[str] = field(default_factory=set, repr=False)
    _squares: Fraction = field(default=Fraction(0), repr=False)  # Σμ²
    _latest: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)  # (run, round) -> its latest charge
    _size: int = field(default=0, repr=False)  # bytes that have been read and verified
    _last: bytes = field(default=b"", repr=False)  # the last line of them
    _number: int = field(default=0, repr=False)  # of that line

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Start a ledger; `header` says what is counted (budget with `delta`, relation, unit, devices, noise source).

        Raises:
            FileExistsError: there is one already.
        """
        ledger = cls(path=path, header=header)
        line, head = ledger._line({"kind": "open", **header})
        write_new(path, line)
        ledger._advance(head, line)
        return ledger

    @classmethod
    def load(cls, path: Path, *, repair: bool = False) -> Ledger:
        """Read and verify a ledger.

        Args:
            path: the file.
            repair: pass over a last line that a crash left half-written; the next line will replace it.

        Raises:
            LedgerError: a line was edited, removed, reordered or is not a ledger line; the message names it.
        """
        ledger = cls(path=path, header={})
        _check_regular(path)
        try:
            with path.open("rb") as stream:
                ledger._read_on(stream)
        except FileNotFoundError:
            raise LedgerError(f"Expected a ledger at {path}; there is none.") from None
        except OSError as error:
            raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
        if ledger.torn and not repair:
            raise LedgerError(f"{path}: line {ledger._number + 1} is half-written; airfed run --resume repairs it.")
        if not ledger.header:
            raise LedgerError(f"{path}: expected a ledger, got an empty file.")
        return ledger

    @classmethod
    def resume(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Go on with a ledger; where there is none, start it.

        Raises:
            LedgerError: it was tampered with, or counts something else than `header` says.
        """
        if not path.exists():
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

    def find(self, round_index: int, *, run: str = "") -> Charge | None:
        """Return the latest charge of a round, or None."""
        position = self._latest.get((run, round_index))
        return None if position is None else self.charges[position]

    def latest(self, round_index: int, *, run: str = "") -> Charge:
        """Return the latest charge of a round.

        Raises:
            LedgerError: the round was never charged.
        """
        return self.charges[self._position(round_index, run)]

    def check(self, budget: Budget, *, mu: float, power: float) -> None:
        """Raise unless one more round of the given μ and planned power [W] fits the budget.

        Raises:
            BudgetExhausted: it does not; says what is left and what to change.
        """
        spent = self.power_planned
        if spent + power > budget.total_power * (1 + _RTOL):
            raise BudgetExhausted(
                f"The power budget is spent after {self._counted()}: {budget.total_power - spent:.4g} W are left "
                f"and the next round needs {power:.4g} W. "
                "Raise budget.total_power, or plan fewer rounds or a smaller alignment."
            )
        if budget.scope == "total":
            self.check_total(budget.epsilon, mu=mu)
            return
        each = (classic_epsilon if budget.formula == "classic" else gaussian_epsilon)(mu, budget.delta)
        if each > budget.epsilon * (1 + _RTOL):
            raise BudgetExhausted(
                f"The next round would cost ε = {each:.4g} at δ = {budget.delta:g}, and a round may cost "
                f"{budget.epsilon:g}. Raise budget.epsilon, or plan a smaller alignment."
            )

    def check_total(self, epsilon: float, *, mu: float) -> None:
        """Raise unless everything charged so far and one more round of the given μ stay within ε.

        Raises:
            BudgetExhausted: they do not.
        """
        delta = self.header["delta"]
        after = gaussian_epsilon(_root_up(self._squares + Fraction(mu) ** 2), delta)
        if after > epsilon * (1 + _RTOL):
            raise BudgetExhausted(
                f"The privacy budget is spent after {self._counted()}: ε is {self.epsilon_total:.4g} of "
                f"{epsilon:g} at δ = {delta:g}, and the next round would make it {after:.4g}. "
                "Raise budget.epsilon, or plan fewer rounds or a smaller alignment."
            )

    def charge(
        self,
        round_index: int,
        *,
        devices: int,
        alignment: float,
        mu: float,
        power: float,
        within: Budget | float | None = None,
        run: str = "",
    ) -> Charge:
        """Write down a round that is about to be transmitted; on return it is on the disk.

        Args:
            round_index: i.
            devices, alignment, mu, power: as in `Charge`.
            within: the budget that must allow it, or the ε of all rounds together; whatever other processes have
                charged to the file counts.
            run: whose round it is, in an account.

        Raises:
            BudgetExhausted: it does not fit; nothing is written.
            LedgerError: the file is not the one that was read.
        """
        with self._exclusive() as stream:
            if isinstance(within, Budget):
                self.check(within, mu=mu, power=power)
            elif within is not None:
                self.check_total(within, mu=mu)
            earlier = self.find(round_index, run=run)
            attempt = 0 if earlier is None else earlier.attempt + 1
            charge = self._charged(round_index, attempt, devices, alignment, mu, power, run)
            entry = {"kind": "charge", "round": round_index, **{name: getattr(charge, name) for name in _WRITTEN}}
            self._append(stream, entry | ({"run": run} if run else {}))
            self._enter(charge)
            return charge

    def mark_sent(self, round_index: int, signal: str = "", *, run: str = "") -> None:
        """Write down that noise is about to be drawn for a charged round; on return it is on the disk.

        Args:
            round_index: i.
            signal: digest of the signal, where a repetition must be the very same one.
            run: whose round it is, in an account.

        Raises:
            LedgerError: the round was never charged.
        """
        with self._exclusive() as stream:
            self._position(round_index, run)
            entry = {"kind": "sent", "round": round_index, **({"signal": signal} if signal else {})}
            self._append(stream, entry | ({"run": run} if run else {}))
            self._mark(round_index, run, sent=True, signal=signal)

    def settle(self, round_index: int, power_metered: float | None, *, run: str = "") -> None:
        """Write down what a charged round really transmitted [W]; a repeated round must repeat the figure.

        Args:
            round_index: i.
            power_metered: None keeps the figure, which depends on the data, out of the ledger.
            run: whose round it is, in an account.

        Raises:
            LedgerError: the round was never charged, or a replay transmitted something else than before.
        """
        charge = self.charges[self._position(round_index, run)]
        if power_metered is None:
            return
        if charge.power_metered is not None:
            if charge.power_metered != power_metered:
                raise LedgerError(
                    f"{self.path}: round {round_index + 1} was transmitted with {charge.power_metered!r} W before, and "
                    f"with {power_metered!r} W now: this is not the same run."
                )
            return
        with self._exclusive() as stream:
            entry = {"kind": "settle", "round": round_index, "power_metered": power_metered}
            self._append(stream, entry | ({"run": run} if run else {}))
            self._mark(round_index, run, power_metered=power_metered)

    def _counted(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"

    def _charged(
        self, round_index: int, attempt: int, devices: int, alignment: float, mu: float, power: float, run: str
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
            run=run,
        )

    def _enter(self, charge: Charge) -> None:
        self._latest[charge.run, charge.round_index] = len(self.charges)
        self.charges.append(charge)
        self._squares += Fraction(charge.mu) ** 2

    def _position(self, round_index: int, run: str) -> int:
        position = self._latest.get((run, round_index))
        if position is None:
            raise LedgerError(f"{self.path}: round {round_index + 1} was never charged.")
        return position

    def _mark(self, round_index: int, run: str, **changes: Any) -> None:
        position = self._position(round_index, run)
        self.charges[position] = replace(self.charges[position], **changes)

    @contextmanager
    def _exclusive(self) -> Iterator[IO[bytes]]:
        """The file, locked against other processes and read on to its end.

        Raises:
            LedgerError: it is gone, or no longer begins with what was read.
        """
        _check_regular(self.path)
        try:
            stream = self.path.open("r+b")
        except FileNotFoundError:
            raise LedgerError(f"{self.path}: the ledger is gone while a training charges it.") from None
        with stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
            stream.seek(self._size - len(self._last))
            if stream.read(len(self._last)) != self._last:
                raise LedgerError(f"{self.path}: lines are gone or changed while a training charges it.")
            self._read_on(stream)
            yield stream

    def _read_on(self, stream: IO[bytes]) -> None:
        """Replay the lines after those that are known. A whole last line counts with or without its newline."""
        stream.seek(self._size)
        self.torn = False
        if self._last and not self._last.endswith(b"\n") and (lost := stream.read(1)) == b"\n":
            self._last += lost  # another process has ended the line meanwhile
            self._size += 1
        while line := stream.readline(_LONGEST):
            if line.endswith(b"\n"):
                self._replay(line)
            elif _is_whole(line, self.head):  # flushed, and its newline cut off: a charge all the same
                self._replay(line + b"\n")
                self._size -= 1
                self._last = line
            else:
                self.torn = True
                return

    def _append(self, stream: IO[bytes], entry: dict[str, Any]) -> None:
        line, head = self._line(entry)
        lost = b"" if self._last.endswith(b"\n") or not self._last else b"\n"
        stream.seek(self._size)
        flush(stream, lost + line)  # over what a crash left half-written: never a moment without either
        if stream.seek(0, os.SEEK_END) > self._size + len(lost) + len(line):
            stream.truncate(self._size + len(lost) + len(line))  # the rest of it
        self._size += len(lost)
        self._advance(head, line)

    def _line(self, entry: dict[str, Any]) -> tuple[bytes, str]:
        """The bytes of a line, and their hash."""
        head = _link(self.head, json.dumps(entry, sort_keys=True))
        return json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n", head

    def _advance(self, head: str, line: bytes) -> None:
        self.head = head
        self._heads.add(head)
        self._size += len(line)
        self._last = line
        self._number += 1

    def _replay(self, line: bytes) -> None:
        number = self._number + 1
        entry = _parsed(line)
        claimed = None if entry is None else entry.pop("hash", None)
        if entry is None or not isinstance(claimed, str) or not isinstance(kind := entry.get("kind"), str):
            raise LedgerError(f"{self.path}: line {number} is not a ledger line.")
        expected, head = self._line(entry)
        if head != claimed or line != expected:
            raise LedgerError(f"{self.path}: line {number} was changed, or a line before it was.")
        if (kind == "open") != (number == 1):
            raise LedgerError(f"{self.path}: line {number} is of the kind {kind!r}, which does not belong there.")
        try:
            self._enter_line(kind, entry)
        except (KeyError, TypeError, ArithmeticError, LedgerError, ValueError) as error:
            if isinstance(error, LedgerError):
                raise
            raise LedgerError(f"{self.path}: line {number} is not what a ledger holds there.") from None
        self._advance(head, line)

    def _enter_line(self, kind: str, entry: dict[str, Any]) -> None:
        run = str(entry.get("run", ""))
        if kind == "open":
            self.header = {key: value for key, value in entry.items() if key != "kind"}
            _check_header(self.header)
        elif kind == "charge":
            self._replay_charge(entry, run)
        elif kind == "settle":
            self._mark(entry["round"], run, power_metered=_number(entry, "power_metered"))
        elif kind == "sent":
            self._mark(entry["round"], run, sent=True, signal=str(entry.get("signal", "")))
        else:
            raise LedgerError(f"{self.path}: line {self._number + 1} is of the unknown kind {kind!r}.")

    def _replay_charge(self, entry: dict[str, Any], run: str) -> None:
        whole = [_whole(entry, name) for name in ("round", "attempt", "devices")]
        figures = [_number(entry, name) for name in ("alignment", "mu", "power_planned")]
        charge = self._charged(*whole, *figures, run)  # type: ignore[call-arg, arg-type]
        for name in ("epsilon_round", "mu_total", "epsilon_total"):
            if not math.isclose(_number(entry, name), getattr(charge, name), rel_tol=_RTOL):
                raise LedgerError(
                    f"{self.path}: the {name} of line {self._number + 1} does not follow from the rounds so far."
                )
        self._enter(charge)


def _check_regular(path: Path) -> None:
    """Raise where a pipe, a device or a folder is in the place of a ledger, or something absurdly large."""
    if not path.exists():
        return
    if not path.is_file() or path.stat().st_size > _LARGEST:
        raise LedgerError(f"Expected a ledger at {path}; this is no file, or far too large.")


def _check_header(header: dict[str, Any]) -> None:
    """Raise where what is counted, or against which budget, is nothing that a ledger could have been opened with."""
    if not 0.0 < _number(header, "delta") < 1.0:
        raise ValueError
    for name in ("epsilon", "total_power", "noise_std", "amplification", "mu_round"):
        if name in header and not _number(header, name) > 0:
            raise ValueError
    for name in ("spent", "estimation_error", "estimation_failure"):
        if name in header:
            _number(header, name)
    for name, known in _KNOWN.items():
        if name in header and header[name] not in known:
            raise ValueError


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_whole(line: bytes, head: str) -> bool:
    """Whether a line without its newline is complete: its own hash says so."""
    entry = _parsed(line)
    claimed = None if entry is None else entry.pop("hash", None)
    return entry is not None and claimed == _link(head, json.dumps(entry, sort_keys=True))


def _whole(entry: dict[str, Any], name: str) -> int:
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _number(entry: dict[str, Any], name: str) -> float:
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


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
