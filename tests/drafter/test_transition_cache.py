"""The transition cache against serial refinement (DSpine, predecessor-conditioned decoding)."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import VOCAB, small_drafter

from dspine.kernels.kv import Span
from dspine.kernels.law import Law, draw, law_probs

LAWS = {
    "greedy": Law.greedy_rows(3),
    "temperature": Law.of([1.0, 0.7, 1.5], [0] * 3, [1.0] * 3, [0.0] * 3),
    "truncated": Law.of([1.0, 0.7, 1.5], [3, 0, 2], [1.0, 0.6, 0.9], [0.0, 0.1, 0.0]),
    "mixed": Law.of([0.0, 1.0, 0.0], [0, 2, 0], [1.0, 0.9, 1.0], [0.0] * 3),
}


def prepared(draft_ids=None, **sizes):
    drafter = small_drafter(draft_ids=draft_ids, **sizes)
    torch.manual_seed(5)
    cache = drafter.new_cache(3)
    features = torch.randn(3, 9, drafter.config.feature_size)
    drafter.observe(cache, Span(0, (0, 0, 0), 9), features, [9, 4, 6], torch.zeros(3, 9, dtype=torch.int64))
    return drafter, cache, torch.tensor([3, 50, 71])


def serial_walk(drafter, states, anchors, law, uniforms):
    """Refine, choose, refine, …: one place after the other, from the formulas."""
    candidates = drafter.top_candidates(states.hidden)
    previous, tokens, laws = anchors, [], []
    for t in range(drafter.candidates):
        refined = drafter.refine(states.last[:, t], previous)
        scores = drafter.candidate_scores(refined, candidates[:, t])
        probs = law_probs(scores, law)
        index = draw(probs, uniforms[:, t])
        previous = candidates[:, t].gather(1, index[:, None]).squeeze(1)
        tokens.append(previous)
        laws.append(probs)
    return torch.stack(tokens, 1), torch.stack(laws, 1)


@pytest.mark.parametrize("draft_ids", [None, torch.arange(0, VOCAB, 3)], ids=["full", "restricted"])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_the_cached_walk_gives_the_tokens_and_laws_of_the_serial_walk(law, draft_ids):
    drafter, cache, anchors = prepared(draft_ids)
    for seed in range(8):
        uniforms = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(seed))
        proposal = drafter.propose(cache, 0, anchors, law, uniforms)
        states = drafter.draft_block(cache, 0, anchors)
        tokens, laws = serial_walk(drafter, states, anchors, law, uniforms)
        assert torch.equal(proposal.tokens, tokens)
        if draft_ids is not None:
            assert torch.isin(proposal.tokens, draft_ids).all()
        if law.greedy:
            assert proposal.probs is None
        else:
            torch.testing.assert_close(proposal.probs, laws, atol=1e-5, rtol=0)
            assert torch.equal(proposal.support, drafter.top_candidates(states.hidden))


def test_every_row_equals_direct_refinement():
    drafter, cache, anchors = prepared()
    states = drafter.draft_block(cache, 0, anchors)
    candidates = drafter.top_candidates(states.hidden)
    table = drafter.transition_cache(states.last, anchors, candidates)
    places, width = drafter.candidates, drafter.config.top_k
    for row in range(3):
        for t in range(places):
            for i in range(width):
                before = anchors[row] if t == 0 else candidates[row, t - 1, i]
                refined = drafter.refine(states.last[row, t], before)
                direct = drafter.head[candidates[row, t]] @ refined
                torch.testing.assert_close(table[row, t, i], direct, atol=1e-5, rtol=1e-5)


def test_the_predecessor_matters():
    drafter, cache, anchors = prepared()
    states = drafter.draft_block(cache, 0, anchors)
    table = drafter.transition_cache(states.last, anchors, drafter.top_candidates(states.hidden))
    assert torch.equal(table[:, 0, :1].expand_as(table[:, 0]), table[:, 0])  # place 1 has one predecessor, the anchor
    assert (table[:, 1:, 0] - table[:, 1:, 1]).abs().amax() > 1e-2


def test_candidates_are_the_likeliest_of_the_ordinary_output():
    drafter, cache, anchors = prepared()
    hidden = drafter.draft_block(cache, 0, anchors).hidden
    expected = (hidden @ drafter.head.T).argsort(dim=-1, descending=True)[..., : drafter.config.top_k]
    assert torch.equal(drafter.top_candidates(hidden), expected)


def test_a_row_does_not_depend_on_its_batch():
    drafter, cache, anchors = prepared()
    law = LAWS["truncated"]
    uniforms = torch.rand(3, drafter.candidates)
    together = drafter.propose(cache, 0, anchors, law, uniforms)
    for row in range(3):
        alone = drafter.propose(cache, row, anchors[row : row + 1], law.rows([row]), uniforms[row : row + 1])
        assert torch.equal(alone.tokens[0], together.tokens[row])


@pytest.mark.parametrize("law", [LAWS["greedy"], LAWS["temperature"]], ids=["greedy", "temperature"])
def test_a_shorter_block_is_the_beginning_of_a_longer_one(law):
    """Rows see none behind them, so that an engine may draft fewer places than the drafter was trained with."""
    uniforms = torch.rand(3, 5, generator=torch.Generator().manual_seed(2))
    whole, cache, anchors = prepared()
    expected = whole.propose(cache, 0, anchors, law, uniforms)
    for size in (2, 4):
        drafter, cache, _ = prepared(block_size=size)
        proposal = drafter.propose(cache, 0, anchors, law, uniforms[:, : size - 1])
        assert torch.equal(proposal.tokens, expected.tokens[:, : size - 1])
        if not law.greedy:
            torch.testing.assert_close(proposal.probs, expected.probs[:, : size - 1], atol=1e-6, rtol=0)
