"""Which modules of a folder a source names in its imports, wherever in the source they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def written(files: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Return the modules in a folder that sources import, by name, and those that these import in turn.

    An import within a function counts: nothing is executed to find it. One whose name is computed is not seen.

    Args:
        files: the sources.
        folder: where modules are looked for.
    """
    found: dict[str, Path] = {}
    todo = list(files)
    while todo:
        for path in _imported(todo.pop(), folder):
            inner = path.relative_to(folder).with_suffix("")
            name = ".".join(inner.parent.parts if inner.name == "__init__" else inner.parts)
            if name not in found:
                found[name] = path
                todo.append(path)
    return found


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # whoever imports it will be told
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name, folder)
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
            for alias in node.names:
                yield from _files(start, ".".join(filter(None, (node.module, alias.name))), folder)


def _files(start: Path, module: str, folder: Path) -> Iterator[Path]:
    """The files of a dotted name, its packages included, as far as they lie in the folder."""
    place = start
    for part in module.split("."):
        place = place / part
        for file in (place.with_name(f"{part}.py"), place / "__init__.py"):
            if file.is_file() and (found := file.resolve()).is_relative_to(folder):
                yield found
