"""What the rows of a block see: the context before its anchor, and rows of the block itself.

One rule: decoding and training ask the same `Sight` by positions; they differ in where the keys lie alone. A stored
mask and a computed one (flex attention) come of one function, `Placement.visible`. A block at anchor s never sees
features at s or later: at decoding they do not exist yet. Sources: DSpine (arXiv 2609.36173), block-causal rows;
DFlash (arXiv 2602.06036), rows that see both ways, sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.kernels.kv import DeviceSpan, Span


@dataclass(frozen=True)
class Sight:
    """What a layer lets a row see of its context and its block.

    causal: nothing behind itself. window: W, only keys fewer than W positions away; None: however far.
    """

    causal: bool = True
    window: int | None = None

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether rows at positions `query` see keys at positions `key`: bool, both broadcast."""
        seen = key <= query if self.causal else torch.ones_like(key <= query)
        if self.window is not None:
            seen = seen & (key > query - self.window)
            if not self.causal:
                seen = seen & (key < query + self.window)
        return seen


CAUSAL = Sight()
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (line, head, query, key) → bool, as flex attention asks


def decoding_mask(span: Span | DeviceSpan, sight: Sight, device: torch.device | str | None = None) -> Tensor:
    """Which slots the rows of one block a row see: bool (B, 1, T, limit).

    Args:
        span: where the blocks are written: behind the context, whose slots are its positions.
    """
    query = span.positions(device)[:, None, :, None]  # (B, 1, T, 1)
    slot = torch.arange(span.limit, device=device)
    return sight.sees(query, slot) & (slot <= query[:, :, -1:])


@dataclass(frozen=True)
class Placement:
    """Where blocks and what they see lie in a training pass: the context's slots first, then the rows of all blocks.

    One line of keys may hold one sequence, or several, end to end (packed).

    anchors: (N, A) slots of the anchors. begins, ends: (N, A) each block sees the context's slots from the first to
        before the second: its own sequence before its anchor. context: S, slots of the context. rows: of a block.
    """

    anchors: Tensor
    begins: Tensor
    ends: Tensor
    context: int
    rows: int

    @classmethod
    def padded(cls, anchors: Tensor, lengths: Tensor, context: int, rows: int) -> Placement:
        """One sequence a line, padded to S = `context`: anchors (N, A), lengths (N) of the sequences."""
        ends = torch.minimum(anchors, lengths[:, None])
        return cls(anchors, torch.zeros_like(ends), ends, context, rows)

    @classmethod
    def packed(cls, anchors: Tensor, lengths: Tensor, context: int, rows: int) -> Placement:
        """All sequences end to end in one line of S = `context` slots: anchors (N, A), lengths (N)."""
        begins = (lengths.cumsum(0) - lengths)[:, None].expand_as(anchors)
        ends = begins + torch.minimum(anchors, lengths[:, None])
        slots, begins, ends = (x.reshape(1, -1) for x in (begins + anchors, begins, ends))
        return cls(slots, begins, ends, context, rows)

    @property
    def queries(self) -> int:
        """Rows of all blocks of a line, A·rows."""
        return self.ends.shape[1] * self.rows

    @property
    def keys(self) -> int:
        """S + A·rows."""
        return self.context + self.queries

    def visible(self, sight: Sight) -> Visible:
        """Whether row `query` of line `line` sees key `key`, by indices that broadcast; the same for all heads."""

        def sees(line: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            block, row = query // self.rows, query % self.rows
            before = (key >= self.begins[line, block]) & (key < self.ends[line, block])
            before = before & sight.sees(self.anchors[line, block] + row, key)
            place = key - self.context - block * self.rows  # in the row's own block: 0..rows-1
            return before | ((place >= 0) & (place < self.rows) & sight.sees(row, place))

        return sees

    def dense(self, sight: Sight = CAUSAL) -> Tensor:
        """The same as a mask: bool (N, 1, A·rows, S + A·rows)."""
        device = self.ends.device
        line = torch.arange(len(self.ends), device=device)[:, None, None, None]
        query = torch.arange(self.queries, device=device)[:, None]
        return self.visible(sight)(line, line, query, torch.arange(self.keys, device=device))
