"""airfed measure: train pilots on proxy data and write down what accuracy to expect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token
from rich.console import Console

from airfed.cli.plan import Json, ScenarioFile, TableFormat, check_new, read, whole_number
from airfed.cli.run import signals
from airfed.cli.sweep import Jobs, job_count, print_outcome
from airfed.scenario import ScenarioError
from airfed.text import exports, output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.pilots import Pilots
    from airfed.experiments.points import Point
    from airfed.experiments.records import Record
    from airfed.planning import Response


def numbers(kind: Any, tokens: Sequence[Token]) -> tuple[float, ...]:
    """Return an argument as a list of numbers: "0.5,1,2".

    Raises:
        ValueError: it is something else.
    """
    text = tokens[0].value
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected numbers with commas between them, as in 1,2,5; got {text!r}.") from None


def whole_numbers(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Return an argument as a list of whole numbers: "10,20,40".

    Raises:
        ValueError: it is something else.
    """
    text = tokens[0].value
    if re.fullmatch(r"[0-9]{1,39}(,[0-9]{1,39})*", text) is None:
        raise ValueError(f"expected whole numbers with commas between them, as in 10,20,40; got {text!r}.")
    return tuple(int(part) for part in text.split(","))


Whole = tuple[int, ...]
Real = tuple[float, ...]


def _list(text: str, converter: Any) -> Parameter:
    return Parameter(help=text, converter=converter, n_tokens=1, negative="", show_default=False)


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
    rounds: Annotated[Whole, _list("Numbers of rounds, as in 10,20,40 (default: five up to T).", whole_numbers)] = (),
    clip_norms: Annotated[Real, _list("Clipping norms, as in 1,2,5 (default: from the updates' norms).", numbers)] = (),
    noise: Annotated[Real, _list("σ/(|K|θ), as in 0.001,0.01,0.1 (default: from the scenario).", numbers)] = (),
    seeds: Annotated[Whole, _list("Two or more seeds (default: 101,102).", whole_numbers)] = (101, 102),
    jobs: Jobs = None,
    quick: Annotated[bool, Parameter(help="A coarser grid, fewer devices.", negative="")] = False,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    """Train pilots on proxy data over rounds, clipping norm and noise; write the response that plans are chosen by."""
    world = read(file)
    at_a_time = job_count(jobs)
    _check(out, images=images, devices=devices)
    from airfed._disk import write_new
    from airfed.experiments import measure as measuring
    from airfed.experiments import pilots as planned
    from airfed.experiments import sweep
    from airfed.experiments.watching import progress_display

    console = exports.make_console(format, stderr=json, quiet=json)
    pilots = planned.design(
        world,
        dataset=data,
        images=images,
        devices=devices,
        rounds=rounds,
        clip_norms=clip_norms,
        noise=noise,
        seeds=seeds,
        quick=quick,
    )
    folder = out.with_name(f"{out.name}.pilots")
    _print_design(console, pilots, folder)
    with signals() as caught:

        def run(name: str, points: Sequence[Point]) -> list[Record]:
            with progress_display(console, name) as show:
                return sweep.run(points, folder, jobs=at_a_time, on_progress=show, stop=lambda: bool(caught))

        try:
            response = measuring.measure(pilots, run)
        except measuring.Unmeasured as missing:
            print_outcome(output.make_console(stderr=True), list(missing.records))
            return 128 + caught[0] if caught else 2
    try:
        write_new(out, response.to_json().encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}. The same command goes on from {folder}.") from None
    if json:
        output.print_json({"out": str(out), "pilots": str(folder), **response.about, "best": best(response)})
        return 0
    _print_best(console, response)
    console.print(f"written: {out} (the pilots in {folder} are no longer needed)", markup=False, soft_wrap=True)
    return 0


def _check(out: Path, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"Expected --{name}={value} >= 1.")
    check_new(out)


def best(response: Response) -> list[dict[str, Any]]:
    """Return the best place at each share and noise, with its accuracy and spread."""
    import numpy as np

    rows = []
    for share, whole in enumerate(response.share.tolist()):
        for level, noise in enumerate(response.noise.tolist()):
            found = response.accuracy[:, share, :, :, level]
            average, rounds, norm = (int(place) for place in np.unravel_index(found.argmax(), found.shape))
            rows.append(
                {
                    "share": whole,
                    "noise": noise,
                    "rounds": int(response.rounds[rounds]),
                    "clip_norm": float(response.clip_norm[norm]),
                    "average": response.averages[average],
                    "accuracy": float(found[average, rounds, norm]),
                    "spread": float(response.spread[average, share, rounds, norm, level]),
                }
            )
    return rows


def _print_design(console: Console, pilots: Pilots, folder: Path) -> None:
    about = pilots.about()
    console.print(
        f"{about['model']} on {about['dataset']}, which stands for the devices' data: {pilots.devices} devices with "
        f"{pilots.images} images each.",
        markup=False,
        soft_wrap=True,
    )
    for name, values in (("I", pilots.rounds), ("ϖ", pilots.clip_norm), ("σ/(|K|θ)", pilots.noise)):
        console.print(f"{name}: {', '.join(f'{value:g}' for value in values)}", markup=False, soft_wrap=True)
    if len(pilots.share) > 1:
        console.print(f"|K|/N: {', '.join(f'{value:g}' for value in pilots.share)}", markup=False)
    console.print(
        f"At each noise one seed, then {len(pilots.seeds)} for the better half. The pilots are kept in {folder}: after "
        "an interruption the same command goes on.",
        markup=False,
        soft_wrap=True,
    )


def _print_best(console: Console, response: Response) -> None:
    several = response.share.size > 1
    table = plain_table(*(("|K|/N",) if several else ()), "σ/(|K|θ)", "best I", "best ϖ", "average", "accuracy", "±")
    for row in best(response):
        table.add_row(
            *((f"{row['share']:.2g}",) if several else ()),
            f"{row['noise']:.3g}",
            f"{row['rounds']}",
            f"{row['clip_norm']:g}",
            row["average"],
            f"{row['accuracy']:.1%}",
            f"{row['spread']:.1%}",
        )
    console.print(table)
    edges = {float(response.clip_norm[0]), float(response.clip_norm[-1])}
    if response.clip_norm.size > 1 and (found := {row["clip_norm"] for row in best(response)} & edges):
        console.print(
            f"ϖ = {' and '.join(f'{norm:g}' for norm in sorted(found))} is at the edge of what was measured: there may "
            "be better beyond it (--clip-norms).",
            soft_wrap=True,
        )
