"""Grouped dynamic causal convolutions around the sublayers of a draft layer.

One rule: a row hears the rows just before it in its own block, through a kernel that its own state adjusts; the context
is not convolved, so that its keys and values are DFlash's. Source: DFlash2 (z-lab), as NeMo and speculators build it:

    conv_side(Z)_{t,c} = Σ_o (base[side,o,c] + δ[t,side,o,⌊c/g⌋]) · Z_{t-o,c},   δ = kernel_projection(Y),   Z_{<0} = 0
    Y = norm(X);   X += conv_1(Sublayer(conv_0(Y)))       for attention and for the MLP

The first tap starts as 1 and all else as 0: an untrained convolution changes no bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from dspine.drafter.backbone import MLP, Attention, RMSNorm, Sizes
from dspine.kernels.layer import Attend, Rotary

SIDES = 2  # before the sublayer, and behind it
BEFORE, BEHIND = range(SIDES)


class DynamicConvolution(nn.Module):
    """The two convolutions of a sublayer.

    Args:
        width: d. taps: κ, rows that a row hears, itself included. group: channels that share a δ; divides d.
    """

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        base = torch.zeros(SIDES, taps, width)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        # Without a draw: the layers around it start as they would without it.
        size = SIDES * taps * (width // group)
        self.kernel_projection = skip_init(nn.Linear, width, size, bias=False)  # type: ignore[no-untyped-call]
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, normed: Tensor) -> Tensor:
        """What the states Y (..., d) add to the base: δ (..., sides, κ, d/g)."""
        adjusted: Tensor = self.kernel_projection(normed)
        return adjusted.reshape(*normed.shape[:-1], SIDES, self.taps, -1)

    def forward(self, side: int, x: Tensor, kernels: Tensor) -> Tensor:
        """conv_side of blocks x (..., rows, d) with their kernels (..., rows, sides, κ, d/g)."""
        grouped = x.reshape(*x.shape[:-1], -1, self.group)  # (..., rows, d/g, g)
        base = self.base_kernel[side].view(self.taps, -1, self.group)
        out = torch.zeros_like(grouped)
        for tap in range(self.taps):
            earlier = F.pad(grouped, (0, 0, 0, 0, tap, 0))[..., : grouped.shape[-3], :, :]
            out = out + (base[tap] + kernels[..., side, tap, :, None]) * earlier
        return out.flatten(-2).to(x.dtype)


class ConvolvedLayer(nn.Module):
    """A `DraftLayer` whose attention and MLP are convolved on both sides.

    Args:
        config: sizes. rows: of a block. taps, group: see `DynamicConvolution`.
    """

    def __init__(self, config: Sizes, rows: int, taps: int, group: int) -> None:
        super().__init__()
        self.rows = rows
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)
        self.attention_conv = DynamicConvolution(config.hidden_size, taps, group)
        self.mlp_conv = DynamicConvolution(config.hidden_size, taps, group)

    def forward(self, layer: int, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """As `DraftLayer.forward`: x (B, W, d), W a multiple of the rows of a block."""
        normed = self._blocks(self.input_layernorm(x))
        kernels = self.attention_conv.kernels(normed)
        convolved = self.attention_conv(BEFORE, normed, kernels).view(x.shape)
        keys, values = self.self_attn.keys_values(convolved, rotary)
        mixed = self.self_attn.output(attend(layer, self.self_attn.queries(convolved, rotary), keys, values))
        x = x + self.attention_conv(BEHIND, self._blocks(mixed), kernels).view(x.shape)

        normed = self._blocks(self.post_attention_layernorm(x))
        kernels = self.mlp_conv.kernels(normed)
        fed = self.mlp(self.mlp_conv(BEFORE, normed, kernels))
        out: Tensor = x + self.mlp_conv(BEHIND, fed, kernels).view(x.shape)
        return out

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, self.rows, x.shape[-1])
