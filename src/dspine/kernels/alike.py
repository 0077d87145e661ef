"""Whether rows stay alike: the same bits for a row in any company, so that a block equals its tokens one by one.

One rule: it is asked of the processor at hand, by trying, and never taken for granted. A matrix kernel may sum a row
in another way when other rows stand beside it, or when more slots are read; in bfloat16 that is
enough to turn a near-tie between two tokens. Where rows stay alike, drafted greedy decoding in bfloat16 is plain
decoding exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import nn

from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import EVEN, Span
from dspine.kernels.packed import PackedLinear, packable

# Rows of a bfloat16 product up to which oneDNN gives each row the same bits, on processors with AMX and without.
ALIKE = 32
# Slots before the blocks that attention is asked about: two cross the end of a grain, one of them where torch's own
# stretches of 512 slots end.
STARTS = (0, 3 * EVEN - ALIKE // 2, 8 * EVEN - ALIKE // 2)


def products_alike(layers: Iterable[PackedLinear]) -> bool:
    """Whether a row of a product has the same bits in any company of up to `ALIKE` rows, in layers of these shapes."""
    shapes = {(layer.in_features, layer.out_features): layer for layer in layers}
    for layer in shapes.values():
        x = torch.randn(ALIKE, layer.in_features, generator=_named()).to(layer.dtype)
        whole = layer(x)
        if not all(torch.equal(layer(x[:rows]), whole[:rows]) for rows in (2, 3, 8, ALIKE // 2)):
            return False
        # Every row alone: a lone row's other way of summing shows in few of them.
        if not all(torch.equal(layer(x[row : row + 1]), whole[row : row + 1]) for row in range(ALIKE)):
            return False
    return True


@cache
def attention_alike(heads: int, groups: int, dim: int) -> bool:
    """Whether a bfloat16 query hears the same in any block, by `Span.stretches`."""
    random = _named()
    slots = STARTS[-1] + 2 * EVEN
    keys, values = (torch.randn(1, groups, slots, dim, generator=random).bfloat16() for _ in range(2))
    queries = torch.randn(1, heads, ALIKE, dim, generator=random).bfloat16()

    def heard(start: int, first: int, width: int) -> torch.Tensor:
        parts, at = [], first
        for part in Span(0, (start + first,), width, grain=EVEN).stretches():
            visible = part.causal_mask()
            mask = None if visible is None else torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).bfloat16()
            own = queries[:, :, at : at + part.width]
            at += part.width
            read = slice(None, part.limit)
            parts.append(grouped_attention(own, keys[:, :, read], values[:, :, read], mask))
        return torch.cat(parts, dim=2)

    for start in STARTS:
        one_by_one = torch.cat([heard(start, place, 1) for place in range(ALIKE)], dim=2)
        for width in range(2, ALIKE + 1):
            if not torch.equal(heard(start, 0, width), one_by_one[:, :, :width]):
                return False
    return True


@cache
def bfloat16_serves() -> bool:
    """Whether bfloat16 is this processor's fastest format and keeps rows alike, in layers of a small model."""
    found = torch.cpu.get_capabilities()
    if not (found.get("amx_bf16") or found.get("avx512_bf16")):
        return False
    layer = nn.Linear(1536, 576, bias=False, dtype=torch.bfloat16)
    return packable(layer.weight) and products_alike([PackedLinear(layer)]) and attention_alike(9, 3, 64)


def _named() -> torch.Generator:
    return torch.Generator().manual_seed(0)
