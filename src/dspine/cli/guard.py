"""What a command does when something goes wrong: a message on standard error and an exit code.

One rule: a fault that the user can mend never shows a traceback, and a bug of ours always does.
Exit codes: 0 done, 1 a fault with a message, 2 a misused command line, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer
from typer.core import TyperGroup

from dspine.cli.console import complain
from dspine.errors import DspineError


class Guarded(TyperGroup):
    """The command group: turns mendable faults of every subcommand into messages and exit codes."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer narrows click's context
        """Run the subcommand that the words name.

        Raises:
            typer.Exit: with the exit code of the fault.
        """
        try:
            return super().invoke(ctx)
        except DspineError as fault:
            complain(fault.what, fault.fix)
        except BrokenPipeError:
            # The reader (`| head`) has gone: what is left in the buffer has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as fault:
            if fault.errno is None:  # no fault of the system: a library's own, and so a bug to be seen
                raise
            complain(": ".join(str(part) for part in (fault.filename, fault.strerror) if part))
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(130) from None
        raise typer.Exit(1)
