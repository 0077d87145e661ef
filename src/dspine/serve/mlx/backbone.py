"""The parallel backbone in MLX: `drafter/backbone.py` for one request.

One rule: the modules bear the names of the files, so that weights are filled strictly, and MLX may quantise them. Keys
and values lie in mlx-lm's own cache; a block's are written behind the context's and taken back.
Source: DSpine (arXiv 2609.36173), parallel backbone (shared with DFlash, arXiv 2602.06036).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from dspine.drafter.config import BackboneConfig
from dspine.drafter.masks import Sight


class Context:
    """Keys and values of the committed tokens, layer by layer."""

    def __init__(self, layers: int) -> None:
        self.layers: list[Any] = [KVCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """Committed tokens."""
        return int(self.layers[0].offset)

    def forget(self, rows: int) -> None:
        """Take back the newest `rows` slots."""
        for layer in self.layers:
            layer.trim(rows)

    @property
    def arrays(self) -> list[Any]:
        """What has to be evaluated for the context to be there."""
        return [array for layer in self.layers for array in (layer.keys, layer.values) if array is not None]


def block_mask(sight: Sight, length: int, rows: int) -> mx.array | str | None:
    """What the rows of a block behind `length` context slots see, as MLX's attention takes it."""
    if sight.window is None:
        return "causal" if sight.causal else None
    query, key = mx.arange(length, length + rows)[:, None], mx.arange(length + rows)
    seen = key > query - sight.window
    return seen & (key <= query if sight.causal else key < query + sight.window)


class Attention(nn.Module):
    """Projections, norms and rotary positions of a draft layer."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.heads, self.groups, self.dim = config.num_attention_heads, config.num_key_value_heads, dim
        self.theta = config.rope_theta
        self.q_proj = nn.Linear(width, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(width, self.groups * dim, bias=False)
        self.v_proj = nn.Linear(width, self.groups * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, width, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)

    def keys_values(self, x: mx.array, start: int) -> tuple[mx.array, mx.array]:
        """(1, T, d) from position `start` on → keys and values (1, G, T, D), of context and block alike."""
        keys = self._rotated(self.k_norm(self._split(self.k_proj(x), self.groups)), start)
        return keys, self._split(self.v_proj(x), self.groups)

    def __call__(self, x: mx.array, cache: Any, mask: mx.array | str | None) -> mx.array:
        start = cache.offset
        queries = self._rotated(self.q_norm(self._split(self.q_proj(x), self.heads)), start)
        keys, values = cache.update_and_fetch(*self.keys_values(x, start))
        mixed = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.dim**-0.5, mask=mask)
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def _split(self, x: mx.array, heads: int) -> mx.array:
        return x.reshape(*x.shape[:2], heads, self.dim).transpose(0, 2, 1, 3)

    def _rotated(self, x: mx.array, start: int) -> mx.array:
        return mx.fast.rope(x, self.dim, traditional=False, base=self.theta, scale=1.0, offset=start)


class MLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """A pre-norm decoder layer whose keys and values begin with the target's features."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def __call__(self, x: mx.array, cache: Any, mask: mx.array | str | None) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), cache, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """Fusion, draft layers and final norm; embedding table and LM head are the target's."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DraftLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def observe(self, context: Context, features: mx.array) -> None:
        """Write the context keys and values of features (1, T, m·d)."""
        fused = self.hidden_norm(self.fc(features.astype(self.norm.weight.dtype)))
        start = context.length
        for layer, cache in zip(self.layers, context.layers, strict=True):
            cache.update_and_fetch(*layer.self_attn.keys_values(fused, start))

    def block(
        self,
        context: Context,
        x: mx.array,
        sights: tuple[Sight, ...],
        after: Callable[[int, mx.array], mx.array] | None = None,
    ) -> mx.array:
        """Run all layers over one block: embeddings (1, rows, d) → (1, rows, d) before the final norm.

        Args:
            after: what is done to the state behind each layer, (layer, state) → state.
        """
        length, rows = context.length, x.shape[1]
        masks = {sight: block_mask(sight, length, rows) for sight in set(sights)}
        x = x.astype(self.norm.weight.dtype)
        for index, (layer, cache) in enumerate(zip(self.layers, context.layers, strict=True)):
            x = layer(x, cache, masks[sights[index]])
            x = x if after is None else after(index, x)
        context.forget(rows)
        return x
