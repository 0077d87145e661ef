"""Back-pressure: how many answers are promised, and when to come back.

One rule: a request is let in whole or not at all, and gives its places back however it ends. All of it happens on the
event loop, so counting needs no lock.
"""

from __future__ import annotations

from math import ceil
from time import monotonic

from dspine.serve.http.faults import ApiFault
from dspine.serve.http.limits import Limits

_WEIGHT = 0.2  # of the newest answer in the running mean of how long one takes
_LONGEST = 60  # seconds to send anybody away for


class Gate:
    """Counts answers in progress and waiting.

    Args:
        limits: how many there may be.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.mean_seconds = 1.0  # that an answer takes; nothing is known of the first
        self.closed = False
        self.inside = 0

    def enter(self, count: int) -> Pass:
        """Let `count` answers in.

        Raises:
            ApiFault: the server is stopping (503) or full (429), with Retry-After.
        """
        if self.closed:
            raise ApiFault(503, "the server is stopping", code="stopping", headers={"Retry-After": "10"})
        if self.inside + count > self._limits.open:
            raise ApiFault(
                429,
                f"{self.inside} answers are in progress or waiting, and {self._limits.open} are the most",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(self.retry_after())},
            )
        self.inside += count
        return Pass(self, count)

    def retry_after(self) -> int:
        """Seconds until a place is free, roughly: what is ahead, by the number of slots and how long answers took."""
        ahead = max(1, self.inside - self._limits.slots)
        return min(_LONGEST, max(1, ceil(self.mean_seconds * ahead / self._limits.slots)))

    def leave(self, count: int, seconds: float | None) -> None:
        """Take places back; None where no answer came of them, which tells nothing of how long one takes."""
        self.inside -= count
        if seconds is not None:
            self.mean_seconds += _WEIGHT * (seconds - self.mean_seconds)


class Pass:
    """Places of one request; given back once, by whoever comes first."""

    def __init__(self, gate: Gate, count: int) -> None:
        self._gate = gate
        self._count = count
        self._since = monotonic()

    def give_back(self, *, answered: bool) -> None:
        """End the claim; doing so again does nothing.

        Args:
            answered: whether the request was answered to its end.
        """
        if self._count:
            self._gate.leave(self._count, monotonic() - self._since if answered else None)
            self._count = 0
