"""Answers token by token, to be looked at: the round of each, whether it was drafted, and what else was likely.

One rule: the text is the answer's own, as it lies on disk; one forward of the target over it says how likely each token
was, at temperature 1 and before any transform, and which other one was likeliest. A file says all that a page shows:
no model and no tokenizer is needed to read it.

    {"key": "gsm8k/test/3", "task", "prompt", "finish", "rounds", "kept", "tokens": [{"text", "round", "kind", "chance",
     "runner_up", "runner_up_chance"}, ...]}

"round" counts from 1, and is 0 for the prefill's token; "kind" is of `decode.records.Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dspine.decode.records import kinds
from dspine.decode.text import Detokenizer
from dspine.decode.vocabulary import Vocabulary
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.results import ResultFile
from dspine.evaluate.sources import Asked
from dspine.kernels.kv import Span
from dspine.target import Target
from dspine.target.chat import render


def keep(
    target: Target, tasks: Sequence[Asked], answers: Mapping[str, AnswerRecord], file: ResultFile, count: int
) -> None:
    """Write the first `count` answers of each task; those that are there stay.

    Raises:
        DataError: the file cannot be written.
    """
    for prompt in (prompt for asked in tasks for prompt in asked.prompts[:count]):
        if prompt.id not in file.lines:
            file.add([told(target, prompt.text, answers[prompt.id])])


def told(target: Target, text: str, answer: AnswerRecord) -> dict[str, Any]:
    """The line of one answer to a user's message."""
    rounds = [0, *(number for number, record in enumerate(answer.rounds, start=1) for _ in range(record.kept))]
    marks = ["first", *kinds(answer.rounds, len(answer.tokens) - 1)] if answer.rounds else ["first"]
    vocabulary, written = Vocabulary(target.tokenizer), Detokenizer(target.tokenizer)
    prompt = render(target, [{"role": "user", "content": text}])
    chances, others, other_chances = likelihoods(target, prompt, answer.tokens)
    tokens = []
    for index, token in enumerate(answer.tokens):
        piece = vocabulary.name(token) if vocabulary.special(token) else written.push(token)
        tokens.append(
            {
                "text": piece,
                "round": rounds[index],
                "kind": marks[index],
                "chance": round(float(chances[index]), 4),
                "runner_up": vocabulary.name(int(others[index])),
                "runner_up_chance": round(float(other_chances[index]), 4),
            }
        )
    kept = sum(record.kept for record in answer.rounds)
    about = {"task": answer.task, "prompt": text, "finish": answer.finish}
    return {"key": answer.id, **about, "rounds": len(answer.rounds), "kept": kept, "tokens": tokens}


@torch.no_grad()
def likelihoods(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token (T,): its chance, the likeliest other token, and the chance of that."""
    ids = torch.tensor([[*prompt, *tokens]], device=target.device)
    span = Span(first=0, starts=(0,), width=ids.shape[1], whole=True)
    hidden = target.forward(ids, target.new_cache(1), span).hidden[0, len(prompt) - 1 : -1]
    said = torch.tensor(list(tokens), device=target.device)
    found = []
    for states, own in zip(
        torch.split(hidden, 64), torch.split(said, 64), strict=True
    ):  # few rows of the vocabulary at once
        law = target.logits(states).float().softmax(-1)
        chance = law.gather(1, own[:, None])[:, 0]
        other = law.scatter(1, own[:, None], -1.0).max(-1)
        found.append((chance, other.indices, other.values))
    chances, others, other_chances = (torch.cat(column) for column in zip(*found, strict=True))
    return chances, others, other_chances
