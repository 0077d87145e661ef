"""Rows of any widths and lengths attend together as each of them would alone, and no dearer than need be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.processor import needs_alike

from dspine.kernels import rows_attention
from dspine.kernels.attention import ALIKE_ENDS, grouped_attention
from dspine.kernels.kv import Span
from dspine.kernels.rows_attention import Common, RowsAttention

HEADS = (6, 2, 16)
SHAPES = [
    ((5, 9, 2), (1, 1, 1)),
    ((5, 9, 2), (4, 4, 4)),
    ((5, 9, 2), (1, 6, 3)),
    ((5, 700, 2), (1, 2, 40)),
    ((300, 5, 800), (1, 1, 1)),
    ((300, 5, 800), (3, 3, 3)),
    ((17,), (5,)),
]


def added(span: Span, dtype: torch.dtype, window: int | None = None) -> torch.Tensor | None:
    mask = span.causal_mask(window=window)
    return None if mask is None else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


def laid_out(span: Span, x: torch.Tensor) -> torch.Tensor:
    """Rows (B, T, H, D) as queries of a span."""
    if span.counts is None:
        return x.transpose(1, 2)
    return torch.cat([row[:count] for row, count in zip(x, span.counts, strict=True)])[None].transpose(1, 2)


def both(starts, counts, window=None, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """What tokens hear together, and each of its rows alone; masks of two kinds, the second one asked."""
    random = torch.Generator().manual_seed(3)
    span = replace(Span.of(0, starts, counts), ends=ALIKE_ENDS)
    rows, (heads, groups, dim) = len(starts), HEADS
    queries = torch.randn(rows, span.width, heads, dim, generator=random).to(dtype)
    keys, values = (torch.randn(rows, groups, span.limit, dim, generator=random).to(dtype) for _ in range(2))
    masks = {"full": added(span, dtype), "other": added(span, dtype, window)}
    together = RowsAttention(span, masks, HEADS, torch.device("cpu"))(
        laid_out(span, queries), keys, values, "other", 0.3
    )
    alone = []
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        own = Span(0, (start,), count, ends=ALIKE_ENDS)
        read = (slice(row, row + 1), slice(None), slice(own.limit))
        query = queries[row : row + 1, :count].transpose(1, 2)
        heard = grouped_attention(query, keys[read], values[read], added(own, dtype, window), 0.3)
        alone.append(heard[0].transpose(0, 1))
    return together, torch.cat(alone)


@pytest.mark.parametrize("window", [None, 3], ids=["full", "window"])
@pytest.mark.parametrize("call", [0, 10_000, 10**9], ids=["apart", "some", "together"])
@pytest.mark.parametrize(("starts", "counts"), SHAPES, ids=str)
def test_every_token_hears_what_it_would_alone(monkeypatch, starts, counts, call, window):
    monkeypatch.setattr(rows_attention, "CALL", call)
    together, alone = both(starts, counts, window)
    line = together.transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(line, alone, atol=1e-5, rtol=1e-4)


@needs_alike
@pytest.mark.parametrize("call", [0, 10**9], ids=["apart", "together"])
@pytest.mark.parametrize(("starts", "counts"), SHAPES[:3] + SHAPES[4:], ids=str)  # 40 tokens are more than stay alike
def test_in_bfloat16_bit_for_bit(monkeypatch, starts, counts, call):
    monkeypatch.setattr(rows_attention, "CALL", call)
    together, alone = both(starts, counts, dtype=torch.bfloat16)
    assert torch.equal(together.transpose(1, 2).flatten(0, 1), alone)


def test_side_branches_hear_their_paths_wherever_they_are_taken(monkeypatch):
    span = Span.of(0, (5, 40), (6, 2))
    span = replace(span, parents=((0, 1, 3), ()))
    random = torch.Generator().manual_seed(3)
    heads, groups, dim = HEADS
    queries = torch.randn(2, 6, heads, dim, generator=random)
    keys, values = (torch.randn(2, groups, span.limit, dim, generator=random) for _ in range(2))
    found = []
    for call in (0, 10**9):
        monkeypatch.setattr(rows_attention, "CALL", call)
        attention = RowsAttention(span, {"full": added(span, torch.float32)}, HEADS, torch.device("cpu"))
        found.append(attention(laid_out(span, queries), keys, values, "full", 0.3))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("counts", "limits", "chosen"),
    [
        ((1, 1, 1, 1), (128,) * 4, (1, 128)),
        ((1, 2, 3, 1), (128,) * 4, (3, 128)),  # filled up
        ((1,) * 7 + (16,), (128,) * 8, (1, 128)),  # the wide row's rest is taken alone
        ((1,) * 4 + (16,) * 4, (128,) * 8, (16, 128)),
        ((1,) * 8, (128,) * 7 + (192,), (1, 192)),
        ((1,) * 8, (128,) * 7 + (1920,), (1, 128)),  # the long row is taken alone
        ((1,) * 8, (1920,) * 7 + (128,), (1, 1920)),
    ],
)
def test_what_is_taken_together_costs_least(counts, limits, chosen):
    common = Common.cheapest(counts, limits, 192)
    assert (common.width, common.limit) == chosen
    for width in range(1, max(counts) + 1):
        for limit in set(limits):
            assert Common(width, limit).cost(counts, limits, 192) >= common.cost(counts, limits, 192)


def test_calls_are_counted_as_they_are_made(monkeypatch):
    """The cost is that of the calls: their queries and slots, each by each."""
    seen = []

    def noted(query, keys, *rest):
        seen.append((len(query), query.shape[2], keys.shape[2]))
        return grouped_attention(query, keys, *rest)

    monkeypatch.setattr(rows_attention, "grouped_attention", noted)
    monkeypatch.setattr(rows_attention, "CALL", 5_000)
    starts, counts = (5, 700, 2, 3), (1, 2, 40, 1)
    both(starts, counts)
    span = replace(Span.of(0, starts, counts), ends=ALIKE_ENDS)
    numbers = HEADS[1] * HEADS[2]
    spent = sum(5_000 + rows * slots * numbers * (width + rows_attention.READ) for rows, width, slots in seen)
    assert len(seen) > 2
    assert spent == Common.cheapest(counts, span.limits, numbers).cost(counts, span.limits, numbers)
