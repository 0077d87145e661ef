"""The network: identity at the start, causality to the bit, and one forward for training and decoding."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import MASK, VOCAB, packed_attention, small_config, small_drafter
from torch import nn

from dspine.drafter import DSpine, TransferSpace
from dspine.drafter.masks import Placement
from dspine.kernels.kv import Span


def batch(drafter: DSpine, seed: int = 1, positions: int = 20):
    torch.manual_seed(seed)
    features = torch.randn(2, positions, drafter.config.feature_size, dtype=drafter.dtype)
    lengths = torch.tensor([positions, positions - 3])
    anchors = torch.tensor([[2, 5, 11], [1, 7, 12]])
    tokens = torch.randint(0, VOCAB - 1, (2, 3, drafter.block_size))
    return features, lengths, anchors, tokens


def dflash_forward(drafter: DSpine, features, lengths, anchors, tokens):
    """The block-causal DFlash backbone alone, written without any injection."""
    size = drafter.block_size
    inputs = torch.full_like(tokens, MASK)
    inputs[..., 0] = tokens[..., 0]
    positions = (anchors[..., None] + torch.arange(size)).flatten(1)
    context = drafter.backbone.context(features, torch.arange(features.shape[1]).expand(2, -1))
    mask = Placement.padded(anchors, lengths, features.shape[1], size).dense()
    x = drafter.tables.embedding(inputs.flatten(1))
    rotary = drafter.backbone.rotary(positions, x.dtype)

    attend = packed_attention(context, mask)
    for index, layer in enumerate(drafter.backbone.layers):
        x = layer(index, x, rotary, attend)
    return drafter.backbone.norm(x).reshape(2, 3, size, -1)[:, :, 1:]


def test_zero_writes_equal_the_block_causal_backbone_bit_for_bit():
    drafter = small_drafter(trained=True)
    for write in drafter.injection.writes:
        write.weight.zero_()
    inputs = batch(drafter)
    assert torch.equal(drafter.blocks(*inputs).hidden, dflash_forward(drafter, *inputs))


def test_initial_parameters_make_the_injection_silent():
    drafter = small_drafter(trained=False)
    inputs = batch(drafter)
    assert torch.equal(drafter.blocks(*inputs).hidden, dflash_forward(drafter, *inputs))
    assert not torch.equal(small_drafter().blocks(*inputs).hidden, dflash_forward(small_drafter(), *inputs))


def test_features_at_and_after_the_anchor_change_nothing_and_the_one_before_does():
    drafter = small_drafter()
    features, lengths, anchors, tokens = batch(drafter)
    plain = drafter.blocks(features, lengths, anchors, tokens).hidden
    for block in range(3):
        anchor = int(anchors[0, block])
        later = features.clone()
        later[0, anchor:] = torch.randn_like(later[0, anchor:]) * 50
        assert torch.equal(drafter.blocks(later, lengths, anchors, tokens).hidden[0, block], plain[0, block])
        before = features.clone()
        before[0, anchor - 1] += 1
        changed = drafter.blocks(before, lengths, anchors, tokens).hidden[0, block]
        assert (changed != plain[0, block]).any(dim=-1).all()


def test_padding_of_a_sequence_changes_nothing():
    drafter = small_drafter()
    features, lengths, anchors, tokens = batch(drafter)
    plain = drafter.blocks(features, lengths, anchors, tokens).hidden
    features[1, lengths[1] :] = 1e3
    assert torch.equal(drafter.blocks(features, lengths, anchors, tokens).hidden, plain)


def test_the_tokens_to_predict_are_no_input():
    drafter = small_drafter()
    features, lengths, anchors, tokens = batch(drafter)
    plain = drafter.blocks(features, lengths, anchors, tokens)
    other = tokens.clone()
    other[..., 1:] = (other[..., 1:] + 7) % (VOCAB - 1)
    changed = drafter.blocks(features, lengths, anchors, other)
    assert torch.equal(changed.hidden, plain.hidden)
    assert torch.equal(changed.last, plain.last)


def test_other_blocks_change_nothing_even_two_positions_away():
    drafter = small_drafter()
    features, lengths, _, tokens = batch(drafter)
    anchors = torch.tensor([[5, 7, 11], [5, 6, 7]])
    plain = drafter.blocks(features, lengths, anchors, tokens).hidden
    other = tokens.clone()
    other[:, 1:, 0] = (other[:, 1:, 0] + 3) % (VOCAB - 1)
    assert torch.equal(drafter.blocks(features, lengths, anchors, other).hidden[:, 0], plain[:, 0])
    alone = drafter.blocks(features, lengths, anchors[:, :1], tokens[:, :1]).hidden
    torch.testing.assert_close(alone, plain[:, :1], atol=1e-5, rtol=1e-5)


def test_later_places_change_nothing_earlier():
    """A correct predecessor put into place t reaches places t and later, never earlier ones (block-causal)."""
    drafter = small_drafter()
    features, lengths, anchors, tokens = batch(drafter)
    replaced = torch.ones(2, 3, dtype=torch.bool)
    plain = drafter.blocks(features, lengths, anchors, tokens, replaced, 2).hidden
    other = tokens.clone()
    other[..., 3] = (other[..., 3] + 5) % (VOCAB - 1)  # the predecessor of place 4
    changed = drafter.blocks(features, lengths, anchors, other, replaced, 2).hidden
    assert torch.equal(changed[:, :, :3], plain[:, :, :3])
    assert (changed[:, :, 3:] != plain[:, :, 3:]).any(dim=-1).all()


def test_replacement_reaches_chosen_blocks_only():
    drafter = small_drafter()
    inputs = batch(drafter)
    plain = drafter.blocks(*inputs).hidden
    replaced = torch.tensor([[True, False, False], [False, False, True]])
    mixed = drafter.blocks(*inputs, replaced, 2).hidden
    assert torch.equal(mixed[~replaced], plain[~replaced])
    assert torch.equal(mixed[replaced][:, 0], plain[replaced][:, 0])  # place 1 hears the anchor, a token anyway
    assert (mixed[replaced][:, 1:] != plain[replaced][:, 1:]).any(dim=-1).all()
    assert torch.equal(drafter.blocks(*inputs, replaced, 0).hidden, plain)


def test_the_mask_equals_one_written_from_the_definition():
    anchors, lengths = torch.tensor([[2, 5], [0, 3]]), torch.tensor([7, 5])
    context, size = 7, 3
    mask = Placement.padded(anchors, lengths, context, size).dense()
    assert mask.shape == (2, 1, 6, 13)
    for row in range(2):
        for query in range(6):
            block, place = divmod(query, size)
            for key in range(13):
                if key < context:
                    visible = key < anchors[row, block] and key < lengths[row]
                else:
                    other, at = divmod(key - context, size)
                    visible = other == block and at <= place
                assert bool(mask[row, 0, query, key]) == bool(visible)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_training_and_decoding_forwards_agree_over_rounds(dtype, tolerance):
    """Ragged rows, random accept lengths: each round's block equals the training forward at the same anchor."""
    drafter = small_drafter(dtype=dtype)
    torch.manual_seed(3)
    size, total = drafter.block_size, 60
    features = torch.randn(3, total, drafter.config.feature_size, dtype=dtype)
    tokens = torch.randint(0, VOCAB - 1, (3, total + size))
    cache = drafter.new_cache(4)
    anchors = [4, 7, 1]
    seen = [0, 0, 0]
    for _ in range(6):
        width = max(a - s for a, s in zip(anchors, seen, strict=True)) + 2  # rows behind the real ones are padding
        pending = torch.full((3, width, features.shape[2]), 9.0, dtype=dtype)
        for row in range(3):
            pending[row, : anchors[row] - seen[row]] = features[row, seen[row] : anchors[row]]
        counts = [a - s for a, s in zip(anchors, seen, strict=True)]
        drafter.observe(cache, Span(1, tuple(seen), width), pending, counts, torch.zeros(3, width, dtype=torch.int64))
        assert cache.lengths[1:] == anchors
        ids = torch.stack([tokens[row, anchors[row]] for row in range(3)])
        drafted = drafter.draft_block(cache, 1, ids)
        where = torch.tensor(anchors)
        blocks = torch.stack([tokens[row, anchors[row] : anchors[row] + size] for row in range(3)])
        trained = drafter.blocks(features, torch.full((3,), total), where[:, None], blocks[:, None])
        torch.testing.assert_close(drafted.hidden, trained.hidden[:, 0], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(drafted.last, trained.last[:, 0], atol=tolerance, rtol=tolerance)
        seen = list(anchors)
        anchors = [a + int(torch.randint(1, size + 1, ())) for a in anchors]


def test_zero_states_have_finite_values_and_gradients():
    drafter = small_drafter().requires_grad_(True)
    state = torch.zeros(1, 2, drafter.config.hidden_size, requires_grad=True)
    refined = drafter.refine(state, torch.tensor([[3, 4]]))
    refined.sum().backward()
    assert torch.isfinite(refined).all()
    assert torch.isfinite(state.grad).all()


def test_parameter_names_are_those_of_the_public_layout():
    names = {name.removeprefix("backbone.") for name in small_drafter(num_hidden_layers=1).state_dict()}
    block = {f"self_attn.{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")}
    block |= {f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
    block |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    injection = {"readouts.0.weight", "writes.0.weight", "message.weight", "receiver_gate.weight"}
    injection |= {"predecessor_gate.weight", "bias"}
    expected = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    expected |= {f"layers.0.{n}" for n in block} | {f"injection.{n}" for n in injection}
    assert names == expected


def test_embedding_and_head_stay_the_targets():
    embedding, head = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB, bias=False)
    config = small_config()
    drafter = DSpine(config, embedding, head.weight, TransferSpace.fit(head.weight, config.transfer_rank))
    assert all(name.startswith(("backbone.", "injection.")) for name in drafter.state_dict())
    assert drafter.head.data_ptr() == head.weight.data_ptr()
