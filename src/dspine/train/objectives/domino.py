"""The objective of Domino: the cross-entropy of the corrected scores, anchored in the backbone's own.

One rule: the backbone learns first. Source: Domino (arXiv 2605.29707), with both means weighted by exp(-(t-1)/γ):

    L = (1-λ) · CE(corrected) + λ · CE(base),   λ = λ_start · max(0, 1 - progress/ρ)

The first place has no correction and counts alike in both. ρ = 1 is the published Qwen3-8B recipe's; their library's
default is 0.5. While λ is 1, the head's gradient is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine.drafter.domino import PrefixCorrection
from dspine.drafter.parallel import ParallelDrafter
from dspine.train.blocks import Blocks
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, normalise
from dspine.train.objectives.row_losses import Correction, Rows, row_losses, watch
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher
from dspine.train.sequences import SequenceBatch


@dataclass(frozen=True)
class DominoWeights:
    """gamma: of the decay. base_share: λ_start. base_share_end_ratio: ρ. chunk: rows of scores at once."""

    gamma: float = 7.0
    base_share: float = 1.0
    base_share_end_ratio: float = 1.0
    chunk: int = 1024

    def share(self, progress: float) -> float:
        """λ when that share of the run is behind."""
        return self.base_share * max(0.0, 1.0 - progress / self.base_share_end_ratio)


class DominoObjective:
    """See the module."""

    @property
    def names(self) -> tuple[str, ...]:
        return ("ce", "base_ce", *[confidence.NAME] * self.drafter.confident)

    def __init__(
        self, drafter: ParallelDrafter[PrefixCorrection], weights: DominoWeights, *, precision: torch.dtype
    ) -> None:
        self.drafter = drafter
        self.weights = weights
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        states = self.drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
        vectors = self.drafter.selection.correction(states, blocks.predecessors)
        dtype = torch.promote_types(states.dtype, torch.float32)
        rows = Rows.of(blocks, self.vocabulary, self.weights.gamma, dtype)
        hidden, law = states[rows.index], Teacher(batch.hidden, batch.lse)
        how: dict[str, Any] = {"chunk": self.weights.chunk}
        how["correction"] = Correction(vectors[rows.index], self.drafter.selection.correction_head)
        teacher = rows.teacher(blocks, law) if self.drafter.confident else None
        found = row_losses(hidden, self.vocabulary, rows.labels, dtype, teacher=teacher, **how)
        told, seen = (found, None) if teacher else watch(hidden, self.vocabulary, rows, blocks, law, **how)
        sums = [(rows.counted * ce).sum() for ce in (found.ce, found.base_ce)]
        denominators = [rows.counted.sum()] * 2
        logits = self.drafter.confidence_logits(states, blocks.predecessors)
        if logits is not None:
            lost = confidence.confidence_loss(logits[rows.index], confidence.overlap_of(found.l1))
            sums.append((rows.weights * lost).sum())
            denominators.append(rows.weights.sum())
        places = rows.places(blocks, found.candidates[:, 0], confidence.overlap_of(told.l1.detach()), seen)
        return Terms(torch.stack(sums), torch.stack(denominators), places)

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        corrected, base, *beside = normalise(part.sums, window.denominators)
        share = self.weights.share(moment.progress)
        loss: Tensor = sum(beside, (1 - share) * corrected + share * base)
        return loss

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {"base_share": self.weights.share(moment.progress)}
