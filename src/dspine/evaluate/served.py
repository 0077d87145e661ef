"""When the tokens of requests came: what throughput and latency are computed from, whoever served them.

One rule: times are the client's, from the moment a request was sent. A round keeps several tokens, which are there
together, so gaps lie between pieces of output, and the time of a token is taken over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan


@dataclass(frozen=True, slots=True)
class Served:
    """One request.

    tokens: of its output, all of them.
    pieces: seconds after the request was sent at which pieces of the output came, rising; at least one.
    kept, rounds: where the server tells: tokens kept in rounds, and rounds.
    """

    tokens: int
    pieces: tuple[float, ...]
    kept: int | None = None
    rounds: int | None = None

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces."""
        return [later - earlier for earlier, later in pairwise(self.pieces)]


@dataclass(frozen=True, slots=True)
class Load:
    """A load served to its end: all requests, and the seconds of the whole."""

    seconds: float
    requests: tuple[Served, ...]

    @property
    def tokens(self) -> int:
        return sum(request.tokens for request in self.requests)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tpot(self) -> float:
        """Seconds a token behind the first, pooled over requests of more than one piece; NaN without any."""
        longer = [request for request in self.requests if len(request.pieces) > 1 and request.tokens > 1]
        tokens = sum(request.tokens - 1 for request in longer)
        return sum(request.pieces[-1] - request.first for request in longer) / tokens if tokens else nan

    @property
    def rounds(self) -> tuple[int, int] | None:
        """Tokens kept in rounds, and rounds, of all requests; None if the server does not tell."""
        pairs = [(r.kept, r.rounds) for r in self.requests if r.kept is not None and r.rounds is not None]
        if len(pairs) < len(self.requests):
            return None
        return sum(kept for kept, _ in pairs), sum(rounds for _, rounds in pairs)

    @property
    def tau(self) -> float | None:
        """Kept tokens over rounds, pooled; None if the server does not tell, or there was no round."""
        kept, rounds = self.rounds or (0, 0)
        return kept / rounds if rounds else None

    def numbers(self) -> dict[str, object]:
        """The figures for a file: rates in tokens/s, times in seconds."""
        return {
            "requests": len(self.requests),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "ttft": percentiles(request.first for request in self.requests),
            "itl": percentiles(gap for request in self.requests for gap in request.gaps),
            "tpot": self.tpot,
            "rounds": self.rounds,  # kept, rounds
            "tau": self.tau,
        }


def percentiles(values: Iterable[float], at: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """The smallest value that at least so many per cent of the values do not exceed; NaN without values."""
    ordered = sorted(values)
    return {f"p{p}": ordered[max(0, -(-p * len(ordered) // 100) - 1)] if ordered else nan for p in at}
