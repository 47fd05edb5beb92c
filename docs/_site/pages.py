"""Pages that are made at build time: the reference of the API from the docstrings, the command line from its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import griffe

# Page -> (title, what it is about, modules whose public names it documents). A name that two modules offer is
# documented where it comes first.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "airfed": ("Public names", "What `import airfed` offers; these names stay.", ("airfed",)),
    "planning": (
        "Planning",
        "Who transmits, how strongly, and for how many rounds.",
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
        "The Gaussian mechanism's exact trade-off, Lemma 1 beside it, and the ledger.",
        ("airfed.privacy", "airfed.privacy.ledger"),
    ),
    "convergence": ("Convergence", "Theorems 1 and 2, and what they are made of.", ("airfed.bounds",)),
    "channel": (
        "Channels",
        "Laws of the gains, how they change, and the physics behind them.",
        ("airfed.channel", "airfed.channel.path_loss"),
    ),
    "air": ("The air", "Clip, precode, superpose, add noise, rescale, meter.", ("airfed.aircomp",)),
    "scenario": ("Scenarios", "A TOML file, checked; [its keys](../scenario.md).", ("airfed.scenario",)),
    "running": (
        "Runs",
        "What a run leaves on disk, and who reads it.",
        ("airfed.notebook", "airfed.training.run", "airfed.training.loop", "airfed.training.directory"),
    ),
    "learning": (
        "Learning",
        "What trains: one interface, and data.",
        ("airfed.learning.engine", "airfed.learning.reference", "airfed.learning.data"),
    ),
    "auditing": ("Audit", "Attacks on the privacy claim.", ("airfed.audit",)),
    "flower": (
        "Flower",
        "A strategy, a client mod and two apps; [how to deploy them](../deploy.md).",
        ("airfed.flower",),
    ),
}
LIBRARY = Path(__file__).parents[2] / "src"


def package() -> griffe.Module:
    """Return airfed as its source says it is; nothing is imported."""
    loaded = griffe.load("airfed", search_paths=[LIBRARY], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def public_names(module: griffe.Module) -> list[griffe.Object]:
    """Return what a module offers: its `__all__`, or else what it defines without a leading underscore."""
    if module.exports is not None:
        return [_offered(module, str(name)) for name in module.exports]
    defined = (member for name, member in module.members.items() if not name.startswith("_"))
    return [member for member in defined if isinstance(member, griffe.Class | griffe.Function)]


def documented(root: griffe.Module) -> dict[str, list[griffe.Object]]:
    """Return the objects that each page documents, each object on one page only."""
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
    """Return the pages of the reference, by their place in the site."""
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
    """Return the page of the commands, from their own help."""
    # In a process of its own: the help names the program that shows it.
    code = "from airfed.cli.app import app; print(app.generate_docs(output_format='markdown', recursive=True))"
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8").stdout
    _, _, body = text.partition("**Commands**")
    return (
        "# Command line\n\nMade from the commands' own help at build time. Exit codes: 0 done, 2 a mistake in the "
        "input, 3 no feasible plan, 4 the audit failed, 5 another process of the run was lost, 130/143 "
        "stopped by a signal. A mistake is one sentence; `AIRFED_DEBUG=1` shows where it arose.\n\n**Commands**" + body
    )


def _offered(module: griffe.Module, name: str) -> griffe.Object:
    """The object behind a name; what is imported hides a module of the same name, as in Python."""
    member = module[name]
    if member.is_module and name in module.imports:
        member = module.package[module.imports[name].removeprefix("airfed.")]
    target = member.final_target if isinstance(member, griffe.Alias) else member
    assert isinstance(target, griffe.Object)
    return target
