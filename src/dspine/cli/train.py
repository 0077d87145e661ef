"""`dspine train`: from a recipe to a drafter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, print_json
from dspine.cli.heavy import uncollected


def train(
    recipe: Annotated[
        str, typer.Argument(help="The recipe: a YAML file, or the name of a shipped one.", show_default=False)
    ],
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the drafter's last checkpoint, or train it anew.")
    ] = True,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Train a drafter and print the folder it lies in.

    Responses that are missing are made first, from the recipe's prompts; and before them the target and the prompts,
    where the recipe builds them. A run that is interrupted saves itself (exit code 130), and the same command goes on.

    Examples:

        dspine train nano

        dspine train recipes/smollm2-135m-cpu.yaml --set training.steps=200 --fresh
    """
    with uncollected():
        from dspine.train.trainer import train as run

    summary = run(recipe, overrides or (), resume=resume)
    if as_json:
        print_json(asdict(summary) | {"drafter": str(summary.drafter) if summary.drafter else None})
    elif summary.drafter is not None:
        answer(f"{summary.drafter}\n")
    if not summary.finished:
        raise typer.Exit(130)
