"""Notebooks: stored as Python with `# %%` between cells, executed at build time, rendered with their outputs."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "notebooks"  # executed notebooks, by a digest of their inputs
_SET_UP = (
    "import matplotlib_inline.backend_inline as inline\n"
    "inline.set_matplotlib_formats('svg')\n"
    "import matplotlib as mpl\n"
    "mpl.rcParams.update({'figure.figsize': (6.4, 3.2), 'figure.constrained_layout.use': True,\n"
    "    'svg.hashsalt': 'airfed', 'axes.spines.top': False, 'axes.spines.right': False,\n"
    "    'axes.grid': True, 'grid.alpha': 0.3})\n"
)


def rendered(source: Path) -> dict[str, str | bytes]:
    """Return the page of a notebook, its pictures and the notebook to download, by their path in the site.

    Raises:
        CellExecutionError: a cell failed, for example an assertion.
        ValueError: a picture has no alternative text.
    """
    book = executed(source)
    name = source.stem
    files: dict[str, str | bytes] = {f"notebooks/{name}.ipynb": _without_outputs(source)}
    parts = []
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        shown = [f"```python\n{cell.source}\n```"]
        for output in cell.outputs:
            text, picture = _shown(output, f"{name}-{number}", cell.metadata.get("alt", ""))
            shown.append(text)
            if picture is not None:
                files[f"notebooks/{name}-{number}.svg"] = picture
        if "solution" in cell.metadata.get("tags", []):
            shown = ['<details class="solution" markdown>', "<summary>Solution</summary>", *shown, "</details>"]
        parts += shown
    title, _, rest = "\n\n".join(parts).partition("\n")
    download = f"[The notebook]({name}.ipynb){{: download .md-button }}"
    files[f"notebooks/{name}.md"] = f"{title}\n\n{download}\n{rest}\n"
    return files


def executed(source: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, run in a fresh kernel and an empty folder, or from the cache."""
    kept = CACHE / f"{source.stem}-{_digest(source)}.ipynb"
    if kept.is_file():
        return nbformat.read(kept, as_version=4)
    book = jupytext.read(source)
    book.cells.insert(0, nbformat.v4.new_code_cell(_SET_UP))
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            book,
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=40"],  # errors only: listening on localhost is intended
        ).execute(env={**os.environ, "OMP_NUM_THREADS": "2"})
    book.cells.pop(0)
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{source.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(book, kept)
    return book


def _digest(source: Path) -> str:
    """Return a digest of everything that determines the outputs: the notebook, airfed, and package versions."""
    digest = hashlib.sha256(_SET_UP.encode())
    for path in (source, ROOT / "constraints.txt", *sorted((ROOT / "src").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _without_outputs(source: Path) -> str:
    """Return the notebook to download, with folded solutions."""
    book = jupytext.read(source)
    for cell in book.cells:
        if "solution" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
    return nbformat.writes(book)


def _shown(output: nbformat.NotebookNode, name: str, alt: str) -> tuple[str, str | None]:
    """Return an output as Markdown, and its picture if it has one."""
    if output.output_type == "stream":
        return _text(output.text), None
    data = output.data
    if "image/svg+xml" in data:
        if not alt:
            raise ValueError(f'The cell of {name} draws a picture and must have an alternative text: # %% alt="...".')
        return f"![{alt}]({name}.svg){{: .plot }}", data["image/svg+xml"]
    return _text(data["text/plain"]), None


def _text(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
    return f'<div class="output" markdown>\n\n```text\n{plain}\n```\n\n</div>'
