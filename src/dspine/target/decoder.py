"""The decoder of Llama-like targets with few, fused calls: what a round on a CPU spends its time in.

One rule: the same function as transformers' own forward, whose modules and weights it borrows; only sums are taken
in another order. A layer of transformers makes about fifty small calls, which cost as much as its matrix products
when one row or a block of eight goes through; `PackedLayer` makes about twenty. Kinds: Llama, Mistral, Qwen2 (bias),
Qwen3 (norms of queries and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from dspine.kernels.kv import Span
from dspine.kernels.layer import Norm, PackedLayer, layer_packable, signed
from dspine.kernels.packed import packable
from dspine.kernels.rows_attention import RowsAttention
from dspine.target.anatomy import Anatomy
from dspine.target.cache import TargetCache

Masks = Callable[[str, Span], Tensor | None]


def fusible(parts: Anatomy) -> bool:
    """Whether a `FusedDecoder` can stand for this model's decoder here."""
    config = parts.config
    return (
        parts.known
        and packable(parts.embedding_rows)
        and getattr(config, "hidden_act", None) in ("silu", "swish")
        and all(layer_packable(layer) for layer in parts.layers)
    )


class FusedDecoder:
    """All layers of a target whose parts are `fusible`. Its linear layers are packed in place.

    Args:
        parts: of the model; transformers' own forward keeps working, with the packed layers.

    Attributes:
        heads: query heads, key/value heads, and numbers of a head.
    """

    def __init__(self, parts: Anatomy) -> None:
        decoder: Any = parts.decoder
        attentions: list[Any] = [layer.self_attn for layer in parts.layers]
        self._embedding = parts.embedding
        self._rotary = decoder.rotary_emb
        self._kinds = parts.kinds
        self._scales = [float(attention.scaling) for attention in attentions]
        self._layers = [
            PackedLayer(layer, _norm_of, int(attention.head_dim))
            for layer, attention in zip(parts.layers, attentions, strict=True)
        ]
        self._norm = _norm_of(decoder.norm)
        config = parts.config
        self.heads = (config.num_attention_heads, config.num_key_value_heads, self._layers[0].head_dim)

    def __call__(
        self, ids: Tensor, span: Span, cache: TargetCache, masks: Masks, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run new tokens through the layers.

        Args:
            ids: (B, T), or (1, N) of a ragged span.
            cache: opened for `span`.
            masks: what a kind of layer sees of a span, bool (B, 1, T, limit), True = visible; None: all.
            taps: layer ids.

        Returns:
            final-normed hidden states (B, T, d), and the outputs (B, T, d) of the tapped layers; (1, N, d) of a ragged
            span.
        """
        x = self._embedding(ids)
        rotary = signed(*cast(tuple[Tensor, Tensor], self._rotary(x, span.positions(x.device))))
        seen = {kind: masks(kind, span) for kind in dict.fromkeys(self._kinds)}
        added = {kind: None if mask is None else _additive(mask, x) for kind, mask in seen.items()}
        attention = RowsAttention(span, added, self.heads, x.device)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            kind, scale = self._kinds[layer], self._scales[layer]
            return attention(query, *cache.rows.write(layer, keys, values), kind, scale)

        rows, outputs = len(x), {}
        times = self._layers[0].copies(ids.numel())
        x = x.repeat(times, 1, 1) if times > 1 else x
        for index, layer in enumerate(self._layers):
            x = layer(index, x, rotary, attend, copies=times)
            if index in taps:
                outputs[index] = x[:rows]
        return self._norm(x[:rows]), outputs


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """0 where the mask (B, 1, T, S) is True, -inf elsewhere, in the type of `like`."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)


def _norm_of(module: Any) -> Norm:
    """A norm of transformers', whose scale multiplies in the model's type."""
    return Norm(module.weight.detach(), float(module.variance_epsilon))
