"""The parallel backbone: target features become keys and values of every draft layer; one pass fills a block.

One rule: context keys and values are projected once per token and kept; a block's own are written behind them and
forgotten. Source: DSpine (arXiv 2609.36173), parallel backbone (shared with DFlash, arXiv 2602.06036).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dspine.drafter.packed import PackedContext, PackedRotary, packed_layer
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.layer import Attend, Rotary, layer_packable
from dspine.kernels.packed import pack
from dspine.kernels.reference import rms_norm
from dspine.stages import stage


class Sizes(Protocol):
    """What a backbone is built from; `BackboneConfig` has it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def feature_size(self) -> int: ...


class RMSNorm(nn.Module):
    """RMS normalisation with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotary embedding, half rotation: (B, heads, T, D)."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """The angles of positions, over the whole head dimension."""

    inverse_frequencies: Tensor

    def __init__(self, dim: int, theta: float) -> None:
        super().__init__()
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        self.register_buffer("inverse_frequencies", (theta**-exponents).float(), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        """cos and sin (B, 1, T, D) for positions (B, T); angles in float32 at least."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angles = positions[..., None].to(wide) * self.inverse_frequencies.to(wide)
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Projections of a draft layer's attention; where keys and values are kept is the caller's business.

    Args:
        config: sizes.
        inputs: width of what is projected; None = d.
        qk_norm: whether queries and keys are normalised.
    """

    def __init__(self, config: Sizes, inputs: int | None = None, *, qk_norm: bool = True) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        inputs = width if inputs is None else inputs
        self.heads, self.groups, self.dim = config.num_attention_heads, config.num_key_value_heads, dim
        self.q_proj = nn.Linear(inputs, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.groups * dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.groups * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, width, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(dim, config.rms_norm_eps) if qk_norm else nn.Identity()

    def queries(self, x: Tensor, rotary: Rotary) -> Tensor:
        """(B, T, d) → (B, H, T, D)."""
        return rotate(self.q_norm(self._split(self.q_proj(x), self.heads)), rotary)

    def keys_values(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """(B, T, d) → keys and values (B, G, T, D); the same projections serve context and block."""
        keys = rotate(self.k_norm(self._split(self.k_proj(x), self.groups)), rotary)
        return keys, self._split(self.v_proj(x), self.groups)

    def output(self, mixed: Tensor) -> Tensor:
        """(B, H, T, D) → (B, T, d)."""
        batch, heads, width, dim = mixed.shape
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, width, heads * dim))
        return projected

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.dim).transpose(1, 2)


class MLP(nn.Module):
    """Gated feed-forward: W_down(SiLU(W_gate x) ⊙ W_up x)."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """A pre-norm decoder layer whose keys and values begin with the target's features."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, layer: int, x: Tensor, rotary: Rotary, attend: Attend, normed: Tensor | None = None) -> Tensor:
        """x (B, W, d) → (B, W, d); `normed`: x behind this layer's input norm, where that was made already."""
        normed = self.input_layernorm(x) if normed is None else normed
        keys, values = self.self_attn.keys_values(normed, rotary)
        mixed = attend(layer, self.self_attn.queries(normed, rotary), keys, values)
        x = x + self.self_attn.output(mixed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Fusion, draft layers and final norm; embedding table and LM head are the target's.

    recompute: whether training keeps a layer's input alone and runs the layer again for its gradient: less memory for
        a quarter more time.

    Args:
        config: sizes.
        layer: makes a draft layer of the names and the forward of `DraftLayer`.
    """

    def __init__(self, config: Sizes, layer: Callable[[Sizes], nn.Module] = DraftLayer) -> None:
        super().__init__()
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary: nn.Module = RotaryEmbedding(config.head_dim, config.rope_theta)
        self.recompute = False
        self._packed_context: PackedContext | None = None

    def pack(self) -> None:
        """Arrange frozen weights for the processor's matrix kernels, where it has some."""
        layers = list(self.layers)
        if all(type(layer) is DraftLayer and layer_packable(layer) for layer in layers):
            self._packed_context = PackedContext(layers)
            self.layers = nn.ModuleList(packed_layer(layer) for layer in layers)
            self.rotary = PackedRotary(self.rotary)
        pack(self)

    def fuse(self, features: Tensor) -> Tensor:
        """Concatenated taps (B, T, m·d) → context states (B, T, d), shared by all layers."""
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (B, G, T, D) of each layer for features (B, T, m·d) at positions (B, T)."""
        fused = self.fuse(features)
        rotary = self.rotary(positions, fused.dtype)
        if self._packed_context is not None:
            return self._packed_context.sides(fused, rotary)
        return [cast(DraftLayer, layer).self_attn.keys_values(fused, rotary) for layer in self.layers]

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """All layers and the final norm, with nothing between them: x (B, W, d) at positions (B, W) → (B, W, d)."""
        rotary = self.rotary(positions, x.dtype)
        with stage("draft/backbone"):
            for index in range(len(self.layers)):
                x = self.layer(index, x, rotary, attend)
            out: Tensor = self.norm(x)
        return out

    def layer(self, index: int, x: Tensor, rotary: Rotary, attend: Attend, normed: Tensor | None = None) -> Tensor:
        """One layer: x (B, W, d) → (B, W, d); `normed` see `DraftLayer`."""
        if self.recompute and torch.is_grad_enabled():
            out: Tensor = checkpoint(self.layers[index], index, x, rotary, attend, use_reentrant=False)
        else:
            known = () if normed is None else (normed,)
            out = self.layers[index](index, x, rotary, attend, *known)
        return out

    def new_cache(self, rows: int) -> RowCache:
        """An empty context cache for `rows` rows."""
        weight = self.norm.weight
        return RowCache(len(self.layers), rows, dtype=weight.dtype, device=weight.device)

    def take_in(self, cache: RowCache, span: Span | DeviceSpan, features: Tensor) -> None:
        """Write the context keys and values of features (B, T, m·d) where `span` says; nothing is committed."""
        cache.open(span)
        positions = span.positions(features.device)
        for layer, (keys, values) in enumerate(self.context(features.to(self.norm.weight.dtype), positions)):
            cache.write(layer, keys, values)
