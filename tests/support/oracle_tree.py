"""An oracle that tabulates: the right tokens are among its candidates, at ranks that change from place to place.

So trees have to follow side branches, and how far they come is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tests.support.oracle import OracleDrafter
from torch import Tensor

from dspine.drafter.transitions import Transitions
from dspine.kernels.kv import RowCache
from dspine.kernels.law import Law

LIKELY = (3.0, 2.0, 1.0)  # scores of the candidates of a place, by rank
EVEN = (0.2, 0.1, 0.0)  # ... where side branches come before the line's second place


@dataclass
class OracleTree(OracleDrafter):
    """As `OracleDrafter`, its block among two wrong tokens a place: first of three in line, else by turns."""

    in_line: bool = False
    tabulates: bool = True

    def transitions(self, cache: RowCache, first: int, anchors: Tensor) -> Transitions:
        block = self.propose(cache, first, anchors, Law.greedy_rows(len(anchors)), None).tokens
        candidates = torch.empty(*block.shape, 3, dtype=torch.int64)
        for place in range(self.candidates):
            each = [(block[:, place] + by) % self.target.vocab_size for by in (5, 9)]
            each.insert(0 if self.in_line else (place + 1) % 3, block[:, place])
            candidates[:, place] = torch.stack(each, dim=1)
        return Transitions(candidates, torch.tensor(LIKELY).expand(*block.shape, 3).unsqueeze(2))


class Aside:
    """A drafter whose trees hold the right tokens of one sequence, beside the line.

    Args:
        tokens: of the sequence, prompt and answer.
        vocabulary: how many tokens there are.
    """

    def __init__(self, drafter: Any, tokens: Sequence[int], vocabulary: int) -> None:
        self._drafter = drafter
        self._vocabulary = vocabulary
        self._tokens = [*tokens, *[0] * drafter.block_size]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def transitions(self, cache: RowCache, first: int, anchors: Tensor) -> Transitions:
        places, size = self._drafter.candidates, self._vocabulary
        starts = cache.lengths[first : first + len(anchors)]
        right = torch.tensor([self._tokens[start + 1 : start + 1 + places] for start in starts])
        candidates = torch.stack(((right + 5) % size, right, (right + 9) % size), dim=2)
        return Transitions(candidates, torch.tensor(EVEN).expand_as(candidates).unsqueeze(2))
