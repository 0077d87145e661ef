"""`dspine export`: a drafter in the layout of another program."""

from __future__ import annotations

import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json, waiting
from dspine.cli.heavy import uncollected


class Layout(StrEnum):
    """Layouts that a drafter can be written in."""

    specforge = "specforge"
    speculators = "speculators"
    dspine = "dspine"


class WeightsDtype(StrEnum):
    """Number formats that a drafter's weights are written in."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def export(
    drafter: Annotated[str, typer.Argument(help="The drafter: a folder or a shipped name.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The folder to write: a new or an empty one.", show_default=False)],
    layout: Annotated[Layout, typer.Option(help="Whose files to write.")] = Layout.specforge,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="The model it drafts for. Default: the one it was trained for.", show_default=False
        ),
    ] = None,
    dtype: Annotated[
        WeightsDtype | None,
        typer.Option(help="Number format of the weights. Default: as they are stored.", show_default=False),
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Write a drafter in the layout of another program, or another program's in our own, and print the folder.

    A DSpine drafter in SpecForge's layout holds the transfer codes of the whole vocabulary (4 bytes · vocabulary ·
    rank), made here from the target's head; weights and training facts stay as they are. SpecForge's layout holds
    DFlash, Domino, DSpark and EAGLE-3 drafters too, speculators' DFlash, DFlash2, DSpark and EAGLE-3 ones. `dspine`
    reads the result.

    Examples:

        dspine export smollm2-135m-dspine exported/smollm2 --layout specforge

        dspine export runs/dspark exported/dspark --layout speculators

        dspine export Qwen3-8B-DFlash-b16 ours --layout dspine --target Qwen/Qwen3-8B
    """
    with uncollected():
        import torch

        from dspine.checkpoint import CheckpointWarning, LayoutName, check_export, drafter_digest, export_drafter
        from dspine.checkpoint.public.sizes import TargetNeeded
        from dspine.drafter.config import DSpineConfig
        from dspine.target import load_target

    wanted = LayoutName(layout.value)
    config = None
    try:
        config = check_export(drafter, out, wanted)
    except TargetNeeded:
        if target is None:
            raise
    owner = target or (config.target.name if config and config.target else None)
    if owner is None:
        raise typer.BadParameter(f"{drafter} does not say which model it drafts for: name it with --target")
    with waiting(f"Loading {owner}"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        loaded = load_target(owner, dtype=torch.float32, packed=False)
        export_drafter(drafter, out, loaded, wanted, dtype=getattr(torch, dtype) if dtype else None)
    for warning in caught:
        note(f"warning: {warning.message}")
    if config and config.vocabulary and isinstance(config.drafter, DSpineConfig):
        note(
            f"The {config.vocabulary.size} ids that it was trained to draft lie in a side file, which other programs "
            "do not read: there it drafts from the whole vocabulary."
        )
    if as_json:
        print_json({"folder": str(out), "layout": layout.value, "digest": drafter_digest(out), "target": owner})
    else:
        answer(f"{out}\n")
