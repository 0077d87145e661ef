"""The fused pass with the definitions in the kernels' place: the same network as the plain pass, by the same names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.blocks import small_drafter

from dspine.kernels import injection
from dspine.kernels.arithmetic import CPU, REFERENCE
from dspine.kernels.kv import Span
from dspine.kernels.law import Law

ROUTED = replace(REFERENCE, fused=True)  # the kernels' way through the network, by the definitions' arithmetic
LAWS = {
    "greedy": Law.greedy_rows(3),
    "mixed": Law.of([0.0, 1.0, 0.7], [0, 2, 0], [1.0, 0.9, 0.8], [0.0] * 3),
}


def proposals(drafter, law):
    torch.manual_seed(5)
    cache = drafter.new_cache(3)
    features = torch.randn(3, 9, drafter.config.feature_size)
    drafter.observe(cache, Span(0, (0, 0, 0), 9), features, [9, 4, 6], torch.zeros(3, 9, dtype=torch.int64))
    noise = torch.rand(3, drafter.candidates)
    out = []
    for kernels in (REFERENCE, ROUTED):
        drafter.kernels = kernels
        out.append(drafter.propose(cache, 0, torch.tensor([3, 50, 71]), law, noise))
    return out


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize(
    "sizes", [{}, {"injected_layers": (0, 2)}, {"refined": False, "injected_layers": (1,)}, {"reach": 2}], ids=str
)
@torch.no_grad()
def test_both_ways_through_the_network_agree(law, sizes):
    plain, routed = proposals(small_drafter(**sizes), law)
    assert torch.equal(plain.tokens, routed.tokens)
    if plain.probs is not None:
        torch.testing.assert_close(plain.probs, routed.probs, atol=1e-5, rtol=0)


@torch.no_grad()
def test_weights_are_not_packed_anew_in_every_round(monkeypatch):
    """The engine drafts with networks in training too, whose weights stay as they are."""
    drafter = small_drafter()
    drafter.kernels = CPU
    monkeypatch.setattr(injection, "packed_product", None)
    cache = drafter.new_cache(1)
    features = torch.randn(1, 4, drafter.config.feature_size)
    drafter.observe(cache, Span(0, (0,), 4), features, [4], torch.zeros(1, 4, dtype=torch.int64))
    proposal = drafter.propose(cache, 0, torch.tensor([3]), Law.greedy_rows(1), None)
    drafter.kernels = REFERENCE
    assert torch.equal(proposal.tokens, drafter.propose(cache, 0, torch.tensor([3]), Law.greedy_rows(1), None).tokens)


def test_what_has_a_gradient_goes_by_the_definitions():
    drafter = small_drafter()
    drafter.kernels = replace(ROUTED, neighbour_message=None, write_and_norm=None)
    cache = drafter.new_cache(1)
    features = torch.randn(1, 4, drafter.config.feature_size)
    drafter.observe(cache, Span(0, (0,), 4), features, [4], torch.zeros(1, 4, dtype=torch.int64))
    drafter.draft_block(cache, 0, torch.tensor([3]))
    with torch.no_grad(), pytest.raises(TypeError):
        drafter.draft_block(cache, 0, torch.tensor([3]))
