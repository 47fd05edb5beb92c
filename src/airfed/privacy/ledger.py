"""The ledger: an append-only record of the privacy and power that a training has spent.

Each line is one JSON object. The first line states the budget and the threat model ("open"). Each round is charged
before it is transmitted ("charge"), marked before its noise is drawn ("sent"), and settled with the metered power
afterwards ("settle"). A finished run records the digest of its model ("model"). A charge that was never marked was
never used, and covers the next attempt. Every line contains the SHA-256 of the previous line and of its own content, so
any edit breaks the chain. Checkpoints store the hash of the last line, so deleted lines are detected as well. The
composition is exact; only the root is rounded, upwards.

A charge applies to all devices of the ledger, or to some devices of a fleet, given by a participation mask. Other
devices spend nothing. Where received amplitudes differ, the mask has the share of the round's μ that each device
spends. Equal shares are written once: a later line names the first charge that has them. Totals are those of the most
exposed device.

The ledger of a run covers that run only. Two trainings on the same data compose: μ² adds up. With
`[budget] shared_ledger = "FILE"` every round of every run is also charged to that file before it is transmitted. A new
plan uses the rest of the budget (ε, δ), which then covers all trainings together.
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
from airfed.privacy.exposure import Exposure, ParticipationMask
from airfed.privacy.gaussian import classic_epsilon, gaussian_epsilon, gaussian_epsilons
from airfed.problem import Adversary, Budget

__all__ = ["BudgetExhausted", "Charge", "Ledger", "LedgerError", "ParticipationMask"]

_RTOL: Final = 1e-12  # rounding only: plans stay within their budgets
_DERIVED: Final = ("epsilon_round", "mu_total", "epsilon_total")  # values of a charge that follow from μ
_CHOICES: Final = {
    "adjacency": ("replace_one", "add_remove"),
    "scope": ("round", "total"),
    "formula": ("classic", "exact"),
    "privacy": ("simulated", "secure"),
    "adversary": ("all_antennas", "combined"),
}


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The charge of one round."""

    round_index: int  # i
    attempt: int  # 0 for the first transmission of the round, 1 and up for later ones with fresh noise
    devices: int  # number of devices charged: all scheduled ones, whether they answered or not
    alignment: float  # θ
    mu: float  # the round's Gaussian-DP parameter, for the most exposed device
    power_planned: float  # [W] worst case of this round over all devices
    epsilon_round: float  # exact, at the budget's δ
    mu_total: float  # of the most exposed device, over all rounds so far including this one
    epsilon_total: float
    power_metered: float | None = None  # [W] transmitted; None before the round is settled, or in a private record
    sent: bool = False  # whether noise was, or was about to be, drawn for it
    signal: str = ""  # digest of the signal, if a repetition must have the same bits
    run: str = ""  # the run of this round, in a shared ledger
    mask: ParticipationMask | None = None  # the devices charged, with their shares of `mu`; None: all of the ledger


class BudgetExhausted(ValueError):
    """The next round would exceed a budget."""


