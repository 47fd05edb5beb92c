"""airfed data: download and verify data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from airfed.cli.plan import Json
from airfed.text import output

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
