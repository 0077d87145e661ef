"""All figures of a task, from its measured answers: as they are, and up to where they begin to loop.

One rule: every figure is computed here from rounds, in one place, whoever prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine.evaluate.acceptance import (
    Place,
    Rounds,
    accept_rate,
    kept_and_rounds,
    places,
    tau,
    tau_deepspec,
    tau_macro,
    tau_modelopt,
    tau_sglang,
    tau_specforge,
    tau_untrimmed,
    tau_vllm,
    until,
    verify_rate,
)
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.loops import loop_start
from dspine.interval import Interval, bootstrap


@dataclass(frozen=True)
class Figures:
    """Acceptance of a list of requests; `interval` and `macro_interval` are 95 % ones over requests."""

    tau: float
    interval: Interval
    tau_macro: float
    macro_interval: Interval
    tau_untrimmed: float
    tau_deepspec: float
    tau_sglang: float
    tau_specforge: float
    tau_vllm: float
    tau_modelopt: float
    accept_rate: float
    verify_rate: float
    rounds: int
    places: tuple[Place, ...]

    @classmethod
    def of(cls, requests: Sequence[Rounds], capped: Sequence[bool]) -> Figures:
        """Figures of the rounds of each request; `capped` says which of them met the cap."""
        pairs = kept_and_rounds(requests)
        return cls(
            tau=tau(requests),
            interval=bootstrap(pairs),
            tau_macro=tau_macro(requests),
            macro_interval=bootstrap([(kept / rounds, 1) for kept, rounds in pairs if rounds]),
            tau_untrimmed=tau_untrimmed(requests),
            tau_deepspec=tau_deepspec(requests, capped),
            tau_sglang=tau_sglang(requests),
            tau_specforge=tau_specforge(requests),
            tau_vllm=tau_vllm(requests),
            tau_modelopt=tau_modelopt(requests),
            accept_rate=accept_rate(requests),
            verify_rate=verify_rate(requests),
            rounds=sum(len(rounds) for rounds in requests),
            places=tuple(places(requests)),
        )


@dataclass(frozen=True)
class Summary:
    """Figures of a task.

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
    capped = [answer.finish == "length" for answer in answers]
    uncut = [cap and start is None for cap, start in zip(capped, starts, strict=True)]
    tokens = sum(len(answer.tokens) for answer in answers)
    return Summary(
        whole=Figures.of([answer.rounds for answer in answers], capped),
        before_loops=Figures.of([until(answer.rounds, n) for answer, n in zip(answers, lengths, strict=True)], uncut),
        requests=len(answers),
        tokens=tokens,
        capped=sum(capped),
        looped=sum(start is not None for start in starts),
        cut=1 - sum(lengths) / tokens,
    )
