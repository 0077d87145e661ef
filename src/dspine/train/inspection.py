"""What a recipe's data holds: what is supervised, how long it is, what repeats, what evaluation prompts it has seen.

One rule: nothing is made, changed or trained. Where the responses are not there yet, the prompts alone are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspine.config import Recipe
from dspine.errors import DataError
from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.blocks import eligible_anchors
from dspine.train.budget import Budget, budget
from dspine.train.features import store_settings
from dspine.train.materials import selection
from dspine.train.overlap import Evaluation, Overlap, words
from dspine.train.prepare import drafter_config
from dspine.train.prompts import Prompt, read_prompts
from dspine.train.responses import ResponseRow, TrainingSequence, begun, read_meta, read_responses
from dspine.train.sequences import trainable

SHARES = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}

Lengths = dict[str, int]  # of `SHARES`


@dataclass(frozen=True)
class Piece:
    """A stretch of a sequence as text, with the special tokens shown; `supervised` where the loss counts."""

    text: str
    supervised: bool


@dataclass(frozen=True)
class Responses:
    """What is trained on.

    made: how the responses were made, as their file says; None: it does not say.
    rows, sequences: responses, and the sequences that they make (turns of a dialogue may be one).
    unusable: sequences without an anchor within training.max_length; cut: those that are longer than it.
    unfinished: responses that met the cap before an end token; repeated: those whose ids were there before.
    supervised: tokens in the loss.
    lengths: tokens of "prompt", "response" and "sequence".
    shown: the first sequences, in pieces.
    """

    made: dict[str, Any] | None
    rows: int
    sequences: int
    unusable: int
    cut: int
    unfinished: int
    repeated: int
    supervised: int
    lengths: dict[str, Lengths]
    shown: dict[str, list[Piece]]
    budget: Budget


@dataclass(frozen=True)
class Inspection:
    """What was found.

    prompts: tokens of the prompts' first turns; None where there is no prompt file.
    repeated_prompts: rows whose question was there before, case, spacing and punctuation aside.
    responses: None where there are none yet.
    overlaps: with every set of evaluation prompts, the recipe's own held-out ones among them.
    """

    prompts: Lengths | None
    asked: int
    repeated_prompts: int
    responses: Responses | None
    overlaps: list[Overlap]


def inspect(recipe: Recipe, target: Target, against: Sequence[Path] = (), *, shown: int = 2) -> Inspection:
    """Look at the data of a recipe.

    Args:
        target: the recipe's.
        against: files of evaluation prompts.
        shown: sequences that are decoded.

    Raises:
        DataError: neither prompts nor responses, or files that cannot be read.
    """
    data = recipe.data
    chosen = selection(recipe) if data.prompts.exists() else None
    rows = read_responses(data.responses) if begun(data.responses) else []
    if chosen is None and not rows:
        raise DataError(
            f"there is nothing to look at: neither prompts at {data.prompts} nor responses at {data.responses}",
            "Give data.prompts, or let the recipe build them: `dspine regenerate`.",
        )
    sets = [Evaluation(str(path), read_prompts(path)) for path in against]
    if chosen is not None and chosen.held_out:
        sets.append(Evaluation("data.held_out", chosen.held_out))
    prompts = [] if chosen is None else chosen.train
    texts = _texts_of_rows(target, rows) if rows else [(prompt.id, prompt.user_texts) for prompt in prompts]
    return Inspection(
        prompts=_lengths([len(_rendered(recipe, target, prompt)) for prompt in prompts]) if prompts else None,
        asked=len(prompts),
        repeated_prompts=_repeated([tuple(words(text) for text in prompt.user_texts) for prompt in prompts]),
        responses=_responses(recipe, target, rows, shown) if rows else None,
        overlaps=[evaluation.overlap(texts) for evaluation in sets],
    )


def _rendered(recipe: Recipe, target: Target, prompt: Prompt) -> list[int]:
    return render(target, prompt.messages, thinking=recipe.data.thinking)


def _texts_of_rows(target: Target, rows: Sequence[ResponseRow]) -> list[tuple[str, list[str]]]:
    """What is said in each row, by the user and by the target."""
    answers = target.tokenizer.batch_decode([row.response_ids for row in rows], skip_special_tokens=True)
    return [
        (row.id, [*(m["content"] for m in row.messages if m["role"] == "user"), answer])
        for row, answer in zip(rows, answers, strict=True)
    ]


def _repeated(values: Sequence[Any]) -> int:
    """How many values were there before."""
    return sum(count - 1 for count in Counter(values).values())


def _responses(recipe: Recipe, target: Target, rows: Sequence[ResponseRow], shown: int) -> Responses:
    longest = recipe.training.max_length
    whole, _ = trainable(target, rows)
    kept, _ = trainable(target, rows, longest)
    anchored = [s for s in kept if len(eligible_anchors(torch.tensor(s.loss_mask)))]
    config = drafter_config(recipe, target)
    settings = store_settings(target, rows, config.target_layer_ids, dtype=recipe.features.dtype, max_length=longest)
    meta = read_meta(recipe.data.responses)
    return Responses(
        made=None if meta is None else vars(meta),
        rows=len(rows),
        sequences=len(whole),
        unusable=len(whole) - len(anchored),
        cut=sum(len(s.ids) > longest for s in whole),
        unfinished=sum(row.finish_reason == "length" for row in rows),
        repeated=_repeated([tuple(row.response_ids) for row in rows]),
        supervised=sum(sum(s.loss_mask) for s in anchored),
        lengths={
            "prompt": _lengths([len(row.prompt_ids) for row in rows]),
            "response": _lengths([len(row.response_ids) for row in rows]),
            "sequence": _lengths([len(s.ids) for s in whole]),
        },
        shown={s.id: pieces(target, s) for s in anchored[:shown]},
        budget=budget(recipe, target, config, anchored, settings),
    )


def _lengths(sizes: Sequence[int]) -> Lengths:
    """Order statistics of sizes that are there."""
    found = np.quantile(np.asarray(sizes), list(SHARES.values()), method="higher")
    return {name: int(size) for name, size in zip(SHARES, found, strict=True)}


def pieces(target: Target, sequence: TrainingSequence) -> list[Piece]:
    """A sequence as text, cut where supervision begins and ends."""
    places = groupby(zip(sequence.ids, sequence.loss_mask, strict=True), key=lambda place: place[1])
    decode = target.tokenizer.decode
    return [Piece(decode([token for token, _ in run]), supervised) for supervised, run in places]
