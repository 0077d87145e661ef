"""The `dspine` command: each subcommand parses its words, calls one function of a room, and prints.

One rule: nothing heavy is imported before a subcommand needs it, so that help and usage faults answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dspine import __version__
from dspine.cli.bench import bench
from dspine.cli.calibrate import calibrate
from dspine.cli.chat import chat
from dspine.cli.console import open_streams
from dspine.cli.data import data
from dspine.cli.demo import demo
from dspine.cli.doctor import doctor
from dspine.cli.evaluate import evaluate
from dspine.cli.export import export
from dspine.cli.generate import generate
from dspine.cli.guard import Guarded
from dspine.cli.info import info
from dspine.cli.lab import lab
from dspine.cli.probe import probe
from dspine.cli.profile_verify import profile_verify
from dspine.cli.regenerate import regenerate
from dspine.cli.report import report
from dspine.cli.serve import serve
from dspine.cli.train import train
from dspine.threads import settle_threads

app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    demo,
    generate,
    chat,
    serve,
    train,
    regenerate,
    bench,
    calibrate,
    profile_verify,
    lab,
    probe,
    report,
    export,
    info,
    doctor,
)
for command in COMMANDS:
    app.command()(command)
app.command("eval")(evaluate)
app.add_typer(data, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dspine {__version__}")
        raise typer.Exit


@app.callback()
def _dspine(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make a language model decode faster without changing its output.

    Start with `dspine demo`. Exit codes: 0 done, 1 a fault with a message, 2 a misused command line,
    130 interrupted.
    """


def main() -> None:
    """Run the command line."""
    settle_threads()
    open_streams()
    app()
