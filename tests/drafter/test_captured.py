"""Captured drafts: buckets, buffers and the order of replays, with a tape of tensor operations on the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import WIDTH, small_drafter
from tests.support.parallel import small
from tests.support.recording import Broken, Taped, as_on_a_device

from dspine.drafter.captured import CapturedDraft
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.kernels.recording import CaptureError, Shelf

ROWS = 5
KINDS = {
    "dspine": lambda: small_drafter(confidence=True),
    "dspine, restricted": lambda: small_drafter(confidence=True, draft_ids=torch.arange(2, 90)),
    "dflash": lambda: small("dflash", dtype=torch.float32, confidence=True),
    "dflash, windowed": lambda: small("dflash", dtype=torch.float32, sliding_layers=(0, 2), sliding_window=7),
    "domino": lambda: small("domino", dtype=torch.float32, draft_ids=torch.arange(2, 90)),
    "dspark": lambda: small("dspark", dtype=torch.float32),
    "dspark, rnn": lambda: small("dspark", dtype=torch.float32, markov_head="rnn"),
    "dspark, tabulated": lambda: small("dspark", dtype=torch.float32, tabulated=4),
    "dflash2": lambda: small("dflash2", dtype=torch.float32),
    "eagle3": lambda: small("eagle3", dtype=torch.float32, confidence=True),
}


@pytest.fixture(autouse=True)
def device_like(monkeypatch):
    as_on_a_device(monkeypatch)


@pytest.fixture
def drafter():
    return KINDS["dspine"]()


def filled(drafter, lengths):
    cache = drafter.new_cache(ROWS)
    observe(drafter, cache, [0] * len(lengths), lengths)
    return cache


def observe(drafter, cache, starts, counts):
    width = max(counts)
    size = len(drafter.target_layer_ids) * WIDTH
    features = torch.randn(len(starts), width, size, generator=torch.Generator().manual_seed(5))
    tokens = torch.arange(len(starts) * width).view(len(starts), width) % 90
    drafter.observe(cache, Span(0, tuple(starts), width), features, counts, tokens)


def equal(ours, theirs):
    assert torch.equal(ours.tokens, theirs.tokens)
    for field in ("support", "probs", "confidence"):
        one, other = getattr(ours, field), getattr(theirs, field)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


GREEDY = Law.greedy_rows(3)
MIXED = Law.of([0.0, 1.0, 0.7], [0, 2, 0], [1.0, 0.9, 0.8], [0.0] * 3)
PLAIN = Law.of([1.3] * 3, [0] * 3, [1.0] * 3, [0.0] * 3)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_is_the_draft_at_any_lengths_and_laws(kind):
    """Whole rounds side by side: what is drafted, and what is taken in of it."""
    recorder, drafter = Taped(), KINDS[kind]()
    captured = CapturedDraft(drafter, recorder, buckets=(1, 4), stretch=32)
    ours, theirs = filled(captured, [9, 4, 6]), filled(drafter, [9, 4, 6])
    noise = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(1))
    for turn, law in enumerate((MIXED, PLAIN, MIXED, GREEDY, GREEDY)):
        anchors = torch.tensor([3, 50, 71]) + turn
        given = None if law.greedy else noise.roll(turn, 0)
        equal(captured.propose(ours, 0, anchors, law, given), drafter.propose(theirs, 0, anchors, law, given))
        for each, cache in ((captured, ours), (drafter, theirs)):
            observe(each, cache, cache.lengths[:3], [2, 1, 3])
    assert ours.lengths == theirs.lengths
    assert captured.recordings == 3  # a sampled one without truncation, one with it, and a greedy one
    assert recorder.recorded == 4  # and one that takes in features
    assert recorder.replayed == 10


@torch.no_grad()
def test_what_is_taken_in_leaves_rows_behind_alone(drafter):
    """A prompt of two rows goes on with the first alone: its bucket has room for the other rows, which hold theirs."""
    captured = CapturedDraft(drafter, Taped(), buckets=(4,), stretch=32)
    caches = [filled(drafter, [8, 5, 6]) for _ in range(2)]
    for each, cache in zip((captured, drafter), caches, strict=True):
        observe(each, cache, [8], [3])
    same_slots(caches, (11, 5, 6))


@torch.no_grad()
def test_rows_of_a_bucket_leave_real_rows_alone(drafter):
    """Three rows in a bucket of four: what the cache holds of the three is what an eager draft leaves there."""
    captured = CapturedDraft(drafter, Taped(), buckets=(4,), stretch=32)
    caches = [filled(drafter, [9, 4, 6]) for _ in range(2)]
    anchors = torch.tensor([3, 50, 71])
    captured.propose(caches[0], 0, anchors, GREEDY, None)
    drafter.propose(caches[1], 0, anchors, GREEDY, None)
    same_slots(caches, (9, 4, 6))


def same_slots(caches, lengths):
    """Two caches hold the same in what is committed."""
    for cache in caches:
        assert tuple(cache.lengths[: len(lengths)]) == lengths
        cache.open(Span(0, (0,) * len(lengths), max(lengths)))
    for layer in range(caches[0].layers):
        for ours, theirs in zip(*(cache.read(layer) for cache in caches), strict=True):
            for row, length in enumerate(lengths):
                torch.testing.assert_close(ours[row, :, :length], theirs[row, :, :length], atol=1e-6, rtol=0)


@torch.no_grad()
def test_buckets_of_rows_and_lengths(drafter):
    recorder = Taped()
    captured = CapturedDraft(drafter, recorder, buckets=(1, 2, 4), stretch=16)
    cache = filled(drafter, [3] * ROWS)
    cache.reserve(64)
    for rows, recorded in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (5, 4)):  # 5 rows: beyond the buckets, as they are
        proposal = captured.propose(cache, 0, torch.arange(rows), Law.greedy_rows(rows), None)
        assert proposal.tokens.shape == (rows, drafter.candidates)
        assert captured.recordings == recorded
    cache.commit(0, 10)  # 10 + 6 slots end the stretch of 16
    captured.propose(cache, 0, torch.arange(1), Law.greedy_rows(1), None)
    assert captured.recordings == 4
    cache.commit(0, 11)
    captured.propose(cache, 0, torch.arange(1), Law.greedy_rows(1), None)
    assert captured.recordings == 5


@torch.no_grad()
def test_what_cannot_be_recorded_is_drafted_all_the_same_or_refused(drafter):
    cache, anchors = filled(drafter, [9, 4, 6]), torch.tensor([3, 50, 71])
    captured = CapturedDraft(drafter, Broken(), forced=False)
    with pytest.warns(RuntimeWarning, match="no graphs here; drafts go on without recordings"):
        given = captured.propose(cache, 0, anchors, GREEDY, None)
    equal(given, drafter.propose(cache, 0, anchors, GREEDY, None))
    equal(captured.propose(cache, 0, anchors, GREEDY, None), given)  # and no second warning
    observe(captured, cache, [9, 4, 6], [2, 1, 3])
    assert cache.lengths[:3] == [11, 5, 9]
    with pytest.raises(CaptureError, match="no graphs here"):
        CapturedDraft(drafter, Broken()).propose(cache, 0, anchors, GREEDY, None)


def test_stretches_are_longer_where_rows_are(drafter):
    shelf, cache = Shelf(stretch=512), drafter.new_cache(1)
    limits = [shelf.reserved(cache, reach) for reach in (1, 512, 513, 2500, 5000, 9000, 3)]
    assert limits == [512, 512, 1024, 2560, 5120, 10240, 512]
    assert cache.capacity == 16384


def test_the_recording_that_rested_longest_goes_first(drafter):
    shelf = Shelf(most=2)
    for name in ("a", "b", "a", "c", "a"):
        shelf.take(name, lambda name=name: name.upper())
    made = []
    assert [shelf.take(name, lambda: made.append(1)) for name in ("a", "c")] == ["A", "C"]
    assert made == []
    shelf.take("b", lambda: made.append(1))
    assert made == [1]


@torch.no_grad()
def test_recordings_go_with_the_storage_they_were_made_for(drafter):
    recorder = Taped()
    captured = CapturedDraft(drafter, recorder, buckets=(4,), stretch=16)
    cache, anchors = filled(drafter, [9, 4, 6]), torch.tensor([3, 50, 71])
    captured.propose(cache, 0, anchors, GREEDY, None)
    cache.reserve(cache.capacity + 1)  # the storage moves
    equal(captured.propose(cache, 0, anchors, GREEDY, None), drafter.propose(cache, 0, anchors, GREEDY, None))
    assert (recorder.recorded, captured.recordings) == (2, 1)
    other = filled(drafter, [2, 7, 5])
    equal(captured.propose(other, 0, anchors, GREEDY, None), drafter.propose(other, 0, anchors, GREEDY, None))
    assert (recorder.recorded, captured.recordings) == (3, 1)
