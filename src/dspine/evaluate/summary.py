"""All figures of a family, from its measured answers: as they are, and up to where they begin to loop.

One rule: every figure is computed here from rounds, in one place, whoever prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine.evaluate.acceptance import (
    Place,
    Rounds,
    kept_and_rounds,
    places,
    tau,
    tau_macro,
    tau_sglang,
    tau_vllm,
    until,
)
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.interval import Interval, bootstrap
from dspine.evaluate.loops import loop_start


@dataclass(frozen=True)
class Figures:
    """Acceptance of a list of requests; `interval` is the 95 % one of `tau`, over requests."""

    tau: float
    interval: Interval
    tau_macro: float
    tau_sglang: float
    tau_vllm: float
    rounds: int
    places: tuple[Place, ...]

    @classmethod
    def of(cls, requests: Sequence[Rounds]) -> Figures:
        return cls(
            tau=tau(requests),
            interval=bootstrap(kept_and_rounds(requests)),
            tau_macro=tau_macro(requests),
            tau_sglang=tau_sglang(requests),
            tau_vllm=tau_vllm(requests),
            rounds=sum(len(rounds) for rounds in requests),
            places=tuple(places(requests)),
        )


@dataclass(frozen=True)
class Summary:
    """Figures of a family.

    whole: over all of the answers.
    before_loops: over what each answer says before it begins to loop.
    requests, tokens: of the whole; the prefill's token counts.
    capped: answers that met the cap before their end token.
    looped: answers that loop.
    cut: share of the tokens that lies behind the beginning of a loop.
    """

    whole: Figures
    before_loops: Figures
    requests: int
    tokens: int
    capped: int
    looped: int
    cut: float


def summarise(answers: Sequence[AnswerRecord]) -> Summary:
    """Figures of at least one answer."""
    starts = [loop_start(answer.tokens) for answer in answers]
    lengths = [len(answer.tokens) if start is None else start for answer, start in zip(answers, starts, strict=True)]
    tokens = sum(len(answer.tokens) for answer in answers)
    return Summary(
        whole=Figures.of([answer.rounds for answer in answers]),
        before_loops=Figures.of([until(answer.rounds, n) for answer, n in zip(answers, lengths, strict=True)]),
        requests=len(answers),
        tokens=tokens,
        capped=sum(answer.finish == "length" for answer in answers),
        looped=sum(start is not None for start in starts),
        cut=1 - sum(lengths) / tokens,
    )
