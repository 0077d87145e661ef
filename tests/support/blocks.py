"""A small random DSpine over made-up tables, for tests of the network alone (no target model needed)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine.drafter import DSpine, DSpineConfig, TransferSpace
from dspine.drafter.backbone import Attend
from dspine.kernels.attention import grouped_attention

VOCAB, WIDTH, MASK = 96, 32, 95


def packed_attention(context: list[tuple[Tensor, Tensor]], mask: Tensor) -> Attend:
    """Attention of packed blocks over context keys and values, as training does it."""

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        before_keys, before_values = context[layer]
        return grouped_attention(query, torch.cat((before_keys, keys), 2), torch.cat((before_values, values), 2), mask)

    return attend


def small_config(**overrides) -> DSpineConfig:
    sizes = {
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
        "transfer_rank": 12,
        "message_size": 8,
        "top_k": 5,
        "rope_theta": 1e4,
        "max_position_embeddings": 256,
    }
    return DSpineConfig(**{**sizes, **overrides})


def small_drafter(
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    trained: bool = True,
    draft_ids: Tensor | None = None,
    **overrides,
) -> DSpine:
    """`trained` gives every parameter random values, so that gates and writes do something; else the initial ones."""
    torch.manual_seed(seed)
    config = small_config(**overrides)
    embedding = nn.Embedding(VOCAB, config.hidden_size)
    head = torch.randn(VOCAB, config.hidden_size)
    drafter = DSpine(config, embedding, head, TransferSpace.fit(head, config.transfer_rank), draft_ids).eval()
    if trained:
        with torch.no_grad():
            for name, parameter in drafter.named_parameters():
                scale = 0.4 if "injection" in name else 0.2
                parameter.add_(torch.randn_like(parameter) * scale)
    embedding.to(dtype)
    return drafter.to(dtype).requires_grad_(False)
