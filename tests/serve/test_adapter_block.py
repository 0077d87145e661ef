"""A block through layers of somebody else's is the block of our own drafter."""

from __future__ import annotations

from functools import partial

import torch
from tests.support.blocks import small_drafter
from tests.support.tiny_drafter import enliven

from dspine.drafter.masks import decoding_mask
from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import Span
from dspine.serve.adapter.block import pass_through, rewritten


def test_the_pass_and_the_rewritten_write_are_those_of_our_drafter():
    drafter = small_drafter()
    enliven(drafter)
    torch.manual_seed(2)
    config, backbone, size = drafter.config, drafter.backbone, drafter.block_size
    anchors, lengths = torch.tensor([5, 61, 17]), [4, 9, 1]
    cache = drafter.new_cache(3)
    features = torch.randn(3, 9, config.feature_size)
    drafter.observe(cache, Span(0, (0, 0, 0), 9), features, lengths, torch.zeros(3, 9, dtype=torch.int64))
    expected = drafter.draft_block(cache, 0, anchors)

    span = drafter.form.span(cache, 0, 3)
    positions = span.positions(None)
    mask = decoding_mask(span, drafter.form.sights[0], anchors.device)
    rotary = backbone.rotary(positions, torch.float32)

    def attend(layer, query, keys, values):
        return grouped_attention(query, *cache.write(layer, keys, values), mask)

    def layer(index, x):  # as an engine has it: rows of all blocks in one line
        return backbone.layer(index, x.view(3, size, -1), rotary, attend).reshape(len(x), -1)

    x = drafter.tables.embedding(drafter.form.tokens(anchors)).view(3 * size, -1)
    layers = [partial(layer, index) for index in range(config.num_hidden_layers)]
    with torch.no_grad():
        heard, last = pass_through(layers, drafter.injection, x, drafter.codes[anchors].unsqueeze(1))
        torch.testing.assert_close(backbone.norm(heard), expected.hidden)
        torch.testing.assert_close(last, expected.last)
        known = torch.randint(0, config.vocab_size, (3, size - 1))
        again = rewritten(drafter.injection, last, drafter.codes[known])
        torch.testing.assert_close(backbone.norm(again), drafter.refine(expected.last, known))
