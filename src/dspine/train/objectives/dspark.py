"""The objective of DSpark: cross-entropy and ℓ1 against the target's law, and a confidence that learns acceptance.

One rule: the confidence's goal is what verification will do: the chance that a draw from q_k is accepted against p_k.
Source: DSpark (arXiv 2607.05147) and DeepSpec, each a mean weighted by exp(-(t-1)/γ), γ = 4:

    L = 0.1 · CE + 0.9 · |q - p|_1 + BCE(ζ, clamp(1 - |q - p|_1 / 2, 0, 1)),   the goal of ζ detached

The ℓ1 is the whole one, between 0 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.drafter.dspark import MarkovSelection
from dspine.drafter.parallel import ParallelDrafter
from dspine.train.blocks import Blocks
from dspine.train.objectives.confidence import confidence_loss, overlap_of
from dspine.train.objectives.objective import Moment, Terms, normalise
from dspine.train.objectives.row_losses import Correction, Rows, row_losses
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher
from dspine.train.sequences import SequenceBatch


@dataclass(frozen=True)
class DSparkWeights:
    """Weights of the three terms; gamma: of the decay. chunk: rows of scores at once."""

    ce_weight: float = 0.1
    l1_weight: float = 0.9
    confidence_weight: float = 1.0
    gamma: float = 4.0
    chunk: int = 1024


class DSparkObjective:
    """See the module."""

    names = ("ce", "l1", "confidence")

    def __init__(
        self, drafter: ParallelDrafter[MarkovSelection], weights: DSparkWeights, *, precision: torch.dtype
    ) -> None:
        self.drafter = drafter
        self.weights = weights
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        states = self.drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
        vectors = self.drafter.selection.correction(states, blocks.predecessors)
        logits = self.drafter.selection.confidence_logits(states, blocks.predecessors)
        dtype = torch.promote_types(states.dtype, torch.float32)
        rows = Rows.of(blocks, self.vocabulary, self.weights.gamma, dtype)
        found = row_losses(
            states[rows.index],
            self.vocabulary,
            rows.labels,
            dtype,
            chunk=self.weights.chunk,
            correction=Correction(vectors[rows.index], self.drafter.selection.correction_head),
            teacher=rows.teacher(blocks, Teacher(batch.hidden, batch.lse)),
        )
        confidence = torch.zeros_like(found.l1)
        if logits is not None:
            confidence = confidence_loss(logits[rows.index], overlap_of(found.l1))
        sums = (rows.counted * found.ce, rows.weights * found.l1, rows.weights * confidence)
        counts = (rows.counted, rows.weights, rows.weights)
        places = rows.places(blocks, found.candidates[:, 0], overlap_of(found.l1.detach()))
        return Terms(torch.stack([s.sum() for s in sums]), torch.stack([c.sum() for c in counts]), places)

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        ce, l1, confidence = normalise(part.sums, window.denominators)
        weights = self.weights
        loss: Tensor = weights.ce_weight * ce + weights.l1_weight * l1 + weights.confidence_weight * confidence
        return loss

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {}
