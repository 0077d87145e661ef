"""Plain definitions of what decoding does around each draft layer and for its transition cache, as kernels see it.

One rule: the readouts come in as the readout matrix gave them; their normalisation and the factor √r belong to the
definition, and so do the residual and the norm behind a write, so that a fused version has them all in one pass.
Source: DSpine (arXiv 2609.36173), adjacent causal injection, last-write refinement, and the section on kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dspine.kernels.packed import packed_product
from dspine.kernels.reference import gated_message, rms, rms_norm, unit_normalise


@dataclass(frozen=True, eq=False)
class MessageWeights:
    """What all layers share: G_q, G_p and A, each (a, r); the bias b (a); and √r.

    joined, sender, receiver: several of the products as one, made once and kept: [G_q; G_p; A], [G_p; A] and G_q, the
    bias with G_q.
    """

    receiver_gate: Tensor
    predecessor_gate: Tensor
    message: Tensor
    bias: Tensor
    scale: float

    @cached_property
    def joined(self) -> nn.Module:
        weight = torch.cat((self.receiver_gate, self.predecessor_gate, self.message))
        return packed_product(weight, torch.cat((self.bias, torch.zeros_like(self.bias).repeat(2))))

    @cached_property
    def sender(self) -> nn.Module:
        return packed_product(torch.cat((self.predecessor_gate, self.message)))

    @cached_property
    def receiver(self) -> nn.Module:
        return packed_product(self.receiver_gate, self.bias)


def neighbour_message(said: Tensor, anchor: Tensor, weights: MessageWeights) -> Tensor:
    """g ⊙ m of places 1..M, each hearing what the place before it says; place 1 hears the anchor.

    Args:
        said: R_l u (B, M, r), not normalised.
        anchor: the anchors' unit codes (B, r).

    Returns:
        (B, M, a) in the type of `said`.
    """
    receiver = unit_normalise(said)
    predecessor = torch.cat((anchor.unsqueeze(1).to(receiver.dtype), receiver[:, :-1]), dim=1)
    return _message(receiver, predecessor, weights, said.dtype)


def candidate_message(said: Tensor, codes: Tensor, before: Tensor, weights: MessageWeights) -> Tensor:
    """g ⊙ m of places 1..M after each token that may stand before them.

    Args:
        said: R_L u (B, M, r), not normalised.
        codes: C (V, r), unit codes.
        before: token ids (B, M, K).

    Returns:
        (B, M, K, a) in the type of `said`.
    """
    receiver = unit_normalise(said)
    return _message(receiver.unsqueeze(2), codes[before].to(receiver.dtype), weights, said.dtype)


def write_and_norm(block: Tensor, written: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h = u + RMS(u) · W(g ⊙ m) in rows 1..M of a block, row 0 as it is; and RMSNorm(h), which the next layer reads.

    Args:
        block: u (B, M+1, d).
        written: W (g ⊙ m) (B, M, d).
        weight: scale of the norm (d). eps: of the norm.

    Returns:
        h and its norm, (B, M+1, d) each, in the type of the block.
    """
    state = block[:, 1:]
    heard = state + rms(state).to(state.dtype) * written
    out = torch.cat((block[:, :1], heard), dim=1)
    return out, rms_norm(out, weight, eps)


def refined_scores(
    last: Tensor, written: Tensor, weight: Tensor, eps: float, head: Tensor, candidates: Tensor
) -> Tensor:
    """T (B, M, K, K): [t, i, j] the score of candidate j once the last layer's write heard predecessor i.

    Args:
        last: u_L (B, M, d).
        written: W_L (g ⊙ m) (B, M, K, d), one a predecessor.
        weight: scale of the final norm (d). eps: of that norm.
        head: LM head (V, d).
        candidates: V_t (B, M, K) token ids.

    Returns:
        in the type of `last`.
    """
    state = last.unsqueeze(2)
    refined = rms_norm(state + rms(state).to(state.dtype) * written, weight, eps)
    return refined @ head[candidates].to(refined.dtype).transpose(2, 3)


def _message(receiver: Tensor, predecessor: Tensor, weights: MessageWeights, kind: torch.dtype) -> Tensor:
    return gated_message(
        (weights.scale * receiver).to(kind),
        (weights.scale * predecessor).to(kind),
        weights.receiver_gate,
        weights.predecessor_gate,
        weights.message,
        weights.bias,
    )
