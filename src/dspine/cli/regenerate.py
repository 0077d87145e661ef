"""`dspine regenerate`: prompts answered by the target, as training data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json
from dspine.cli.models import Models, open_models

if TYPE_CHECKING:
    from dspine.train.regenerate import Summary

BY_HAND = "Without a recipe"
SERVER = "Without a recipe, through a server"
OF_SERVER = ("model", "concurrency")
OF_HAND = (
    *("target", "prompts", "out", "max_new_tokens", "batch", "thinking", "temperature", "top_p", "top_k", "seed"),
    *("server", *OF_SERVER),
)


def regenerate(
    ctx: typer.Context,
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
            help='JSONL: {"id": ..., "source": ..., "prompt": ...}, or dialogues as ShareGPT or OpenAI write them.',
            rich_help_panel=BY_HAND,
            show_default=False,
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
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=BY_HAND)] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=BY_HAND)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.", rich_help_panel=BY_HAND)] = 0,
    seed: Annotated[int, typer.Option(help="Of the draws, with each row's id.", rich_help_panel=BY_HAND)] = 0,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask this server of OpenAI's completions interface (SGLang, vLLM): http://localhost:30000/v1. The "
            "target then gives tokenizer and template alone, and is kept off the GPU.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The name that the server knows the target by. Default: the target's.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests under way at once.", rich_help_panel=SERVER)] = 64,
    dtype: o.RecipeDtypeOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Let the target answer prompts, and print the file that holds its answers.

    A run that is stopped, however, goes on where it stopped when the same command is given again.

    Examples:

        dspine regenerate nano

        dspine regenerate --target smollm2 --prompts prompts.jsonl --out responses.jsonl -n 256

        dspine regenerate --target Qwen/Qwen3-8B --prompts sharegpt.json --out responses.jsonl --server http://localhost:30000/v1
    """
    if recipe is not None:
        o.refuse_given(ctx, OF_HAND, "a recipe says these itself, and --set changes them")
        summary = _by_recipe(recipe, overrides or [], drafter, dtype)
    else:
        if not (target and prompts and out):
            raise typer.BadParameter("give a recipe, or all of --target, --prompts and --out")
        if overrides:
            raise typer.BadParameter("--set changes a recipe, and none is given")
        if server is None:
            o.refuse_given(ctx, OF_SERVER, "there is no --server to ask")
        else:
            o.refuse_given(ctx, ("drafter", "batch"), "--server drafts and batches by itself")
        sampling = o.sampling_params(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
        from dspine.train.prompts import read_prompts
        from dspine.train.regenerate import regenerate as answer_all
        from dspine.train.server import Server

        asked = read_prompts(prompts)
        models = _open(target, drafter, dtype, thinking, served=server is not None)
        summary = answer_all(
            models.target,
            asked,
            out,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            batch=batch,
            drafter=models.network,
            server=Server(server, model or target, concurrency) if server else None,
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
    if recipe.data.server is not None and drafter is not None:
        raise typer.BadParameter("the recipe has data.server, which drafts by itself: leave --drafter out")
    chosen, thinking = drafter or recipe.data.drafter, recipe.data.thinking
    models = _open(recipe.target, chosen, dtype, thinking, served=recipe.data.server is not None)
    return answer_prompts(recipe, asked, models.target, models.network)


def _open(target: str, drafter: str | None, dtype: o.Dtype | None, thinking: bool, *, served: bool) -> Models:
    """The models; of a target that a server answers for, tokenizer and head alone matter: small, and off its GPU."""
    if served:
        return open_models(target, None, dtype=dtype or o.Dtype.bfloat16, thinking=thinking, device="cpu")
    return open_models(target, drafter, dtype=dtype, thinking=thinking)


def _report(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary) | {"path": str(summary.path), "tokens_per_second": summary.tokens_per_second})
        return
    if summary.retokenised:
        note(
            f"The server gives text without token ids: {summary.retokenised} answers were made into ids here, which "
            "may differ from those that it drew"
        )
    left_out = f", {len(summary.too_long)} prompts too long" if summary.too_long else ""
    note(
        f"{summary.written} answers written, {summary.kept} were there before{left_out}; {summary.unfinished} met the "
        f"cap; {summary.tokens} tokens in {summary.seconds:.1f} s"
    )
    answer(f"{summary.path}\n")
