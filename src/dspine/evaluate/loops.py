"""Where a response begins to loop.

One rule: the response loops from where an n-gram starts for the third time, n = 16, occurrences that overlap included.
A small model falls into loops, loops draft perfectly, and tau with them flatters the drafter. What lies before the
cut still holds two turns of the loop, so the cut never takes away text that was new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

NGRAM = 16
TIMES = 3


def loop_start(tokens: Sequence[int], *, ngram: int = NGRAM, times: int = TIMES) -> int | None:
    """Index at which an n-gram starts for the `times`-th time, the earliest such index.

    A loop of period p that begins at s is cut at s + 2p, once it has gone on for 2p + 16 tokens; 18 equal tokens in a
    row are a loop of period 1.

    Returns:
        the number of tokens before the loop; None if the response does not loop.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(len(tokens) - ngram + 1):
        gram = tuple(tokens[start : start + ngram])
        seen[gram] += 1
        if seen[gram] == times:
            return start
    return None
