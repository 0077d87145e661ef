"""Rows stay alike where the probes say so, and the probes see where they do not."""

from __future__ import annotations

import pytest
import torch
from tests.support.processor import needs_alike, needs_bfloat16, needs_onednn
from torch import nn

from dspine.kernels import alike
from dspine.kernels.alike import ALIKE, attention_alike, products_alike
from dspine.kernels.attention import grouped_attention
from dspine.kernels.packed import PackedLinear


@pytest.fixture(autouse=True)
def _asked_anew():
    attention_alike.cache_clear()
    yield
    attention_alike.cache_clear()


def layer(features: int, out: int, dtype: torch.dtype) -> PackedLinear:
    return PackedLinear(nn.Linear(features, out, bias=False, dtype=dtype))


@needs_onednn
def test_products_are_compared_alone_and_in_company(monkeypatch):
    one = layer(8, 8, torch.float32)
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: x)
    assert products_alike([one])
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: x + (len(x) == ALIKE))
    assert not products_alike([one])
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: x + (len(x) == 1) * (x == x.max()))
    assert not products_alike([one])
    assert products_alike([])


@needs_alike
def test_long_sums_of_a_lone_row_are_those_of_a_row_among_others():
    """Some processors sum a product of one row another way; it shows in a few rows of a hundred."""
    wide = layer(1536, 576, torch.bfloat16)
    x = torch.randn(96, 1536, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = torch.randn(96, 576, generator=torch.Generator().manual_seed(2)).bfloat16()
    for first in range(0, 96, ALIKE):
        rows = slice(first, first + ALIKE)
        forms = (wide(x[rows]), wide.silu(x[rows]), wide.times(x[rows], y[rows]), wide.plus(x[rows], y[rows]))
        for row in range(ALIKE):
            one, other = x[rows][row : row + 1], y[rows][row : row + 1]
            lone = (wide(one), wide.silu(one), wide.times(one, other), wide.plus(one, other))
            for got, expected in zip(lone, forms, strict=True):
                assert got.shape == (1, 576)
                assert torch.equal(got[0], expected[row])


@needs_bfloat16
def test_a_lone_row_keeps_its_leading_dimensions():
    wide = layer(64, 16, torch.bfloat16)
    x, y = torch.randn(1, 1, 64).bfloat16(), torch.randn(1, 1, 16).bfloat16()
    for got in (wide(x), wide.silu(x), wide.times(x, y), wide.plus(x, y)):
        assert got.shape == (1, 1, 16)
    assert wide(x[0, 0]).shape == (16,)


@needs_alike
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 64), (8, 2, 32)], ids=str)
def test_attention_is_alike(heads):
    assert attention_alike(*heads)


@pytest.mark.parametrize("width", [1, 8])
def test_attention_that_hears_its_company_is_seen(monkeypatch, width):
    def disturbed(query, *rest):
        return torch.zeros(query.shape) + (query.shape[2] == width)

    monkeypatch.setattr(alike, "grouped_attention", disturbed)
    assert not attention_alike(9, 3, 64)


@pytest.mark.parametrize("end", alike.ALIKE_ENDS[1:])
def test_attention_that_hears_where_the_slots_end_is_seen(monkeypatch, end):
    def shown(query, key, value, mask):
        return torch.zeros(query.shape) + (key.shape[2] >= end)

    monkeypatch.setattr(alike, "grouped_attention", shown)
    assert not attention_alike(9, 3, 64)


def test_attention_that_hears_other_rows_is_seen(monkeypatch):
    monkeypatch.setattr(alike, "grouped_attention", lambda query, *rest: torch.zeros(query.shape) + len(query))
    assert not attention_alike(9, 3, 64)
    attention_alike.cache_clear()
    monkeypatch.setattr(alike, "grouped_attention", lambda query, *rest: torch.zeros(query.shape))
    assert attention_alike(9, 3, 64)


@needs_alike
@pytest.mark.parametrize(("heads", "groups", "width"), [(9, 3, 11), (10, 5, 17), (5, 5, 33)])
def test_a_last_lot_of_few_folded_queries_is_no_exception(heads, groups, width):
    """Torch takes folded queries in lots of 32; one to three in the last lot would be summed another way."""
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, groups, 512, 64, generator=random).bfloat16() for _ in range(2))
    queries = torch.randn(1, heads, 24 * width, 64, generator=random).bfloat16()
    one_by_one = [grouped_attention(query, keys, values) for query in queries.split(1, dim=2)]
    blocks = [grouped_attention(block, keys, values) for block in queries.split(width, dim=2)]
    assert torch.equal(torch.cat(blocks, dim=2), torch.cat(one_by_one, dim=2))


def test_a_processor_without_bfloat16_products_is_not_given_them(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    alike.bfloat16_serves.cache_clear()
    assert not alike.bfloat16_serves()
    alike.bfloat16_serves.cache_clear()
