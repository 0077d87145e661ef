"""Overlap of training data with evaluation prompts, by runs of 13 words.

One rule: texts are compared as words alone (letters and digits, case aside), so that punctuation and layout hide
nothing. An evaluation prompt is met when 13 of its words in a row stand in a training text, or, where it is shorter,
when a training text is nothing but the prompt. Source: the contamination analysis of GPT-3 (arXiv 2005.14165, app. C).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dspine.train.prompts import Prompt

GRAM = 13
_WORD = re.compile(r"\w+")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Overlap:
    """What training texts share with one set of evaluation prompts.

    name: of the set; prompts: how many it has.
    met: ids of the prompts that stand in a training text; rows: ids of the training rows that hold one.
    commonest: the shared words that most rows hold, with their number: a phrase of the task's, or a leak.
    """

    name: str
    prompts: int
    met: list[str]
    rows: list[str]
    commonest: tuple[str, int] | None


class Evaluation:
    """A set of evaluation prompts to hold training texts against."""

    def __init__(self, name: str, prompts: Sequence[Prompt]) -> None:
        self.name, self.size = name, len(prompts)
        self._owners: dict[Words, set[str]] = {}
        for prompt in prompts:
            for text in prompt.user_texts:
                for gram in grams(words(text)):
                    self._owners.setdefault(gram, set()).add(prompt.id)

    def overlap(self, rows: Iterable[tuple[str, Sequence[str]]]) -> Overlap:
        """What these rows share with it: (id, texts) each."""
        met: set[str] = set()
        held: list[str] = []
        shared: Counter[Words] = Counter()
        for name, texts in rows:
            found = {gram for text in texts for gram in grams(words(text)) if gram in self._owners}
            if found:
                held.append(name)
                shared.update(found)
                met.update(*(self._owners[gram] for gram in found))
        common = shared.most_common(1)
        return Overlap(
            self.name, self.size, sorted(met), held, (" ".join(common[0][0]), common[0][1]) if common else None
        )


def words(text: str) -> Words:
    """The words of a text, case aside."""
    return tuple(_WORD.findall(text.lower()))


def grams(of: Words) -> Iterator[Words]:
    """Every 13 words in a row; of fewer words, all of them; of none, nothing."""
    if of:
        for first in range(max(1, len(of) - GRAM + 1)):
            yield of[first : first + GRAM]
