"""tau of a nano drafter on held-out prompts of nano's own text, by source, with intervals.

One rule: tau = Σ kept / Σ rounds, greedy, by the real engine; the interval is a percentile bootstrap over prompts,
since rounds of one answer are not independent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dspine.decode.engine import Engine
from dspine.decode.records import Completion, pooled_tau
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Drafter
from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.nano.corpus import SOURCES, prompts

RESAMPLES = 2000
ALL = "all"


@dataclass(frozen=True)
class Acceptance:
    """tau of one source, its 95 % interval, and what it was measured on."""

    source: str
    tau: float
    low: float
    high: float
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


def interval(pairs: Sequence[tuple[int, int]], seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap of Σ kept / Σ rounds over prompts given as (kept, rounds)."""
    rng = random.Random(seed)
    taus = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        taus.append(sum(kept for kept, _ in drawn) / max(1, sum(rounds for _, rounds in drawn)))
    taus.sort()
    return taus[round(0.025 * RESAMPLES)], taus[round(0.975 * RESAMPLES) - 1]


def _acceptance(source: str, answers: Sequence[Completion], seed: int) -> Acceptance:
    pairs = [(sum(record.kept for record in answer.rounds), len(answer.rounds)) for answer in answers]
    rounds = sum(count for _, count in pairs)
    low, high = interval(pairs, seed)
    return Acceptance(
        source=source,
        tau=pooled_tau(answers),
        low=low,
        high=high,
        prompts=len(answers),
        rounds=rounds,
        tokens=sum(len(answer.token_ids) for answer in answers),
    )
