"""Which prompts of a set are reported, and which are left for choosing a drafter.

One rule: figures are reported on prompts that nothing was chosen by. Every set is shuffled by seed 980406; its first 50
are the reported ones, and tuning draws from the rest, in the same order, passing over any text that is among them.
Source: DeepSpec's evaluator (the seed).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dspine.errors import DataError

SEED = 980406
REPORTED = 50

Split = Literal["report", "tune"]


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """A user message of a benchmark, and the name of its row there."""

    id: str
    text: str


def chosen(prompts: Sequence[TaskPrompt], split: Split, count: int) -> list[TaskPrompt]:
    """The first `count` prompts of a split, in shuffled order.

    Args:
        prompts: the whole set, in the order of its file.

    Raises:
        DataError: the split holds fewer, or `count` is not positive.
    """
    shuffled = list(prompts)
    random.Random(SEED).shuffle(shuffled)
    reported, rest = shuffled[:REPORTED], shuffled[REPORTED:]
    taken = {_plain(prompt.text) for prompt in reported}
    held = reported if split == "report" else [prompt for prompt in rest if _plain(prompt.text) not in taken]
    if not 1 <= count <= len(held):
        raise DataError(f"{count} prompts were asked for, and the {split} split has {len(held)}", "Ask for fewer.")
    return held[:count]


def texts_digest(prompts: Sequence[TaskPrompt]) -> str:
    """First 12 hex digits of the sha256 of the texts, in their order."""
    return hashlib.sha256(json.dumps([prompt.text for prompt in prompts]).encode()).hexdigest()[:12]


def _plain(text: str) -> str:
    """Case and spacing aside: the same question under two ids is one question."""
    return " ".join(text.lower().split())
