"""Captured verification: static shapes, dynamic lengths, the numbers of the eager forward, with tapes on the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.support.hybrid_target import hybrid_target
from tests.support.recording import Broken, Taped
from tests.support.tiny_target import tiny_target

from dspine.kernels.kv import DeviceSpan, Span
from dspine.kernels.recording import CaptureError
from dspine.target.captured import CapturedForward

ROWS, TAPS = 5, (0, 2)
KINDS = {
    "qwen3": {},
    "llama": {"kind": "llama"},
    "qwen2": {"kind": "qwen2"},
    "mistral": {"kind": "mistral", "window": 6},
    "two kinds of layers": {"window": 6, "full_layers": 2},
}
PROMPTS = torch.randint(0, 250, (3, 11), generator=torch.Generator().manual_seed(0))
NEW = torch.randint(0, 250, (3, 6), generator=torch.Generator().manual_seed(1))


def built(**kind):
    return tiny_target(dtype=torch.float64, num_hidden_layers=4, **kind)


def prefilled(target, lengths):
    cache = target.new_cache(ROWS)
    target.forward(PROMPTS[: len(lengths), : max(lengths)], cache, Span(0, (0,) * len(lengths), max(lengths)))
    for row, length in enumerate(lengths):
        cache.rows.commit(row, length)
    return cache


def same(ours, theirs):
    torch.testing.assert_close(ours.hidden, theirs.hidden, atol=1e-12, rtol=0)
    assert (ours.features is None) == (theirs.features is None)
    if ours.features is not None:
        torch.testing.assert_close(ours.features, theirs.features, atol=1e-12, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_ragged_rows_give_the_numbers_of_the_eager_forward(kind):
    target, recorder = built(**KINDS[kind]), Taped()
    forward = CapturedForward(target, recorder, 6, buckets=(1, 4), stretch=16)
    caches = [prefilled(target, [9, 4, 7]) for _ in range(2)]
    accepted = [[1, 3, 6], [6, 1, 2], [2, 2, 1], [1, 1, 1], [3, 1, 1]]
    for turn, (width, kept) in enumerate(zip((6, 6, 2, 1, 3), accepted, strict=True)):
        ids, taps = NEW.roll(turn, 1)[:, :width], () if width == 1 else TAPS
        span = Span(0, tuple(caches[0].rows.lengths[:3]), width)
        ours, theirs = forward(ids, caches[0], span, taps), target.forward(ids, caches[1], span, taps)
        same(ours, theirs)
        for cache in caches:
            cache.rows.commit_span(span, kept)
    # Widths 6, 2, 1, and 3 in a recording of 4; past the first stretch from the second turn on.
    assert forward.recordings == recorder.recorded == 5
    assert recorder.replayed == 5


@torch.no_grad()
def test_rows_and_slots_behind_are_left_alone():
    """Two rows verified in a bucket of four: what the others hold stays, to the bit."""
    target = built()
    forward = CapturedForward(target, Taped(), 6, buckets=(4,), stretch=16)
    cache = prefilled(target, [8, 5, 9])
    before = [tensor.clone() for layer in range(4) for tensor in _rows(cache, layer, 2, 9)]
    ids = NEW[:2, :3]
    forward(ids, cache, Span(0, (8, 5), 3), ())
    after = [tensor for layer in range(4) for tensor in _rows(cache, layer, 2, 9)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    cache.rows.commit(0, 10)
    cache.rows.commit(1, 6)
    span = Span(0, (10, 6, 9), 2)  # and the rest of the bucket's block, behind what was kept, is never seen
    fresh = target.new_cache(ROWS)
    whole = torch.cat((PROMPTS[:, :8], torch.zeros(3, 4, dtype=torch.int64)), dim=1)
    whole[0, 8:10], whole[1, 5:6], whole[2, 8] = ids[0, :2], ids[1, :1], PROMPTS[2, 8]
    target.forward(whole, fresh, Span(0, (0, 0, 0), 12))
    same(forward(NEW[:, 3:5], cache, span), target.forward(NEW[:, 3:5], fresh, span))


def _rows(cache, layer, row, length):
    cache.open(Span(0, (0,) * ROWS, 9))
    return [each[row, :, :length] for each in cache.rows.read(layer)]


@torch.no_grad()
def test_prompts_and_blocks_at_the_end_of_the_positions_run_as_they_are():
    target, recorder = built(max_position_embeddings=16), Taped()
    forward = CapturedForward(target, recorder, 4, buckets=(4,), stretch=16)
    caches = [prefilled(target, [11, 4, 7]) for _ in range(2)]
    for span in (Span(0, (11, 4, 7), 5), Span(0, (13, 4, 7), 3)):  # wider than a block; 13 + a width of 4
        ids = NEW[:, : span.width]
        same(forward(ids, caches[0], span), target.forward(ids, caches[1], span))
    assert recorder.recorded == 0
    forward(NEW[:, :3], caches[0], Span(0, (12, 4, 7), 3))
    assert recorder.recorded == 1


@torch.no_grad()
def test_what_cannot_be_recorded_runs_all_the_same_or_is_refused():
    target = built()
    caches = [prefilled(target, [11, 4, 7]) for _ in range(2)]
    span, forward = Span(0, (11, 4, 7), 6), CapturedForward(target, Broken(), 6, forced=False)
    with pytest.warns(RuntimeWarning, match="no graphs here; verification goes on without recordings"):
        same(forward(NEW, caches[0], span), target.forward(NEW, caches[1], span))
    same(forward(NEW, caches[0], span), target.forward(NEW, caches[1], span))  # no second warning
    with pytest.raises(CaptureError, match="no graphs here"):
        CapturedForward(target, Broken(), 6)(NEW, caches[0], span)
    with pytest.raises(CaptureError, match="keeps recurrent states"):
        CapturedForward(hybrid_target("lfm2"), Taped(), 6)


def test_a_span_of_the_device_sees_what_a_span_of_the_host_sees():
    starts = (9, 0, 4)
    ours, theirs = DeviceSpan(0, torch.tensor(starts), 3, 12), Span(0, starts, 3)
    for window in (None, 2, 5):
        mask = theirs.causal_mask(window=window)
        assert mask is not None
        assert torch.equal(ours.causal_mask(window=window), mask)
    assert torch.equal(ours.positions(), theirs.positions())
    assert torch.equal(ours.moved(-1, 2).positions(), theirs.moved(-1, 2).positions())
