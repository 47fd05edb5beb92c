"""airfed calibrate: estimate the constants of the bounds from the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from airfed.cli.plan import Json, ScenarioFile, Seed, TableFormat, check_new, read
from airfed.scenario import ScenarioError
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.calibrate import Calibration

_CONSTANTS: Final = {"smoothness": "ζ", "strong_convexity": "ϱ", "initial_gap": "G"}


def calibrate(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Write the scenario with the constants and how they were found.")
    ] = None,
    seed: Seed = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    """Estimate ζ, ϱ, G and the norms of updates over E from the scenario's data and model."""
    world = read(file, seed=seed)
    if out is not None:
        check_new(out)
    from airfed.experiments.calibrate import calibrate as estimate

    console = output.make_console(format, quiet=json)
    with console.status("calibrating") as status:
        found = estimate(world, lambda step: status.update(f"calibrating: {step}"))
    if json:
        output.print_json({"scenario": world.name, **found.to_dict(), "out": None if out is None else str(out)})
    else:
        _print(console, found)
        rate = world.learning.learning_rate
        if rate * found.smoothness > 1 + 1e-9:
            limit = f"τ ≤ 1/ζ = {1 / found.smoothness:.4g}"
            console.print(f"The bounds are proved for {limit}; here τ = {rate:g}.", soft_wrap=True)
    if out is not None:  # the results are on the screen by then
        try:
            with out.open("x", encoding="utf-8") as stream:
                stream.write(found.to_toml(world))
        except OSError as error:
            raise ScenarioError(f"Cannot write {out}: {error.strerror}.") from None
        console.print(f"written: {out}", markup=False, soft_wrap=True)
    return 0


def _print(console: Console, found: Calibration) -> None:
    """Print the constants and the norms of the updates, as text or as tables."""
    told = {name: found.how[name].removeprefix(f"{symbol}: ") for name, symbol in _CONSTANTS.items()}
    if not output.exporting(console):
        for name, symbol in _CONSTANTS.items():
            console.print(f"{symbol} = {getattr(found, name):.5g}  {name}")
            console.print(f"  {told[name]}", style="dim", markup=False, soft_wrap=True)
        for line in found.norm_lines() if found.norms else ():
            console.print(line, soft_wrap=True)
        return
    table = plain_table("constant", "key", "value", "how", left=("constant", "key", "how"))
    for name, symbol in _CONSTANTS.items():
        table.add_row(symbol, name, f"{getattr(found, name):.5g}", escape(told[name]))
    console.print(table)
    norms = plain_table("E", "mean", "95% below", "largest", title="Norms of the updates over devices")
    for norm in found.norms:
        norms.add_row(f"{norm.local_steps}", *(f"{v:.3g}" for v in (norm.mean, norm.quantile_95, norm.largest)))
    if found.norms:
        console.print(norms)
