"""Where output goes: answers and results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from dspine.jsonl import finite

PIPED, NARROWEST = 160, 80  # columns of tables

notes = Console(stderr=True, highlight=False)


def open_streams() -> None:
    """Put the null device where the standard streams are closed, for the next file to be opened would take their place.

    Raises:
        SystemExit: standard output is closed (`>&-`), so that nobody would get the result; code 1.
    """
    unheard = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
    if unheard:
        complain("standard output is closed, and the result goes there", "Send it somewhere: > FILE or | PROGRAM.")
        raise SystemExit(1)


def answer(piece: str) -> None:
    """Write a piece of an answer to standard output, as it is and at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def results() -> Console:
    """A console for tables that are the command's result: a narrow terminal wraps them, and no number is cut off.

    Brackets are text: names of tasks and files hold some.
    """
    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED
    console.width = max(console.width, NARROWEST)
    return console


def titled(title: str, *columns: str) -> Table:
    """A table for `results`, as every command draws it; further columns are still to be added."""
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def print_json(value: Any) -> None:
    """Write a result that a program reads; a number that is none is null."""
    typer.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


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
