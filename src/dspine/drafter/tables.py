"""The target's two tables as a drafter borrows them: input embedding and LM head.

One rule: they stay the target's: never trained, never saved, no part of a drafter's state. A restricted draft
vocabulary limits what may be proposed; anchors and predecessors may be any token. Source: DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine.drafter.proposal import Proposal
from dspine.drafter.transitions import Transitions
from dspine.kernels.law import Law, draw, known, law_probs, likeliest
from dspine.kernels.packed import PackedLinear, linear_of, packable
from dspine.stages import stage


class TargetTables:
    """Embedding and head of a target.

    Args:
        embedding: token ids (...) → (..., d).
        head: LM head weight (V, d).
        draft_ids: (V_d) sorted ids that may be proposed; None = all of V.
    """

    def __init__(self, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None) -> None:
        self.embedding = embedding
        self.head = head.detach()
        self.draft_ids = draft_ids
        self._draft_head = self.head if draft_ids is None else self.head[draft_ids]
        self._packed: PackedLinear | None = None

    @property
    def size(self) -> int:
        """V_d, number of tokens that can be proposed."""
        return len(self._draft_head)

    def pack(self, dtype: torch.dtype) -> None:
        """Arrange the head for the processor's matrix kernels, where it has some."""
        rows = self._draft_head.to(dtype)
        if packable(rows):
            self._packed = PackedLinear(linear_of(rows))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the proposable tokens: (..., d) → (..., V_d)."""
        if self._packed is not None:
            scores: Tensor = self._packed(hidden)
            return scores
        return torch.nn.functional.linear(hidden, self._draft_head.to(hidden.dtype))

    def tokens(self, index: Tensor) -> Tensor:
        """Token ids of rows of the draft vocabulary."""
        return index if self.draft_ids is None else self.draft_ids[index]

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Scores and token ids (..., K) of the K = `count` likeliest by (..., d), likeliest first; fewer if V_d is."""
        scores = self.logits(hidden)
        best, index = scores.topk(min(count, self.size), dim=-1)
        return best, self.tokens(index)

    def choose(self, scores: Tensor, law: Law, uniforms: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Draw a token from each row of scores.

        Args:
            scores: (B, ..., V_d).
            uniforms: (B, ...) in [0, 1); may be None when every row is greedy.

        Returns:
            token ids (B, ...), and the very law that they were drawn from, float32 (B, ..., V_d); None when every row
            is greedy (one-hot).
        """
        if law.greedy:
            return self.tokens(likeliest(scores)), None
        if uniforms is None:
            raise ValueError("sampled rows need uniforms")
        probs = known(law_probs(scores, law))
        return self.tokens(draw(probs, uniforms)), probs

    def independent(self, hidden: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        """A token for each place by its own scores alone: hidden (B, M, d), final-normed."""
        with stage("draft/head"):
            scores = self.logits(hidden)  # (B, M, V_d)
        with stage("draft/walk"):
            return self.proposal(*self.choose(scores, law, uniforms))

    def transitions(self, hidden: Tensor, count: int) -> Transitions:
        """The `count` likeliest tokens of each place by its own scores alone: hidden (B, M, d), final-normed."""
        scores, candidates = self.top(hidden, count)
        return Transitions(candidates, scores.unsqueeze(2))

    def proposal(self, tokens: Tensor, probs: Tensor | None, confidence: Tensor | None = None) -> Proposal:
        """The proposal of tokens (B, M) drawn from laws (B, M, V_d) over the draft vocabulary."""
        support = None
        if probs is not None and self.draft_ids is not None:
            support = self.draft_ids.expand(*tokens.shape, -1)
        return Proposal(tokens=tokens, support=support, probs=probs, confidence=confidence)
