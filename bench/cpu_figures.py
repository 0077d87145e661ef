"""Rates, ratios and their spread, from the answers of `cpu_worker.py`.

One rule: a ratio is taken prompt by prompt, between answers that were made in turn; what is reported of the ratios is
their median and quartiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]  # a reply of `cpu_worker.py`


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there is nothing to describe."""
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


def decode_rate(answer: Answer) -> float | None:
    """Tokens a second without the prefill and what came with it; None if nothing came after it."""
    return answer["decode_tokens"] / answer["decode_seconds"] if answer["decode_tokens"] > 0 else None


def whole_rate(answer: Answer) -> float:
    """Tokens a second from the prompt to the last token."""
    return len(answer["tokens"]) / answer["seconds"]


def decode_rates(answers: Sequence[Answer]) -> list[float]:
    return [rate for rate in map(decode_rate, answers) if rate is not None]


def pooled_decode_rate(answers: Sequence[Answer]) -> float:
    return sum(a["decode_tokens"] for a in answers) / sum(a["decode_seconds"] for a in answers)


def decode_ratios(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[float]:
    """How many times faster `ours` decoded each prompt."""
    pairs = [(decode_rate(a), decode_rate(b)) for a, b in zip(ours, theirs, strict=True)]
    return [a / b for a, b in pairs if a is not None and b is not None]


def whole_ratios(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[float]:
    return [whole_rate(a) / whole_rate(b) for a, b in zip(ours, theirs, strict=True)]


def tau_of(answers: Sequence[Answer]) -> float | None:
    """Acceptance length: tokens kept a round, prefill excluded."""
    rounds = [r for answer in answers for r in answer["rounds"]]
    return sum(kept for _, kept in rounds) / len(rounds) if rounds else None


def same_tokens(ours: Answer, theirs: Answer, eos: Sequence[int]) -> bool:
    """Whether two answers say the same; one engine returns the end token, another does not."""
    return _text(ours["tokens"], eos) == _text(theirs["tokens"], eos)


def _text(tokens: Sequence[int], eos: Sequence[int]) -> list[int]:
    ended = bool(tokens) and tokens[-1] in eos
    return list(tokens[:-1] if ended else tokens)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def said(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}-{spread.high:.{digits}f})"
