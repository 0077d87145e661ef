"""Candidates without a drafter: what a request's own text said the last time that it said this.

One rule: a row's tokens up to its anchor say what is looked up, and nothing else does. So q is one-hot, the verdict
keeps the target's law whatever the candidates are, and a seed gives its tokens again. The more of what was just said
was said before, the more of what followed then is proposed. Sources: prompt lookup decoding (Saxena 2023); lengths by
what matched as in suffix decoding (arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 15  # candidates: a forward of 16 tokens with the anchor
AHEAD = 2  # candidates by token that was said before


class Lookup:
    """The text of one request, to be looked things up in.

    Args:
        shortest: the newest so many tokens must have been said before, in this order.
    """

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest
        self._after: dict[tuple[int, ...], int] = {}  # by run of tokens: where that begins which followed it last
        self._read = 0  # runs that are in the table

    def found(self, tokens: Sequence[int], most: int) -> list[int]:
        """What followed the newest tokens where they were said before; nothing if they were not.

        Args:
            tokens: prompt and answer so far, the anchor last; those of the last call, and more.
            most: candidates.
        """
        self._learn(tokens)
        begin = self._after.get(tuple(tokens[-self._shortest :]))
        if begin is None:
            return []
        said: list[int] = []
        for at in range(begin, begin + min(most, AHEAD * self._repeated(tokens, begin, most))):
            said.append(tokens[at] if at < len(tokens) else said[at - len(tokens)])  # a text that runs in a circle
        return said

    def _learn(self, tokens: Sequence[int]) -> None:
        """Take in every run that has a token behind it."""
        for start in range(self._read, len(tokens) - self._shortest):
            end = start + self._shortest
            self._after[tuple(tokens[start:end])] = end
            self._read = start + 1

    def _repeated(self, tokens: Sequence[int], begin: int, enough: int) -> int:
        """How many of the newest tokens stand before `begin` as well, counted up to `enough`."""
        length = self._shortest
        while length < min(enough, begin) and tokens[begin - length - 1] == tokens[-length - 1]:
            length += 1
        return length
