"""Adjacent causal injection: after every draft layer each place hears its neighbour's present prediction.

One rule: all messages of a layer come from states before that layer's injection, so nothing is sequential inside a
layer; depth carries conditioning along the block. Source: DSpine (arXiv 2609.36173):

    z_{l,t} = √r · normalize(R_l u_{l,t})         a state;     √r · C_x   a token
    g_{l,t} = σ(G_q z_{l,t} + G_p z_{l,t-1} + b),   m_{l,t} = A z_{l,t-1}
    h_{l,t} = u_{l,t} + RMS(u_{l,t}) · W_l (g_{l,t} ⊙ m_{l,t})          t = 1..M

G_q, G_p, A, b are shared by all layers; R_l and W_l are a layer's own. W_l = 0, G_p = 0 and b = 0 at the start, so
that an untrained injection changes no bit.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from dspine.kernels.reference import gated_message, unit_normalise, write_back


class Injection(nn.Module):
    """Readouts, gate, message and writes.

    Args:
        layers: draft layers L.
        width: hidden size d.
        rank: transfer rank r.
        message: message size a.
        directions: P_rᵀ (r, d), where every readout starts.
    """

    def __init__(self, layers: int, width: int, rank: int, message: int, directions: Tensor) -> None:
        super().__init__()
        self.scale = math.sqrt(rank)
        self.readouts = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.writes = nn.ModuleList(nn.Linear(message, width, bias=False) for _ in range(layers))
        self.message = nn.Linear(rank, message, bias=False)
        self.receiver_gate = nn.Linear(rank, message, bias=False)
        self.predecessor_gate = nn.Linear(rank, message, bias=False)
        self.bias = nn.Parameter(torch.zeros(message))
        with torch.no_grad():
            for layer in range(layers):
                self._linear(self.readouts, layer).weight.copy_(directions)
                self._linear(self.writes, layer).weight.zero_()
            self.predecessor_gate.weight.zero_()

    def readout(self, layer: int, state: Tensor) -> Tensor:
        """normalize(R_l u): (..., d) → unit vectors (..., r), at least float32."""
        return unit_normalise(self.readouts[layer](state))

    def deliver(self, layer: int, state: Tensor, receiver: Tensor, predecessor: Tensor) -> Tensor:
        """h = u + RMS(u) · W_l (g ⊙ m).

        Args:
            layer: l, from 0.
            state: u (..., d).
            receiver: unit vectors (..., r), the readout of `state`.
            predecessor: unit vectors (..., r): the neighbour's readout, or a token's code.

        Returns:
            (..., d); leading dimensions broadcast.
        """
        kind = state.dtype
        gated = gated_message(
            (self.scale * receiver).to(kind),
            (self.scale * predecessor).to(kind),
            self.receiver_gate.weight,
            self.predecessor_gate.weight,
            self.message.weight,
            self.bias,
        )
        return write_back(state, gated, self._linear(self.writes, layer).weight)

    @staticmethod
    def _linear(modules: nn.ModuleList, layer: int) -> nn.Linear:
        return cast(nn.Linear, modules[layer])
