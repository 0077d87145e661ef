"""A pre-norm decoder layer over packed products, in few calls: the target's on a CPU and a draft layer's.

One rule: the same function as the layer that it is made from, whose weights it takes; only sums are taken in another
order. On a CPU a small call costs as much as a small product, so queries, keys and values are one product, heads are
normalised and turned together, and activation and residual are part of the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.kernels.packed import PackedLinear, linear_of, packable

Rotary = tuple[Tensor, Tensor]
# (layer, query (B, H, T, D), keys (B, G, T, D), values) → (B, H, T, D): stores the new keys and values behind the
# context's and attends. Decoding writes into a cache, training concatenates; the layer does not know.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Norm:
    """RMSNorm, its sum in float32.

    weight: (d). eps: added to the mean square.
    wide: whether the scale multiplies before the result is rounded to the input's type, as drafters define it; else
        behind, as transformers' models do.
    """

    weight: Tensor
    eps: float
    wide: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) → (..., d)."""
        if self.wide:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return F.rms_norm(x, x.shape[-1:], None, self.eps).mul_(self.weight)


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm of heads that have scales of their own, made together.

    weight: (heads, D). eps, wide: as in `Norm`; where it is wide, the result stays in float32 for the turning behind.
    """

    weight: Tensor
    eps: float
    wide: bool

    @classmethod
    def of(cls, norms: Sequence[tuple[Norm, int]]) -> HeadNorm:
        """From the norms of one head of several kinds, and how many heads there are of each."""
        weight = torch.cat([norm.weight.expand(heads, -1) for norm, heads in norms])
        first = norms[0][0]
        return cls(weight.float() if first.wide else weight, first.eps, first.wide)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, heads, D) → (B, T, heads, D)."""
        x = x.float() if self.wide else x
        return F.rms_norm(x, x.shape[-1:], None, self.eps).mul_(self.weight)


def signed(cos: Tensor, sin: Tensor) -> Rotary:
    """cos and sin (B, T, D) ready for (B, T, heads, D), the sign of the half turn put into the sine."""
    half = sin.shape[-1] // 2
    return cos.unsqueeze(2), torch.cat((-sin[..., :half], sin[..., half:]), dim=-1).unsqueeze(2)


def turned(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary positions, half rotation, applied to (B, T, heads, D) of the same type."""
    cos, sin = rotary
    half = x.shape[-1] // 2
    return torch.addcmul(x * cos, torch.cat((x[..., half:], x[..., :half]), dim=-1), sin)


class JoinedLinear(nn.Module):
    """One of several products that are made together: the columns from `first` on of what `whole` gives."""

    def __init__(self, whole: PackedLinear, first: int, size: int) -> None:
        super().__init__()
        self.whole, self.first, self.size = whole, first, size

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) → (..., size)."""
        out: Tensor = self.whole(x)
        return out[..., self.first : self.first + self.size]


def join(owner: nn.Module, names: tuple[str, ...]) -> PackedLinear:
    """Pack linear layers of one input as one, which takes their places: `names` of `owner` become its columns.

    All or none of them has a bias.
    """
    parts: list[nn.Linear] = [getattr(owner, name) for name in names]
    whole = PackedLinear(stacked(parts))
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(owner, name, JoinedLinear(whole, first, part.out_features))
        first += part.out_features
    return whole


def joinable(parts: Sequence[Any]) -> bool:
    """Whether `join` can take these layers: plain, packable, of one type, and all or none of them with a bias."""
    return (
        all(type(part) is nn.Linear and packable(part.weight) for part in parts)
        and len({part.bias is None for part in parts}) == 1
        and len({part.weight.dtype for part in parts}) == 1
    )


def layer_packable(layer: Any) -> bool:
    """Whether `PackedLayer` can take a layer: its linear layers are plain, nothing that wraps or adapts one."""
    attention, mlp = layer.self_attn, layer.mlp
    others = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return joinable((attention.q_proj, attention.k_proj, attention.v_proj)) and all(
        type(part) is nn.Linear and packable(part.weight) for part in others
    )


def stacked(parts: Sequence[nn.Linear]) -> nn.Linear:
    """Frozen linear layers of one input as one, their outputs end to end."""
    biases = [part.bias for part in parts if part.bias is not None]
    return linear_of(torch.cat(tuple(part.weight for part in parts)), torch.cat(tuple(biases)) if biases else None)


class PackedLayer(nn.Module):
    """A decoder layer whose linear layers are packed and joined.

    Args:
        layer: a layer of the usual names (`self_attn.q_proj` … `mlp.down_proj`, two norms), frozen and
            `layer_packable`; its linear layers are packed in place, and it goes on working. Its activation is SiLU.
        norm: reads one of the layer's norm modules.
        head_dim: D.
    """

    def __init__(self, layer: Any, norm: Callable[[Any], Norm], head_dim: int) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim = head_dim
        self.heads = attention.q_proj.out_features // head_dim
        self.groups = attention.k_proj.out_features // head_dim
        self.input_layernorm = norm(layer.input_layernorm)
        self.post_attention_layernorm = norm(layer.post_attention_layernorm)
        self.head_norm: HeadNorm | None = None
        if hasattr(attention, "q_norm"):
            self.head_norm = HeadNorm.of(((norm(attention.q_norm), self.heads), (norm(attention.k_norm), self.groups)))
        self.qkv = join(attention, ("q_proj", "k_proj", "v_proj"))
        for owner, name in ((attention, "o_proj"), (mlp, "gate_proj"), (mlp, "up_proj"), (mlp, "down_proj")):
            setattr(owner, name, PackedLinear(getattr(owner, name)))
        self.output: PackedLinear = attention.o_proj
        self.gate: PackedLinear = mlp.gate_proj
        self.up: PackedLinear = mlp.up_proj
        self.down: PackedLinear = mlp.down_proj

    def copies(self, rows: int) -> int:
        """How often so many rows are best multiplied at once, by the widest of the products."""
        return self.down.copies(rows)

    def forward(
        self,
        layer: int,
        x: Tensor,
        rotary: Rotary,
        attend: Attend,
        normed: Tensor | None = None,
        copies: int = 1,
    ) -> Tensor:
        """x (B, T, d) → (B, T, d).

        Args:
            layer: which layer, for `attend`.
            rotary: `signed` cos and sin.
            attend: stores keys and values and attends.
            normed: x behind this layer's input norm, where that was made already.
            copies: how often x holds its rows, all of them one time after the other (see `copies`): they are multiplied
                as they are, and attend once.
        """
        normed = self.input_layernorm(x) if normed is None else normed
        mixed = self.qkv(normed).view(*x.shape[:2], -1, self.head_dim)  # (B, T, H + 2G, D)
        mixed = mixed[: len(x) // copies]
        turning, values = torch.split(mixed, [self.heads + self.groups, self.groups], dim=2)
        if self.head_norm is not None:
            turning = self.head_norm(turning)
        turning = turned(turning, rotary).to(x.dtype).transpose(1, 2)
        query, keys = torch.split(turning, [self.heads, self.groups], dim=1)
        heard = attend(layer, query, keys, values.transpose(1, 2))
        heard = heard.transpose(1, 2).flatten(2)
        x = self.output.plus(heard.repeat(copies, 1, 1) if copies > 1 else heard, x)
        normed = self.post_attention_layernorm(x)
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)
