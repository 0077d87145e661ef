"""What a run is made from: its target, its prompts and the target's responses, each made where it is not there yet.

One rule: what is there is never made again. What was begun is gone on with, what is whole is taken as it is, and where
it is not what the recipe says, that is refused or said.
"""

from __future__ import annotations

from pathlib import Path

from dspine.checkpoint import load_drafter
from dspine.config import DatasetPromptsRecipe, NanoPromptsRecipe, Recipe
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Drafter
from dspine.durable import cannot_write, write_aside
from dspine.errors import ConfigError, DataError
from dspine.progress import say
from dspine.target.chat import template_digest
from dspine.target.model import Target
from dspine.train.hub import build_from_dataset
from dspine.train.nano.corpus import prompt_lines
from dspine.train.nano.target import train_nano_target
from dspine.train.prompts import Prompt, read_prompts
from dspine.train.regenerate import Summary, is_finished, regenerate, settings_of
from dspine.train.responses import ResponseMeta, ResponseRow, begun, is_whole, read_meta, read_responses
from dspine.train.selection import Selection, select
from dspine.train.server import Server


def build(recipe: Recipe) -> None:
    """Make the target and the prompts that the recipe builds for itself.

    Raises:
        ConfigError: there are others where they would lie.
        DataError: they cannot be written.
        KeyboardInterrupt: passed on once the target's training is saved; the next call goes on from there.
    """
    match recipe.build.prompts:
        case NanoPromptsRecipe() as asked:
            _build_prompts(recipe.data.prompts, asked)
        case DatasetPromptsRecipe() as asked:
            build_from_dataset(recipe.data.prompts, asked)
    if recipe.build.target is not None:
        train_nano_target(recipe.target, recipe.build.target)


def refuse_unbuilt(recipe: Recipe) -> None:
    """Refuse to look at a recipe whose target is yet to be built.

    Raises:
        DataError: it is.
    """
    if recipe.build.target is not None and not Path(recipe.target).exists():
        raise DataError(
            f"the target of this recipe is not built yet ({recipe.target})",
            "Build it first: `dspine train` does that before anything else and can be stopped then (Ctrl-C).",
        )


def _build_prompts(path: Path, asked: NanoPromptsRecipe) -> None:
    lines = prompt_lines(asked.seed, asked.count, held=False)
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        write_aside(path, lines)
        say(f"Prompts: {asked.count} of nano's own text, written to {path}")
    elif path.read_bytes() != lines:
        raise ConfigError(
            f"{path} holds other prompts than build.prompts makes",
            "Remove the file, or give another `output`; to use it as it is, leave build.prompts out.",
        )


def selection(recipe: Recipe) -> Selection:
    """The prompts that the recipe trains on and those that it measures on.

    Raises:
        DataError: they cannot be read, or are too few.
    """
    prompts = read_prompts(recipe.data.prompts)
    if not recipe.data.mix:
        return Selection(train=prompts, held_out=[])
    mix = [(entry.source, entry.count, entry.suffix) for entry in recipe.data.mix]
    return select(prompts, mix, recipe.data.seed, recipe.data.held_out)


def answer(recipe: Recipe, prompts: list[Prompt], target: Target, drafter: Drafter | None = None) -> Summary:
    """Let the target answer the prompts as the recipe says, or go on with that; see `regenerate`.

    Args:
        drafter: in place of the recipe's.
    """
    data = recipe.data
    if drafter is None and data.drafter is not None:
        drafter = load_drafter(data.drafter, target, thinking=data.thinking)
    return regenerate(
        target,
        prompts,
        data.responses,
        max_new_tokens=data.max_new_tokens,
        sampling=_sampling(recipe),
        batch=data.batch,
        max_prompt_tokens=data.max_prompt_tokens,
        drafter=drafter,
        server=None if data.server is None else Server(**data.server.model_dump()),
        thinking=data.thinking,
    )


def _sampling(recipe: Recipe) -> SamplingParams:
    return SamplingParams(**recipe.data.sampling.model_dump())


def responses(recipe: Recipe, target: Target) -> list[ResponseRow]:
    """The responses to train on. Those that are missing are made from the recipe's prompts.

    A file that answers other prompts than the recipe's, or that does not say how it was made, is taken as it is, and
    what could not be checked is said.

    Raises:
        DataError: neither responses nor prompts, responses of another target or chat template, or responses that are
            not finished and were begun under other settings.
        KeyboardInterrupt: passed on; whatever was answered is in the file, and the next call goes on from there.
    """
    path, prompts, thinking = recipe.data.responses, recipe.data.prompts, "on" if recipe.data.thinking else "off"
    if not begun(path):
        if not prompts.exists():
            raise nothing_to_answer(recipe)
        say(f"No responses at {path} yet: {target.name} answers the prompts of {prompts}")
        answer(recipe, selection(recipe).train, target)
    elif (meta := read_meta(path)) is None:
        say(
            f"warning: {path} does not say how it was made, so nothing tells whether {target.name} gave the answers in "
            f"it, by this chat template and with thinking {thinking}: they are taken as they are"
        )
    else:
        _refuse_others(recipe, target, meta)
        if prompts.exists():
            _finish(recipe, target, meta)
    return read_responses(path)


def nothing_to_answer(recipe: Recipe) -> DataError:
    """The fault of a recipe whose responses are missing, and its prompts too."""
    return DataError(
        f"no responses at {recipe.data.responses} (data.responses), nor prompts at {recipe.data.prompts} "
        "(data.prompts) to make them from",
        'Give the prompts: the target answers them. A row: {"id": "a/1", "source": "a", "prompt": "..."}.',
    )


def _refuse_others(recipe: Recipe, target: Target, meta: ResponseMeta) -> None:
    path = recipe.data.responses
    fix = "Give another file in data.responses, or remove this one: it is made anew from the prompts."
    if meta.head_digest != target.head_digest:
        raise DataError(f"{path} was answered by another target: {meta.target}, not {target.name}", fix)
    if meta.template_digest != template_digest(target, thinking=recipe.data.thinking):
        raise DataError(f"{path} was answered with another chat template, or with data.thinking the other way", fix)


def _finish(recipe: Recipe, target: Target, meta: ResponseMeta) -> None:
    """Make the answers that a stopped run left out; say what is not as the recipe has it."""
    data, chosen = recipe.data, selection(recipe).train
    asked = settings_of(
        target,
        chosen,
        max_new_tokens=data.max_new_tokens,
        thinking=data.thinking,
        sampling=_sampling(recipe),
        model=None if data.server is None else data.server.model,
    )
    differing = meta.differing(asked)
    if "prompts_digest" in differing:
        say(f"warning: {data.responses} answers other prompts than the recipe chooses; it is taken as it is")
        return
    others, finished = "; ".join(differing.values()), _is_finished(recipe, chosen, target)
    if not differing:
        if not finished:  # else it is only read, as several processes may do at once
            answer(recipe, chosen, target)
        return
    if not finished:
        raise DataError(
            f"{data.responses} is not finished, and was begun under other settings than the recipe's: {others}",
            "Finish it with `dspine regenerate` and the settings that it was begun with, or remove it.",
        )
    say(f"warning: {data.responses} was made under other settings than the recipe's: {others}")


def _is_finished(recipe: Recipe, prompts: list[Prompt], target: Target) -> bool:
    """Whether every prompt has its answers in the file."""
    data = recipe.data
    if not is_whole(data.responses):
        return False
    rows = {row.id: row for row in read_responses(data.responses)}
    return is_finished(target, prompts, rows, max_prompt_tokens=data.max_prompt_tokens, thinking=data.thinking)
