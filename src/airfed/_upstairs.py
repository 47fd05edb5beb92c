"""The one door upwards: a value that shows itself asks for what draws it by name, when it is asked to.

Imports point downwards, and import-linter checks that; a plan or a run in a notebook is asked to plot itself all the
same. This is the only way, and only for the methods that say so.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from airfed._extras import explained


def upstairs(room: str) -> ModuleType:
    """Return a module of a higher room, as in `upstairs("showing.tables")`."""
    with explained():
        return importlib.import_module(f"airfed.{room}")
