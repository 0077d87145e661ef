"""What blocks see in training: the mask from its definition, packed against padded, computed against stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.tiny_target import MASK, tiny_target

from dspine.drafter.flex import flex_attention_over
from dspine.drafter.masks import CAUSAL, Placement, Sight
from dspine.drafter.registry import KINDS
from dspine.kernels.attention import grouped_attention

SIGHTS = [CAUSAL, Sight(causal=False), Sight(window=5), Sight(causal=False, window=3)]
LENGTHS = torch.tensor([9, 17, 1, 12])
ANCHORS = torch.tensor([[3, 7, 8], [5, 6, 16], [0, 0, 0], [4, 4, 11]])


def by_definition(anchors, lengths, context, rows, sight, packed):
    """One entry at a time: which (line, query, key) are visible."""
    lines = 1 if packed else len(anchors)
    offsets = [int(lengths[:n].sum()) if packed else 0 for n in range(len(anchors))]
    queries = anchors.numel() // lines * rows
    mask = torch.zeros(lines, queries, context + queries, dtype=torch.bool)
    for n, of in enumerate(anchors.tolist()):
        for a, anchor in enumerate(of):
            line, block = (0, n * len(of) + a) if packed else (n, a)
            for row in range(rows):
                position = anchor + row
                for seen in range(min(anchor, int(lengths[n]))):  # strictly before the anchor
                    if sight.window is None or position - seen < sight.window:
                        mask[line, block * rows + row, offsets[n] + seen] = True
                for other in range(rows):
                    near = sight.window is None or abs(row - other) < sight.window
                    if near and (other <= row or not sight.causal):
                        mask[line, block * rows + row, context + block * rows + other] = True
    return mask


def placed(packed, rows=4, context=None):
    context = context or (int(LENGTHS.sum()) + 3 if packed else int(LENGTHS.max()))
    place = Placement.packed if packed else Placement.padded
    return place(ANCHORS, LENGTHS, context, rows), context


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_mask_is_its_definition(sight, packed):
    placement, context = placed(packed)
    expected = by_definition(ANCHORS, LENGTHS, context, 4, sight, packed)
    assert torch.equal(placement.dense(sight)[:, 0], expected)
    assert 0 < expected.sum() < expected.numel()


@pytest.mark.parametrize("queries", [48, 127, 128, 130])
@pytest.mark.parametrize("sight", SIGHTS[:3], ids=str)
def test_the_computed_mask_attends_as_the_stored_one(sight, queries):
    """Lengths that are no multiple of a tile; the same shapes twice, with other anchors."""
    generator = torch.Generator().manual_seed(queries)
    lengths = torch.tensor([60, 71])
    for _ in range(2):
        anchors = torch.stack([torch.randint(1, 59, (queries // 2,), generator=generator) for _ in range(2)])
        placement = Placement.packed(anchors[:, : queries // 2], lengths, 131, 1)
        if queries % 2:  # an odd number of rows
            fewer = {name: getattr(placement, name)[:, :-1] for name in ("anchors", "begins", "ends")}
            placement = replace(placement, **fewer)
        query = torch.randn(1, 4, placement.queries, 16, generator=generator)
        keys, values = torch.randn(2, 1, 2, placement.keys, 16, generator=generator)
        with torch.no_grad():
            computed = flex_attention_over(placement, sight)(query, keys, values)
        stored = grouped_attention(query, keys, values, placement.dense(sight))
        torch.testing.assert_close(computed, stored, rtol=1e-5, atol=1e-5)


def drafter_of(kind, **sizes):
    target = tiny_target()
    sizes = {"target_layer_ids": (1, 3), "block_size": 4, "num_hidden_layers": 2, **sizes}
    config = KINDS[kind].config.for_target(target.facts, MASK, **sizes)
    torch.manual_seed(0)
    embedding, head = target.embedding.double(), target.head_weight.double()
    drafter = KINDS[kind].build(config, embedding, head, None).double()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return drafter


def forward(drafter, attention, features):
    drafter.form = replace(drafter.form, attention=attention)
    tokens = torch.randint(0, 250, (*ANCHORS.shape, drafter.candidates + 1), generator=torch.Generator().manual_seed(0))
    states = drafter.blocks(features, LENGTHS, ANCHORS, tokens)
    return states if isinstance(states, torch.Tensor) else states.hidden


@pytest.mark.parametrize("kind", ["dspine", "dflash", "dflash2", "domino", "dspark"])
def test_packed_sequences_are_what_they_are_alone(kind):
    """All kinds: states and gradients, packed against padded; the computed mask's states; padding says nothing."""
    sizes = {"transfer_rank": 16, "message_size": 8, "top_k": 4} if kind == "dspine" else {}
    if kind == "dflash":
        sizes = {"sliding_window": 5, "sliding_layers": (0,)}
    drafter = drafter_of(kind, **sizes)
    features = torch.randn(4, 17, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = {}
    for attention in ("padded", "packed"):
        drafter.zero_grad()
        states = forward(drafter, attention, features)
        states.square().sum().backward()
        found[attention] = (
            states.detach(),
            {n: p.grad.clone() for n, p in drafter.named_parameters() if p.grad is not None},
        )
    torch.testing.assert_close(found["packed"][0], found["padded"][0], rtol=1e-10, atol=1e-10)
    for name, gradient in found["padded"][1].items():
        scale = gradient.abs().max().clamp(min=1e-30)
        torch.testing.assert_close(found["packed"][1][name] / scale, gradient / scale, rtol=0, atol=1e-10, msg=name)
    with torch.no_grad():
        computed = forward(drafter, "flex", features)
    torch.testing.assert_close(computed, found["padded"][0], rtol=1e-6, atol=1e-6)


def test_no_gradient_crosses_from_one_packed_sequence_to_another():
    drafter = drafter_of("dspine", transfer_rank=16, message_size=8, top_k=4)
    features = torch.randn(4, 17, 128, dtype=torch.float64, requires_grad=True)
    forward(drafter, "packed", features)[1, 1].square().sum().backward()  # anchor 6 of the second sequence
    reached = features.grad.abs().sum(-1) > 0
    assert reached[1, :6].all()
    assert not reached[1, 6:].any()
    assert not reached[[0, 2, 3]].any()


@pytest.mark.parametrize("kind", ["dspine", "dflash2"])
def test_running_layers_again_changes_no_gradient(kind):
    sizes = {"transfer_rank": 16, "message_size": 8, "top_k": 4} if kind == "dspine" else {}
    drafter = drafter_of(kind, **sizes)
    features = torch.randn(4, 17, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, kept = [], []
    for recompute in (False, True):
        drafter.backbone.recompute = recompute
        drafter.zero_grad()
        sizes_kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes_kept: (s.append(t.numel()), t)[1], lambda t: t):
            states = forward(drafter, "padded", features)
        states.square().sum().backward()
        found.append({n: p.grad.clone() for n, p in drafter.named_parameters() if p.grad is not None})
        kept.append(sum(sizes_kept))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert kept[1] < kept[0], "less is kept for the gradient"
