"""The DFlash2 network: DFlash at the start, convolutions by their formula, and a selector tabulated like DSpine's."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import VOCAB
from tests.support.parallel import OWN, SIZES, batch, small
from torch import Tensor, nn

from dspine.drafter.convolution import DynamicConvolution
from dspine.drafter.dflash2 import DFlash2Config, dflash2
from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law, law_probs

ANCHORS = torch.tensor([3, 50, 71])
LAW = Law.of([1.0, 0.0, 1.5], [0, 0, 3], [1.0, 1.0, 0.9], [0.0] * 3)
IDS = torch.arange(0, VOCAB, 3)


def observed(drafter, features: Tensor):
    cache = drafter.new_cache(3)
    drafter.observe(cache, Span(0, (0, 0, 0), 9), features[:, :9], [9, 4, 6], torch.zeros(3, 9, dtype=torch.int64))
    return cache


def test_untrained_it_is_dflash_bit_for_bit() -> None:
    dflash = small("dflash", dtype=torch.float32)
    ours = dflash2(DFlash2Config(**{**SIZES, **OWN["dflash2"]}), dflash.tables.embedding, dflash.tables.head)
    missing, unexpected = ours.backbone.load_state_dict(dflash.backbone.state_dict(), strict=False)
    assert not unexpected
    assert all("_conv." in name for name in missing)
    inputs = batch(dflash)
    assert torch.equal(ours.blocks(*inputs), dflash.blocks(*inputs))
    torch.manual_seed(2)
    features = torch.randn(3, 9, dflash.config.feature_size)
    caches = [observed(drafter, features) for drafter in (dflash, ours)]
    greedy = Law.greedy_rows(3)
    with torch.no_grad():
        one, other = (d.propose(c, 0, ANCHORS, greedy, None) for d, c in zip((dflash, ours), caches, strict=True))
    assert torch.equal(one.tokens, other.tokens)


def test_a_convolution_equals_its_formula_and_ends_at_its_block() -> None:
    torch.manual_seed(0)
    conv = DynamicConvolution(width=8, taps=3, group=2).double()
    for parameter in conv.parameters():
        nn.init.normal_(parameter)
    x, normed = torch.randn(2, 3, 4, 8).double(), torch.randn(2, 3, 4, 8).double()  # 2 rows of 3 blocks of 4
    kernels = conv.kernels(normed)
    for side in range(2):
        out = conv(side, x, kernels)
        for row, block, t, c in [(0, 0, 0, 0), (1, 2, 0, 7), (0, 1, 1, 3), (1, 1, 2, 6), (1, 0, 3, 5)]:
            expected = 0.0
            for tap in range(min(t, 2) + 1):
                delta = (conv.kernel_projection.weight @ normed[row, block, t]).view(2, 3, 4)[side, tap, c // 2]
                expected += (conv.base_kernel[side, tap, c] + delta) * x[row, block, t - tap, c]
            torch.testing.assert_close(out[row, block, t, c], torch.as_tensor(expected), atol=1e-12, rtol=0)


def test_packed_blocks_are_blocks_alone_and_as_in_decoding() -> None:
    drafter = small("dflash2")
    features, lengths, anchors, tokens = batch(drafter)
    packed = drafter.blocks(features, lengths, anchors, tokens)
    for block in range(3):
        where = slice(block, block + 1)
        alone = drafter.blocks(features, lengths, anchors[:, where], tokens[:, where])
        torch.testing.assert_close(packed[:, where], alone, atol=1e-12, rtol=1e-12)
        cache = drafter.new_cache(2)
        counts = anchors[:, block].tolist()
        drafter.observe(cache, Span(0, (0, 0), 13), features[:, :13], counts, torch.zeros(2, 13, dtype=torch.int64))
        drafted = drafter.draft_block(cache, 0, tokens[:, block, 0])
        torch.testing.assert_close(packed[:, block], drafted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("ids", [None, IDS], ids=["full", "restricted"])
def test_tabulated_scores_are_those_of_the_formula_step_by_step(ids: Tensor | None) -> None:
    drafter = small("dflash2", draft_ids=ids)
    torch.manual_seed(5)
    cache = observed(drafter, torch.randn(3, 9, drafter.config.feature_size, dtype=drafter.dtype))
    uniforms = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(1))
    proposal = drafter.propose(cache, 0, ANCHORS, LAW, uniforms)
    greedy = drafter.propose(cache, 0, ANCHORS, Law.greedy_rows(3), None)
    assert greedy.probs is None
    assert torch.equal(greedy.tokens[1], proposal.tokens[1])  # the row at temperature 0

    hidden, selector = drafter.draft_block(cache, 0, ANCHORS), drafter.selection.candidate_selector
    known = torch.arange(VOCAB) if ids is None else ids
    unary = hidden @ drafter.head[known].double().T
    changed = False
    for drafted, law in ((proposal, LAW), (greedy, Law.greedy_rows(3))):
        before = ANCHORS
        for t in range(drafter.candidates):
            base, index = unary[:, t].topk(5)
            candidates = known[index]
            gate = hidden[:, t] @ selector.hidden_projection.weight.T
            left = selector.predecessor_codebook[before] * gate
            scores = base + (left[:, None] * selector.successor_codebook[candidates]).sum(-1)
            if drafted.probs is None:
                assert torch.equal(drafted.tokens[:, t], candidates.gather(1, scores.argmax(-1)[:, None])[:, 0])
                changed |= bool((scores.argmax(-1) != 0).any())
            else:
                assert torch.equal(drafted.support[:, t], candidates)
                torch.testing.assert_close(drafted.probs[:, t], law_probs(scores, law), atol=1e-6, rtol=0)
            before = drafted.tokens[:, t]
    assert changed, "the selector never prefers another candidate than the backbone"


def test_parameter_names_are_those_of_the_public_layout_behind_their_prefix() -> None:
    names = set(small("dflash2", num_hidden_layers=1).state_dict())
    names -= {f"backbone.{name}" for name in small("dflash", num_hidden_layers=1).backbone.state_dict()}
    convs = {
        f"{sub}_conv.{name}" for sub in ("attention", "mlp") for name in ("base_kernel", "kernel_projection.weight")
    }
    selector = {"predecessor_codebook", "successor_codebook", "hidden_projection.weight"}
    assert names == {f"backbone.layers.0.{n}" for n in convs} | {f"selection.candidate_selector.{n}" for n in selector}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"conv_group_size": 5}, "conv_group_size 5 does not divide the width 32"),
        ({"top_k": VOCAB + 1}, "exceeds the vocabulary"),
        ({"conv_taps": 0}, "conv_taps is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DFlash2Config(**{**SIZES, **OWN["dflash2"], **sizes})


def test_packed_weights_propose_the_same() -> None:
    plain, packed = (small("dflash2", dtype=torch.float32, draft_ids=IDS) for _ in "ab")
    packed.pack()
    torch.manual_seed(5)
    features = torch.randn(3, 9, plain.config.feature_size)
    uniforms = torch.rand(3, plain.candidates, generator=torch.Generator().manual_seed(1))
    one, other = (
        drafter.propose(observed(drafter, features), 0, ANCHORS, LAW, uniforms) for drafter in (plain, packed)
    )
    assert torch.equal(one.tokens, other.tokens)
    torch.testing.assert_close(one.probs, other.probs, atol=1e-4, rtol=0)
