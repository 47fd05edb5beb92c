"""The commands, and what becomes of their errors.

Exit codes: 0 done, 2 the user's mistake, 3 no feasible plan, 4 the audit failed, 5 another process of the run or its
host was lost, 130/143 stopped by a signal.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnusedCliTokensError

from airfed import __version__, _extras
from airfed.cli import account as account_commands
from airfed.cli import calibrate as calibrate_commands
from airfed.cli import data as data_commands
from airfed.cli import environment
from airfed.cli import explore as explore_command
from airfed.cli import figures as figures_commands
from airfed.cli import league as league_command
from airfed.cli import measure as measure_command
from airfed.cli import plan as plan_commands
from airfed.cli import report as report_commands
from airfed.cli import run as run_commands
from airfed.cli import sweep as sweep_commands
from airfed.problem import InfeasibleError
from airfed.text import output

app = App(
    name="airfed",
    version=__version__,
    help="Plan, train, account and audit over-the-air federated averaging under power and privacy budgets. "
    "`airfed --version --verbose` tells what is installed, for a report of a bug.",
    suppress_keyboard_interrupt=False,  # `main` says what became of it
)
app.command(plan_commands.plan)
app.command(plan_commands.compare)
app.command(plan_commands.new)
app.command(run_commands.run)
app.command(data_commands.data)
app.command(report_commands.report)
app.command(account_commands.ledger)
app.command(account_commands.audit)
app.command(sweep_commands.sweep)
app.command(league_command.league)
app.command(figures_commands.figures)
app.command(calibrate_commands.calibrate)
app.command(measure_command.measure)
app.command(explore_command.explore)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A user's mistake is one sentence on standard error; set AIRFED_DEBUG=1 for the traceback.
    """
    tokens = sys.argv[1:] if arguments is None else list(arguments)
    _open_streams()
    if sorted(tokens) == ["--verbose", "--version"]:
        output.say(environment.described(), keep="\n")
        return 0
    try:
        with _extras.explained():
            code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        text = " ".join(str(error).split())
        if isinstance(error, UnusedCliTokensError):
            text = f"Expected no more arguments, got {' '.join(error.unused_tokens or ())}."
        chain = " ".join(error.command_chain or ())
        where = f"airfed {chain} --help lists its options" if chain else "airfed --help lists the commands"
        return _fail(2, f"{text} ({where})")
    except InfeasibleError as error:
        return _fail(3, str(error))
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, say `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
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
    output.say(f"airfed: {message}", file=sys.stderr)
    return code
