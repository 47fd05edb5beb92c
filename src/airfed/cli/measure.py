"""airfed measure and calibrate: what accuracy to expect, by pilots on proxy data, and the constants of the bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter, Token
from rich.console import Console
from rich.markup import escape

from airfed.cli.plan import Json, ScenarioFile, Seed, TableFormat, check_new, read, whole_number
from airfed.cli.run import signals
from airfed.cli.sweep import Jobs, job_count, print_outcome
from airfed.scenario import ScenarioError
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.calibrate import Calibration
    from airfed.experiments.points import Point
    from airfed.experiments.results import Record
    from airfed.planning import Response


_CONSTANTS: Final = {"smoothness": "ζ", "strong_convexity": "ϱ", "initial_gap": "G"}


def _list(text: str, *, whole: bool) -> Parameter:
    """A list of numbers, written with commas: 10,20,40."""

    def parsed(kind: Any, tokens: Sequence[Token]) -> tuple[float, ...]:
        given = tokens[0].value
        try:
            if whole and re.fullmatch(r"[0-9]{1,39}(,[0-9]{1,39})*", given) is None:
                raise ValueError
            return tuple((int if whole else float)(part) for part in given.split(","))
        except ValueError:
            kind, example = ("whole numbers", "10,20,40") if whole else ("numbers", "1,2,5")
            raise ValueError(f"expected {kind} with commas between them, as in {example}; got {given!r}.") from None

    return Parameter(help=text, converter=parsed, n_tokens=1, negative="", show_default=False)


Whole = tuple[int, ...]
Real = tuple[float, ...]


def measure(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The response that is written; the pilots go into a folder beside it.")],
    data: Annotated[str | None, Parameter(help="Proxy data to train on (default: the scenario's data set).")] = None,
    images: Annotated[
        int | None, Parameter(help="Images that a device holds (default: as in the scenario).", converter=whole_number)
    ] = None,
    devices: Annotated[
        int | None, Parameter(help="Devices that train in a pilot (default: 20 or more).", converter=whole_number)
    ] = None,
    rounds: Annotated[Whole, _list("Numbers of rounds, as in 10,20,40 (default: five up to T).", whole=True)] = (),
    clip_norms: Annotated[Real, _list("Clipping norms, as in 1,2,5 (default: by the updates).", whole=False)] = (),
    noise: Annotated[Real, _list("σ/(|K|θ), as in 0.001,0.01,0.1 (default: from the scenario).", whole=False)] = (),
    seeds: Annotated[Whole, _list("Two or more seeds (default: 101,102).", whole=True)] = (101, 102),
    jobs: Jobs = None,
    quick: Annotated[bool, Parameter(help="A coarser grid, fewer devices.", negative="")] = False,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    world = read(file)
    at_a_time = job_count(jobs)
    for name, value in (("images", images), ("devices", devices)):
        if value is not None and value < 1:
            raise ValueError(f"Expected --{name}={value} >= 1.")
    check_new(out)
    from airfed._disk import write_new
    from airfed.experiments import sweep
    from airfed.experiments.pilots import Unmeasured, design
    from airfed.experiments.pilots import measure as measured

    console = output.make_console(format, stderr=json, quiet=json)
    grid: dict[str, Any] = {"rounds": rounds, "clip_norms": clip_norms, "noise": noise, "seeds": seeds}
    pilots = design(world, dataset=data, images=images, devices=devices, quick=quick, **grid)
    folder = out.with_name(f"{out.name}.pilots")
    about = f"{pilots.about()['model']} on {pilots.about()['dataset']}, which stands for the devices' data"
    lines = [f"{about}: {pilots.devices} devices with {pilots.images} images each."]
    axes = {"I": pilots.rounds, "ϖ": pilots.clip_norm, "σ/(|K|θ)": pilots.noise, "|K|/N": pilots.share}
    lines += [f"{name}: {', '.join(f'{value:g}' for value in values)}" for name, values in axes.items()]
    lines += [f"At each noise one seed, then {len(seeds)} for the better half. The same command resumes from {folder}."]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    with signals() as caught:

        def run(title: str, points: Sequence[Point]) -> list[Record]:
            options: dict[str, Any] = {"jobs": at_a_time, "console": console, "title": title}
            return sweep.run(points, folder, stop=lambda: bool(caught), **options)

        try:
            response = measured(pilots, run)
        except Unmeasured as missing:
            print_outcome(output.make_console(stderr=True), missing.records)
            return 128 + caught[0] if caught else 2
    try:
        write_new(out, response.to_json().encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}. The same command goes on from {folder}.") from None
    rows = best(response)
    if json:
        output.print_json({"out": str(out), "pilots": str(folder), **response.about, "best": rows})
        return 0
    _print_best(console, response, rows)
    console.print(f"written: {out} (the pilots in {folder} are no longer needed)", markup=False, soft_wrap=True)
    return 0


def best(response: Response) -> list[dict[str, Any]]:
    """Return the best grid point at each share and noise, with its accuracy and spread."""
    import numpy as np

    rows = []
    for share, noise in np.ndindex(response.share.size, response.noise.size):
        found = response.accuracy[:, share, :, :, noise]
        average, rounds, norm = np.unravel_index(found.argmax(), found.shape)
        rows.append(
            {
                "share": float(response.share[share]),
                "noise": float(response.noise[noise]),
                "rounds": int(response.rounds[rounds]),
                "clip_norm": float(response.clip_norm[norm]),
                "average": response.averages[average],
                "accuracy": float(found[average, rounds, norm]),
                "spread": float(response.spread[average, share, rounds, norm, noise]),
            }
        )
    return rows


def _print_best(console: Console, response: Response, rows: Sequence[dict[str, Any]]) -> None:
    forms = {"share": ".2g", "noise": ".3g", "rounds": "d", "clip_norm": "g", "average": "s"}
    forms |= {"accuracy": ".1%", "spread": ".1%"}
    table = plain_table("|K|/N", "σ/(|K|θ)", "best I", "best ϖ", "average", "accuracy", "±")
    for row in rows:
        table.add_row(*(f"{row[name]:{form}}" for name, form in forms.items()))
    console.print(table)
    norms = response.clip_norm.tolist()
    if len(norms) > 1 and (found := {row["clip_norm"] for row in rows} & {norms[0], norms[-1]}):
        edge = f"ϖ = {' and '.join(f'{norm:g}' for norm in sorted(found))} is at the edge of what was measured"
        console.print(f"{edge}: there may be better beyond it (--clip-norms).", soft_wrap=True)


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
    world = read(file, seed=seed)
    if out is not None:
        check_new(out)
    from airfed.experiments.calibrate import calibrate as estimate

    console = output.make_console(format, quiet=json)
    with console.status("calibrating"):
        found = estimate(world)
    if json:
        output.print_json({"scenario": world.name, **found.to_dict(), "out": None if out is None else str(out)})
    else:
        _print_constants(console, found)
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


def _print_constants(console: Console, found: Calibration) -> None:
    columns = ("constant", "key", "value", "how")
    table = plain_table(*columns, left=("constant", "key", "how"), wrapped=("how",))
    for name, symbol in _CONSTANTS.items():
        how = found.how[name].removeprefix(f"{symbol}: ")
        table.add_row(symbol, name, f"{getattr(found, name):.5g}", escape(how))
    console.print(table)
    norms = plain_table("E", "mean", "95% below", "largest", title="Norms of the updates over devices")
    for norm in found.norms:
        norms.add_row(f"{norm.local_steps}", *(f"{v:.3g}" for v in (norm.mean, norm.quantile_95, norm.largest)))
    if found.norms:
        console.print(norms)
