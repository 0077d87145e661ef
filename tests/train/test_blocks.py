"""Anchors, blocks and supervision: properties over random loss masks, and the cases at the edges by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspine.train.blocks import cut_blocks, draw_anchors, eligible_anchors, place_weights

masks = st.lists(st.booleans(), min_size=1, max_size=40).map(lambda bits: torch.tensor(bits))


def draw(mask, count=5, *, seed=0, epoch=0, sample="a"):
    return draw_anchors(mask, count, seed=seed, epoch=epoch, sample=sample)


def blocks_of(mask, anchors, candidates=4, length=None):
    size = len(mask)
    ids = torch.arange(100, 100 + size)[None]
    return cut_blocks(ids, mask[None], torch.tensor([length or size]), [torch.tensor(anchors)], candidates)


@given(mask=masks, count=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_anchor_and_its_first_label_are_trained_on(mask, count, seed):
    anchors = draw(mask, count, seed=seed)
    eligible = [t for t in range(len(mask) - 1) if mask[t] and mask[t + 1]]
    assert eligible_anchors(mask).tolist() == eligible
    assert len(anchors) == min(count, len(eligible))
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    assert set(anchors.tolist()) <= set(eligible)


@given(mask=masks, candidates=st.integers(1, 8), padding=st.integers(0, 5))
def test_supervision_ends_at_the_first_place_that_is_not_trained_on(mask, candidates, padding):
    size = len(mask)
    padded = torch.cat((mask, torch.ones(padding, dtype=torch.bool)))  # a wrong mask behind the end must not matter
    anchors = draw(mask, 6).tolist()
    blocks = blocks_of(padded, anchors, candidates, length=size)
    for a, start in enumerate(anchors):
        assert blocks.anchors[0, a] == start
        assert blocks.supervised[0, a, 0]
        alive = True
        for t in range(1, candidates + 1):
            inside = start + t < size
            alive = alive and inside and bool(mask[start + t])
            assert bool(blocks.supervised[0, a, t - 1]) == alive
            if inside:
                assert blocks.tokens[0, a, t] == 100 + start + t
    assert int(blocks.valid.sum()) == len(anchors)
    assert not blocks.supervised[~blocks.valid].any()


def test_a_sequence_that_ends_two_behind_the_anchor():
    blocks = blocks_of(torch.ones(6, dtype=torch.bool), [3])
    assert blocks.supervised[0, 0].tolist() == [True, True, False, False]
    assert blocks.tokens[0, 0].tolist() == [103, 104, 105, 0, 0]


def test_a_gap_in_the_mask_ends_the_block_for_good():
    blocks = blocks_of(torch.tensor([1, 1, 1, 0, 1, 1, 1], dtype=torch.bool), [1])
    assert blocks.supervised[0, 0].tolist() == [True, False, False, False]


def test_labels_and_predecessors_are_a_token_apart():
    blocks = blocks_of(torch.ones(8, dtype=torch.bool), [2])
    assert blocks.predecessors[0, 0].tolist() == [102, 103, 104, 105]
    assert blocks.labels[0, 0].tolist() == [103, 104, 105, 106]


def test_padding_blocks_are_invalid_and_a_sample_without_anchors_is_all_padding():
    ids = torch.arange(12).view(2, 6)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]], dtype=torch.bool)
    anchors = [eligible_anchors(row) for row in mask]
    blocks = cut_blocks(ids, mask, torch.tensor([6, 6]), anchors, 3)
    assert blocks.valid.tolist() == [[True] * 4, [False] * 4]
    assert not blocks.supervised[1].any()
    assert blocks.count == 4


def test_draws_depend_on_seed_epoch_and_sample_alone():
    mask = torch.ones(200, dtype=torch.bool)
    first = draw(mask).tolist()
    assert draw(mask).tolist() == first
    for other in ({"seed": 1}, {"epoch": 1}, {"sample": "b"}):
        assert draw(mask, **other).tolist() != first


def test_draws_are_the_same_on_every_machine():
    """Written down once: a change here would make resumed runs train on other blocks."""
    assert draw(torch.ones(50, dtype=torch.bool), 6).tolist() == [10, 19, 30, 31, 35, 41]


def test_anchors_cover_the_response_evenly():
    mask = torch.ones(21, dtype=torch.bool)
    counts = torch.zeros(21)
    for epoch in range(400):
        counts[draw(mask, 5, epoch=epoch)] += 1
    assert counts[20] == 0
    assert (counts[:20] - 100).abs().max() < 40  # 400 · 5/20 a position; standard deviation 8.7


def test_weights_by_place():
    weights = place_weights(3, 7.0).tolist()
    assert weights == pytest.approx([1.0, math.exp(-1 / 7), math.exp(-2 / 7)], rel=1e-15)
