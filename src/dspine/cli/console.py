"""Where output goes: answers and results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

notes = Console(stderr=True, highlight=False)


def answer(piece: str) -> None:
    """Write a piece of an answer to standard output, as it is and at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def results() -> Console:
    """A console for tables that are the command's result."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Write a result that a program reads."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Tell the user something that is not the result."""
    notes.print(escape(text), style="dim", soft_wrap=True)


def complain(what: str, fix: str | None = None) -> None:
    """Say what is wrong and, on the next line, what to do about it."""
    notes.print(f"[bold red]error:[/] {escape(what)}", soft_wrap=True)
    if fix:
        notes.print(escape(fix), soft_wrap=True)


def waiting(text: str) -> Status:
    """A spinner on standard error while something slow happens; nothing where that is no terminal."""
    return notes.status(escape(text), spinner="dots")
