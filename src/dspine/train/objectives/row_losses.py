"""Losses of single rows over the draft vocabulary, for drafters whose head is trained with them.

One rule: at no time do more than `chunk` rows of vocabulary-sized numbers exist: a chunk's scores are made again for
its backward pass. Sources: DFlash (arXiv 2602.06036), Domino (arXiv 2605.29707), DSpark (arXiv 2607.05147). Labels
outside a restricted vocabulary must be left out by their weight; ℓ1 adds the target's mass outside.

Who learns from labels alone needs no law of the target. What a draw's chance of acceptance is, is then watched at a few
blocks: a law takes as large a product as the drafter's own scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dspine.train.blocks import Blocks, place_weights
from dspine.train.objectives.objective import count_places
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher

WATCHED = 8  # blocks one of which is watched


@dataclass(frozen=True)
class Rows:
    """The supervised rows of a micro-batch, R of them.

    index: (n, a, t - 1), each (R,). labels: (R,) token ids. weights: (R,) exp(-(t-1)/γ); `counted`, 0 where the label
    is outside the draft vocabulary.
    """

    index: tuple[Tensor, ...]
    labels: Tensor
    weights: Tensor
    counted: Tensor

    @classmethod
    def of(cls, blocks: Blocks, vocabulary: DraftVocabulary, gamma: float, dtype: torch.dtype) -> Rows:
        index = blocks.supervised.nonzero(as_tuple=True)
        labels = blocks.labels[index]
        weights = place_weights(blocks.supervised.shape[-1], gamma).to(labels.device, dtype)[index[2]]
        return cls(index, labels, weights, weights * vocabulary.contains(labels))

    def places(self, blocks: Blocks, likeliest: Tensor, overlap: Tensor, seen: Tensor | None = None) -> Tensor:
        """By place (4, M), see `Terms.places`; likeliest (R,) token ids; overlap, seen: see `count_places`."""
        return count_places(self.index[2], blocks.supervised.shape[-1], likeliest == self.labels, overlap, seen)

    def watched(self, blocks: Blocks) -> Tensor:
        """Which rows are watched, bool (R,): by their anchors' positions, however the window is split."""
        return blocks.anchors[self.index[0], self.index[1]] % WATCHED == 0

    def at(self, some: Tensor) -> Rows:
        """Some of the rows, bool (R,)."""
        return Rows(tuple(side[some] for side in self.index), self.labels[some], self.weights[some], self.counted[some])

    def teacher(self, blocks: Blocks, whole: Teacher) -> Teacher:
        """The target's law of each row: its states at the position before the label."""
        positions = blocks.anchors[self.index[0], self.index[1]] + self.index[2]
        return Teacher(whole.hidden[self.index[0], positions], whole.lse[self.index[0], positions])


@dataclass(frozen=True)
class Correction:
    """Trained scores on top of the frozen head's: vectors (R, r), head (V_d, r)."""

    vectors: Tensor
    head: Tensor

    def scores(self, part: slice, vocabulary: DraftVocabulary, dtype: torch.dtype) -> Tensor:
        kind = dtype if vocabulary.fast is None else vocabulary.fast.dtype
        return (self.vectors[part].to(kind) @ self.head.to(kind).T).to(dtype)


@dataclass(frozen=True)
class RowLosses:
    """Of each row, (R,): cross-entropy and ℓ1 of the corrected scores, cross-entropy of the frozen head's alone.

    candidates: (R, K) token ids of the best corrected scores; candidate_scores: (R, K). candidate_probs: (R, K) the
    target's probability of each; zeros without a teacher.
    """

    ce: Tensor
    base_ce: Tensor
    l1: Tensor
    candidate_scores: Tensor
    candidates: Tensor
    candidate_probs: Tensor


def row_losses(
    hidden: Tensor,
    vocabulary: DraftVocabulary,
    labels: Tensor,
    dtype: torch.dtype,
    *,
    chunk: int,
    correction: Correction | None = None,
    teacher: Teacher | None = None,
    candidates: int = 1,
) -> RowLosses:
    """Losses of R rows.

    Args:
        hidden: (R, d) final-normed draft rows. labels: (R,) token ids.
        dtype: of scores and losses, float32 at least.
        correction: None: the frozen head's scores are all.
        teacher: the target's states at the position before each label; None: ℓ1 is left at 0.
        candidates: K.
    """

    def of(part: slice) -> tuple[Tensor, ...]:
        row = vocabulary.index(labels[part])[:, None]
        scores = base = vocabulary.logits(hidden[part], dtype)  # (c, V_d)
        if correction is not None:
            scores = base + correction.scores(part, vocabulary, dtype)
        log_q = scores.log_softmax(-1)
        ce = -log_q.gather(1, row)[:, 0]
        base_ce = ce if correction is None else -base.log_softmax(-1).gather(1, row)[:, 0]
        best, index = scores.topk(candidates, dim=-1)
        l1, candidate_probs = torch.zeros_like(ce), torch.zeros_like(best)
        if teacher is not None:
            p = vocabulary.exact_logits(teacher.hidden[part], dtype).sub(teacher.lse[part, None].to(dtype)).exp()
            l1, candidate_probs = (log_q.exp() - p).abs().sum(-1), p.gather(1, index)
            if vocabulary.ids is not None:
                l1 = l1 + (1 - p.sum(-1)).clamp(min=0)
        return ce, base_ce, l1, best, vocabulary.tokens(index), candidate_probs

    with torch.autocast(hidden.device.type, enabled=False):  # which product is in which type is said in there
        return RowLosses(*by_chunks(of, len(hidden), chunk))


@torch.no_grad()
def watch(
    hidden: Tensor,
    vocabulary: DraftVocabulary,
    rows: Rows,
    blocks: Blocks,
    law: Teacher,
    *,
    chunk: int,
    correction: Correction | None = None,
    candidates: int = 1,
) -> tuple[RowLosses, Tensor]:
    """Losses of the watched rows against the target's law, and which rows these are, bool (R,).

    Args:
        law: of all positions, (N, S, d) and (N, S). The others are `row_losses`' own.
    """
    seen = rows.watched(blocks)
    few = rows.at(seen)
    found = row_losses(
        hidden[seen],
        vocabulary,
        few.labels,
        few.weights.dtype,
        chunk=chunk,
        correction=None if correction is None else Correction(correction.vectors[seen], correction.head),
        teacher=few.teacher(blocks, law),
        candidates=candidates,
    )
    return found, seen


def by_chunks(of: Callable[[slice], tuple[Tensor, ...]], rows: int, chunk: int) -> tuple[Tensor, ...]:
    """What of(part) says of the rows of each part, (c, ...) each, one behind the other: (R, ...) each."""
    parts = [slice(first, min(first + chunk, rows)) for first in range(0, max(rows, 1), chunk)]
    if torch.is_grad_enabled():
        pieces = [checkpoint(of, part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    else:
        pieces = [of(part) for part in parts]
    return tuple(torch.cat(side) for side in zip(*pieces, strict=True))
