"""tau of a nano drafter on held-out prompts of nano's own text, by source, with intervals.

One rule: tau = Σ kept / Σ rounds, greedy, by the real engine; the interval is a percentile bootstrap over prompts,
since rounds of one answer are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine.decode.engine import Engine
from dspine.decode.records import Completion, pooled_tau
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Drafter
from dspine.interval import Interval, bootstrap
from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.nano.corpus import SOURCES, prompts

ALL = "all"


@dataclass(frozen=True)
class Acceptance:
    """tau of one source, its 95 % interval, and what it was measured on."""

    source: str
    tau: float
    interval: Interval
    prompts: int
    rounds: int
    tokens: int


def measure(target: Target, drafter: Drafter, *, seed: int, count: int, max_new_tokens: int) -> list[Acceptance]:
    """Answer `count` held-out prompts greedily; one line a source, then all together."""
    rows = list(prompts(seed, count))
    params = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
    answers = Engine(target, drafter).generate([render(target, row["messages"]) for row in rows], params)
    found = []
    for source in (*SOURCES, ALL):
        chosen = [answer for row, answer in zip(rows, answers, strict=True) if source in (row["source"], ALL)]
        if chosen:
            found.append(_acceptance(source, chosen, seed))
    return found


def _acceptance(source: str, answers: Sequence[Completion], seed: int) -> Acceptance:
    pairs = [(sum(record.kept for record in answer.rounds), len(answer.rounds)) for answer in answers]
    return Acceptance(
        source=source,
        tau=pooled_tau(answers),
        interval=bootstrap(pairs, seed=seed),
        prompts=len(answers),
        rounds=sum(rounds for _, rounds in pairs),
        tokens=sum(len(answer.token_ids) for answer in answers),
    )
