"""What the lines of a ledger hold: the charge of a round, and figures that a ledger can have written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from airfed.privacy.members import Members

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
        run: whose round it is, in an account that several runs charge.
        members: who is charged; None for everybody whom the ledger counts.
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


def check_header(header: dict[str, Any]) -> None:
    """Raise where what is counted, or against which budget, is nothing that a ledger could have been opened with."""
    if not 0.0 < number(header, "delta") < 1.0:
        raise ValueError
    for name in ("epsilon", "total_power", "noise_std", "amplification", "mu_round"):
        if name in header and not number(header, name) > 0:
            raise ValueError
    for name in ("spent", "estimation_error", "estimation_failure"):
        if name in header:
            number(header, name)
    if "antennas" in header and whole(header, "antennas") < 1:
        raise ValueError
    for name, known in _KNOWN.items():
        if name in header and header[name] not in known:
            raise ValueError


def membership(entry: dict[str, Any]) -> Members | None:
    """Return who is charged by a line, None for everybody; raises KeyError, TypeError or ValueError if it is wrong."""
    if not {"members", "num_devices"} & entry.keys():
        return None
    members = Members.parse(entry["members"], whole(entry, "num_devices"))
    if members.count != entry["devices"]:
        raise ValueError
    return members


def sha256(entry: dict[str, Any]) -> str:
    """Return the digest of a file that a line names; raises KeyError, TypeError or ValueError where there is none."""
    if not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
        raise ValueError
    return str(entry["sha256"])


def whole(entry: dict[str, Any], name: str) -> int:
    """Return a whole number of a line; raises KeyError or ValueError where there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def number(entry: dict[str, Any], name: str) -> float:
    """Return a number of a line, finite and not negative; raises KeyError or ValueError where there is none."""
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value
