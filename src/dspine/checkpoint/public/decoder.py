"""The decoder's part of a config.json that we write: a Qwen3 config, as every program here reads it.

One rule: whatever a reader could take for another value is said. Source: transformers' Qwen3Config; the published
configs of SpecForge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dspine.checkpoint.keys import FULL
from dspine.drafter.config import BackboneConfig

if TYPE_CHECKING:
    from dspine.target.model import Target


def decoder_json(sizes: BackboneConfig, target: Target, dtype: torch.dtype) -> dict[str, Any]:
    """The sizes of a drafter's decoder and the target's tokens, for full attention in all layers."""
    ends = sorted(target.eos_ids)
    return {
        "model_type": "qwen3",
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_target_layers": sizes.num_target_layers,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "vocab_size": sizes.vocab_size,
        "tie_word_embeddings": False,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": sizes.max_position_embeddings,
        "layer_types": [FULL] * sizes.num_hidden_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": getattr(target.tokenizer, "bos_token_id", None),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
