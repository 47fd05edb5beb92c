"""Hooks of mkdocs: add the generated pages, tag pages for the search, and refuse an incomplete site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checks
import notebooks
import pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

# Words of the field that a reader searches for, by the page that must come first.
SEARCH_WORDS = {
    "antennas.md": ["beamforming", "beamformer"],
    "baselines.md": [
        *("baseline", "DP-FedAvg", "COTAF", "secure aggregation", "local DP"),
        *("threshold power control", "artificial noise"),
    ],
    "fading.md": ["block fading", "time-varying", "shadowing"],
    "howto/data.md": ["non-IID"],
    "model.md": ["AirComp", "channel inversion", "participation", "water-filling"],
    "presets.md": ["SNR", "path loss"],
    "privacy.md": ["user-level DP", "device-level DP", "replace-one adjacency", "threat model"],
    "privacy-math.md": ["Gaussian DP", "noise multiplier", "accountant", "CSI"],
    "privacy-operators.md": ["audit", "canaries"],
    "surrogate.md": ["pilot runs", "response surface"],
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the reference, the command line and the executed notebooks."""
    generated: dict[str, str | bytes] = {**pages.reference(pages.package()), "cli.md": pages.command_line()}
    for source in sorted(Path(config.docs_dir, "notebooks").glob("*.py")):
        generated |= notebooks.rendered(source)
    for path, content in generated.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Tag a page with its search words; the search ranks tags above titles."""
    if words := SEARCH_WORDS.get(page.file.src_uri):
        page.meta["tags"] = words
    return markdown


def on_post_build(*, config: Any) -> None:
    """Fail if a public name is not documented, or a page fetches something from another host."""
    site = Path(config.site_dir)
    wrong = checks.undocumented(site, pages.documented(pages.package())) + checks.external_resources(site)
    if wrong:
        raise PluginError("\n".join(["The site is not complete:", *wrong]))
