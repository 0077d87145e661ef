"""`dspine train`: from a recipe to a drafter."""

from __future__ import annotations

from typing import Annotated

import typer

from dspine.cli import options as o


def train(
    recipe: Annotated[str, typer.Argument(help="The recipe: a YAML file.", show_default=False)],
    resume: Annotated[
        bool,
        typer.Option("--resume/--fresh", help="Go on from the run's last checkpoint, or begin again."),
    ] = True,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a value of the recipe. Repeatable.", show_default=False
        ),
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Train a drafter. An interrupted run goes on where it stopped when the same command is given again.

    Examples:

        dspine train recipes/nano.yaml

        dspine train recipes/smollm2-135m-cpu.yaml --set training.steps=200 --fresh
    """
    raise NotImplementedError
