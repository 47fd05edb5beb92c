"""Optional extras, their packages, and the error for a missing one."""

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
"""Extra -> its packages; messages name the first extra with a package."""


class MissingExtra(ModuleNotFoundError, ValueError):
    """A package of an extra is missing; like every ValueError, this is a mistake of the user."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn an ImportError of a package of an extra into MissingExtra; other errors pass."""
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        require((error.name or "").partition(".")[0])
        for frame, _ in traceback.walk_tb(error.__traceback__):
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            extra = next((extra for extra, brought in EXTRAS.items() if package in brought), None)
            if extra is not None and package not in sys.modules:  # a failed import leaves no entry
                reason = " ".join(str(error).split()).removesuffix(".")
                raise MissingExtra(
                    f"This needs airfed[{extra}], but {package} cannot be imported ({reason}): "
                    f"pip install --force-reinstall 'airfed[{extra}]'.",
                    name=package,
                ) from error
        raise


def require(*packages: str) -> None:
    """Raise MissingExtra if a package of an extra is not installed; do not import it."""
    for package in packages:
        for extra, brought in EXTRAS.items():
            if package in brought and not has(package):
                sentence = f"This needs airfed[{extra}] ({package} is missing): pip install 'airfed[{extra}]'."
                raise MissingExtra(sentence, name=package)


def has(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a custom finder
        return False
