"""The transition cache: the scores of every candidate after every candidate, and the walk through them.

One rule: all scores are made in one parallel pass; choosing is lookup alone. Any drafter whose score at a place depends
on the token before it, and on no other, can be tabulated so. Source: DSpine (arXiv 2609.36173), transition cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspine.drafter.proposal import Proposal
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.law import Law


def predecessors(anchors: Tensor, candidates: Tensor) -> Tensor:
    """What may stand before each place, (B, M, K) token ids: the candidates before it; the anchor, K times, at first.

    Args:
        anchors: (B,). candidates: V_t (B, M, K).
    """
    known = anchors[:, None, None].expand(-1, 1, candidates.shape[2])
    return torch.cat((known, candidates[:, :-1]), dim=1)


def transition_scores(refined: Tensor, head: Tensor, candidates: Tensor) -> Tensor:
    """T (B, M, K, K): the score of candidate j after predecessor i.

    Args:
        refined: (B, M, K, d) final-normed states, one a predecessor.
        head: the target's LM head (V, d).
        candidates: V_t (B, M, K) token ids.
    """
    rows = head[candidates].to(refined.dtype)  # (B, M, K, d)
    return refined @ rows.transpose(2, 3)


def walked(
    scores: Tensor, candidates: Tensor, law: Law, uniforms: Tensor | None, kernels: Kernels = REFERENCE
) -> Proposal:
    """The proposal of a walk through scores (B, M, K, K), [t, i, j] of candidate j after predecessor i."""
    chosen, probs = kernels.walk(scores, law, uniforms)
    tokens = candidates.gather(2, chosen.unsqueeze(2)).squeeze(2)
    return Proposal(tokens=tokens, support=None if probs is None else candidates, probs=probs)
