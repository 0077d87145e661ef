"""`dspine data check`: what a recipe's data holds, before anything is trained on it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dspine.cli import options as o
from dspine.cli.console import note, print_json, results, titled, waiting
from dspine.cli.heavy import uncollected

if TYPE_CHECKING:
    from dspine.train.budget import Budget
    from dspine.train.inspection import Inspection, Piece, Responses
    from dspine.train.overlap import Overlap

data = typer.Typer(no_args_is_help=True, help="Look at training data.")
SHOWN = 600  # characters of a piece, of which the middle is left out where it has more


@data.callback()
def _data() -> None:
    """Look at training data."""


@data.command()
def check(
    recipe: Annotated[
        str, typer.Argument(help="The recipe: a YAML file, or the name of a shipped one.", show_default=False)
    ],
    overrides: o.SetOption = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Evaluation prompts (JSONL) to look for in the data. Repeatable.", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Sequences that are shown, as they are supervised.")] = 2,
    dtype: o.RecipeDtypeOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say what will be trained on: what the loss counts, lengths, repetitions, evaluation prompts in it, and the cost.

    Supervised text is shown in ⟦brackets⟧. Nothing is made or changed: answers that are not there yet are not made.

    Examples:

        dspine data check nano

        dspine data check my-model.yaml --against gsm8k.jsonl --against humaneval.jsonl
    """
    with uncollected():
        import torch

        from dspine.config import read_recipe
        from dspine.target import load_target
        from dspine.train.inspection import inspect
        from dspine.train.materials import refuse_unbuilt

    asked = read_recipe(recipe, overrides or ())
    refuse_unbuilt(asked)
    wanted = dtype or asked.dtype
    with waiting(f"Loading {asked.target}"):
        target = load_target(asked.target, dtype=getattr(torch, wanted) if wanted else None, packed=False)
    found = inspect(asked, target, against or (), shown=samples)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)


def _print(found: Inspection) -> None:
    console = results()
    lengths = {"prompts, first turn": found.prompts} if found.prompts else {}
    if found.responses is not None:
        for name, pieces in found.responses.shown.items():
            console.print(_shown(name, pieces))
        lengths |= found.responses.lengths
    table = titled("Lengths", "tokens", *next(iter(lengths.values())))
    for name, sizes in lengths.items():
        table.add_row(name, *map(str, sizes.values()))
    console.print(table)
    if found.asked:
        console.print(f"{found.asked} prompts; {found.repeated_prompts} repeat one that was there before")
    if found.responses is None:
        note("There are no responses yet: `dspine regenerate` makes them. The prompts alone were looked at.")
    else:
        console.print(_said(found.responses), soft_wrap=True)
        console.print(_cost(found.responses.budget), soft_wrap=True)
    for overlap in found.overlaps:
        console.print(_overlap(overlap), soft_wrap=True)


def _shown(name: str, pieces: list[Piece]) -> Text:
    text = Text(f"{name}\n", style="bold")
    for piece in pieces:
        middle = piece.text if len(piece.text) <= SHOWN else f"{piece.text[: SHOWN // 2]} … {piece.text[-SHOWN // 2 :]}"
        text.append(f"⟦{middle}⟧" if piece.supervised else middle, style="green" if piece.supervised else "dim")
    return text.append("\n")


def _said(found: Responses) -> str:
    made = found.made
    how = (
        f"by {made['server'] or made['target']}, thinking {'on' if made['thinking'] else 'off'}, temperature "
        f"{made['sampling'].get('temperature')}, template {made['template_digest'][:12]}"
        if made
        else "the file does not say how"
    )
    return (
        f"{found.rows} responses ({how}) make {found.sequences} sequences, {found.supervised} tokens in the loss\n"
        f"{found.unfinished} responses met the cap, {found.repeated} repeat one that was there before; {found.cut} "
        f"sequences are cut at training.max_length, {found.unusable} have nothing to train on"
    )


def _cost(cost: Budget) -> str:
    disk = f"{cost.store_bytes / 1e9:.2f} GB of features on disk" if cost.store_bytes else "features online, no disk"
    return (
        f"{cost.parameters / 1e6:.1f}M parameters, {cost.steps} steps ({cost.epochs:.1f} epochs of {cost.tokens} "
        f"tokens, {cost.blocks} blocks): about {cost.training_flops:.1e} operations to train, {cost.target_flops:.1e} "
        f"for the target's features; {disk}"
    )


def _overlap(found: Overlap) -> str:
    said = f"{found.name}: {len(found.met)} of {found.prompts} evaluation prompts stand in {len(found.rows)} rows"
    if found.commonest is None:
        return said
    return f"{said} ({', '.join(found.met[:3])}); in {found.commonest[1]} of them: “{found.commonest[0]}”"
