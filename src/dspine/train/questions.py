"""What is still to be asked: one question for every turn of every prompt that has no answer yet.

One rule: a question is a function of its prompt and of the answers to the turns before it, so that any run that has
these asks the same. Its ids are the target's chat template over the target's own earlier answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspine.errors import DataError
from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.prompts import Message, Prompt
from dspine.train.responses import ResponseRow


@dataclass(frozen=True)
class Question:
    """One row to be: what the target is asked, as text and as ids."""

    id: str
    source: str
    messages: list[Message]
    prompt_ids: list[int]


def turns_of(prompts: Sequence[Prompt]) -> int:
    """Turns of the prompt that has most of them."""
    return 1 + max((len(prompt.later) for prompt in prompts), default=0)


def longest_prompt(target: Target, max_prompt_tokens: int | None) -> int:
    """The longest prompt that is answered, in tokens."""
    return min(max_prompt_tokens or target.context_limit - 1, target.context_limit - 1)


def refuse_repeated_ids(prompts: Sequence[Prompt]) -> None:
    """Refuse prompts whose rows would have one id.

    Raises:
        DataError: naming it.
    """
    seen: set[str] = set()
    for name in (turn_id(prompt, turn) for prompt in prompts for turn in range(1 + len(prompt.later))):
        if name in seen:
            raise DataError(f"two prompts give a row of the id {name!r}", "Give each prompt an id of its own.")
        seen.add(name)


def turn_id(prompt: Prompt, turn: int) -> str:
    """The id of the row of a turn, counted from 0: `id`, `id#2`, `id#3`, ..."""
    return prompt.id if turn == 0 else f"{prompt.id}#{turn + 1}"


def questions(
    target: Target, prompts: Sequence[Prompt], turn: int, rows: Mapping[str, ResponseRow], thinking: bool
) -> list[Question]:
    """What is still to be asked in a turn: prompts that have this turn, and an answer to the one before.

    Longest first: prompts of about one length share a batch, and memory runs out at the start or never.
    """
    asked = []
    for prompt in prompts:
        name = turn_id(prompt, turn)
        if name in rows or turn > len(prompt.later):
            continue
        messages = list(prompt.messages)
        if turn:
            before = rows.get(turn_id(prompt, turn - 1))
            if before is None:  # its prompt was too long
                continue
            said = target.tokenizer.decode(before.response_ids, skip_special_tokens=True)
            messages = [
                *before.messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": prompt.later[turn - 1]},
            ]
        ids = render(target, messages, thinking=thinking)
        asked.append(Question(name, prompt.source, messages, ids))
    return sorted(asked, key=lambda q: (-len(q.prompt_ids), q.id))
