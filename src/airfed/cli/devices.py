"""The devices in `airfed ledger`: what each has spent of its privacy and its battery, where rounds differ in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from airfed.text.phrases import count
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.planning import Plan
    from airfed.privacy.ledger import Ledger

_LISTED: Final = 1000  # devices at most, one by one
_EMPTIEST: Final = 5  # batteries that are named
_QUANTILES: Final = {"minimum": 0.0, "median": 0.5, "p90": 0.9, "maximum": 1.0}


def summary(book: Ledger, plan: Plan | None = None) -> dict[str, Any]:
    """Return {"per_device": …} of a ledger that charges some devices (with batteries by its plan), or nothing."""
    if book.num_devices is None:
        return {}
    return {"per_device": {"number": book.num_devices, "epsilon": _epsilon(book)} | _battery(book, plan)}


def print_summary(console: Console, of: dict[str, Any]) -> None:
    """Print the `per_device` of a ledger's summary, where there are any."""
    if (found := of.get("per_device")) is None:
        return
    epsilon, battery = found["epsilon"], found.get("battery")
    table = plain_table("devices", "minimum", "median", "90%", "maximum", "of device", left=("devices",))
    table.add_row("ε", *(f"{epsilon[name]:.4g}" for name in _QUANTILES), f"{epsilon['most_exposed']}")
    if battery is not None:
        cells = [f"{battery[name]:.1%}" for name in _QUANTILES]
        table.add_row("battery used", *cells, f"{battery['emptiest'][0]['device']}")
    console.print("", table)
    console.print(f"{epsilon['never']} of {count(found['number'], 'device')} never scheduled")
    if battery is not None:
        rows = [f"{row['device']} ({row['used']:.1%})" for row in battery["emptiest"]]
        console.print(f"emptiest batteries: {', '.join(rows)}")


def _epsilon(book: Ledger) -> dict[str, Any]:
    """The distribution of ε. It grows with μ, so that quantiles are chosen by μ."""
    from airfed.privacy import gaussian_epsilon

    mus, delta = book.device_mus(), book.header["delta"]
    figures = {name: gaussian_epsilon(mu, delta) for name, mu in _distribution(mus).items()}
    listed = {"each": book.device_epsilons().tolist()} if mus.size <= _LISTED else {}
    return {"never": int(np.sum(mus == 0)), **figures, "most_exposed": int(np.argmax(mus)), **listed}


def _battery(book: Ledger, plan: Plan | None) -> dict[str, Any]:
    """The distribution of the shares that are used, where there are batteries."""
    from airfed.training.charging import Batteries

    if plan is None or (used := Batteries(plan, book).used) is None:
        return {}
    order = np.lexsort((np.arange(used.size), -used))[:_EMPTIEST]
    emptiest = [{"device": int(device), "used": float(used[device])} for device in order]
    listed = {"each": used.tolist()} if used.size <= _LISTED else {}
    return {"battery": {**_distribution(used), "emptiest": emptiest, **listed}}


def _distribution(values: NDArray[np.float64]) -> dict[str, float]:
    """Values that devices have; p90 is one that nine of ten do not exceed."""
    found = np.quantile(values, list(_QUANTILES.values()), method="inverted_cdf")
    return dict(zip(_QUANTILES, found.tolist(), strict=True))
