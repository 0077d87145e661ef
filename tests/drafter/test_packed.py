"""Packed drafters are the drafters that they were made from: the same context, the same proposals."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tests.support.blocks import small_drafter
from tests.support.parallel import small
from tests.support.processor import needs_bfloat16, needs_onednn

from dspine.drafter.backbone import DraftLayer
from dspine.kernels.arithmetic import CPU
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.kernels.layer import PackedLayer

pytestmark = needs_onednn

STARTS, COUNTS = (0, 0, 0), [9, 4, 6]
LAWS = {"greedy": Law.greedy_rows(3), "mixed": Law.of([0.0, 1.0, 0.7], [0, 2, 0], [1.0, 0.9, 0.8], [0.0] * 3)}


def drafted(drafter, law=LAWS["greedy"]):
    """Its context cache after some features, and a proposal."""
    torch.manual_seed(5)
    cache = drafter.new_cache(3)
    features = torch.randn(3, 9, drafter.config.feature_size).to(drafter.dtype)
    drafter.observe(cache, Span(0, STARTS, 9), features, COUNTS, torch.zeros(3, 9, dtype=torch.int64))
    noise = torch.rand(3, drafter.candidates)
    return cache, drafter.propose(cache, 0, torch.tensor([3, 50, 71]), law, noise)


def both(drafter):
    packed = deepcopy(drafter)
    packed.pack()
    return drafter, packed


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"injected_layers": (0, 2)},
        {"injected_layers": (), "refined": False},
        {"reach": 2},
        {"gated": False},
        {"confidence": True},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_packed_dspine_proposes_what_it_proposed(law, sizes):
    plain, packed = both(small_drafter(**sizes))
    packed.kernels = CPU
    assert all(type(layer) is PackedLayer for layer in packed.backbone.layers)
    (_, expected), (_, got) = drafted(plain, law), drafted(packed, law)
    assert torch.equal(got.tokens, expected.tokens)
    for name in ("probs", "confidence"):
        if getattr(expected, name) is not None:
            torch.testing.assert_close(getattr(got, name), getattr(expected, name), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "domino", "dspark", "dflash2"])
@torch.no_grad()
def test_packed_drafters_of_other_methods_propose_what_they_proposed(kind):
    plain, packed = both(small(kind, dtype=torch.float32))
    assert torch.equal(drafted(packed)[1].tokens, drafted(plain)[1].tokens)


@torch.no_grad()
def test_the_context_of_all_layers_is_what_each_layer_would_keep():
    plain, packed = both(small_drafter())
    (expected, _), (got, _) = drafted(plain), drafted(packed)
    for cache in (expected, got):
        cache.open(Span(0, STARTS, 4))  # slots that all rows have
    for layer in range(3):
        for one, other in zip(got.read(layer), expected.read(layer), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@needs_bfloat16
@torch.no_grad()
def test_bfloat16_stays_near():
    exact = small_drafter()
    plain, packed = both(deepcopy(exact).to(torch.bfloat16))
    packed.kernels = CPU
    near, theirs, ours = (
        each.draft_block(drafted(each)[0], 0, torch.tensor([3, 50, 71])).hidden.float()
        for each in (exact, plain, packed)
    )
    # No farther from the float32 drafter than the definition is in bfloat16.
    assert (ours - near).abs().mean() < 1.1 * (theirs - near).abs().mean()


def test_what_has_no_kernels_stays_as_it_is():
    drafter = small_drafter(dtype=torch.float64)
    drafter.pack()
    assert all(type(layer) is DraftLayer for layer in drafter.backbone.layers)
