"""The files of airfed that a command imports, and those of which it calls a function.

    python benchmarks/files.py plan examples/paper.toml

The second list is what a reader who follows the command has to open at most.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import airfed
from airfed.cli import main

SOURCE = str(Path(airfed.__file__).parent)


def called(arguments: list[str]) -> set[str]:
    files = set()

    def look(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(look)
        try:
            main(arguments)
        finally:
            sys.setprofile(None)
    return {file.removeprefix(SOURCE)[1:] for file in files if file.startswith(SOURCE)}


if __name__ == "__main__":
    files = sorted(called(sys.argv[1:]))
    imported = [name for name in sys.modules if name.partition(".")[0] == "airfed"]
    print(f"{len(imported)} modules imported, {len(files)} files with a function that is called:")
    print(*files, sep="\n")
