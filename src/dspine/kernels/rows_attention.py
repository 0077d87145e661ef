"""Attention of rows that differ in width or length: what they have in common in one call, the rest in calls of its own.

One rule: how tokens are shared out over calls changes a result in the last bit at most; in bfloat16 on a CPU, where
slots end as `kernels/attention.py` says, not even there. A call reads as many slots for all its rows and takes as many
tokens of each: one wide or long row among others would make them all as dear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

import torch
from torch import Tensor

from dspine.kernels.attention import fold_mask, grouped_attention
from dspine.kernels.kv import Span
from dspine.kernels.ragged import Ragged
from dspine.kernels.upload import upload

# A call costs as much as so many numbers of keys times the tokens that ask them; and reading the keys as much as so
# many tokens more. Measured on two cores, in float32 and bfloat16, with 3 key heads of 64 and 8 of 128.
CALL, READ = 1_000_000, 2

Added = Mapping[str, Tensor | None]  # masks by kind of layer


@dataclass(frozen=True)
class Common:
    """What is taken of all rows in one call: so many tokens of each, over so many slots."""

    width: int
    limit: int

    def lacks(self, counts: Sequence[int], limits: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Rows that need a call of their own, and the first of their tokens that does."""
        for row, (count, limit) in enumerate(zip(counts, limits, strict=True)):
            if limit > self.limit:
                yield row, 0
            elif count > self.width:
                yield row, self.width

    def cost(self, counts: Sequence[int], limits: Sequence[int], numbers: int) -> int:
        """Of all calls."""
        whole = CALL + len(counts) * self.limit * numbers * (self.width + READ)
        return whole + sum(
            CALL + limits[row] * numbers * (counts[row] - first + READ) for row, first in self.lacks(counts, limits)
        )

    @classmethod
    def cheapest(cls, counts: Sequence[int], limits: Sequence[int], numbers: int) -> Common:
        """What to take together.

        Args:
            counts, limits: tokens of each row, and slots that they read.
            numbers: of one slot's keys.
        """
        choices = (cls(*pair) for pair in product(sorted(set(counts)), sorted(set(limits))))
        return min(choices, key=lambda common: common.cost(counts, limits, numbers))


@dataclass(frozen=True)
class Apart:
    """Tokens of one row with a call of their own.

    row: of the open span. tokens: where they lie, all tokens of the span end to end. limit: slots that they read.
    masks: as those of `RowsAttention`, of these tokens.
    """

    row: int
    tokens: slice
    limit: int
    masks: Added

    def heard(self, line: Tensor, keys: Tensor, values: Tensor, kind: str, scale: float) -> Tensor:
        """(N, H, D) and (B, G, S, D) → (own, H, D)."""
        query = line[self.tokens].transpose(0, 1)[None]
        slots = (slice(self.row, self.row + 1), slice(None), slice(self.limit))
        return grouped_attention(query, keys[slots], values[slots], self.masks[kind], scale)[0].transpose(0, 1)


class RowsAttention:
    """Attention of one span's tokens in any layer.

    Args:
        span: where they lie.
        masks: by kind of layer, what is added to scores (B, 1, T, limit); None: everything is seen.
        heads: query heads, key heads, and numbers of a head.
    """

    def __init__(self, span: Span, masks: Added, heads: tuple[int, int, int], device: torch.device) -> None:
        share, numbers = heads[0] // heads[1], heads[1] * heads[2]
        counts, limits = span.each, span.limits
        self._common = common = Common.cheapest(counts, limits, numbers)
        self._masks = _part(masks, slice(None), slice(common.width), common.limit, share)
        self._apart: list[Apart] = []
        self._direct = (common.width, common.limit) == (span.width, span.limit) and span.counts is None
        if self._direct:
            return
        starts = Ragged(counts, span.width, device).starts
        # `given`: of each place of the common call, the token on the line; shorter rows are filled up with their last.
        # `found`: of each token on the line, its place in what the calls give, the common one first.
        given = [s + min(p, n - 1) for s, n in zip(starts, counts, strict=True) for p in range(common.width)]
        found = [[row * common.width + p for p in range(min(n, common.width))] for row, n in enumerate(counts)]
        behind = len(given)
        for row, first in common.lacks(counts, limits):
            own, tokens = slice(row, row + 1), slice(starts[row] + first, starts[row] + counts[row])
            seen = _part(masks, own, slice(first, counts[row]), limits[row], share)
            self._apart.append(Apart(row, tokens, limits[row], seen))
            found[row][first:] = range(behind, behind + counts[row] - first)
            behind += counts[row] - first
        self._given, self._taken = (upload(places, device) for places in (given, list(chain(*found))))

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, kind: str, scale: float) -> Tensor:
        """Queries (B, H, T, D), or (1, H, N, D) of a ragged span, and keys and values (B, G, limit, D) → as queries."""
        if self._direct:
            return grouped_attention(query, keys, values, self._masks[kind], scale)
        line = query.transpose(1, 2).flatten(0, 1)  # (N, H, D)
        block = line.index_select(0, self._given).view(len(keys), -1, *line.shape[1:]).transpose(1, 2)
        read = slice(self._common.limit)
        heard = grouped_attention(block, keys[:, :, read], values[:, :, read], self._masks[kind], scale)
        heard = heard.transpose(1, 2).flatten(0, 1)
        if self._apart:
            heard = torch.cat((heard, *(apart.heard(line, keys, values, kind, scale) for apart in self._apart)))
        return heard.index_select(0, self._taken).view(len(query), -1, *line.shape[1:]).transpose(1, 2)


def _part(masks: Added, rows: slice, places: slice, limit: int, share: int) -> Added:
    """Masks of some tokens, for query heads folded into the query."""
    parts = {kind: None if mask is None else mask[rows, :, places, :limit] for kind, mask in masks.items()}
    return {kind: None if part is None else fold_mask(part, share) for kind, part in parts.items()}
