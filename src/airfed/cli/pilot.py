"""airfed pilot, calibrate and data: a surrogate from pilot runs, the constants of the bounds, and data sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from cyclopts import App, Parameter, Token
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from airfed.cli.plan import Json, ScenarioFile, SeedOption, TableFormat, check_new, flag, read, whole
from airfed.cli.run import signals
from airfed.cli.sweep import Jobs, job_count, print_outcome
from airfed.scenario import ScenarioError
from airfed.text import output
from airfed.text.tables import plain_table

if TYPE_CHECKING:
    from airfed.experiments.calibrate import Calibration
    from airfed.experiments.pilots import Pilots
    from airfed.experiments.points import Point
    from airfed.experiments.results import Record
    from airfed.planning import Surrogate


_CONSTANTS: Final = {"smoothness": "ζ", "strong_convexity": "ϱ", "initial_gap": "G"}


def _parsed(kind: Any, tokens: Sequence[Token]) -> tuple[float, ...]:
    """Return the numbers of a list separated by commas: 10,20,40."""
    given, whole = tokens[0].value, int in get_args(kind)
    try:
        if whole and re.fullmatch(r"[0-9]{1,39}(,[0-9]{1,39})*", given) is None:
            raise ValueError
        return tuple((int if whole else float)(part) for part in given.split(","))
    except ValueError:
        numbers, example = ("whole numbers", "10,20,40") if whole else ("numbers", "1,2,5")
        raise ValueError(f"must be {numbers} separated by commas, as in {example}, got {given!r}.") from None


_LIST: Final = Parameter(converter=_parsed, n_tokens=1, negative="", show_default=False)
Wholes = Annotated[tuple[int, ...], _LIST]
Numbers = Annotated[tuple[float, ...], _LIST]


def pilot(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The surrogate file to write; the pilot runs go to OUT.pilots.")],
    data: Annotated[
        str | None, Parameter(help="Proxy data to train on (default: the scenario's data set, for simulations only).")
    ] = None,
    images: Annotated[int | None, whole("Images per device (default: as in the scenario).")] = None,
    devices: Annotated[int | None, whole("Devices in a pilot run (default: 20 or more).")] = None,
    rounds: Annotated[Wholes, Parameter(help="Numbers of rounds, as in 10,20,40 (default: five values up to T).")] = (),
    clip_norms: Annotated[
        Numbers, Parameter(help="Clipping norms, as in 1,2,5 (default: from the norms of updates).")
    ] = (),
    noise: Annotated[
        Numbers, Parameter(help="Noise levels σ/(|K|θ), as in 0.001,0.01 (default: from the scenario).")
    ] = (),
    seeds: Annotated[Wholes, Parameter(help="Two or more seeds (default: 101,102).")] = (101, 102),
    jobs: Jobs = None,
    quick: Annotated[bool, flag("Use a coarser grid and fewer devices.")] = False,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    scenario = read(file)
    number = job_count(jobs)
    for name, value in (("images", images), ("devices", devices)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    check_new(out)
    from airfed._disk import write_atomic
    from airfed.experiments import sweep
    from airfed.experiments.pilots import MissingPilots, design, run_pilots

    console = output.make_console(format, stderr=json, quiet=json)
    grid: dict[str, Any] = {"rounds": rounds, "clip_norms": clip_norms, "noise": noise, "seeds": seeds}
    grid |= {"dataset": data, "images": images, "devices": devices, "quick": quick}
    every = [design(each, **grid) for each in scenario.candidates]
    of_scenario = data in (None, scenario.learning.dataset)
    folder = out.with_name(f"{out.name}.pilots")
    surrogates = []
    with signals() as caught:

        def run(title: str, points: Sequence[Point]) -> list[Record]:
            options: dict[str, Any] = {"jobs": number, "console": console, "title": title}
            return sweep.run(points, folder, stop=lambda: bool(caught), **options)

        for pilots in every:
            console.print(_description(pilots, folder, of_scenario), markup=False, soft_wrap=True)
            try:
                surrogates.append(run_pilots(pilots, run))
            except MissingPilots as missing:
                print_outcome(output.make_console(stderr=True), missing.records)
                return 128 + caught[0] if caught else 2
    try:
        write_atomic(out, surrogates[0].to_json(*surrogates[1:]).encode(), new=True)
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}. The same command resumes from {folder}.") from None
    if json:
        found = [{**surrogate.about, "best": best(surrogate)} for surrogate in surrogates]
        one_or_more = {"networks": found} if len(found) > 1 else found[0]
        output.print_json({"out": str(out), "pilots": str(folder), **one_or_more})
        return 0
    for pilots, surrogate in zip(every, surrogates, strict=True):
        if len(every) > 1:
            console.print(f"{_network(pilots)}:", markup=False)
        _print_best(console, surrogate, best(surrogate))
    console.print(f"written: {out} (the pilot runs in {folder} can be deleted)", markup=False, soft_wrap=True)
    return 0


def _network(pilots: Pilots) -> str:
    learning = pilots.base.learning
    return f"{learning.model_title} (d = {learning.dimension:,})"


def _description(pilots: Pilots, folder: Path, of_scenario: bool) -> str:
    kind = "the scenario's data: for simulations only" if of_scenario else "proxy data"
    about = f"{_network(pilots)} on {pilots.about()['dataset']} ({kind})"
    lines = [f"Pilot runs: {about}, {pilots.devices} devices with {pilots.images} images each."]
    axes = {"Rounds I": pilots.rounds, "Clipping norms ϖ": pilots.clip_norm, "Noise levels σ/(|K|θ)": pilots.noise}
    axes["Participation |K|/N"] = pilots.participation
    lines += [f"{name}: {', '.join(f'{value:g}' for value in values)}" for name, values in axes.items()]
    seeds = f"Seeds: 1 per grid point, {len(pilots.seeds)} in the better half."
    return "\n".join([*lines, f"{seeds} If stopped, the same command resumes from {folder}."])


def best(surrogate: Surrogate) -> list[dict[str, Any]]:
    """Return the best grid point at each participation and noise, with its accuracy and spread."""
    import numpy as np

    rows = []
    for participation, noise in np.ndindex(surrogate.participation.size, surrogate.noise.size):
        found = surrogate.accuracy[:, participation, :, :, noise]
        average, rounds, norm = np.unravel_index(found.argmax(), found.shape)
        rows.append(
            {
                "participation": float(surrogate.participation[participation]),
                "noise": float(surrogate.noise[noise]),
                "rounds": int(surrogate.rounds[rounds]),
                "clip_norm": float(surrogate.clip_norm[norm]),
                "average": surrogate.averages[average],
                "accuracy": float(found[average, rounds, norm]),
                "spread": float(surrogate.spread[average, participation, rounds, norm, noise]),
            }
        )
    return rows


def _print_best(console: Console, surrogate: Surrogate, rows: Sequence[dict[str, Any]]) -> None:
    forms = {"participation": ".2g", "noise": ".3g", "rounds": "d", "clip_norm": "g", "average": "s"}
    forms |= {"accuracy": ".1%", "spread": ".1%"}
    table = plain_table("|K|/N", "σ/(|K|θ)", "best I", "best ϖ", "model average", "accuracy", "std")
    for row in rows:
        table.add_row(*(f"{row[name]:{form}}" for name, form in forms.items()))
    console.print(table)
    norms = surrogate.clip_norm.tolist()
    if len(norms) > 1 and (found := {row["clip_norm"] for row in rows} & {norms[0], norms[-1]}):
        edge = f"ϖ = {' and '.join(f'{norm:g}' for norm in sorted(found))} is at the edge of the grid"
        console.print(f"{edge}; a value beyond it may be better (--clip-norms).", soft_wrap=True)


def calibrate(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Write the scenario with the constants to this file.")] = None,
    seed: SeedOption = None,
    json: Json = False,
    format: TableFormat = None,
) -> int:
    scenario = read(file, seed=seed)
    if out is not None:
        check_new(out)
    from airfed.experiments.calibrate import calibrate as estimate

    console = output.make_console(format, quiet=json)
    with console.status("calibrating"):
        found = estimate(scenario)
    if json:
        output.print_json({"scenario": scenario.name, **found.to_dict(), "out": None if out is None else str(out)})
    else:
        _print_constants(console, found)
        rate = scenario.learning.learning_rate
        if rate * found.smoothness > 1 + 1e-9:
            limit = f"τ ≤ 1/ζ = {1 / found.smoothness:.4g}"
            console.print(f"The bounds are proved for {limit}; here τ = {rate:g}.", soft_wrap=True)
        if not scenario.learning.synthetic:
            console.print(
                "These constants were measured on the devices' data, without noise; ε does not cover plans that use "
                "them. Calibrate with proxy data (learning.dataset) instead.",
                soft_wrap=True,
            )
    if out is not None:  # the results are printed by now
        with out.open("x", encoding="utf-8") as stream:
            stream.write(found.to_toml(scenario))
        console.print(f"written: {out}", markup=False, soft_wrap=True)
    return 0


def _print_constants(console: Console, found: Calibration) -> None:
    columns = ("constant", "key", "value", "method")
    table = plain_table(*columns, left=("constant", "key", "method"), wrapped=("method",))
    for name, symbol in _CONSTANTS.items():
        how = found.how[name].removeprefix(f"{symbol}: ")
        table.add_row(symbol, name, f"{getattr(found, name):.5g}", escape(how))
    console.print(table)
    norms = plain_table("E", "mean", "95% below", "largest", title="Norms of the devices' updates after E local steps")
    for norm in found.norms:
        norms.add_row(f"{norm.local_steps}", *(f"{v:.3g}" for v in (norm.mean, norm.quantile_95, norm.largest)))
    if found.norms:
        console.print(norms)


data = App(name="data")


@data.command
def fetch(
    name: Annotated[Literal["mnist", "fashion-mnist", "cifar-10"], Parameter(help="The data set.")],
    /,
    *,
    source: Annotated[Path | None, Parameter(help="A folder that already contains the files.")] = None,
    data_dir: Annotated[Path | None, Parameter(help="Where to store it (default: $AIRFED_DATA or the cache).")] = None,
    json: Json = False,
) -> int:
    """Download a data set, verify its checksums and store it."""
    from airfed.learning.published import fetch as get

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    progress = Progress(*columns, console=output.make_console(stderr=True), transient=True)
    bars: dict[str, Any] = {}

    def report(what: str, done: int, total: int | None) -> None:
        progress.start()  # only now, so that an error prints no empty bar
        if what not in bars:
            bars[what] = progress.add_task(what, total=total)
        progress.update(bars[what], completed=done, total=total)

    try:
        folder = get(name, source=source, data_dir=data_dir, progress=report)
    finally:
        if bars:
            progress.stop()
    if json:
        output.print_json({"name": name, "folder": str(folder)})
    else:
        output.say(f"{name}: verified, in {folder}")
    return 0
