"""`dspine regenerate`: prompts answered by the target, as training data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json
from dspine.cli.models import open_models

if TYPE_CHECKING:
    from dspine.train.regenerate import Summary

BY_HAND = "Without a recipe"


def regenerate(
    recipe: Annotated[
        str | None, typer.Argument(help="The recipe: a YAML file, or the name of a shipped one.", show_default=False)
    ] = None,
    overrides: o.SetOption = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", "-d", help="Make it faster with this drafter: the answers stay.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Who answers.", rich_help_panel=BY_HAND, show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSONL: {"id": ..., "source": ..., "prompt": ...}.', rich_help_panel=BY_HAND, show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL to write, or to go on with.", rich_help_panel=BY_HAND, show_default=False)
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Cap of an answer.", rich_help_panel=BY_HAND)
    ] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Answers in progress at once.", rich_help_panel=BY_HAND)] = 48,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Let the target think first.", rich_help_panel=BY_HAND)
    ] = False,
    dtype: o.DtypeOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Let the target answer prompts greedily, and print the file that holds its answers.

    A run that is stopped, however, goes on where it stopped when the same command is given again.

    Examples:

        dspine regenerate nano

        dspine regenerate --target smollm2 --prompts prompts.jsonl --out responses.jsonl -n 256
    """
    if recipe is not None:
        if target or prompts or out:
            raise typer.BadParameter("a recipe names its own target, prompts and responses: change them with --set")
        summary = _by_recipe(recipe, overrides or [], drafter, dtype)
    else:
        if not (target and prompts and out):
            raise typer.BadParameter("give a recipe, or all of --target, --prompts and --out")
        if overrides:
            raise typer.BadParameter("--set changes a recipe, and none is given")
        from dspine.train.prompts import read_prompts
        from dspine.train.regenerate import regenerate as answer_all

        asked = read_prompts(prompts)
        models = open_models(target, drafter, dtype=dtype, thinking=thinking)
        summary = answer_all(
            models.target,
            asked,
            out,
            max_new_tokens=max_new_tokens,
            batch=batch,
            drafter=models.network,
            thinking=thinking,
        )
    _report(summary, as_json)


def _by_recipe(path: str, overrides: list[str], drafter: str | None, dtype: o.Dtype | None) -> Summary:
    """Build what the recipe builds, then let the target answer the prompts that it chooses."""
    from dspine.config import read_recipe
    from dspine.train.materials import answer as answer_prompts
    from dspine.train.materials import build, selection

    recipe = read_recipe(path, overrides)
    build(recipe)
    asked = selection(recipe).train
    if dtype is None and recipe.dtype is not None:
        dtype = o.Dtype(recipe.dtype)
    models = open_models(recipe.target, drafter, dtype=dtype, thinking=recipe.data.thinking)
    return answer_prompts(recipe, asked, models.target, models.network)


def _report(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary) | {"path": str(summary.path), "tokens_per_second": summary.tokens_per_second})
        return
    left_out = f", {len(summary.too_long)} prompts too long" if summary.too_long else ""
    note(
        f"{summary.written} answers written, {summary.kept} were there before{left_out}; {summary.unfinished} met the "
        f"cap; {summary.tokens} tokens in {summary.seconds:.1f} s"
    )
    answer(f"{summary.path}\n")
