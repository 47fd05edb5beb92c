"""The extras and the packages that they bring; where one is missing, the one sentence that says so."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXTRAS: Final = {
    "sim": ("torch", "numba", "llvmlite", "mlxtend", "pooch", "PIL"),
    "report": ("matplotlib", "jinja2", "markupsafe", "pandas", "tabulate"),
    "sweep": ("joblib", "pyarrow", "pandas", "tabulate", "jinja2"),
    "web": ("nicegui", "fastapi", "starlette", "uvicorn", "markupsafe"),
    "flower": ("flwr",),
    "track": ("tensorboardX",),
}
"""Extra -> what is imported of it; the first extra that brings a package is the one that is named."""


class MissingExtra(ModuleNotFoundError, ValueError):
    """A package is missing that one of airfed's extras brings; a user's mistake like any other ValueError."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn the lack of a package that an extra brings, or of half of it, into MissingExtra; other errors pass."""
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        require((error.name or "").partition(".")[0])
        for frame, _ in traceback.walk_tb(error.__traceback__):
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            extra = next((extra for extra, brought in EXTRAS.items() if package in brought), None)
            if extra is not None and package not in sys.modules:  # an import that fails leaves nothing there
                reason = " ".join(str(error).split()).removesuffix(".")
                raise MissingExtra(
                    f"This needs airfed[{extra}], and {package} cannot be imported here ({reason}): "
                    f"pip install --force-reinstall 'airfed[{extra}]'.",
                    name=package,
                ) from error
        raise


def require(*packages: str) -> None:
    """Raise MissingExtra where packages of extras are not installed, before any work and without importing them."""
    for package in packages:
        for extra, brought in EXTRAS.items():
            if package in brought and not has(package):
                sentence = f"This needs airfed[{extra}] ({package} is missing): pip install 'airfed[{extra}]'."
                raise MissingExtra(sentence, name=package)


def has(package: str) -> bool:
    """Return whether a package is installed; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a finder of somebody's own
        return False
