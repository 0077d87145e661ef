"""Plain torch definitions of the arithmetic that a round repeats.

One rule: these are the definition. A fused kernel may stand beside one of them, with its signature and a test that
holds it to it (`kernels/fused/`). Source: DSpine (arXiv 2609.36173), adjacent causal injection and transition cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspine.kernels.law import Law, draw, known, law_probs

TINY = 1e-12  # added under a root, so that a zero vector has a finite value and a finite gradient


def wide(x: Tensor) -> Tensor:
    """At least float32: sums of squares, probabilities and codes are never taken in half precision."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms(x: Tensor) -> Tensor:
    """Root mean square over the last dimension: (..., d) → (..., 1), at least float32."""
    return wide(x).pow(2).mean(dim=-1, keepdim=True).add(TINY).sqrt()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm with scale: (..., d) → (..., d) in the type of x."""
    x32 = wide(x)
    return (x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + eps) * weight).to(x.dtype)


def unit_normalise(x: Tensor) -> Tensor:
    """x/|x| over the last dimension, at least float32; a zero vector stays zero."""
    x32 = wide(x)
    return x32 * torch.rsqrt(x32.pow(2).sum(dim=-1, keepdim=True) + TINY)


def gated_message(
    receiver: Tensor,
    predecessor: Tensor,
    receiver_gate: Tensor,
    predecessor_gate: Tensor,
    message: Tensor,
    bias: Tensor,
    farther: Tensor | None = None,
) -> Tensor:
    """g ⊙ m with g = σ(G_q z_t + G_p z_{t-1} + b) and m = A z_{t-1} + what is heard from farther away.

    Args:
        receiver: z_t, broadcastable to (..., r).
        predecessor: z_{t-1} (..., r), a state's or a token's.
        receiver_gate, predecessor_gate, message: G_q, G_p, A, each (a, r).
        bias: b (a).
        farther: messages of places before the predecessor, broadcastable to (..., a); None: there are none.

    Returns:
        (..., a).
    """
    heard = torch.nn.functional.linear(predecessor, message)
    opened = gate(receiver, predecessor, receiver_gate, predecessor_gate, bias)
    return opened * (heard if farther is None else heard + farther)


def gate(
    receiver: Tensor, predecessor: Tensor, receiver_gate: Tensor, predecessor_gate: Tensor, bias: Tensor
) -> Tensor:
    """g = σ(G_q z_t + G_p z_{t-1} + b), as in `gated_message`: (..., a)."""
    linear = torch.nn.functional.linear
    return torch.sigmoid(linear(receiver, receiver_gate, bias) + linear(predecessor, predecessor_gate))


def write_back(state: Tensor, message: Tensor, write: Tensor) -> Tensor:
    """h = u + RMS(u) · W (g ⊙ m).

    Args:
        state: u (..., d), broadcastable against the message's leading dimensions.
        message: (..., a).
        write: W (d, a).

    Returns:
        (..., d).
    """
    return state + rms(state).to(state.dtype) * torch.nn.functional.linear(message, write)


def walk(scores: Tensor, law: Law, uniforms: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Choose one candidate a place, left to right, by lookup in the transition cache alone.

    Args:
        scores: T (B, M, K, K): score at place t of candidate j after predecessor i; at place 1 every i is the anchor.
        law: sampling parameters of the B rows; they act on each row of K scores.
        uniforms: (B, M) in [0, 1); may be None when every row is greedy.

    Returns:
        chosen (B, M) indices into the candidates; the laws they were drawn from, float32 (B, M, K), or None
        when every row is greedy (one-hot).
    """
    batch, places, _, _ = scores.shape
    if law.greedy:
        rows = torch.arange(batch, device=scores.device)
        index = torch.zeros_like(rows)
        chosen = []
        best = scores.argmax(dim=-1)  # (B, M, K): the successor of every predecessor
        for t in range(places):
            index = best[rows, t, index]
            chosen.append(index)
        return torch.stack(chosen, dim=1), None
    if uniforms is None:
        raise ValueError("a sampled walk needs uniforms (B, M)")
    return follow(law_probs(scores, law), uniforms)  # all rows at once, so that the walk is lookup only


def follow(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one candidate a place, left to right, from the law that its predecessor's row holds.

    Nothing in it waits for the device, so that it can be captured in a graph.

    Args:
        probs: float32 (B, M, K, K), the law at place t after predecessor i; one-hot where the draft is greedy; made
            uniform, in place, where it is no number.
        uniforms: (B, M) in [0, 1).

    Returns:
        chosen (B, M) indices into the candidates; the laws they were drawn from, float32 (B, M, K).
    """
    probs = known(probs)
    rows = torch.arange(len(probs), device=probs.device)
    index = torch.zeros_like(rows)
    chosen, laws = [], []
    for t in range(probs.shape[1]):
        row = probs[rows, t, index]
        index = draw(row, uniforms[:, t])
        laws.append(row)
        chosen.append(index)
    return torch.stack(chosen, dim=1), torch.stack(laws, dim=1)
