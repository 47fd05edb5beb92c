"""The commands, which are imported when they are called, and what becomes of their errors.

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
    "plan": "Plan which devices transmit, how strongly and in how many rounds; no training.",
    "compare": "Show the policies side by side on one channel draw, with the distance of each to the optimum.\n\n"
    "Where the budget is per round, policies with more rounds spend more in total: a second table then gives all of "
    "them the same ε in total, by default what full participation spends.",
    "new": "Write a commented scenario to start from: a small one, or the world of a known paper.",
    "run": "Plan, train over the air, meter and record.",
    "data": "Get and verify data sets.",
    "report": "Write one self-contained HTML page about one or several runs.",
    "ledger": "Print and verify what a run has spent; exits with 4 if its ledger, or a file it names, was tampered "
    "with.",
    "audit": "Try to break the privacy claim; exits with 4 if that succeeds.",
    "sweep": "Run every point of an experiment, in parallel; skip what is done, resume what was interrupted.",
    "league": "Train every scheme that applies to a scenario, with the same seeds within the same budgets, and rank "
    "them.",
    "figures": "Run what is missing, draw NAME.png and NAME.pdf, and write NAME.csv, the numbers behind it.",
    "calibrate": "Estimate ζ, ϱ, G and the norms of updates over E from the scenario's data and model.",
    "measure": "Train pilots on proxy data over rounds, clipping norm and noise; write the response that plans are "
    "chosen by.",
    "explore": "Open the planner as a web page on this machine: move a slider, read the decision. Ctrl-C stops it.",
}
_MODULES: Final = {
    **{"compare": "plan", "new": "plan", "ledger": "account", "audit": "account"},
    **{"league": "sweep", "figures": "sweep", "calibrate": "measure"},
}

app = App(
    name="airfed",
    version=lambda: airfed.__version__,
    help="Plan, train, account and audit over-the-air federated averaging under power and privacy budgets. "
    "`airfed --version --verbose` tells what is installed, for a report of a bug.",
    suppress_keyboard_interrupt=False,  # `main` says what became of it
)
for _name, _help in HELP.items():  # each is a function, or an app, in the module of its name or of that in _MODULES
    app.command(f"airfed.cli.{_MODULES.get(_name, _name)}:{_name}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None, *, ready: Callable[[], object] = lambda: None) -> int:
    """Run the command line and return its exit code; `ready` is called before a command runs.

    A user's mistake is one sentence on standard error; set AIRFED_DEBUG=1 for the traceback.
    """
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
            text = f"Expected no more arguments, got {' '.join(error.unused_tokens or ())}."
        chain = " ".join(error.command_chain or ())
        where = f"airfed {chain} --help lists its options" if chain else "airfed --help lists the commands"
        return _fail(2, f"{text} ({where})")
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        from airfed.problem import InfeasibleError

        if isinstance(error, InfeasibleError):
            return _fail(3, str(error))
        if os.environ.get("AIRFED_DEBUG"):
            raise
        return _fail(2, str(error))
    except MemoryError:
        return _fail(2, "Expected a problem that fits into memory; this one does not.")
    except KeyboardInterrupt:
        return _fail(130, "stopped.")
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Make sure that there is somewhere to print to, and that no terminal's alphabet ends a command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(code: int, message: str) -> int:
    from airfed.text import output

    output.say(f"airfed: {message}", file=sys.stderr)
    return code


def _environment() -> str:
    """The versions of airfed, of Python and of every package that counts, and which extras are complete."""
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
