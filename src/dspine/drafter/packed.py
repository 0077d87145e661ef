"""A parallel backbone's layers over packed products, for decoding on a CPU.

One rule: what `DraftLayer` and `RotaryEmbedding` define, of the same signatures, with sums taken in another order; the
keys and values that the context has in all layers are one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dspine.kernels.layer import HeadNorm, Norm, PackedLayer, Rotary, signed, stacked, turned
from dspine.kernels.packed import PackedLinear


def packed_layer(layer: Any) -> PackedLayer:
    """A frozen `DraftLayer`, packed."""
    return PackedLayer(layer, norm_of, layer.self_attn.dim)


def norm_of(module: Any) -> Norm:
    """A drafter's norm, whose scale multiplies before the rounding."""
    return Norm(module.weight.detach(), float(module.eps), wide=True)


class PackedRotary(nn.Module):
    """The angles of positions as packed layers take them.

    Args:
        rotary: the definition, (positions (B, T), dtype) → cos and sin (B, 1, T, D).
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        cos, sin = self.rotary(positions, dtype)
        return signed(cos[:, 0], sin[:, 0])


class PackedContext(nn.Module):
    """Keys and values of the context in all layers at once.

    Args:
        layers: `DraftLayer`s that are not packed yet.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        attentions = [layer.self_attn for layer in layers]
        self.groups, self.dim = attentions[0].groups, attentions[0].dim
        self.keys = len(attentions) * self.groups
        self.product = PackedLinear(stacked([*(a.k_proj for a in attentions), *(a.v_proj for a in attentions)]))
        self.norm = HeadNorm.of([(norm_of(a.k_norm), self.groups) for a in attentions])

    def sides(self, fused: Tensor, rotary: Rotary) -> list[tuple[Tensor, Tensor]]:
        """Fused features (B, T, d) → keys and values (B, G, T, D) of each layer."""
        mixed = self.product(fused).view(*fused.shape[:2], 2 * self.keys, self.dim)
        keys, values = torch.split(mixed, self.keys, dim=2)
        keys = turned(self.norm(keys), rotary).to(fused.dtype)
        sides = (torch.split(side.transpose(1, 2), self.groups, dim=1) for side in (keys, values))
        return list(zip(*sides, strict=True))
