"""Which prompts are trained on and which are held out, by source.

One rule: which prompts are chosen depends on their ids and the seed, never on the order of the rows or on
other sources, so that a selection can be repeated on a file that was shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from dspine.errors import DataError
from dspine.train.prompts import Prompt

Mix = Sequence[tuple[str, int, str]]  # (source, how many rows, suffix of the last user message)


@dataclass(frozen=True)
class Selection:
    """Disjoint prompts: those to train on, and those to measure on."""

    train: list[Prompt]
    held_out: list[Prompt]


def select(prompts: Sequence[Prompt], mix: Mix, seed: int, held_out: int = 0) -> Selection:
    """Choose prompts by source.

    Of each source the rows are ordered by sha256("seed:id"); the first `count` are for training and the next
    `held_out` are held out, passing over any whose text is among those trained on.

    Args:
        prompts: what `read_prompts` gives.
        mix: (source, count, suffix) each; the suffix is appended to the last user message of either kind.
        seed: of the order.
        held_out: held-out rows per source.

    Raises:
        DataError: a source that is named twice, unknown, or too small.
    """
    by_source: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_source.setdefault(prompt.source, []).append(prompt)
    names = [source for source, _, _ in mix]
    for source in names:
        if source not in by_source:
            known = ", ".join(sorted(by_source))
            raise DataError(f"no prompt has the source {source!r}", f"Sources here: {known}.")
        if names.count(source) > 1:
            raise DataError(f"the mix names the source {source!r} twice", "Add up the counts.")
    ordered = {source: sorted(by_source[source], key=lambda p: rank(seed, p.id)) for source in names}
    trained = {_asked(p) for source, count, _ in mix for p in ordered[source][:count]}
    train: list[Prompt] = []
    kept_out: list[Prompt] = []
    for source, count, suffix in mix:
        rest = [p for p in ordered[source][count:] if _asked(p) not in trained]
        have = len(ordered[source])
        if have < count or len(rest) < held_out:
            wanted, again = f"{count} + {held_out} held out", have - count - len(rest)
            repeats = f", {again} of them with a text that is trained on" if again > 0 else ""
            raise DataError(f"the source {source!r} has {have} prompts{repeats}; the mix asks for {wanted}")
        train += [_with_suffix(p, suffix) for p in ordered[source][:count]]
        kept_out += [_with_suffix(p, suffix) for p in rest[:held_out]]
    return Selection(train, kept_out)


def rank(seed: int, name: str) -> str:
    """Where a row stands in the order that a seed gives the rows of a file, whatever their own order."""
    return sha256(f"{seed}:{name}".encode()).hexdigest()


def _asked(prompt: Prompt) -> tuple[str, ...]:
    """What the user says, case and spacing aside: the same question under two ids is one question."""
    return tuple(" ".join(text.lower().split()) for text in prompt.user_texts)


def _with_suffix(prompt: Prompt, suffix: str) -> Prompt:
    if not suffix:
        return prompt
    if prompt.later:
        return replace(prompt, later=(*prompt.later[:-1], prompt.later[-1] + suffix))
    last = prompt.messages[-1]
    return replace(prompt, messages=(*prompt.messages[:-1], {**last, "content": last["content"] + suffix}))
