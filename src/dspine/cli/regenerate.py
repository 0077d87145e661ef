"""`dspine regenerate`: prompts answered by the target, as training data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json
from dspine.cli.models import open_models

if TYPE_CHECKING:
    from dspine.train.prompts import Prompt

BY_HAND = "Without a recipe"


def regenerate(
    recipe: Annotated[Path | None, typer.Argument(help="The recipe: a YAML file.", show_default=False)] = None,
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

        dspine regenerate recipes/nano.yaml

        dspine regenerate --target smollm2 --prompts prompts.jsonl --out responses.jsonl -n 256
    """
    from dspine.train.prompts import read_prompts

    if recipe is not None:
        if target or prompts or out:
            raise typer.BadParameter("a recipe names its own target, prompts and responses: change them with --set")
        task = _of_recipe(recipe, overrides or [])
    else:
        if not (target and prompts and out):
            raise typer.BadParameter("give a recipe, or all of --target, --prompts and --out")
        if overrides:
            raise typer.BadParameter("--set changes a recipe, and none is given")
        task = _Task(target, read_prompts(prompts), out, max_new_tokens, batch, None, thinking)
    _run(task, drafter, dtype, as_json)


@dataclass(frozen=True)
class _Task:
    """What is to be answered by whom, and where the answers go."""

    target: str
    prompts: list[Prompt]
    out: Path
    max_new_tokens: int
    batch: int
    max_prompt_tokens: int | None
    thinking: bool


def _of_recipe(path: Path, overrides: list[str]) -> _Task:
    from dspine.config import read_recipe
    from dspine.train.prompts import read_prompts, select

    recipe = read_recipe(path, overrides)
    data = recipe.data
    prompts = read_prompts(data.prompts)
    if data.mix:
        mix = [(entry.source, entry.count, entry.suffix) for entry in data.mix]
        prompts = select(prompts, mix, data.seed, data.held_out).train
    return _Task(
        recipe.target, prompts, data.responses, data.max_new_tokens, data.batch, data.max_prompt_tokens, data.thinking
    )


def _run(task: _Task, drafter: str | None, dtype: o.Dtype | None, as_json: bool) -> None:
    from dspine.train.regenerate import regenerate as answer_all

    models = open_models(task.target, drafter, dtype=dtype, thinking=task.thinking)
    summary = answer_all(
        models.target,
        task.prompts,
        task.out,
        max_new_tokens=task.max_new_tokens,
        batch=task.batch,
        max_prompt_tokens=task.max_prompt_tokens,
        drafter=models.network,
        thinking=task.thinking,
    )
    if as_json:
        print_json(asdict(summary) | {"path": str(summary.path), "tokens_per_second": summary.tokens_per_second})
        return
    left_out = f", {len(summary.too_long)} prompts too long" if summary.too_long else ""
    note(
        f"{summary.written} answers written, {summary.kept} were there before{left_out}; {summary.unfinished} met the "
        f"cap; {summary.tokens} tokens in {summary.seconds:.1f} s"
    )
    answer(f"{summary.path}\n")
