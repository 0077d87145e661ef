"""`dspine train`: from a recipe to a drafter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, print_json


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe: a YAML file.", show_default=False)],
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the run's last checkpoint, or begin again.")
    ] = True,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Train a drafter and print the folder it lies in.

    A run that is interrupted saves itself first (exit code 130); the same command goes on from there.

    Examples:

        dspine train recipes/nano.yaml

        dspine train recipes/smollm2-135m-cpu.yaml --set training.steps=200 --fresh
    """
    from dspine.train.trainer import train as run

    summary = run(recipe, overrides or (), resume=resume)
    if as_json:
        print_json(asdict(summary) | {"drafter": str(summary.drafter) if summary.drafter else None})
    elif summary.drafter is not None:
        answer(f"{summary.drafter}\n")
    if not summary.finished:
        raise typer.Exit(130)
