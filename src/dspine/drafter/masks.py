"""What the rows of a block see: the context before its anchor, and rows of the block itself.

One rule: decoding and training ask the same `Sight` by positions; they differ in where the keys lie alone. A block at
anchor s never sees a feature at s or later: at decoding it does not exist yet. Sources: DSpine (arXiv 2609.36173),
block-causal rows; DFlash (arXiv 2602.06036), rows that see both ways, sliding windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.kernels.kv import Span


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


def decoding_mask(span: Span, sight: Sight, device: torch.device | str | None = None) -> Tensor:
    """Which slots the rows of one block a row see: bool (B, 1, T, limit).

    Args:
        span: where the blocks are written: behind the context, whose slots are its positions.
    """
    query = span.positions(device)[:, None, :, None]  # (B, 1, T, 1)
    slot = torch.arange(span.limit, device=device)
    return sight.sees(query, slot) & (slot <= query[:, :, -1:])


def block_mask(anchors: Tensor, lengths: Tensor, context: int, size: int, sight: Sight = CAUSAL) -> Tensor:
    """Which keys a block's rows see in training: bool (N, 1, A·size, context + A·size).

    Context positions before the block's own anchor (and inside the sequence), and rows of its own block.

    Args:
        anchors: (N, A) positions.
        lengths: (N) real positions of each sequence.
        context: S, padded number of context positions.
        size: rows of a block.
    """
    batch, per_row = anchors.shape
    slot = torch.arange(context, device=anchors.device)
    before = slot < torch.minimum(anchors, lengths[:, None])[..., None]  # (N, A, S)
    before = before.repeat_interleave(size, dim=1)  # (N, A·size, S)
    if sight.window is not None:
        places = torch.arange(size, device=anchors.device)
        before &= sight.sees((anchors[..., None] + places).flatten(1)[..., None], slot)
    row = torch.arange(per_row * size, device=anchors.device)  # within a block, rows differ as positions do
    inside = (row[:, None] // size == row // size) & sight.sees(row[:, None], row)
    return torch.cat((before, inside.expand(batch, -1, -1)), dim=2).unsqueeze(1)
