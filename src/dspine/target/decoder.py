"""The decoder of Llama-like targets with few, fused calls: what a round on a CPU spends its time in.

One rule: the same function as transformers' own forward, whose modules and weights it borrows; only sums are taken
in another order. A layer of transformers makes about fifty small calls, which cost as much as its matrix products
when one row or a block of eight goes through; here they are about twenty, activation and residual being part of the
products. Kinds: Llama, Mistral, Qwen2 (bias), Qwen3 (norms of queries and keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dspine.kernels.attention import fold_mask, grouped_attention
from dspine.kernels.packed import PackedLinear, pack, packable
from dspine.target.anatomy import Anatomy
from dspine.target.cache import TargetCache


def fusible(parts: Anatomy) -> bool:
    """Whether a `FusedDecoder` can stand for this model's decoder here."""
    config = parts.config
    return (
        parts.known
        and packable(parts.embedding_rows)
        and getattr(config, "hidden_act", None) in ("silu", "swish")
        and all(packable(weight) for layer in parts.layers for weight in layer.parameters() if weight.dim() == 2)
    )


@dataclass(frozen=True)
class Norm:
    """RMSNorm as these models define it: the sum in float32, the scale in the weights' type."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> Norm:
        return cls(module.weight.detach(), float(module.variance_epsilon))

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) → (..., d)."""
        wide = x.float()
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self.weight)


@dataclass(frozen=True)
class Layer:
    """One decoder layer, taken apart."""

    kind: str
    head_dim: int
    scale: float
    before_attention: Norm
    query: PackedLinear
    key: PackedLinear
    value: PackedLinear
    query_norm: Norm | None
    key_norm: Norm | None
    output: PackedLinear
    before_mlp: Norm
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: Any, kind: str) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        normed = hasattr(attention, "q_norm")
        return cls(
            kind=kind,
            head_dim=int(attention.head_dim),
            scale=float(attention.scaling),
            before_attention=Norm.of(layer.input_layernorm),
            query=attention.q_proj,
            key=attention.k_proj,
            value=attention.v_proj,
            query_norm=Norm.of(attention.q_norm) if normed else None,
            key_norm=Norm.of(attention.k_norm) if normed else None,
            output=attention.o_proj,
            before_mlp=Norm.of(layer.post_attention_layernorm),
            gate=mlp.gate_proj,
            up=mlp.up_proj,
            down=mlp.down_proj,
        )

    def __call__(
        self, index: int, x: Tensor, rotary: tuple[Tensor, Tensor], cache: TargetCache, mask: Tensor | None
    ) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        normed = self.before_attention(x)
        heads = (*x.shape[:2], -1, self.head_dim)
        query, key = self.query(normed).view(heads), self.key(normed).view(heads)  # (B, T, heads, D)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = _rotated(query, rotary).transpose(1, 2), _rotated(key, rotary).transpose(1, 2)
        keys, values = cache.rows.write(index, key, self.value(normed).view(heads).transpose(1, 2))
        heard = grouped_attention(query, keys, values, mask, self.scale)
        x = self.output.plus(heard.transpose(1, 2).flatten(2), x)
        normed = self.before_mlp(x)
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)


class FusedDecoder:
    """All layers of a target whose parts are `fusible`. Its linear layers are packed in place.

    Args:
        parts: of the model; transformers' own forward keeps working, with the packed layers.

    Attributes:
        heads: query heads, key/value heads, and numbers of a head.
    """

    def __init__(self, parts: Anatomy) -> None:
        decoder: Any = parts.decoder
        pack(parts.layers)
        self._embedding = parts.embedding
        self._rotary = decoder.rotary_emb
        self._layers = [Layer.of(layer, kind) for layer, kind in zip(parts.layers, parts.kinds, strict=True)]
        self._norm = Norm.of(decoder.norm)
        config = parts.config
        self.heads = (config.num_attention_heads, config.num_key_value_heads, self._layers[0].head_dim)
        self._share = config.num_attention_heads // config.num_key_value_heads

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: TargetCache,
        masks: Mapping[str, Tensor | None],
        taps: Sequence[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run new tokens through the layers.

        Args:
            ids, positions: (B, T).
            cache: opened for the span of these tokens.
            masks: for each kind of layer, bool (B or 1, 1, T, limit), True = visible, or None: everything is.
            taps: layer ids.

        Returns:
            final-normed hidden states (B, T, d), and the outputs (B, T, d) of the tapped layers.
        """
        x = self._embedding(ids)
        rotary = _signed(*cast(tuple[Tensor, Tensor], self._rotary(x, positions)))
        # Folded and made additive once for all layers, instead of in each.
        folded = {
            kind: None if mask is None else _additive(fold_mask(mask, self._share), x) for kind, mask in masks.items()
        }
        outputs = {}
        for index, layer in enumerate(self._layers):
            x = layer(index, x, rotary, cache, folded[layer.kind])
            if index in taps:
                outputs[index] = x
        return self._norm(x), outputs


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """0 where the mask (B or 1, 1, T, S) is True, -inf elsewhere, in the type of `like`."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)


def _signed(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin (B, T, D) ready for (B, T, heads, D), the sign of the half turn put into the sine."""
    half = sin.shape[-1] // 2
    return cos.unsqueeze(2), torch.cat((-sin[..., :half], sin[..., half:]), dim=-1).unsqueeze(2)


def _rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions applied to (B, T, heads, D)."""
    cos, sin = rotary
    half = x.shape[-1] // 2
    return torch.addcmul(x * cos, torch.cat((x[..., half:], x[..., :half]), dim=-1), sin)
