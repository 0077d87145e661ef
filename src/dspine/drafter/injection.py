"""Adjacent causal injection: after every draft layer each place hears its neighbour's present prediction.

One rule: all messages of a layer come from states before that layer's injection, so nothing is sequential inside a
layer; depth carries conditioning along the block. Source: DSpine (arXiv 2609.36173):

    z_{l,t} = √r · normalize(R_l u_{l,t})         a state;     √r · C_x   a token
    g_{l,t} = σ(G_q z_{l,t} + G_p z_{l,t-1} + b),   m_{l,t} = A z_{l,t-1}
    h_{l,t} = u_{l,t} + RMS(u_{l,t}) · W_l (g_{l,t} ⊙ m_{l,t})          t = 1..M

G_q, G_p, A, b are shared by all layers; R_l and W_l are a layer's own. W_l = 0, G_p = 0 and b = 0 at the start, so
that an untrained injection changes no bit.

A reach of w > 1 adds Σ_{j=2..w} A_j z_{l,t-j} to the message, as far as t-j is a row of the block; A_j starts at 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from dspine.kernels.injection import MessageWeights
from dspine.kernels.packed import pack
from dspine.kernels.reference import gate, gated_message, unit_normalise, write_back


class Injection(nn.Module):
    """Readouts, gate, message and writes.

    Args:
        layers: draft layers L.
        width: hidden size d.
        rank: transfer rank r.
        message: message size a.
        directions: P_rᵀ (r, d), where every readout starts.
        injected: the layers that write, from 0; None: all. The others have a readout alone, for their supervision.
        gated: whether a gate weighs the message.
        reach: w.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        rank: int,
        message: int,
        directions: Tensor,
        *,
        injected: Collection[int] | None = None,
        gated: bool = True,
        reach: int = 1,
    ) -> None:
        super().__init__()
        writing = range(layers) if injected is None else injected
        self.scale = math.sqrt(rank)
        self.gated = gated
        self._message_weights: MessageWeights | None = None
        self.readouts = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        with torch.no_grad():
            for layer in range(layers):
                self._linear(self.readouts, layer).weight.copy_(directions)
        if not writing:
            return
        self.writes = nn.ModuleList(
            nn.Linear(message, width, bias=False) if layer in writing else nn.Identity() for layer in range(layers)
        )
        self.message = nn.Linear(rank, message, bias=False)
        if gated:
            self.receiver_gate = nn.Linear(rank, message, bias=False)
            self.predecessor_gate = nn.Linear(rank, message, bias=False)
            self.bias = nn.Parameter(torch.zeros(message))
            nn.init.zeros_(self.predecessor_gate.weight)
        if reach > 1:
            self.farther = nn.ModuleList(nn.Linear(rank, message, bias=False) for _ in range(reach - 1))
            for each in range(reach - 1):
                nn.init.zeros_(self._linear(self.farther, each).weight)
        for layer in writing:
            nn.init.zeros_(self._linear(self.writes, layer).weight)

    def pack(self) -> None:
        """Arrange frozen weights for the processor's matrix kernels, where it has some."""
        pack(self.readouts)
        if hasattr(self, "writes"):
            pack(self.writes, keep=True)
        if self.gated and hasattr(self, "message"):
            self._message_weights = self.message_weights()

    @property
    def packed(self) -> bool:
        """Whether what all layers share is packed, so that its products are made once."""
        return self._message_weights is not None

    def message_weights(self) -> MessageWeights:
        """What all layers share, where a gate weighs the message."""
        if self._message_weights is not None:
            return self._message_weights
        return MessageWeights(
            self.receiver_gate.weight, self.predecessor_gate.weight, self.message.weight, self.bias, self.scale
        )

    def readout(self, layer: int, state: Tensor) -> Tensor:
        """normalize(R_l u): (..., d) → unit vectors (..., r), at least float32."""
        return unit_normalise(self.readouts[layer](state))

    def from_farther(self, senders: Tensor) -> Tensor:
        """Σ_{j=2..w} A_j z_{t-j} for t = 1..M, where w > 1.

        Args:
            senders: unit vectors (..., M, r): what rows 0..M-1 say.

        Returns:
            (..., M, a), in the type of the weights.
        """
        heard = []
        for distance in range(1, len(self.farther) + 1):
            matrix = self._linear(self.farther, distance - 1).weight
            said = (self.scale * senders[..., :-distance, :]).to(matrix.dtype)  # (..., M - distance, r)
            heard.append(nn.functional.pad(nn.functional.linear(said, matrix), (0, 0, distance, 0)))
        return torch.stack(heard).sum(0)

    def deliver(
        self, layer: int, state: Tensor, receiver: Tensor, predecessor: Tensor, farther: Tensor | None = None
    ) -> Tensor:
        """h = u + RMS(u) · W_l (g ⊙ m).

        Args:
            layer: l, from 0.
            state: u (..., d).
            receiver: unit vectors (..., r), the readout of `state`.
            predecessor: unit vectors (..., r): the neighbour's readout, or a token's code.
            farther: what is heard from farther away (..., a); None where w = 1.

        Returns:
            (..., d); leading dimensions broadcast.
        """
        kind = state.dtype
        sender = (self.scale * predecessor).to(kind)
        if self.gated:
            message = gated_message(
                (self.scale * receiver).to(kind),
                sender,
                self.receiver_gate.weight,
                self.predecessor_gate.weight,
                self.message.weight,
                self.bias,
                farther,
            )
        else:
            message = self.message(sender) if farther is None else self.message(sender) + farther
        return write_back(state, message, self._linear(self.writes, layer).weight)

    def openness(self, receiver: Tensor, predecessor: Tensor) -> Tensor:
        """g of a gated injection, for those who look inside: unit vectors (..., r) of both → (..., a) in [0, 1]."""
        kind = self.bias.dtype
        return gate(
            (self.scale * receiver).to(kind),
            (self.scale * predecessor).to(kind),
            self.receiver_gate.weight,
            self.predecessor_gate.weight,
            self.bias,
        )

    @staticmethod
    def _linear(modules: nn.ModuleList, layer: int) -> nn.Linear:
        return cast(nn.Linear, modules[layer])
