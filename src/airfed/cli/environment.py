"""airfed --version --verbose: what a report of a bug should say."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Final

from airfed import __version__, _extras

_CORE: Final = ("numpy", "scipy", "pydantic", "cyclopts", "rich", "safetensors", "platformdirs", "threadpoolctl")


def described() -> str:
    """Return the versions of airfed, of Python and of every package that counts, and which extras are complete."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        f"airfed {__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()}), {processors} processors",
        f"{platform.platform()}",
        f"core: {', '.join(_named(name) for name in _CORE)}",
    ]
    for extra, packages in _extras.EXTRAS.items():
        complete = all(_extras.has(package) for package in packages)
        lines.append(f"{extra}{'' if complete else ' (not complete)'}: {', '.join(_named(name) for name in packages)}")
    return "\n".join(lines)


def _named(package: str) -> str:
    """A package with its version, or that it is missing; nothing is imported."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} -"
