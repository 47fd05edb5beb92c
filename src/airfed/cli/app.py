"""The commands, each imported when it is called, and the handling of their errors.

Exit codes: 0 done, 2 the user's mistake, 3 no feasible plan, 4 the audit failed, 5 another process of the run or its
host was lost, 130/143 stopped by a signal.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from cyclopts import App, CycloptsError, UnusedCliTokensError

import airfed
from airfed import _extras

_CORE: Final = ("numpy", "scipy", "pydantic", "cyclopts", "rich", "safetensors", "platformdirs", "threadpoolctl")
HELP: Final = {
    "plan": "Plan which devices transmit, how strongly and in how many rounds; train nothing.",
    "compare": "Compare the policies on one channel realisation: bound, expected accuracy, power and ε.\n\n"
    "If the budget is per round, policies with more rounds spend more in total. A second table then plans all of them "
    "for the same ε in total, by default the total of full participation.",
    "new": "Write a commented scenario to start from: a small one, or a published paper's (--preset).",
    "run": "Plan, train over the air, meter the power and record the run.",
    "data": "Download and verify data sets.",
    "report": "Write one self-contained HTML page about one or several runs.",
    "ledger": "Print and verify a run's privacy ledger; exit code 4 if the ledger or a file it names was changed.",
    "audit": "Attack the privacy claim; exit code 4 if an attack succeeds.",
    "sweep": "Run every point of an experiment in parallel; skip finished points, resume interrupted ones.",
    "benchmark": "Train every method that applies to a scenario, with the same seeds and budgets, and rank them.\n\n"
    "If the budget is per round, one total for all methods replaces it, because methods with more rounds would "
    "otherwise spend more in total.",
    "frontier": "Map the expected accuracy, and the highest of any linear method, over ε and over the total power.",
    "figures": "Train the missing runs of the paper's figures; write NAME.png, NAME.pdf and their numbers, NAME.csv.",
    "calibrate": "Estimate the constants ζ, ϱ and G of the bounds, and the norms of updates, from data and model.",
    "pilot": "Train pilot runs on proxy data and write an accuracy surrogate: the accuracy to expect for a number of "
    "rounds, a clipping norm and a noise level.",
    "explore": "Open the planner as a web page on this machine; Ctrl-C stops it.",
}
_USAGE: Final = {"figures": "[NAME...]", "explore": "[FILE]"}  # arguments that may be left out
_MODULES: Final = {
    **dict.fromkeys(("compare", "new", "explore"), "plan"),
    **dict.fromkeys(("audit", "report"), "ledger"),
    **dict.fromkeys(("benchmark", "frontier", "figures"), "sweep"),
    **dict.fromkeys(("calibrate", "data"), "pilot"),
}

app = App(
    name="airfed",
    version=lambda: airfed.__version__,
    help="Plan, train, account and audit over-the-air federated averaging under power and privacy budgets. "
    "`airfed --version --verbose` lists the installed packages, for a bug report.",
    suppress_keyboard_interrupt=False,  # `main` reports it
)
for _name, _help in HELP.items():  # each is a function, or an app, in the module of its name or of that in _MODULES
    _usage = {"usage": f"Usage: airfed {_name} [OPTIONS] {_USAGE[_name]}"} if _name in _USAGE else {}
    app.command(f"airfed.cli.{_MODULES.get(_name, _name)}:{_name}", name=_name, help=_help, **_usage)


def main(arguments: Sequence[str] | None = None, *, ready: Callable[[], object] = lambda: None) -> int:
    """Run the command line and return its exit code; `ready` is called before a command runs."""
    tokens = sys.argv[1:] if arguments is None else list(arguments)
    _open_streams()
    if sorted(tokens) in (["--version"], ["--verbose", "--version"]):  # without rich
        print(airfed.__version__ if len(tokens) == 1 else _environment())
        return 0
    try:
        with _extras.explained():
            command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
            ready()
            code = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except CycloptsError as error:
        text = " ".join(str(error).split())
        if isinstance(error, UnusedCliTokensError):
            text = f"Unexpected arguments: {' '.join(error.unused_tokens or ())}."
        text = text.removeprefix("Invalid values for group Output. ")
        chain = " ".join(error.command_chain or ())
        where = f"airfed {chain} --help lists its options" if chain else "airfed --help lists the commands"
        return _fail(2, f"{text} ({where})")
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        from airfed.problem import InfeasibleError

        if isinstance(error, InfeasibleError):
            return _fail(3, str(error))
        if os.environ.get("AIRFED_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            return _fail(2, f"Cannot use {error.filename}: {error.strerror}.")
        return _fail(2, str(error))
    except MemoryError:
        return _fail(2, "The problem does not fit into memory.")
    except KeyboardInterrupt:
        return _fail(130, "stopped.")
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Open closed streams, and escape characters that the terminal cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(code: int, message: str) -> int:
    from airfed.text import output

    output.say(f"airfed: {message}", file=sys.stderr)
    return code


def _environment() -> str:
    """Return the versions of airfed, Python and the packages it uses, and which extras are complete."""
    import platform
    from importlib import metadata

    installed = metadata.packages_distributions()

    def named(packages: Sequence[str]) -> str:
        return ", ".join(
            f"{each} {metadata.version(installed[each][0]) if each in installed else '-'}" for each in packages
        )

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        f"airfed {airfed.__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()}), {processors} processors",
        platform.platform(),
        f"core: {named(_CORE)}",
    ]
    for extra, packages in _extras.EXTRAS.items():
        complete = all(map(_extras.has, packages))
        lines.append(f"{extra}{'' if complete else ' (not complete)'}: {named(packages)}")
    return "\n".join(lines)
