"""Whether rows stay alike: the same bits for a row in any company, so that a block equals its tokens one by one.

One rule: it is asked of the processor at hand, by trying, and never taken for granted. A matrix kernel may sum a row
in another way when other rows stand beside it, or when more slots are read; in bfloat16 that is
enough to turn a near-tie between two tokens. Where rows stay alike, drafted greedy decoding in bfloat16 is plain
decoding exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from dspine.kernels.attention import ALIKE_ENDS, grouped_attention
from dspine.kernels.kv import Span
from dspine.kernels.packed import PackedLinear, packable

# Rows of a bfloat16 product up to which oneDNN gives each row the same bits, on processors with AMX and without.
ALIKE = 32
# Slots before the blocks that attention is asked about: one block begins a text, others cross ends of slots, the last
# one in the second lot.
STARTS = (0, *(end - ALIKE // 2 for end in (*ALIKE_ENDS[2:], ALIKE_ENDS[-1] + ALIKE_ENDS[2])))
ROWS = 6  # the more numbers are compared, the surer is one in thousands that differs to be among them


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
    """Whether a bfloat16 query hears the same in any block of up to `ALIKE`, beside other rows, among more slots."""
    random = _named()
    slots = 2 * ALIKE_ENDS[-1]
    keys, values = (torch.randn(ROWS, groups, slots, dim, generator=random).bfloat16() for _ in range(2))
    queries = torch.randn(ROWS, heads, ALIKE, dim, generator=random).bfloat16()

    def heard(start: int, places: slice, rows: int, spare: int = 0) -> torch.Tensor:
        """Of the first rows' queries at some places of a block behind `start` slots; `spare`: slots behind it."""
        first, width = start + places.start, places.stop - places.start
        span = Span(0, (first,), width, ends=ALIKE_ENDS)
        limit = Span(0, (first + spare,), width, ends=ALIKE_ENDS).limit
        visible = replace(span, ends=(limit,)).causal_mask()
        mask = None if visible is None else torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).bfloat16()
        own, read = queries[:rows, :, places], slice(None, limit)
        return grouped_attention(own, keys[:rows, :, read], values[:rows, :, read], mask)

    for start in STARTS:
        lone = torch.cat([heard(start, slice(place, place + 1), ROWS) for place in range(ALIKE)], dim=2)
        spares = [end for end in ALIKE_ENDS if start + end + ALIKE <= slots]
        asked = [(slice(0, width), 1, 0) for width in range(2, ALIKE + 1)]
        some = [slice(0, width) for width in (1, 2, 8, ALIKE)] + [slice(ALIKE - width, ALIKE) for width in (3, 13)]
        asked += [(places, rows, spare) for places in some for rows in (1, ROWS) for spare in (0, *spares)]
        for places, rows, spare in asked:
            if not torch.equal(heard(start, places, rows, spare), lone[:rows, :, places]):
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
