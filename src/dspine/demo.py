"""The demo: prompts answered with and without the drafter, and the proof that the answers are the same.

One rule: a difference is a failure unless the target itself could not tell the two tokens apart. A forward over a
block and a forward over one token may round differently (in float32 they do, in bfloat16 on a CPU they do not). Where
the two likeliest logits are closer than `MARGIN`, either token is then the model's answer; such a place is shown.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dspine.answer import Answer, follow
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.evaluate.margin import first_margin
from dspine.target.chat import render
from dspine.target.model import Target

MARGIN = 1e-3  # logits
_WARM_UP_TOKENS = 8

PROMPTS = {
    "arithmetic": "A baker makes 12 trays of 8 rolls and sells all but 17 of them. How many rolls does he sell? "
    "Work it out step by step.",
    "code": "Write a Python function that returns the second largest number of a list.",
    "science": "Explain in three sentences why we see the flash of a lightning before we hear its thunder.",
    "advice": "Give me a simple plan for learning to swim as an adult.",
}


@dataclass(frozen=True)
class Outcome:
    """One prompt of the demo, by its name, decoded both ways.

    margin: where the answers first differ, how far apart (in logits) the target sees the two tokens, provided
        that they are its two likeliest; infinity if they are not; None if the answers are the same.
    """

    name: str
    drafted: Answer
    plain: Answer
    margin: float | None

    @property
    def lossless(self) -> bool:
        """Whether the drafter left the answer as it was."""
        return self.margin is None or self.margin < MARGIN

    @property
    def verdict(self) -> str:
        """How the two answers compare, in a few words."""
        if self.margin is None:
            return "all"
        return f"near-tie, {self.margin:.1e}" if self.lossless else "NO"


def run_demo(
    target: Target,
    engine: Engine,
    plain_engine: Engine,
    prompts: Mapping[str, str],
    max_new_tokens: int,
    *,
    write: Callable[[str], None],
    tell: Callable[[str], None],
) -> Iterator[Outcome]:
    """Answer each prompt with the engine's drafter, live, then without it, and compare.

    Args:
        target: the model.
        engine: an engine over it, with a drafter.
        plain_engine: one without.
        prompts: user messages, by name.
        max_new_tokens: cap of an answer.
        write: receives the drafted answer piece by piece.
        tell: receives remarks on what is happening.
    """
    params = SamplingParams(max_new_tokens=max_new_tokens)
    warm_up = SamplingParams(max_new_tokens=_WARM_UP_TOKENS)
    ids = {name: render(target, [{"role": "user", "content": text}]) for name, text in prompts.items()}
    for each in (engine, plain_engine):  # the first tokens pay for set-up that belongs to neither side
        each.generate([next(iter(ids.values()))], warm_up)
    for number, (name, prompt_ids) in enumerate(ids.items(), 1):
        tell(f"[{number}/{len(prompts)}] {prompts[name]}")
        drafted = follow(engine, prompt_ids, params, write)
        write("\n\n")
        tell("The same without the drafter, to compare ...")
        plain = follow(plain_engine, prompt_ids, params)
        tokens = (drafted.completion.token_ids, plain.completion.token_ids)
        yield Outcome(name, drafted, plain, first_margin(target, prompt_ids, *tokens))


def peak_memory_gb() -> float:
    """Most memory that this process has held so far, in units of 1e9 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9
