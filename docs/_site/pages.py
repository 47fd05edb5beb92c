"""Generate pages: the API reference from the docstrings, the command line from its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import griffe

# Page -> (title, subject, modules whose public names it documents). A name that two modules export is documented
# on the first page.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "airfed": ("Public names", "The names of `import airfed`; they are stable.", ("airfed",)),
    "planning": (
        "Planning",
        "Which devices transmit, at which power, and in how many rounds.",
        (
            "airfed.policies",
            "airfed.planning",
            "airfed.planning.amplitudes",
            "airfed.planning.method",
            "airfed.baselines",
            "airfed.planning.exact",
            "airfed.planning.limits",
            "airfed.planning.time_varying.planner",
            "airfed.planning.beamforming",
        ),
    ),
    "privacy": (
        "Privacy",
        "The Gaussian mechanism's exact trade-off, Lemma 1, and the ledger.",
        ("airfed.privacy", "airfed.privacy.ledger"),
    ),
    "convergence": ("Convergence", "Theorems 1 and 2 and their terms.", ("airfed.bounds",)),
    "channel": (
        "Channels",
        "Channel distributions, fading processes and path loss.",
        ("airfed.channel", "airfed.channel.path_loss"),
    ),
    "aircomp": ("AirComp", "Clip, precode, superpose, add noise, rescale, meter.", ("airfed.aircomp",)),
    "scenario": ("Scenarios", "A validated TOML file; [its keys](../scenario.md).", ("airfed.scenario",)),
    "training": (
        "Training",
        "The round loop, the run directory and its reader.",
        ("airfed.notebook", "airfed.training.run", "airfed.training.loop", "airfed.training.directory"),
    ),
    "learning": (
        "Learning",
        "Engines and data.",
        ("airfed.learning.engine", "airfed.learning.reference", "airfed.learning.data"),
    ),
    "audit": ("Audit", "Attacks on the privacy claim.", ("airfed.audit",)),
    "flower": (
        "Flower",
        "A strategy, a client mod and two apps; [how to deploy them](../deploy.md).",
        ("airfed.flower",),
    ),
}
LIBRARY = Path(__file__).parents[2] / "src"


def package() -> griffe.Module:
    """Return airfed as parsed from its source; nothing is imported."""
    loaded = griffe.load("airfed", search_paths=[LIBRARY], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def public_names(module: griffe.Module) -> list[griffe.Object]:
    """Return the names in a module's `__all__`, or else those that it defines without a leading underscore."""
    if module.exports is not None:
        return [_exported(module, str(name)) for name in module.exports]
    defined = (member for name, member in module.members.items() if not name.startswith("_"))
    return [member for member in defined if isinstance(member, griffe.Class | griffe.Function)]


def documented(root: griffe.Module) -> dict[str, list[griffe.Object]]:
    """Return the objects of each page; each object is on one page only."""
    taken: set[str] = set()
    pages: dict[str, list[griffe.Object]] = {}
    for page, (_, _, modules) in PAGES.items():
        pages[page] = []
        for name in modules:
            for item in public_names(root if name == "airfed" else root[name.removeprefix("airfed.")]):
                if item.path not in taken:
                    taken.add(item.path)
                    pages[page].append(item)
    return pages


def reference(root: griffe.Module) -> dict[str, str]:
    """Return the pages of the reference by their path in the site."""
    written = {}
    places = documented(root)
    for page, (title, about, modules) in PAGES.items():
        here = {item.path for item in places[page]}
        text = [f"# {title}", about]
        for name in modules:
            module = root if name == "airfed" else root[name.removeprefix("airfed.")]
            items = public_names(module)
            text.append(f"## `{name}`")
            if name != "airfed" and module.docstring:
                text.append(module.docstring.value.split("\n\n")[0])
            elsewhere = [item for item in items if item.path not in here]
            if elsewhere:
                links = " · ".join(f"[`{item.name}`][{item.path}]" for item in elsewhere)
                text.append(f"Documented elsewhere: {links}")
            for item in items:
                if item.path in here:
                    here.discard(item.path)
                    text.append(f"::: {item.path}")
        written[f"api/{page}.md"] = "\n\n".join(text) + "\n"
    return written


def command_line() -> str:
    """Return the page of the commands, generated from their help."""
    # In a separate process: the help contains the name of the running program.
    code = "from airfed.cli.app import app; print(app.generate_docs(output_format='markdown', recursive=True))"
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8").stdout
    _, _, body = text.partition("**Commands**")
    return (
        "# Command line\n\nGenerated from the commands' help. Exit codes: 0 done, 2 invalid input, 3 no "
        "feasible plan, 4 the audit failed or a record was changed, 5 another process of the run was lost, 130/143 "
        "stopped by a signal. Errors are one sentence; `AIRFED_DEBUG=1` adds the traceback.\n\n**Commands**" + body
    )


def _exported(module: griffe.Module, name: str) -> griffe.Object:
    """Return the object behind a name; an imported object hides a module of the same name, as in Python."""
    member = module[name]
    if member.is_module and name in module.imports:
        member = module.package[module.imports[name].removeprefix("airfed.")]
    target = member.final_target if isinstance(member, griffe.Alias) else member
    assert isinstance(target, griffe.Object)
    return target
