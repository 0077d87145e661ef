"""Sampling parameters folded into logits: their softmax is the law of `kernels.law`, request by request."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from dspine.kernels.law import Law, law_probs
from dspine.kernels.reference import follow, walk
from dspine.serve.sglang.law import folded

WHOLE = 1 << 30  # SGLang's top_k for "all of the vocabulary"


def test_the_softmax_of_folded_logits_is_the_law_of_each_request():
    torch.manual_seed(0)
    rows, size = 3, 50
    logits = torch.randn(4 * rows, size) * 3
    info = SimpleNamespace(
        temperatures=torch.tensor([[1.0], [0.7], [1.0], [1.3]]),
        top_ks=torch.tensor([WHOLE, 7, 1, WHOLE]),
        top_ps=torch.tensor([1.0, 0.8, 1.0, 0.9]),
        min_ps=torch.tensor([0.2, 0.05, 0.0, 0.1]),
    )
    out, plain = folded(logits, info, rows)
    law = Law.of([1.0, 0.7, 0.0, 1.3], [0, 7, 0, 0], [1.0, 0.8, 1.0, 0.9], [0.2, 0.05, 0.0, 0.1])
    expected = law_probs(logits.view(4, rows, size), law)
    torch.testing.assert_close(out.softmax(-1).view(4, rows, size), expected, atol=1e-6, rtol=0)
    assert (expected == 0).any()
    assert plain.temperatures.tolist() == [[1.0]] * 4
    assert not any((plain.need_top_k_sampling, plain.need_top_p_sampling, plain.need_min_p_sampling))


def test_following_laws_is_what_a_walk_does():
    torch.manual_seed(1)
    scores, uniforms = torch.randn(3, 5, 4, 4), torch.rand(3, 5)
    law = Law.of([0.0, 1.0, 0.6], [0, 0, 2], [1.0, 1.0, 0.9], [0.0] * 3)
    chosen, laws = follow(law_probs(scores, law), uniforms)
    by_walk, laws_by_walk = walk(scores, law, uniforms)
    assert torch.equal(chosen, by_walk)
    assert torch.equal(laws, laws_by_walk)
    index = 0
    for place in range(5):  # row 0 is greedy: the best candidate after the best one
        index = int(scores[0, place, index].argmax())
        assert int(chosen[0, place]) == index
