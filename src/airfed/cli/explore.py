"""airfed explore: the planner as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from airfed import scenario
from airfed.cli.plan import Whole
from airfed.explorer import design


def explore(
    file: Annotated[Path | None, Parameter(help="The scenario to start from (default: that of airfed new).")] = None,
    /,
    *,
    port: Annotated[Whole, Parameter(help="The port to listen on; 0 takes a free one.")] = 8080,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    runs: Annotated[Path, Parameter(help="A folder of run directories to show.")] = Path("runs"),
    browser: Annotated[bool, Parameter(help="Open the page in the browser.")] = True,
) -> None:
    start = design.Design() if file is None else design.from_scenario(scenario.load(file))
    from airfed.explorer.server import serve

    serve(start, host=host, port=port, runs=runs, open_browser=browser)
