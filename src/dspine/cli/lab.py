"""`dspine lab`: the drafters of several methods trained at one budget and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json
from dspine.cli.figures import FiguresOption, needs_figures
from dspine.cli.heavy import uncollected


def lab(
    recipe: Annotated[
        str, typer.Argument(help="A DSpine recipe whose `ablation` names the other drafters; a file or a shipped name.")
    ] = "nano-lab",
    drafters: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME...]", help="Which of the recipe's drafters; dspine is always among them."),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N[,N...]", help="Train every drafter with each of these.")] = "0",
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Steps of every training.", show_default="the recipe's")
    ] = None,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    figures: FiguresOption = True,
    overrides: o.SetOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Train the drafters of several methods at one budget, measure them on held-out prompts, and print the table.

    The same answers of the target in the same order, steps, backbone and number of candidates for all; greedy and
    sampled acceptance by family of prompts, the time of a round and the speed beside plain decoding. What is done is
    kept: the same command goes on after an interrupt, and more seeds are added to those that are there.

    Examples:

        dspine lab

        dspine lab --drafters dflash,dflash2 --budget 200

        dspine lab nano-lab --seeds 0,1,2 --json
    """
    with uncollected():
        from dspine.lab.comparison import compare
        from dspine.lab.table import as_json as told
        from dspine.lab.table import as_markdown, lines_of, save
    draw = needs_figures() if figures else None
    wanted = [name.strip() for name in drafters.split(",")] if drafters is not None else None
    numbers = o.whole_numbers(seeds, "--seeds")
    comparison = compare(
        recipe,
        drafters=wanted,
        seeds=numbers,
        steps=budget,
        overrides=overrides or [],
        kernels=kernels.value,
        capture=capture.value,
    )
    if comparison is None:
        raise typer.Exit(130)
    lines = lines_of(comparison)
    if as_json:
        print_json(told(comparison, lines))
    else:
        answer(as_markdown(lines))
    table = save(comparison, lines)
    note(f"results: {table}")
    if draw is not None:
        for path in draw([table], comparison.folder):
            note(f"figure: {path}")
