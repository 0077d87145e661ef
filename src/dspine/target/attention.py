"""The attention that transformers' layers run through: ours, over the row cache as it lies.

One rule: what the kernel cannot honour is never dropped. A layer that asks for more than scale and mask (soft
cap, attention sinks, position bias, dropout) raises `AttentionUnsupported`, and the target goes back to the
layer's own eager attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from dspine.errors import TargetError
from dspine.kernels.attention import grouped_attention

NAME = "dspine"

# Arguments that layers pass along and that change nothing here: windows are in the mask already, the rest is
# bookkeeping of transformers.
_HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)


class AttentionUnsupported(TargetError):
    """A layer needs an attention argument that the grouped kernel does not know."""


def dspine_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Grouped attention in transformers' signature.

    Args:
        query: (B, H, T, D).
        key, value: (B, G, S, D), views of the cache.
        attention_mask: bool (B or 1, 1, T, S), True = visible.

    Returns:
        (B, T, H, D) and no weights.
    """
    asked = [name for name, given in extras.items() if name not in _HARMLESS and given is not None]
    if dropout:
        asked.append("dropout")
    if asked:
        raise AttentionUnsupported(f"{type(module).__name__} asks attention for {', '.join(sorted(asked))}")
    if attention_mask is None and query.shape[2] > 1:
        # Only a forward without our cache comes here (`model(ids)`): None then means plain causal.
        out: Tensor = sdpa_attention_forward(module, query, key, value, None, scaling=scaling)[0]
        return out, None
    return grouped_attention(query, key, value, attention_mask, scaling).transpose(1, 2), None


def register() -> None:
    """Make `dspine` a name that transformers accepts as attention implementation (safe to repeat)."""
    AttentionInterface.register(NAME, dspine_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
