"""The files of airfed that a command imports, and those whose functions it calls.

    python benchmarks/files.py plan examples/paper.toml

The second list has the files that a reader of the command opens: files that do its work, and separately
infrastructure that a reader may skip.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import airfed
from airfed.cli.app import app, main

SOURCE = str(Path(airfed.__file__).parent)
INFRASTRUCTURE = {
    "__init__.py": "lazy import of public names",
    "__main__.py": "start-up and Ctrl-C",
    "_extras.py": "the message for a missing package",
    "_files.py": "reading files safely",
    "_usercode.py": "loading the user's own code",
    "_validate.py": "checks of arguments",
    "cli/app.py": "lazy loading of commands, exit codes",
    "keys.py": "declarations of keys, messages for bad values",
    "text/exports.py": "consoles and formats of tables",
    "text/output.py": "the console",
}


def called(arguments: list[str]) -> set[str]:
    files = set()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    app.parse_args(arguments)  # imports the command, so that calls by imports do not count
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(profile)
        try:
            main(arguments)
        finally:
            sys.setprofile(None)
    return {file.removeprefix(SOURCE)[1:] for file in files if file.startswith(SOURCE)}


if __name__ == "__main__":
    files = sorted(called(sys.argv[1:]))
    work = [file for file in files if file not in INFRASTRUCTURE]
    imported = [name for name in sys.modules if name.partition(".")[0] == "airfed"]
    print(f"{len(imported)} modules imported, {len(files)} files with a function that is called")
    print(f"\n{len(work)} do the work:", *work, sep="\n")
    rest = [f"{file}: {INFRASTRUCTURE[file]}" for file in files if file in INFRASTRUCTURE]
    print(f"\n{len(rest)} are infrastructure:", *rest, sep="\n")
