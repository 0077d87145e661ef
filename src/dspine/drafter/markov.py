"""DSpark's heads: a bias on the scores by the token before, and an estimate of acceptance.

One rule: a place's bias and confidence look at the tokens before it, never at the one drawn there.
Source: DSpark (arXiv 2607.05147) and DeepSpec, with e = W_1[x_{k-1}] and H_k the backbone's row of place k:

    vanilla  W_2 e
    gated    W_2 (σ(W_g [H_k ; e] + b_g) ⊙ e)
    rnn      (g, c, o) = W_j [state ; e ; H_k] + b_j:   W_2 tanh(o);   state ← σ(g) ⊙ state + (1 - σ(g)) ⊙ tanh(c)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

SPREAD = 0.02  # standard deviation of initial weights
Head = Literal["vanilla", "gated", "rnn"]


class MarkovHead(nn.Module):
    """Biases over the draft vocabulary.

    Args:
        kind: which of the three.
        vocab_size: V, tokens that may stand before a place.
        rows: V_d, tokens that may be proposed.
        width: d. rank: r.
    """

    def __init__(self, kind: Head, vocab_size: int, rows: int, width: int, rank: int) -> None:
        super().__init__()
        self.kind = kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=SPREAD)
        nn.init.normal_(self.markov_w2.weight, std=SPREAD)
        if kind == "gated":
            self.gate_proj = _linear(width + rank, rank)
        if kind == "rnn":
            self.joint_proj = _linear(2 * rank + width, 3 * rank)

    def step(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What W_2 turns into the bias of one place, and the state after it.

        Args:
            hidden: H_k (..., d). previous: token ids (...). state: (..., r); None at the first place.

        Returns:
            (..., r) each; only the rnn has a state.
        """
        e: Tensor = self.markov_w1(previous)
        if self.kind == "vanilla":
            return e, None
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat((hidden, e), dim=-1))) * e, None
        state = torch.zeros_like(e) if state is None else state
        gate, content, out = self.joint_proj(torch.cat((state, e, hidden), dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(content)

    def whole(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        """The same for all places with known predecessors: H (..., M, d), tokens (..., M) → (..., M, r)."""
        if self.kind != "rnn":
            return self.step(hidden, predecessors, None)[0]
        state, inner = None, []
        for place in range(predecessors.shape[-1]):
            vector, state = self.step(hidden[..., place, :], predecessors[..., place], state)
            inner.append(vector)
        return torch.stack(inner, dim=-2)


class ConfidenceHead(nn.Module):
    """ζ = w · x + b, whose sigmoid estimates the chance that a place is accepted if those before it are.

    temperatures: (M,) T_k of a calibration, see `chances`; None: there is none. No part of the weights.
    """

    temperatures: Tensor | None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = _linear(width, 1)
        self.register_buffer("temperatures", None, persistent=False)

    def chances(self, logits: Tensor) -> Tensor:
        """σ(ζ_k / T_k) of logits (..., M)."""
        return (logits if self.temperatures is None else logits / self.temperatures).sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) → logits (...), at least float32."""
        logits: Tensor = self.proj(x).squeeze(-1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _linear(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=SPREAD)
    nn.init.zeros_(layer.bias)
    return layer
