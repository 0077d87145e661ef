"""Adjacent causal injection in MLX: `drafter/injection.py`, where the formulas stand.

One rule: readouts are unit vectors in float32, whatever the weights are. What goes number by number between products is
compiled, so that a GPU starts few kernels. Source: DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

import math
from functools import partial

import mlx.core as mx
from mlx import nn

from dspine.drafter.config import DSpineConfig
from dspine.kernels.reference import TINY


@partial(mx.compile, shapeless=True)
def unit(x: mx.array) -> mx.array:
    """x/|x| over the last dimension, float32; a zero vector stays zero."""
    wide = x.astype(mx.float32)
    return wide * mx.rsqrt(mx.square(wide).sum(axis=-1, keepdims=True) + TINY)


@partial(mx.compile, shapeless=True)
def write_back(state: mx.array, written: mx.array) -> mx.array:
    """u + RMS(u) · w: (..., d), in the type of u."""
    wide = state.astype(mx.float32)
    rms = mx.sqrt(mx.square(wide).mean(axis=-1, keepdims=True) + TINY).astype(state.dtype)
    return state + rms * written


@partial(mx.compile, shapeless=True)
def gate(receiver: mx.array, sender: mx.array, bias: mx.array, message: mx.array) -> mx.array:
    """σ(G_q z_t + G_p z_{t-1} + b) ⊙ m, of its four parts: (..., a)."""
    return mx.sigmoid(receiver + sender + bias) * message


class Injection(nn.Module):
    """Readouts, gate, message and writes."""

    def __init__(self, config: DSpineConfig) -> None:
        super().__init__()
        width, rank, message = config.hidden_size, config.transfer_rank, config.message_size
        self.scale = math.sqrt(rank)
        self.gated = config.gated
        self.readouts = [nn.Linear(width, rank, bias=False) for _ in range(config.num_hidden_layers)]
        if not config.injected:
            return
        self.writes = [
            nn.Linear(message, width, bias=False) if layer in config.injected else nn.Identity()
            for layer in range(config.num_hidden_layers)
        ]
        self.message = nn.Linear(rank, message, bias=False)
        if config.gated:
            self.receiver_gate = nn.Linear(rank, message, bias=False)
            self.predecessor_gate = nn.Linear(rank, message, bias=False)
            self.bias = mx.zeros((message,))
        if config.reach > 1:
            self.farther = [nn.Linear(rank, message, bias=False) for _ in range(config.reach - 1)]

    def readout(self, layer: int, state: mx.array) -> mx.array:
        """normalize(R_l u): (..., d) → unit vectors (..., r)."""
        return unit(self.readouts[layer](state))

    def from_farther(self, senders: mx.array, kind: mx.Dtype) -> mx.array:
        """Σ_{j=2..w} A_j z_{t-j} for t = 1..M: unit vectors (M, r) of rows 0..M-1 → (M, a)."""
        heard = mx.array(0.0, dtype=kind)
        for distance, linear in enumerate(self.farther, start=1):
            said = linear((self.scale * senders[:-distance]).astype(kind))
            heard = heard + mx.pad(said, [(distance, 0), (0, 0)])
        return heard

    def deliver(
        self, layer: int, state: mx.array, receiver: mx.array, predecessor: mx.array, farther: mx.array | None
    ) -> mx.array:
        """h = u + RMS(u) · W_l (g ⊙ m); leading dimensions broadcast.

        Args:
            state: u (..., d). receiver: its readout (..., r). predecessor: the neighbour's, or a token's code (..., r).
            farther: what is heard from farther away (..., a), or None.
        """
        kind = state.dtype
        sender = (self.scale * predecessor).astype(kind)
        message = self.message(sender) if farther is None else self.message(sender) + farther
        if self.gated:
            asked = self.receiver_gate((self.scale * receiver).astype(kind))
            message = gate(asked, self.predecessor_gate(sender), self.bias, message)
        return write_back(state, self.writes[layer](message))