@dataclass(kw_only=True)
class Ledger(Chain):
    """An open ledger: `charge` before and `settle` after each round. `create` or `load` one."""

    header: dict[str, Any]
    charges: list[Charge] = field(default_factory=list)
    model: str = ""  # SHA-256 of the trained model's file, once it is recorded
    _spent: Exposure = field(default_factory=Exposure, repr=False)  # Σμ²
    _latest: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)  # (run, round) -> its latest charge
    _shared: dict[ParticipationMask, int] = field(default_factory=dict, repr=False)  # with shares -> its first charge

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Create a ledger with its header, the first line. Raises FileExistsError if the file exists."""
        ledger = cls(path=path, header=header)
        ledger._start({"kind": "open", **header})
        return ledger

    @classmethod
    def load(cls, path: Path, *, repair: bool = False) -> Ledger:
        """Read and verify a ledger, or raise LedgerError; `repair` ignores a half-written last line."""
        ledger = cls(path=path, header={})
        ledger._read(repair=repair)
        return ledger

    @classmethod
    def resume(cls, path: Path, header: dict[str, Any]) -> Ledger:
        """Return the ledger at a path, which must have this header (else LedgerError is raised), or create it."""
        if not path.exists():
            return cls.create(path, header)
        ledger = cls.load(path, repair=True)
        expected, found = json.loads(json.dumps(header)), ledger.header
        names = sorted((expected.keys() | found.keys()) - {"scenario"})  # the scenario may be renamed
        if other := [name for name in names if expected.get(name) != found.get(name)]:
            raise LedgerError(f"{path}: this ledger belongs to another plan ({', '.join(other)} differ).")
        return ledger

    @property
    def rounds(self) -> int:
        """The number of charges."""
        return len(self.charges)

    @property
    def mu_total(self) -> float:
        """μ in total, √Σμ² rounded up: the Gaussian-DP parameter of all charges to the most exposed device."""
        return self._spent.most_exposed()[1]

    @property
    def epsilon_total(self) -> float:
        """Exact ε of all charges to the most exposed device, at the budget's δ."""
        return self.charges[-1].epsilon_total if self.charges else 0.0

    @property
    def power_planned(self) -> float:
        """[W] charged so far, worst case."""
        return math.fsum(charge.power_planned for charge in self.charges)

    @property
    def power_metered(self) -> float | None:
        """[W] transmitted in the rounds settled so far; None if no round is metered."""
        metered = [charge.power_metered for charge in self.charges if charge.power_metered is not None]
        return math.fsum(metered) if metered else None

    def find(self, round_index: int, *, run: str = "") -> Charge | None:
        """Return the latest charge of a round, or None."""
        position = self._latest.get((run, round_index))
        return None if position is None else self.charges[position]

    def latest(self, round_index: int, *, run: str = "") -> Charge:
        """Return the latest charge of a round; raises LedgerError if there is none."""
        charge = self.find(round_index, run=run)
        if charge is None:
            raise LedgerError(f"{self.path}: round {round_index + 1} was not charged.")
        return charge

    @property
    def num_devices(self) -> int | None:
        """N, if rounds are charged to some devices of a fleet; None while every charge is to all devices."""
        return self._spent.num_devices

    def device_mus(self) -> NDArray[np.float64]:
        """Return μ in total of each device, √Σμ² rounded up, (N,); raises ValueError if `num_devices` is None."""
        return self._spent.mus()

    def device_epsilons(self) -> NDArray[np.float64]:
        """Return the exact ε of all charges to each device, (N,)."""
        return gaussian_epsilons(self.device_mus(), self.header["delta"])

    def check(self, budget: Budget, *, mu: float, power: float, mask: ParticipationMask | None = None) -> None:
        """Raise BudgetExhausted unless one more round of the given μ and planned power [W] fits the budget."""
        spent = self.power_planned
        if spent + power > budget.total_power * (1 + _RTOL):
            raise BudgetExhausted(
                f"The power budget is spent after {self._counted()}: {budget.total_power - spent:.4g} W are left "
                f"and the next round needs {power:.4g} W. "
                "Raise budget.total_power, or plan fewer rounds or a smaller alignment."
            )
        if budget.scope == "total":
            self.check_total(budget.epsilon, mu=mu, mask=mask)
            return
        each = (classic_epsilon if budget.formula == "classic" else gaussian_epsilon)(mu, budget.delta)
        if each > budget.epsilon * (1 + _RTOL):
            raise BudgetExhausted(
                f"The next round would cost ε = {each:.4g} at δ = {budget.delta:g}, but the budget is "
                f"{budget.epsilon:g} a round. Raise budget.epsilon, or plan a smaller alignment."
            )

    def check_total(self, epsilon: float, *, mu: float, mask: ParticipationMask | None = None) -> None:
        """Raise BudgetExhausted unless the composition of all charges and one more round of the given μ is within ε.

        Only the devices that would be charged count: others may have spent more.
        """
        delta = self.header["delta"]
        device, after_mu = self._after(mu, mask).most_exposed(mask)
        after = gaussian_epsilon(after_mu, delta)
        if after > epsilon * (1 + _RTOL):
            whose = "" if device is None else f" of device {device}"
            now = gaussian_epsilon(self._spent.most_exposed(mask)[1], delta)
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
        mask: ParticipationMask | None = None,
    ) -> Charge:
        """Charge a round before it is transmitted, and flush the line to the disk.

        The arguments are as in `Charge`; in a shared ledger a device has the same index in every run. `within` is the
        budget that must allow the round, or the ε of all rounds together; charges by other processes count. If the
        round exceeds it, BudgetExhausted is raised and nothing is written. Raises LedgerError if the file was replaced,
        or belongs to another fleet.
        """
        if mask is not None and mask.count != devices:
            raise ValueError(f"devices must be the number of devices in mask, {mask.count}, got {devices}.")
        with self._exclusive() as stream:
            if isinstance(within, Budget):
                self.check(within, mu=mu, power=power, mask=mask)
            elif within is not None:
                self.check_total(within, mu=mu, mask=mask)
            if mask is not None and mask in self._shared:
                mask = self.charges[self._shared[mask]].mask  # one copy in memory
            earlier = self.find(round_index, run=run)
            charge, after = self._charged(
                round_index=round_index,
                attempt=0 if earlier is None else earlier.attempt + 1,
                devices=devices,
                alignment=alignment,
                mu=mu,
                power_planned=power,
                run=run,
                mask=mask,
            )
            masked = {} if mask is None else self._masked(mask)
            names = ("attempt", "devices", "alignment", "mu", "power_planned", *_DERIVED)
            self._append(stream, _entry("charge", charge, {name: getattr(charge, name) for name in names} | masked))
            self._enter(charge, after)
            return charge

    def mark_sent(self, round_index: int, signal: str = "", *, run: str = "") -> None:
        """Mark a charged round before its noise is drawn, and flush the line to the disk."""
        with self._exclusive() as stream:
            charge = self.latest(round_index, run=run)
            self._append(stream, _entry("sent", charge, {"signal": signal} if signal else {}))
            self._mark(round_index, run, sent=True, signal=signal)

    def settle(self, round_index: int, power_metered: float | None, *, run: str = "") -> None:
        """Record the power [W] that a charged round has transmitted; a repeated round must repeat the value.

        None keeps the value, which depends on the data, out of the ledger.
        """
        charge = self.latest(round_index, run=run)
        if power_metered is None or power_metered == charge.power_metered:
            return
        if charge.power_metered is not None:
            raise LedgerError(
                f"{self.path}: round {round_index + 1} was transmitted with {charge.power_metered!r} W before and "
                f"with {power_metered!r} W now. This is not the same run."
            )
        with self._exclusive() as stream:
            self._append(stream, _entry("settle", charge, {"power_metered": power_metered}))
            self._mark(round_index, run, power_metered=power_metered)

    def name_model(self, digest: str) -> None:
        """Record the SHA-256 of the trained model's file, unless it is recorded, and flush the line to the disk."""
        if digest != self.model:
            with self._exclusive() as stream:
                self._append(stream, {"kind": "model", "sha256": digest})
                self.model = digest

    def _masked(self, mask: ParticipationMask) -> dict[str, Any]:
        """Return the entries of a charge's line for its mask; shares of an earlier charge are named by its number."""
        content: dict[str, Any] = {"mask": mask.text, "num_devices": mask.num_devices}
        if mask.shares:
            first = self._shared.get(mask)
            content["shares"] = mask.shares_text if first is None else first
        return content

    def _mask(self, entry: dict[str, Any]) -> ParticipationMask | None:
        """Return the mask of a line, None for all devices; raises KeyError, TypeError or ValueError if invalid."""
        if not {"mask", "num_devices", "shares"} & entry.keys():
            return None
        shares, num_devices = entry.get("shares", ""), whole(entry, "num_devices")
        mask = ParticipationMask.parse(entry["mask"], num_devices, shares if isinstance(shares, str) else "")
        if not isinstance(shares, str):
            first = whole(entry, "shares")
            found = self.charges[first].mask if first < self.rounds else None
            if found is None or not found.shares or (found.num_devices, found.bits) != (num_devices, mask.bits):
                raise ValueError
            mask = found
        if mask.count != entry["devices"]:
            raise ValueError
        return mask

    def _counted(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"

    def _after(self, mu: float, mask: ParticipationMask | None) -> Exposure:
        """Return the exposure after one more round, charged by the next line."""
        if mask is not None and self.num_devices not in (None, mask.num_devices):
            raise LedgerError(
                f"{self.path}: the fleet has {self.num_devices} devices, but line {self._number + 1} charges one of "
                f"{mask.num_devices}."
            )
        return self._spent.plus(mu, mask)

    def _charged(self, mu: float, mask: ParticipationMask | None = None, **rest: Any) -> tuple[Charge, Exposure]:
        """Return the charge with its derived values, and the exposure after it."""
        delta = self.header["delta"]
        after = self._after(mu, mask)
        total = after.most_exposed()[1]
        last = self.charges[-1] if self.charges else None
        charge = Charge(
            mu=mu,
            epsilon_round=last.epsilon_round if last is not None and last.mu == mu else gaussian_epsilon(mu, delta),
            mu_total=total,
            epsilon_total=gaussian_epsilon(total, delta),
            mask=mask,
            **rest,
        )
        return charge, after

    def _enter(self, charge: Charge, after: Exposure) -> None:
        self._latest[charge.run, charge.round_index] = len(self.charges)
        if charge.mask is not None and charge.mask.shares:
            self._shared.setdefault(charge.mask, len(self.charges))
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
            raise LedgerError(f"{self.path}: line {self._number + 1} is of unknown kind {kind!r}.")

    def _replayed(self, entry: dict[str, Any], round_index: int, run: str) -> tuple[Charge, Exposure]:
        """Return the charge of a line, whose derived values must follow from the rounds so far, and the exposure."""
        charge, after = self._charged(
            round_index=round_index,
            **{name: whole(entry, name) for name in ("attempt", "devices")},
            **{name: number(entry, name) for name in ("alignment", "mu", "power_planned")},
            run=run,
            mask=self._mask(entry),
        )
        for name in _DERIVED:
            if not math.isclose(number(entry, name), getattr(charge, name), rel_tol=_RTOL):
                raise LedgerError(
                    f"{self.path}: the {name} of line {self._number + 1} does not follow from the rounds so far."
                )
        return charge, after


def _check_header(header: dict[str, Any]) -> None:
    """Raise ValueError if a value of the header is out of range."""
    positive = {"epsilon", "total_power", "noise_std", "noise_std_lower", "amplification", "mu_round"} & header.keys()
    valid = 0.0 < number(header, "delta") < 1.0 and all(number(header, name) > 0 for name in positive)
    for name in {"spent", "csi_error", "csi_failure", "noise_failure"} & header.keys():
        number(header, name)
    valid &= "antennas" not in header or whole(header, "antennas") > 0
    if not valid or any(header[name] not in _CHOICES[name] for name in _CHOICES.keys() & header.keys()):
        raise ValueError


def _entry(kind: str, charge: Charge, values: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a line about a charge."""
    return {"kind": kind, "round": charge.round_index, **values, **({"run": charge.run} if charge.run else {})}


def open_shared_ledger(path: Path, budget: Budget, adversary: Adversary = "all_antennas") -> Ledger:
    """Return the shared ledger at a path; a new one is opened with the budget of all trainings together.

    A ledger opened with the adversary "combined" accepts both claims, since the other one is stronger. A ledger opened
    with "all_antennas" does not accept "combined". Raises LedgerError if the file was changed, has another budget, or
    its adversary is stronger.
    """
    try:
        return Ledger.create(path, _shared_header(budget, adversary))
    except FileExistsError:
        return _shared_ledger(path, budget, adversary)


def shared_ledger_spent(path: Path, budget: Budget, adversary: Adversary = "all_antennas") -> float:
    """Return μ in total of a shared ledger; 0 if there is none. Raises like `open_shared_ledger`."""
    try:
        path.lstat()  # a dangling symbolic link counts as a file
    except FileNotFoundError:
        return 0.0
    except OSError as error:
        raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
    return _shared_ledger(path, budget, adversary).mu_total


def _shared_header(budget: Budget, adversary: Adversary) -> dict[str, Any]:
    named = {"adjacency": budget.adjacency, "epsilon": budget.epsilon, "delta": budget.delta}
    claim = {"adversary": adversary} if adversary == "combined" else {}
    return {"shared_ledger": True, "unit": "device", **named, "scope": "total", "formula": "exact", **claim}


def _shared_ledger(path: Path, budget: Budget, adversary: Adversary) -> Ledger:
    ledger = Ledger.load(path, repair=True)
    if not ledger.header.get("shared_ledger"):
        raise LedgerError(f"{path} is not a shared ledger but the ledger of one training.")
    if adversary == "combined" and ledger.header.get("adversary") != adversary:
        raise LedgerError(
            f'link.adversary must be "all_antennas" with the shared ledger {path}, got "combined". Its ε holds against '
            "a server that keeps every antenna's signal. Use another shared ledger for this training."
        )
    for name, value in _shared_header(budget, "all_antennas").items():
        if ledger.header.get(name) != value:
            raise LedgerError(
                f"budget.{name} must be {ledger.header.get(name)!r}, as in the shared ledger {path}; got {value!r}."
            )
    return ledger
