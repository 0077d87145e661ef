"""The transition cache: the scores of every candidate after every candidate, and the walk through them.

One rule: all scores are made in one parallel pass; choosing is lookup alone. Any drafter whose score at a place depends
on the token before it, and on no other, can be tabulated so. Source: DSpine (arXiv 2609.36173), transition cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from dspine.drafter.proposal import Proposal
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import RowCache
from dspine.kernels.law import Law


@dataclass(frozen=True)
class Transitions:
    """What one parallel pass knows of a block: the candidates of every place, and their scores after each before them.

    candidates: V_t (B, M, K) token ids.
    scores: T (B, M, K, K), [t, i, j] of candidate j after predecessor i; at the first place all i are the anchor. Or
        (B, M, 1, K), where a drafter's scores do not depend on the token before.
    """

    candidates: Tensor
    scores: Tensor


@runtime_checkable
class Tabulating(Protocol):
    """A drafter that may be able to tell all of its transitions, so that a tree can be grown from them."""

    @property
    def tabulates(self) -> bool:
        """Whether it is: its score at a place depends on the token before it at most."""

    def transitions(self, cache: RowCache, first: int, anchors: Tensor) -> Transitions:
        """Draft one block a row, as `Drafter.propose` does, and choose nothing. Of a drafter that tabulates."""


def tabulating(drafter: object) -> TypeGuard[Tabulating]:
    """Whether a tree can be grown from what a drafter tells."""
    return isinstance(drafter, Tabulating) and drafter.tabulates


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
