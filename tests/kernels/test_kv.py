"""Rows of keys and values: written in place, rolled back by length, moved, grown."""

from __future__ import annotations

import pytest
import torch

from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import RowCache, Span


def test_ragged_writes_land_at_their_positions():
    cache = RowCache(2, 3)
    for layer in range(2):
        cache.open(Span(1, (2, 5), 3))
        new = torch.arange(2 * 2 * 3 * 4, dtype=torch.float32).view(2, 2, 3, 4) + 100 * layer + 1
        keys, values = cache.write(layer, new, -new)
        assert keys.shape == (2, 2, 8, 4)
        assert torch.equal(keys[0, :, 2:5], new[0])
        assert torch.equal(keys[1, :, 5:8], new[1])
        assert torch.equal(values[1, :, 5:8], -new[1])
        assert not keys[0, :, 5:].any()


def test_writes_share_storage_and_growing_keeps_it():
    cache = RowCache(1, 1)
    cache.open(Span(0, (0,), 2))
    first = torch.randn(1, 1, 2, 4)
    keys, _ = cache.write(0, first, first)
    before = cache.capacity
    cache.reserve(before + 1)
    cache.open(Span(0, (2,), 1))
    grown, _ = cache.write(0, torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
    assert torch.equal(grown[0, 0, :2], first[0, 0])
    assert cache.capacity > before
    assert cache.bytes == 2 * cache.capacity * 4 * 4
    cache.open(Span(0, (3,), 1))
    again, _ = cache.write(0, torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
    assert again.data_ptr() == grown.data_ptr()
    assert keys.shape[2] == 2


def test_moving_a_row_takes_its_committed_slots():
    cache = RowCache(1, 2)
    cache.open(Span(0, (0, 0), 4))
    keys = torch.randn(2, 1, 4, 3)
    cache.write(0, keys, keys)
    cache.commit(1, 3)
    cache.move(1, 0)
    cache.open(Span(0, (3,), 1))
    moved, _ = cache.write(0, torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 1, 3))
    assert torch.equal(moved[0, 0, :3], keys[1, 0, :3])
    assert cache.lengths == [3, 3]


def test_reading_sees_what_the_open_span_sees():
    cache = RowCache(2, 2)
    cache.open(Span(0, (0, 0), 4))
    keys = torch.randn(2, 1, 4, 3)
    cache.write(1, keys, keys[..., :0])
    cache.open(Span(1, (2,), 1))
    read, values = cache.read(1)
    assert torch.equal(read, keys[1:, :, :3])
    assert values.shape == (1, 1, 3, 0)
    with pytest.raises(RuntimeError, match="never written"):
        cache.read(0)


@pytest.mark.parametrize("window", [None, 3])
def test_the_mask_equals_one_written_from_the_definition(window):
    span = Span(0, (4, 1), 3)
    mask = span.causal_mask(window=window)
    for row, start in enumerate(span.starts):
        for query in range(3):
            for slot in range(span.limit):
                position = start + query
                visible = slot <= position and (window is None or slot > position - window)
                assert bool(mask[row, 0, query, slot]) == visible


def test_no_mask_when_all_is_visible():
    assert Span(0, (7, 7), 1).causal_mask() is None
    assert Span(0, (7, 7), 1).causal_mask(window=8) is None
    assert Span(0, (7, 7), 1).causal_mask(window=7) is not None
    assert Span(0, (7, 6), 1).causal_mask() is not None
    assert Span(0, (0,), 2).causal_mask() is not None


def test_rows_outside_the_cache_and_lengths_outside_the_capacity_are_errors():
    cache = RowCache(1, 2)
    with pytest.raises(IndexError, match=r"rows 1\.\.2"):
        cache.open(Span(1, (0, 0), 1))
    with pytest.raises(IndexError, match="outside the capacity"):
        cache.commit(0, 10_000)


@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_equals_repeated_heads(masked):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    mask = torch.rand(2, 1, 5, 9) > 0.3
    mask[..., 0] = True
    mask = mask if masked else None
    repeated = [t.repeat_interleave(2, dim=1) for t in (key, value)]
    scores = query @ repeated[0].transpose(2, 3) * 0.25
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1) @ repeated[1]
    torch.testing.assert_close(grouped_attention(query, key, value, mask, 0.25), expected, atol=1e-6, rtol=1e-5)


