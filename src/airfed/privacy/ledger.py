"""What was spent: an append-only file, written before each round is transmitted.

One JSON object a line. The first says what is being counted ("open"), then each round is charged before it is
transmitted ("charge"), marked once noise is about to be drawn for it ("sent"), and settled with the power really used
after it ("settle"); the line of a run that has ended names its model by the digest ("model"). A charge that was never
marked was never used, and covers the next try. Every line carries the SHA-256 of the line before it and its own
content, so that any edit breaks the chain; the checkpoints of a run remember its last line, so that cutting lines off
the end is noticed too. Totals are composed exactly: the squares of all μ are added as fractions, and only the root is
rounded, upwards.

A charge is of everybody whom the ledger counts, or of some devices of a fleet, which its line then names (one bit a
device). A device that is not named spends nothing. Totals are those of the most exposed device.

Before every line is written the file is locked and read on to its end: what another process has charged to it counts.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airfed.privacy.chain import Chain, LedgerError
from airfed.privacy.entries import Charge, check_header, membership, number, sha256, whole
from airfed.privacy.exposure import Exposure
from airfed.privacy.gaussian import classic_epsilon, gaussian_epsilon
from airfed.privacy.members import Members
from airfed.problem import Budget

__all__ = ["BudgetExhausted", "Charge", "Ledger", "LedgerError", "Members"]

_RTOL: Final = 1e-12  # rounding only: plans end on the safe side of their budgets
_WRITTEN: Final = (
    *("attempt", "devices", "alignment", "mu", "power_planned"),
    *("epsilon_round", "mu_total", "epsilon_total"),
)  # of a charge, besides its round and its run


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
        """Start a ledger; `header` says what is counted (budget with `delta`, relation, unit, devices, noise source).

        Raises:
            FileExistsError: there is one already.
        """
        ledger = cls(path=path, header=header)
        ledger._start({"kind": "open", **header})
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
        return self._spent.mu()

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
        """Return the latest charge of a round.

        Raises:
            LedgerError: the round was never charged.
        """
        charge = self.find(round_index, run=run)
        if charge is None:
            raise LedgerError(f"{self.path}: round {round_index + 1} was never charged.")
        return charge

    @property
    def num_devices(self) -> int | None:
        """N, where charges are of some devices of a fleet; None while every charge is of everybody."""
        return self._spent.num_devices

    def members(self, round_index: int, *, run: str = "") -> NDArray[np.intp] | None:
        """Return who was charged by the latest charge of a round, ascending; None for everybody.

        Raises:
            LedgerError: the round was never charged.
        """
        members = self.latest(round_index, run=run).members
        return None if members is None else members.devices

    def device_mus(self) -> NDArray[np.float64]:
        """Return √Σμ² of everything charged so far to each device, rounded up, (N,); the largest is `mu_total`.

        Raises:
            ValueError: every charge is of everybody (`num_devices` is None), so that nobody was counted.
        """
        return self._spent.mus()

    def device_epsilons(self) -> NDArray[np.float64]:
        """Return exact ε of everything charged so far to each device, (N,); the largest is `epsilon_total`.

        Every different μ takes some half a millisecond. ε grows with μ: for a few devices of a large fleet, or for
        quantiles, choose among `device_mus` first.

        Raises:
            ValueError: as in `device_mus`.
        """
        different, places = np.unique(self.device_mus(), return_inverse=True)
        epsilons = [gaussian_epsilon(mu, self.header["delta"]) for mu in different.tolist()]
        return np.array(epsilons)[places]

    def check(self, budget: Budget, *, mu: float, power: float, members: Members | None = None) -> None:
        """Raise unless one more round of the given μ and planned power [W] fits the budget.

        Args:
            budget: what may be spent.
            mu, power: of the round.
            members: who would be charged; None for everybody.

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
            self.check_total(budget.epsilon, mu=mu, members=members)
            return
        each = (classic_epsilon if budget.formula == "classic" else gaussian_epsilon)(mu, budget.delta)
        if each > budget.epsilon * (1 + _RTOL):
            raise BudgetExhausted(
                f"The next round would cost ε = {each:.4g} at δ = {budget.delta:g}, and a round may cost "
                f"{budget.epsilon:g}. Raise budget.epsilon, or plan a smaller alignment."
            )

    def check_total(self, epsilon: float, *, mu: float, members: Members | None = None) -> None:
        """Raise unless everything charged so far and one more round of the given μ stay within ε.

        It is the most exposed of those who would be charged that counts: others may have spent more before, and stay
        as they are.

        Raises:
            BudgetExhausted: they do not.
        """
        delta = self.header["delta"]
        device, after_mu = self._after(mu, members).most_exposed(members)
        after = gaussian_epsilon(after_mu, delta)
        if after > epsilon * (1 + _RTOL):
            whose = "" if device is None else f" of device {device}"
            now = gaussian_epsilon(self._spent.mu(members), delta)
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
            round_index: i.
            devices, alignment, mu, power: as in `Charge`.
            within: the budget that must allow it, or the ε of all rounds together; whatever other processes have
                charged to the file counts.
            run: whose round it is, in an account.
            members: who is charged, of the whole fleet; None for everybody whom the ledger counts. In an account a
                device has the same number in every run.

        Raises:
            BudgetExhausted: it does not fit; nothing is written.
            LedgerError: the file is not the one that was read, or counts another fleet.
            ValueError: there are not as many members as `devices` says.
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
            self._append(stream, _entry("charge", charge, {name: getattr(charge, name) for name in _WRITTEN} | who))
            self._enter(charge, after)
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
            charge = self.latest(round_index, run=run)
            self._append(stream, _entry("sent", charge, {"signal": signal} if signal else {}))
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
        charge = self.latest(round_index, run=run)
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
        total = after.mu()
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
            check_header(self.header)
            return
        if kind == "model":
            self.model = sha256(entry)
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
            members=membership(entry),
        )
        for name in ("epsilon_round", "mu_total", "epsilon_total"):
            if not math.isclose(number(entry, name), getattr(charge, name), rel_tol=_RTOL):
                raise LedgerError(
                    f"{self.path}: the {name} of line {self._number + 1} does not follow from the rounds so far."
                )
        return charge, after


def _entry(kind: str, charge: Charge, values: dict[str, Any]) -> dict[str, Any]:
    """What a line about a charge says."""
    return {"kind": kind, "round": charge.round_index, **values, **({"run": charge.run} if charge.run else {})}
