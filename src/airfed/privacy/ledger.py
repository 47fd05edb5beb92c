"""What was spent: an append-only file, written before each round is transmitted.

One JSON object a line. The first says what is being counted ("open"), then each round is charged before it is
transmitted ("charge"), marked once noise is about to be drawn for it ("sent"), and settled with the power really used
after it ("settle"); the line of a run that has ended names its model by the digest ("model"). A charge that was never
marked was never used, and covers the next try. Every line carries the SHA-256 of the line before it and its own
content, so that any edit breaks the chain; the checkpoints of a run remember its last line, so that cutting lines off
the end is noticed too. Totals are composed exactly, and only the root is rounded, upwards.

A charge is of all devices that the ledger counts, or of some devices of a fleet, which its line then names (one bit a
device). A device that is not named spends nothing. Totals are those of the most exposed device.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.privacy.chain import Chain, LedgerError, number, whole
from airfed.privacy.exposure import Exposure, Members
from airfed.privacy.gaussian import classic_epsilon, gaussian_epsilon
from airfed.problem import Budget

__all__ = ["BudgetExhausted", "Charge", "Ledger", "LedgerError", "Members"]

_RTOL: Final = 1e-12  # rounding only: plans end on the safe side of their budgets
_DERIVED: Final = ("epsilon_round", "mu_total", "epsilon_total")  # figures of a charge that follow from μ
_KNOWN: Final = {
    "relation": ("replace", "add_remove"),
    "scope": ("round", "total"),
    "formula": ("classic", "exact"),
    "privacy": ("simulated", "secure"),
    "trust": ("radio", "combiner"),
}


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
        mu_total, epsilon_total: of everything charged so far, this round included, to the most exposed device.
        power_metered: [W] really transmitted; None while the round is not settled, or where the record is private.
        sent: whether noise was, or was about to be, drawn for it.
        signal: digest of what was sent, where a repetition must be the very same signal.
        run: whose round it is, in a ledger that several runs charge.
        members: which devices are charged; None for all that the ledger counts.
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
    members: Members | None = None


class BudgetExhausted(ValueError):
    """The next round would exceed a budget; the message says what is left and what to change."""


@dataclass(kw_only=True)
class Ledger(Chain):
    """An open ledger. `create` a new one, `load` an old one; `charge` before and `settle` after each round."""

    header: dict[str, Any]
    charges: list[Charge] = field(default_factory=list)
    model: str = ""  # SHA-256 of the trained model's file, once it has been named
    _spent: Exposure = field(default_factory=Exposure, repr=False)  # Σμ²
    _latest: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)  # (run, round) -> its latest charge

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Start a ledger; `header` says what is counted. Raises FileExistsError where there is one already."""
        ledger = cls(path=path, header=header)
        ledger._start({"kind": "open", **header})
        return ledger

    @classmethod
    def load(cls, path: Path, *, repair: bool = False) -> Ledger:
        """Read and verify a ledger; with `repair` a last line that a crash left half-written is passed over.

        Raises:
            LedgerError: a line was edited, removed, reordered or is not a ledger line; the message names it.
        """
        ledger = cls(path=path, header={})
        ledger._read(repair=repair)
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
        expected, found = json.loads(json.dumps(header)), ledger.header
        names = sorted((expected.keys() | found.keys()) - {"scenario"})  # a name may change
        if other := [name for name in names if expected.get(name) != found.get(name)]:
            raise LedgerError(f"{path}: its first line is not that of this run ({', '.join(other)}).")
        return ledger

    @property
    def rounds(self) -> int:
        """How many transmissions were charged."""
        return len(self.charges)

    @property
    def mu_total(self) -> float:
        """√Σμ², rounded up: the Gaussian-DP parameter of everything charged so far to the most exposed device."""
        return self._spent.most_exposed()[1]

    @property
    def epsilon_total(self) -> float:
        """Exact ε of everything charged so far to the most exposed device, at the budget's δ."""
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

    def find(self, round_index: int, *, run: str = "") -> Charge | None:
        """Return the latest charge of a round, or None."""
        position = self._latest.get((run, round_index))
        return None if position is None else self.charges[position]

    def latest(self, round_index: int, *, run: str = "") -> Charge:
        """Return the latest charge of a round; raises LedgerError where it was never charged."""
        charge = self.find(round_index, run=run)
        if charge is None:
            raise LedgerError(f"{self.path}: round {round_index + 1} was never charged.")
        return charge

    @property
    def num_devices(self) -> int | None:
        """N, where charges are of some devices of a fleet; None while every charge is of everybody."""
        return self._spent.num_devices

    def device_mus(self) -> NDArray[np.float64]:
        """Return √Σμ² of everything charged so far to each device, rounded up, (N,); the largest is `mu_total`.

        Raises:
            ValueError: every charge is of all devices (`num_devices` is None), so that none was counted.
        """
        return self._spent.mus()

    def device_epsilons(self) -> NDArray[np.float64]:
        """Return exact ε of everything charged so far to each device, (N,): half a millisecond for each different μ."""
        different, places = np.unique(self.device_mus(), return_inverse=True)
        epsilons = [gaussian_epsilon(mu, self.header["delta"]) for mu in different.tolist()]
        return np.array(epsilons)[places]

    def check(self, budget: Budget, *, mu: float, power: float, members: Members | None = None) -> None:
        """Raise BudgetExhausted unless one more round of the given μ and planned power [W] fits the budget."""
        spent = self.power_planned
        if spent + power > budget.total_power * (1 + _RTOL):
            raise BudgetExhausted(
                f"The power budget is spent after {self._counted()}: {budget.total_power - spent:.4g} W are left "
                f"and the next round needs {power:.4g} W. "
                "Raise budget.total_power, or plan fewer rounds or a smaller alignment."
            )
        if budget.scope == "total":
            self.check_total(budget.epsilon, mu=mu, members=members)
            return
        each = (classic_epsilon if budget.formula == "classic" else gaussian_epsilon)(mu, budget.delta)
        if each > budget.epsilon * (1 + _RTOL):
            raise BudgetExhausted(
                f"The next round would cost ε = {each:.4g} at δ = {budget.delta:g}, and a round may cost "
                f"{budget.epsilon:g}. Raise budget.epsilon, or plan a smaller alignment."
            )

    def check_total(self, epsilon: float, *, mu: float, members: Members | None = None) -> None:
        """Raise BudgetExhausted unless everything charged so far and one more round of the given μ stay within ε.

        The most exposed of the devices that would be charged counts: others may have spent more before.
        """
        delta = self.header["delta"]
        device, after_mu = self._after(mu, members).most_exposed(members)
        after = gaussian_epsilon(after_mu, delta)
        if after > epsilon * (1 + _RTOL):
            whose = "" if device is None else f" of device {device}"
            now = gaussian_epsilon(self._spent.most_exposed(members)[1], delta)
            raise BudgetExhausted(
                f"The privacy budget{whose} is spent after {self._counted()}: ε is {now:.4g} of "
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
        members: Members | None = None,
    ) -> Charge:
        """Write down a round that is about to be transmitted; on return it is on the disk.

        Args:
            round_index, devices, alignment, mu, power, run, members: as in `Charge`; in a shared ledger a device
                has the same number in every run.
            within: the budget that must allow it, or the ε of all rounds together; whatever other processes have
                charged to the file counts.

        Raises:
            BudgetExhausted: it does not fit; nothing is written.
            LedgerError: the file is not the one that was read, or counts another fleet.
        """
        if members is not None and members.count != devices:
            raise ValueError(f"Expected devices={devices} members; got {members.count}.")
        with self._exclusive() as stream:
            if isinstance(within, Budget):
                self.check(within, mu=mu, power=power, members=members)
            elif within is not None:
                self.check_total(within, mu=mu, members=members)
            earlier = self.find(round_index, run=run)
            charge, after = self._charged(
                round_index=round_index,
                attempt=0 if earlier is None else earlier.attempt + 1,
                devices=devices,
                alignment=alignment,
                mu=mu,
                power_planned=power,
                run=run,
                members=members,
            )
            who = {} if members is None else {"members": members.text, "num_devices": members.num_devices}
            figures = ("attempt", "devices", "alignment", "mu", "power_planned", *_DERIVED)
            self._append(stream, _entry("charge", charge, {name: getattr(charge, name) for name in figures} | who))
            self._enter(charge, after)
            return charge

    def mark_sent(self, round_index: int, signal: str = "", *, run: str = "") -> None:
        """Write down that noise is about to be drawn for a charged round; on return it is on the disk."""
        with self._exclusive() as stream:
            charge = self.latest(round_index, run=run)
            self._append(stream, _entry("sent", charge, {"signal": signal} if signal else {}))
            self._mark(round_index, run, sent=True, signal=signal)

    def settle(self, round_index: int, power_metered: float | None, *, run: str = "") -> None:
        """Write down what a charged round really transmitted [W]; a repeated round must repeat the figure.

        None keeps the figure, which depends on the data, out of the ledger.
        """
        charge = self.latest(round_index, run=run)
        if power_metered is None or power_metered == charge.power_metered:
            return
        if charge.power_metered is not None:
            raise LedgerError(
                f"{self.path}: round {round_index + 1} was transmitted with {charge.power_metered!r} W before, and "
                f"with {power_metered!r} W now: this is not the same run."
            )
        with self._exclusive() as stream:
            self._append(stream, _entry("settle", charge, {"power_metered": power_metered}))
            self._mark(round_index, run, power_metered=power_metered)

    def name_model(self, digest: str) -> None:
        """Write down the SHA-256 of the trained model's file, unless it is there; on return it is on the disk."""
        if digest != self.model:
            with self._exclusive() as stream:
                self._append(stream, {"kind": "model", "sha256": digest})
                self.model = digest

    def _counted(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"

    def _after(self, mu: float, members: Members | None) -> Exposure:
        """What has been spent once one more round is charged, by the line that comes next."""
        if members is not None and self.num_devices not in (None, members.num_devices):
            raise LedgerError(
                f"{self.path}: it counts {self.num_devices} devices, and line {self._number + 1} would be about "
                f"{members.num_devices}."
            )
        return self._spent.plus(mu, members)

    def _charged(self, mu: float, members: Members | None = None, **rest: Any) -> tuple[Charge, Exposure]:
        """The charge with everything that follows from it and the charges before, and what is spent then."""
        delta = self.header["delta"]
        after = self._after(mu, members)
        total = after.most_exposed()[1]
        last = self.charges[-1] if self.charges else None
        charge = Charge(
            mu=mu,
            epsilon_round=last.epsilon_round if last is not None and last.mu == mu else gaussian_epsilon(mu, delta),
            mu_total=total,
            epsilon_total=gaussian_epsilon(total, delta),
            members=members,
            **rest,
        )
        return charge, after

    def _enter(self, charge: Charge, after: Exposure) -> None:
        self._latest[charge.run, charge.round_index] = len(self.charges)
        self.charges.append(charge)
        self._spent = after

    def _mark(self, round_index: int, run: str, **changes: Any) -> None:
        charge = self.latest(round_index, run=run)
        self.charges[self._latest[run, round_index]] = replace(charge, **changes)

    def _enter_line(self, kind: str, entry: dict[str, Any]) -> None:
        if kind == "open":
            self.header = {key: value for key, value in entry.items() if key != "kind"}
            _check_header(self.header)
            return
        if kind == "model":
            if not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
                raise ValueError
            self.model = entry["sha256"]
            return
        round_index, run = whole(entry, "round"), str(entry.get("run", ""))
        if kind == "charge":
            self._enter(*self._replayed(entry, round_index, run))
        elif kind == "settle":
            self._mark(round_index, run, power_metered=number(entry, "power_metered"))
        elif kind == "sent":
            self._mark(round_index, run, sent=True, signal=str(entry.get("signal", "")))
        else:
            raise LedgerError(f"{self.path}: line {self._number + 1} is of the unknown kind {kind!r}.")

    def _replayed(self, entry: dict[str, Any], round_index: int, run: str) -> tuple[Charge, Exposure]:
        """The charge of a line, whose figures must follow from the rounds so far, and what is spent then."""
        charge, after = self._charged(
            round_index=round_index,
            **{name: whole(entry, name) for name in ("attempt", "devices")},
            **{name: number(entry, name) for name in ("alignment", "mu", "power_planned")},
            run=run,
            members=_members(entry),
        )
        for name in _DERIVED:
            if not math.isclose(number(entry, name), getattr(charge, name), rel_tol=_RTOL):
                raise LedgerError(
                    f"{self.path}: the {name} of line {self._number + 1} does not follow from the rounds so far."
                )
        return charge, after


def _check_header(header: dict[str, Any]) -> None:
    """Raise where what is counted, or against which budget, is nothing that a ledger could have been opened with."""
    positive = {"epsilon", "total_power", "noise_std", "amplification", "mu_round"} & header.keys()
    fine = 0.0 < number(header, "delta") < 1.0 and all(number(header, name) > 0 for name in positive)
    for name in {"spent", "estimation_error", "estimation_failure"} & header.keys():
        number(header, name)
    fine &= "antennas" not in header or whole(header, "antennas") > 0
    if not fine or any(header[name] not in _KNOWN[name] for name in _KNOWN.keys() & header.keys()):
        raise ValueError


def _members(entry: dict[str, Any]) -> Members | None:
    """Which devices a line charges, None for all; raises KeyError, TypeError or ValueError if it is wrong."""
    if not {"members", "num_devices"} & entry.keys():
        return None
    members = Members.parse(entry["members"], whole(entry, "num_devices"))
    if members.count != entry["devices"]:
        raise ValueError
    return members


def _entry(kind: str, charge: Charge, values: dict[str, Any]) -> dict[str, Any]:
    """What a line about a charge says."""
    return {"kind": kind, "round": charge.round_index, **values, **({"run": charge.run} if charge.run else {})}
