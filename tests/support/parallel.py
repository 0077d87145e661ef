"""Small random drafters of the other methods, over made-up tables or over the tiny target (F1)."""

from __future__ import annotations

from typing import Any

import torch
from tests.support.blocks import MASK, VOCAB, WIDTH
from torch import Tensor, nn

from dspine.drafter.registry import KINDS, Network
from dspine.target.model import Target

SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "num_target_layers": 8,
    "target_layer_ids": (1, 3, 5),
    "mask_token_id": MASK,
    "block_size": 6,
    "rope_theta": 1e4,
    "max_position_embeddings": 256,
}
OWN: dict[str, dict[str, Any]] = {
    "dflash": {},
    "domino": {"gru_hidden_size": 12, "projection_size": 8},
    "dspark": {"markov_rank": 8, "block_size": 5},
    "dflash2": {"conv_group_size": 4, "selector_rank": 8, "top_k": 5},
    "eagle3": {"num_hidden_layers": 1},
}


def small(
    kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, draft_ids: Tensor | None = None, **sizes: Any
) -> Network:
    """A drafter with random values in every parameter."""
    config = KINDS[kind].config(**{**SIZES, **OWN[kind], **sizes})
    torch.manual_seed(seed)
    embedding = nn.Embedding(VOCAB, WIDTH).to(dtype)
    drafter = KINDS[kind].build(config, embedding, torch.randn(config.vocab_size, WIDTH), draft_ids)
    return alive(drafter).to(dtype)


def over(target: Target, kind: str, *, seed: int = 0, draft_ids: Tensor | None = None, **sizes: Any) -> Network:
    """A drafter of two layers for a target, in the target's type, random values in every parameter."""
    given = {"num_hidden_layers": 2, "target_layer_ids": (0, 2), **OWN.get(kind, {}), **sizes}
    config = KINDS[kind].config.for_target(target.facts, target.facts.vocab_size - 1, **given)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = KINDS[kind].build(config, target.embedding, target.head_weight, draft_ids)
        return alive(drafter).to(target.dtype)


@torch.no_grad()
def alive(drafter: Network) -> Network:
    """Random values on top of the initial ones, so that every part does something."""
    for name, parameter in drafter.named_parameters():
        parameter.add_(torch.randn_like(parameter) * (0.2 if "backbone" in name else 0.4))
    return drafter.eval().requires_grad_(False)


def batch(drafter: Network, seed: int = 1, positions: int = 20) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, lengths, anchors and tokens of two sequences with three blocks each."""
    torch.manual_seed(seed)
    features = torch.randn(2, positions, drafter.config.feature_size, dtype=drafter.dtype)
    lengths = torch.tensor([positions, positions - 3])
    anchors = torch.tensor([[2, 5, 11], [1, 7, 12]])
    tokens = torch.randint(0, VOCAB - 1, (2, 3, drafter.candidates + 1))
    return features, lengths, anchors, tokens
