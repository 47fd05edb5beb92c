"""airfed calibrate: estimate the constants of the bounds from the data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from airfed.cli.plan import Json, ScenarioFile, Seed, TableFormat, check_new, read
from airfed.scenario import ScenarioError
from airfed.text import exports, output
from airfed.text.live import work_line
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.calibrate import Calibration

_CONSTANTS: Final = (("ζ", "smoothness"), ("ϱ", "strong_convexity"), ("G", "initial_gap"))


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

    console = exports.make_console(format, quiet=json)
    with _progress(console) as tell:
        found = estimate(world, tell)
    text = found.to_toml(world)
    if json:
        output.print_json({"scenario": world.name, **found.to_dict(), "out": None if out is None else str(out)})
        _write(text, out)
        return 0
    if exports.exporting(console):
        _print_tables(console, found)
    for symbol, name in _CONSTANTS:
        console.print(f"{symbol} = {getattr(found, name):.5g}  {name}")
        console.print(f"  {found.how[name].removeprefix(symbol + ': ')}", style="dim", markup=False, soft_wrap=True)
    for line in found.norm_lines() if found.norms else ():
        console.print(line, soft_wrap=True)
    learning = world.learning
    if learning.learning_rate * found.smoothness > 1 + 1e-9:
        console.print(
            f"The bounds are proved for τ ≤ 1/ζ = {1 / found.smoothness:.4g}; here τ = {learning.learning_rate:g}.",
            soft_wrap=True,
        )
    _write(text, out)
    if out is not None:
        console.print(f"written: {out}", markup=False, soft_wrap=True)
    return 0


def _print_tables(console: Console, found: Calibration) -> None:
    """Print the constants, and the norms of the updates if there are any, as tables."""
    table = plain_table("constant", "key", "value", "how", left=("constant", "key", "how"))
    for symbol, name in _CONSTANTS:
        how = found.how[name].removeprefix(f"{symbol}: ")
        table.add_row(symbol, name, f"{getattr(found, name):.5g}", escape(how))
    console.print(table)
    norms = plain_table("E", "mean", "95% below", "largest", title="Norms of the updates over devices")
    for norm in found.norms:
        norms.add_row(f"{norm.steps}", *(f"{value:.3g}" for value in (norm.mean, norm.upper, norm.largest)))
    if found.norms:
        console.print(norms)


def _write(text: str, out: Path | None) -> None:
    """Write the scenario; what was measured is on the screen by then."""
    if out is None:
        return
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}.") from None


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Yield the function that shows what is being measured, and about how long it still takes."""
    started = time.monotonic()
    with work_line(console, "calibrating") as update:

        def tell(step: str, share: float) -> None:
            update(share, step, (time.monotonic() - started) * (1 - share) / share if share > 0 else None)

        tell("data", 0.0)
        yield tell
        update(1.0, "done", None)
