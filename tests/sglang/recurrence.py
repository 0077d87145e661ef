"""A gated delta net of a few small layers: inside SGLang, on its own pool and kernels, and from its definition.

One rule: `layer` and `drawn` hold what a model would give to SGLang (weights, and inputs for every position); `scratch`
computes outputs and states from these in float64, position by position from nothing, and knows no block.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from torch import Tensor

KEY_HEADS, VALUE_HEADS, WIDTH, KERNEL = 1, 2, 32, 4  # the kernels split a width in two, of 16 at least
KEYS, VALUES = KEY_HEADS * WIDTH, VALUE_HEADS * WIDTH
CHANNELS = 2 * KEYS + VALUES
LAYERS = (0, 2)  # of a model whose layer 1 attends


def parameters(dtype: torch.dtype) -> Mamba2CacheParams:
    """What a model's config would tell SGLang's pool; `dtype` of activations, states are float32."""
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=VALUES,
        n_groups=KEY_HEADS,
        num_heads=VALUE_HEADS,
        head_dim=WIDTH,
        state_size=WIDTH,
        conv_kernel=KERNEL,
    )
    return Mamba2CacheParams(
        shape=shape, layers=list(LAYERS), dtype=Mamba2StateDType(conv=dtype, temporal=torch.float32)
    )


@dataclass(frozen=True)
class Inputs:
    """Of one request and layer: mixed (T, channels) before the convolution, a and b (T, value heads)."""

    mixed: Tensor
    a: Tensor
    b: Tensor

    def __getitem__(self, span: slice) -> Inputs:
        return Inputs(self.mixed[span], self.a[span], self.b[span])


def drawn(tokens: int, generator: torch.Generator) -> Inputs:
    def draw(width: int) -> Tensor:
        return torch.randn(tokens, width, generator=generator)

    return Inputs(draw(CHANNELS), draw(VALUE_HEADS), draw(VALUE_HEADS))


def joined(first: Inputs, second: Inputs) -> Inputs:
    pairs = ((first.mixed, second.mixed), (first.a, second.a), (first.b, second.b))
    return Inputs(*(torch.cat(pair) for pair in pairs))


def layer(index: int, generator: torch.Generator) -> SimpleNamespace:
    """A layer by the names that SGLang's backend asks for."""
    return SimpleNamespace(
        layer_id=index,
        num_q_heads=KEY_HEADS,
        num_k_heads=KEY_HEADS,
        num_v_heads=VALUE_HEADS,
        head_q_dim=WIDTH,
        head_k_dim=WIDTH,
        head_v_dim=WIDTH,
        q_dim=KEYS,
        k_dim=KEYS,
        v_dim=VALUES,
        conv_weights=torch.randn(CHANNELS, KERNEL, generator=generator) / 2,
        bias=None,
        activation="silu",
        A_log=torch.rand(VALUE_HEADS, generator=generator).log(),
        dt_bias=torch.randn(VALUE_HEADS, generator=generator) - 3,  # a trained net forgets slowly
    )


def scratch(weights: SimpleNamespace, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs (T, value heads, width) and the state (value heads, width, width) after each position, in float64."""
    mixed, a, b = (part.double() for part in (inputs.mixed, inputs.a, inputs.b))
    padded = torch.cat((torch.zeros(KERNEL - 1, CHANNELS, dtype=torch.float64), mixed))
    windows = padded.unfold(0, KERNEL, 1)  # (T, channels, kernel)
    convolved = torch.nn.functional.silu((windows * weights.conv_weights.double()).sum(-1))
    query, key, value = convolved.split((KEYS, KEYS, VALUES), dim=-1)
    repeat = VALUE_HEADS // KEY_HEADS
    query, key = (_unit(x.view(-1, KEY_HEADS, WIDTH)).repeat_interleave(repeat, dim=1) for x in (query, key))
    value = value.view(-1, VALUE_HEADS, WIDTH)
    decay = torch.exp(-weights.A_log.double().exp() * torch.nn.functional.softplus(a + weights.dt_bias.double()))
    state = torch.zeros(VALUE_HEADS, WIDTH, WIDTH, dtype=torch.float64)
    outputs, states = [], []
    for t in range(len(mixed)):
        state = state * decay[t, :, None, None]
        missing = value[t] - torch.einsum("hvk,hk->hv", state, key[t])
        state = state + torch.einsum("hv,hk->hvk", torch.sigmoid(b[t])[:, None] * missing, key[t])
        outputs.append(torch.einsum("hvk,hk->hv", state, query[t]) * WIDTH**-0.5)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
