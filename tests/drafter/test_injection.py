"""Adjacent causal injection against the formulas, written out place by place (DSpine, adjacent causal injection)."""

from __future__ import annotations

import math

import torch
from tests.support.blocks import MASK, VOCAB, packed_attention, small_drafter

from dspine.drafter.masks import Placement


def inject(drafter, layer, states, anchor):
    """h_1..h_M of one block from its states u_0..u_M (M+1, d)."""
    injection, rank = drafter.injection, drafter.config.transfer_rank
    gate_q, gate_p = injection.receiver_gate.weight, injection.predecessor_gate.weight
    codes = [math.sqrt(rank) * drafter.codes[anchor].to(states.dtype)]
    for state in states[1:]:
        spoken = injection.readouts[layer].weight @ state
        codes.append(math.sqrt(rank) * spoken / spoken.norm())
    heard = [states[0]]
    for t in range(1, len(states)):
        gate = torch.sigmoid(gate_q @ codes[t] + gate_p @ codes[t - 1] + injection.bias)
        message = injection.message.weight @ codes[t - 1]
        size = states[t].norm() / math.sqrt(states[t].numel())
        heard.append(states[t] + size * (injection.writes[layer].weight @ (gate * message)))
    return torch.stack(heard)


def test_the_pass_equals_the_formulas():
    drafter = small_drafter(dtype=torch.float64)
    torch.manual_seed(2)
    features = torch.randn(1, 12, drafter.config.feature_size, dtype=torch.float64)
    anchors, lengths = torch.tensor([[4, 9]]), torch.tensor([12])
    tokens = torch.randint(0, VOCAB - 1, (1, 2, drafter.block_size))
    ours = drafter.blocks(features, lengths, anchors, tokens)

    inputs = torch.full_like(tokens, MASK)
    inputs[..., 0] = tokens[..., 0]
    size = drafter.block_size
    positions = (anchors[..., None] + torch.arange(size)).flatten(1)
    context = drafter.backbone.context(features, torch.arange(12)[None])
    mask = Placement.padded(anchors, lengths, 12, size).dense()
    x = drafter.tables.embedding(inputs.flatten(1))
    rotary = drafter.backbone.rotary(positions, x.dtype)

    attend = packed_attention(context, mask)
    for index, layer in enumerate(drafter.backbone.layers):
        before = layer(index, x, rotary, attend)
        blocks = [before[0, b * size : (b + 1) * size] for b in range(2)]
        heard = [inject(drafter, index, block, int(tokens[0, b, 0])) for b, block in enumerate(blocks)]
        x = torch.cat(heard)[None]
        after = torch.stack([block[1:] for block in heard])
        spoken = after @ drafter.injection.readouts[index].weight.T
        unit = spoken / spoken.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(ours.readouts[index][0], unit, atol=1e-9, rtol=0)
    expected = drafter.backbone.norm(x).reshape(2, size, -1)[:, 1:]
    torch.testing.assert_close(ours.hidden[0], expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(ours.last[0], torch.stack([block[1:] for block in blocks]), atol=1e-9, rtol=0)


def test_refinement_is_the_last_injection_with_the_token_known():
    drafter = small_drafter(dtype=torch.float64)
    torch.manual_seed(3)
    final = drafter.config.num_hidden_layers - 1
    states = torch.randn(2, drafter.config.hidden_size, dtype=torch.float64)
    for token in (0, 17, 60):
        expected = drafter.backbone.norm(inject(drafter, final, states, token)[1])
        refined = drafter.refine(states[1], torch.tensor(token))
        torch.testing.assert_close(refined, expected, atol=1e-9, rtol=0)
