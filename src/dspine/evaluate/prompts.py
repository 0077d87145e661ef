"""Which prompts of a set are reported, and which are left for choosing a drafter.

One rule: figures are reported on prompts that nothing was chosen by. Every set is shuffled by seed 980406; its first 50
are the reported ones, and tuning draws from the rest, in the same order, passing over any text that is among them. For
whoever tunes on nothing, "all" is the whole set in that order. Source: DeepSpec's evaluator (the seed).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from dspine.errors import DataError
from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.task import Task

SEED = 980406
REPORTED = 50

Split = Literal["report", "tune", "all"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """A user message of a benchmark, and the name of its row there.

    later: the user messages of later turns.
    row: what it was made of, for scoring its answer.
    """

    id: str
    text: str
    later: tuple[str, ...] = ()
    row: Row | None = field(default=None, compare=False)

    @classmethod
    def of(cls, task: Task, row: Row) -> TaskPrompt:
        return cls(row.id, task.wording(row), row.turns[1:], row)


def chosen(prompts: Sequence[TaskPrompt], split: Split, count: int | None) -> list[TaskPrompt]:
    """The first `count` prompts of a split, in shuffled order.

    Args:
        prompts: the whole set, in the order of its file.
        count: None: all there are.

    Raises:
        DataError: the split holds none or fewer, or `count` is not positive.
    """
    shuffled = list(prompts)
    random.Random(SEED).shuffle(shuffled)
    held = _held(shuffled, split)
    if not held:
        raise DataError(
            f"the {split} split has no prompts: there are {len(prompts)}, and reports take the first {REPORTED}",
            "Give a larger set, or take all of this one: --split all",
        )
    if count is not None and not 1 <= count <= len(held):
        raise DataError(f"{count} prompts were asked for, and the {split} split has {len(held)}", "Ask for fewer.")
    return held[:count]


def texts_digest(prompts: Sequence[TaskPrompt]) -> str:
    """First 12 hex digits of the sha256 of the texts, in their order."""
    return hashlib.sha256(json.dumps([prompt.text for prompt in prompts]).encode()).hexdigest()[:12]


def _held(shuffled: list[TaskPrompt], split: Split) -> list[TaskPrompt]:
    if split == "all":
        return shuffled
    reported, rest = shuffled[:REPORTED], shuffled[REPORTED:]
    taken = {_plain(prompt.text) for prompt in reported}
    return reported if split == "report" else [prompt for prompt in rest if _plain(prompt.text) not in taken]


def _plain(text: str) -> str:
    """Case and spacing aside: the same question under two ids is one question."""
    return " ".join(text.lower().split())
