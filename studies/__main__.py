"""Run studies: train what is missing, draw, test claims, write a page of results.

python -m studies regret prediction --quick --out out/regret
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from airfed.cli.figures import run_figures
from studies import catalogue, page


def main(
    *names: Annotated[str, Parameter(help=f"Which: {', '.join(each.name for each in catalogue.STUDIES)}.")],
    out: Path = Path("out/studies"),
    quick: bool = False,
    check: bool = False,
    jobs: int | None = None,
    docs: Annotated[Path | None, Parameter(help="Write the results as this Markdown file.")] = None,
) -> int:
    """Run what is missing of the named studies, draw them, and write the numbers behind them."""
    catalogue.register()
    write = (
        None
        if docs is None
        else lambda results, drawn: page.write(docs, results, figures=drawn, quick=quick, pictures=out)
    )
    return run_figures(list(names), out=out, quick=quick, check=check or docs is not None, jobs=jobs, write=write)


if __name__ == "__main__":
    app = App(help=__doc__)
    app.default(main)
    sys.exit(app())
