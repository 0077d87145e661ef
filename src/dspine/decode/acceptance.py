"""How likely a candidate is to stand, by place: a running estimate from the rounds that have been.

One rule: the past alone. A rate is conditional, the chance that the candidate at a place stands if all before it do. A
place of which little is known is taken to be like the one before it, and what is known fades, so that no run of bad
luck, at a place that is then no longer verified, is remembered for ever.
"""

from __future__ import annotations

PRIOR = 0.6  # of the first place, before anything is known
WEIGHT = 2.0  # rounds that a prior, or the place before, stands for
HALF_LIFE = 64.0  # rounds of one row after which a round counts half


class Acceptance:
    """Acceptance by place.

    Args:
        places: M, candidates of a block.
    """

    def __init__(self, places: int) -> None:
        self._stood = [0.0] * places
        self._seen = [0.0] * places

    def note(self, verified: int, accepted: int) -> None:
        """Take in a round of one row: how many of its candidates were verified, and how many of them stood."""
        self.fade(0.5 ** (1 / HALF_LIFE))
        for place in range(accepted):
            self._stood[place] += 1
            self._seen[place] += 1
        if accepted < verified:
            self._seen[accepted] += 1

    def rest(self, rows: int) -> None:
        """Let a round of so many rows pass in which nothing was verified."""
        self.fade(0.5 ** (rows / HALF_LIFE))

    def fade(self, share: float) -> None:
        """Let everything known count only this share, 0..1, of what it did."""
        self._stood = [count * share for count in self._stood]
        self._seen = [count * share for count in self._seen]

    def rates(self) -> list[float]:
        """The chance at each place that its candidate stands, if those before it do: M numbers."""
        rates, before = [], PRIOR
        for stood, seen in zip(self._stood, self._seen, strict=True):
            before = (stood + WEIGHT * before) / (seen + WEIGHT)
            rates.append(before)
        return rates

    def survival(self) -> list[float]:
        """The chance at each place that its candidate and all before it stand: M numbers, none above the one before."""
        chances, chance = [], 1.0
        for rate in self.rates():
            chance *= rate
            chances.append(chance)
        return chances