def test_slots_up_to_an_end_are_read_and_what_lies_behind_is_masked():
    span = Span(0, (3, 6), 2, ends=(16,))
    assert span.limit == 16
    assert Span(0, (3,), 2).limit == 5
    assert Span(0, (14,), 2, ends=(16,)).limit == 16
    mask = span.causal_mask()
    assert mask is not None
    assert mask[:, 0].sum(-1).tolist() == [[4, 5], [7, 8]]
    assert Span(0, (4, 4), 1, ends=(16,)).causal_mask() is not None
    assert Span(0, (15, 15), 1, ends=(16,)).causal_mask() is None
    cache = RowCache(1, 2)
    cache.open(span)
    keys, values = cache.write(0, torch.ones(2, 1, 2, 4), torch.ones(2, 1, 2, 4))
    assert keys.shape == values.shape == (2, 1, 16, 4)
    assert keys.sum((1, 3)).tolist() == [
        [4.0 if slot in own else 0.0 for slot in range(16)] for own in ((3, 4), (6, 7))
    ]
    cache.open(Span(0, (5, 5), 2, ends=(16,)))
    assert cache.write(0, torch.ones(2, 1, 2, 4), torch.ones(2, 1, 2, 4))[0].shape == (2, 1, 16, 4)


def test_groups_of_a_span_are_its_rows_in_order():
    span = Span(2, (5, 6, 7), 3, ends=(16,))
    assert span.groups(6) == [Span(2, (5, 6), 3, ends=(16,)), Span(4, (7,), 3, ends=(16,))]
    assert span.groups(8) == span.groups(6)
    assert span.groups(9) == [span]
    assert [group.rows for group in span.groups(2)] == [1, 1, 1]  # a row is never split


def test_a_ragged_span_counts_each_rows_own_tokens():
    span = Span.of(1, [5, 9, 2, 30], [4, 1, 4, 4])
    assert span.counts == (4, 1, 4, 4)
    assert (span.width, span.tokens, span.limit, span.aligned) == (4, 13, 34, False)
    assert Span.of(0, [9, 9], [1, 3]).limit == 12
    assert Span.of(0, [3, 20], [4, 1]).limit == 21  # not 24: the wide row is not the long one
    assert span.positions().tolist() == [[5, 6, 7, 8, 9, 2, 3, 4, 5, 30, 31, 32, 33]]
    assert Span.of(1, [5, 9], [4, 4]) == Span(1, (5, 9), 4)
    assert span.even == Span(1, (5, 9, 2, 30), 4)
    assert span.groups(8) == [Span(1, (5, 9), 4, counts=(4, 1)), Span(3, (2, 30), 4)]
    assert span.limits == [9, 10, 6, 34]


def test_a_ragged_write_lands_at_each_rows_positions_and_nowhere_else():
    cache = RowCache(1, 3)
    cache.open(Span.of(1, [2, 0], [3, 1]))
    new = torch.arange(1, 9, dtype=torch.float32).view(1, 4, 2).transpose(1, 2)[..., None]  # (1, 2, 4, 1)
    keys, values = cache.write(0, new, -new)
    assert keys.shape == (2, 2, 5, 1)
    assert keys[0, :, :, 0].tolist() == [[0, 0, 1, 3, 5], [0, 0, 2, 4, 6]]
    assert keys[1, :, :, 0].tolist() == [[7, 0, 0, 0, 0], [8, 0, 0, 0, 0]]
    assert torch.equal(values, -keys)


def test_slots_end_at_the_next_end_and_behind_the_last_one_these_come_again():
    limits = [Span(0, (reach - 1,), 1, ends=(16, 24, 40)).limit for reach in (1, 16, 17, 25, 40, 41, 57, 65, 80, 81)]
    assert limits == [16, 16, 24, 40, 40, 56, 64, 80, 80, 96]


def test_filling_behind_a_shorter_row_goes_on_in_line_and_reads_no_further():
    mask = Span.of(0, (5, 2), (1, 3)).causal_mask()
    assert mask is not None
    assert mask[:, 0].sum(-1).tolist() == [[6, 6, 6], [3, 4, 5]]  # six slots in all
