"""What a drafter has to know of its target.

One rule: plain numbers, so that the drafter room needs neither a model nor a file to size a network.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFacts:
    """Sizes of a target model, as its configuration states them."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # rows of the LM head, padding included
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
