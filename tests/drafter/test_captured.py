"""Captured drafts: buckets, buffers and the order of replays, with a traced graph of tensor operations on the CPU.

The trace knows what a CUDA graph knows: operations on tensors at fixed addresses. A number that the host read while it
was made is a constant in it, and an operation that waits for a tensor's value cannot be traced.
"""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import small_drafter
from tests.support.tiny_target import tiny_target
from torch.fx.experimental.proxy_tensor import make_fx

from dspine.decode.engine import Engine
from dspine.drafter.captured import CapturedDraft, Recording
from dspine.errors import ConfigError
from dspine.kernels import law as law_module
from dspine.kernels.kv import Span
from dspine.kernels.law import Law

ROWS = 5


class Traced:
    """Records by tracing; its replays write the results to where the first ones lay."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, run) -> Recording:
        graph = make_fx(run)()
        results = [result.clone() for result in run()]
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for held, new in zip(results, graph(), strict=True):
                held.copy_(new)

        return Recording(replay, results)


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """On a CPU the likeliest token is found by numpy, which no graph holds; elsewhere by torch."""
    monkeypatch.setattr(law_module, "likeliest", lambda scores: scores.argmax(dim=-1))


@pytest.fixture
def drafter():
    return small_drafter(confidence=True)


def filled(drafter, lengths):
    cache = drafter.new_cache(ROWS)
    observe(drafter, cache, [0] * len(lengths), lengths)
    return cache


def observe(drafter, cache, starts, counts):
    width = max(counts)
    features = torch.randn(len(starts), width, drafter.config.feature_size, generator=torch.Generator().manual_seed(5))
    tokens = torch.zeros(len(starts), width, dtype=torch.int64)
    drafter.observe(cache, Span(0, tuple(starts), width), features, counts, tokens)


def equal(ours, theirs):
    assert torch.equal(ours.tokens, theirs.tokens)
    torch.testing.assert_close(ours.confidence, theirs.confidence, atol=1e-5, rtol=0)
    assert (ours.probs is None) == (theirs.probs is None)
    if ours.probs is not None:
        assert torch.equal(ours.support, theirs.support)
        torch.testing.assert_close(ours.probs, theirs.probs, atol=1e-5, rtol=0)


GREEDY = Law.greedy_rows(3)
MIXED = Law.of([0.0, 1.0, 0.7], [0, 2, 0], [1.0, 0.9, 0.8], [0.0] * 3)
PLAIN = Law.of([1.3] * 3, [0] * 3, [1.0] * 3, [0.0] * 3)


@torch.no_grad()
def test_a_replay_is_the_draft_at_any_lengths_and_laws(drafter):
    recorder = Traced()
    captured = CapturedDraft(drafter, recorder, buckets=(1, 4), stretch=32)
    cache = filled(drafter, [9, 4, 6])
    noise = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(1))
    for turn, law in enumerate((MIXED, PLAIN, MIXED, GREEDY, GREEDY)):
        anchors = torch.tensor([3, 50, 71]) + turn
        given = None if law.greedy else noise.roll(turn, 0)
        equal(captured.propose(cache, 0, anchors, law, given), drafter.propose(cache, 0, anchors, law, given))
        observe(drafter, cache, cache.lengths[:3], [2, 1, 3])
    assert recorder.recorded == captured.recordings == 2  # a sampled one and a greedy one
    assert recorder.replayed == 5


@torch.no_grad()
def test_rows_of_a_bucket_leave_real_rows_alone(drafter):
    """Three rows in a bucket of four: what the cache holds of the three is what an eager draft leaves there."""
    captured = CapturedDraft(drafter, Traced(), buckets=(4,), stretch=32)
    caches = [filled(drafter, [9, 4, 6]) for _ in range(2)]
    anchors = torch.tensor([3, 50, 71])
    captured.propose(caches[0], 0, anchors, GREEDY, None)
    drafter.propose(caches[1], 0, anchors, GREEDY, None)
    for layer in range(caches[0].layers):
        for cache in caches:
            cache.open(Span(0, (0,) * 3, 9))
        for ours, theirs in zip(*(cache.read(layer) for cache in caches), strict=True):
            for row, length in enumerate((9, 4, 6)):
                torch.testing.assert_close(ours[row, :, :length], theirs[row, :, :length], atol=0, rtol=0)


@torch.no_grad()
def test_buckets_of_rows_and_lengths(drafter):
    recorder = Traced()
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


def test_an_engine_refuses_what_cannot_be_recorded():
    target = tiny_target(num_hidden_layers=2)
    with pytest.raises(
        ConfigError, match="captured: DSpine's drafts on CUDA can be recorded; this is no drafter on cpu"
    ):
        Engine(target, captured=True)


@torch.no_grad()
def test_recordings_go_with_the_storage_they_were_made_for(drafter):
    recorder = Traced()
    captured = CapturedDraft(drafter, recorder, buckets=(4,), stretch=16)
    cache, anchors = filled(drafter, [9, 4, 6]), torch.tensor([3, 50, 71])
    captured.propose(cache, 0, anchors, GREEDY, None)
    cache.reserve(cache.capacity + 1)  # the storage moves
    equal(captured.propose(cache, 0, anchors, GREEDY, None), drafter.propose(cache, 0, anchors, GREEDY, None))
    assert (recorder.recorded, captured.recordings) == (2, 1)
    other = filled(drafter, [2, 7, 5])
    equal(captured.propose(other, 0, anchors, GREEDY, None), drafter.propose(other, 0, anchors, GREEDY, None))
    assert (recorder.recorded, captured.recordings) == (3, 1)
