"""Attention with grouped key/value heads, without copying a cache.

One rule: keys and values are read where they lie. The H/G query heads that share a key head are folded into the
query length, so that no repeated copy of the cache is made (torch's own masked grouped path makes one a layer).
A query's result in bfloat16 on a CPU depends neither on its company, see `FEWEST`, nor on how many slots are read,
if they end where `ALIKE_ENDS` says; whether it is so on the processor at hand, `kernels/alike.py` finds out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# On a CPU, torch takes folded queries in lots of so many. In bfloat16 the last lot must hold `FEWEST` at least: fewer
# are summed another way on some processors, so that a token alone would differ in the last bit from one in a block.
LOT, FEWEST = 32, 4

# Numbers of slots to read, see `Span.ends`: vectors of slots are full there. On a CPU torch takes slots in lots of 512,
# and some processors make a bfloat16 sum over them in parts of 192 each; but where 256 or 320 are left, in two even
# parts, so that a query among fewer slots would differ in the last bit from itself among more.
EVEN_ENDS = (64,)
ALIKE_ENDS = (64, 128, 192, 384, 448, 512)


def fold_mask(mask: Tensor, share: int) -> Tensor:
    """A mask (B or 1, 1, T, S) for `share` query heads folded into the query length: (B or 1, 1, share·T, S)."""
    return mask.repeat(1, 1, share, 1) if share > 1 else mask


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Softmax attention of H query heads over G key/value heads, H a multiple of G.

    Args:
        query: (B, H, T, D).
        key, value: (B, G, S, D).
        mask: bool (B or 1, 1, T, S), True = visible; None = everything is visible. One that serves many layers may
            come folded already (`fold_mask`).
        scale: factor of the scores; None = 1/√D.

    Returns:
        (B, H, T, D).
    """
    batch, heads, width, dim = query.shape
    groups = key.shape[1]
    share = heads // groups
    if share > 1:
        query = query.reshape(batch, groups, share * width, dim)
        if mask is not None and mask.shape[2] == width:
            mask = fold_mask(mask, share)
    folded = query.shape[2]
    if 0 < folded % LOT < FEWEST and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        query = _filled(query)
        mask = mask if mask is None or mask.shape[2] == 1 else _filled(mask)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return out[:, :, :folded].reshape(batch, heads, width, value.shape[3])


def _filled(rows: Tensor) -> Tensor:
    """Rows (..., n, D) with copies of the last one behind them, until the last lot holds `FEWEST`."""
    last = rows[:, :, -1:].expand(-1, -1, FEWEST - rows.shape[2] % LOT, -1)
    return torch.cat((rows, last), dim=2)
