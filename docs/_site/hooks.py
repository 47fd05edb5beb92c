"""What mkdocs calls: adds the pages that are made at build time, and refuses a site that lacks something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checks
import notebooks
import pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Add the reference, the command line and the executed notebooks."""
    made: dict[str, str | bytes] = {**pages.reference(pages.package()), "cli.md": pages.command_line()}
    for source in sorted(Path(config.docs_dir, "notebooks").glob("*.py")):
        made |= notebooks.rendered(source)
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_post_build(*, config: Any) -> None:
    """Fail where a public name is not documented, or a page asks for something from elsewhere."""
    site = Path(config.site_dir)
    wrong = checks.undocumented(site, pages.documented(pages.package())) + checks.from_elsewhere(site)
    if wrong:
        raise PluginError("\n".join(["The site is not complete:", *wrong]))
