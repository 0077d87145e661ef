"""The target's embedding and LM head as a drafter borrows them: `drafter/tables.py` over mlx-lm's modules.

One rule: they stay the target's, quantised where it is. Source: DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

import mlx.core as mx

from dspine.serve.mlx.law import Law, best, draw, law_probs
from dspine.serve.mlx.proposal import Proposal
from dspine.serve.mlx.rows import rows_of
from dspine.serve.mlx.target import MlxTarget


class Tables:
    """Embedding and head of a target.

    Args:
        draft_ids: (V_d,) sorted ids that may be proposed; None: the whole vocabulary.
    """

    def __init__(self, target: MlxTarget, draft_ids: mx.array | None) -> None:
        self._target = target
        self.draft_ids = draft_ids

    def embed(self, ids: mx.array) -> mx.array:
        """ids (...) → (..., d)."""
        return self._target.embedding(ids)

    def rows(self, ids: mx.array) -> mx.array:
        """Rows of the head: ids (...) → (..., d)."""
        return rows_of(self._target.head, ids)

    def logits(self, hidden: mx.array) -> mx.array:
        """Scores of the proposable tokens: (..., d) → (..., V_d)."""
        if self.draft_ids is None:
            return self._target.head_logits(hidden)
        return hidden @ self.rows(self.draft_ids).astype(hidden.dtype).T

    def tokens(self, index: mx.array) -> mx.array:
        """Token ids of rows of the draft vocabulary."""
        return (index if self.draft_ids is None else self.draft_ids[index]).astype(mx.int32)

    def top(self, hidden: mx.array, count: int) -> mx.array:
        """The `count` likeliest token ids by (..., d), likeliest first; fewer if there are fewer."""
        return self.tokens(best(self.logits(hidden), count))

    def independent(self, hidden: mx.array, law: Law, uniforms: mx.array | None) -> Proposal:
        """A token for each place by its own scores alone: hidden (M, d), final-normed."""
        scores = self.logits(hidden)  # (M, V_d)
        if law.greedy:
            return Proposal(self.tokens(mx.argmax(scores, axis=-1)))
        assert uniforms is not None
        probs = law_probs(scores, law)
        support = None if self.draft_ids is None else mx.broadcast_to(self.draft_ids, probs.shape)
        return Proposal(self.tokens(draw(probs, uniforms)), support, probs)
