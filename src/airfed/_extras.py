"""The extras and the packages that they bring; where one is missing, the one sentence that says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXTRAS: Final = {
    "sim": ("torch", "numba", "llvmlite", "mlxtend"),
    "report": ("matplotlib", "jinja2", "markupsafe"),
    "sweep": ("joblib", "pyarrow"),
    "web": ("nicegui", "fastapi", "starlette", "uvicorn", "markupsafe"),
    "flower": ("flwr",),
}
"""Extra -> what is imported of it; the first extra that brings a package is the one that is named."""


class MissingExtra(ModuleNotFoundError, ValueError):
    """A package is missing that one of airfed's extras brings; a user's mistake like any other ValueError."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn the lack of a package that an extra brings into the sentence that says so; any other error passes as it is.

    Raises:
        MissingExtra: such a package is not installed.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        require((error.name or "").partition(".")[0])
        raise


def require(*packages: str) -> None:
    """Raise where packages of extras are not installed: before any work is done, and without importing them.

    Raises:
        MissingExtra: one of them is not.
    """
    for package in packages:
        for extra, brought in EXTRAS.items():
            if package in brought and not has(package):
                sentence = f"This needs airfed[{extra}] ({package} is missing): pip install 'airfed[{extra}]'."
                raise MissingExtra(sentence, name=package)


def has(package: str) -> bool:
    """Return whether a package is installed; it is not imported.

    >>> has("numpy"), has("nowhere")
    (True, False)
    """
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a finder of somebody's own
        return False
