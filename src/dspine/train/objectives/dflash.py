"""The objective of DFlash: the cross-entropy of every place, early places first.

One rule: a place weighs exp(-(t-1)/γ), or, by D-PACE, as much as acceptance at it and behind it is likely at present.
Sources: DFlash (arXiv 2602.06036), γ = 7 for blocks of 16, 5 for 10, 4 for 8; D-PACE (arXiv 2605.18810), α = 0.5:

    q_t = exp(-CE_t),  q̃_t = (1-α) q_t + α,  P_t = Π_{i≤t} q̃_i,  w_t = Σ_{j≥t} P_j   over supervised places, detached

D-PACE's sum is divided by the number of blocks; SpecForge divides by the batch's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.drafter.dflash import Independent
from dspine.drafter.parallel import ParallelDrafter
from dspine.train.blocks import Blocks
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, normalise
from dspine.train.objectives.row_losses import Rows, row_losses, watch
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher
from dspine.train.sequences import SequenceBatch


@dataclass(frozen=True)
class DFlashWeights:
    """gamma: of the decay. dpace: α of D-PACE's weights; None: the decay's. chunk: rows of scores at once."""

    gamma: float = 7.0
    dpace: float | None = None
    chunk: int = 1024


class DFlashObjective:
    """See the module."""

    def __init__(
        self, drafter: ParallelDrafter[Independent], weights: DFlashWeights, *, precision: torch.dtype
    ) -> None:
        self.drafter = drafter
        self.weights = weights
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        own = ("ce",) if self.weights.dpace is None else ("ce", "dpace")
        return (*own, confidence.NAME) if self.drafter.confident else own

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        states = self.drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
        dtype = torch.promote_types(states.dtype, torch.float32)
        rows = Rows.of(blocks, self.vocabulary, self.weights.gamma, dtype)
        hidden, law, chunk = states[rows.index], Teacher(batch.hidden, batch.lse), self.weights.chunk
        teacher = rows.teacher(blocks, law) if self.drafter.confident else None
        found = row_losses(hidden, self.vocabulary, rows.labels, dtype, chunk=chunk, teacher=teacher)
        told, seen = (found, None) if teacher else watch(hidden, self.vocabulary, rows, blocks, law, chunk=chunk)
        ce = found.ce
        sums, denominators = [(rows.counted * ce).sum()], [rows.counted.sum()]
        if self.weights.dpace is not None:
            counted = self.vocabulary.contains(rows.labels)
            likely = torch.where(counted, ce.detach().neg().exp(), 0.0)
            weights = dpace_weights(likely, counted, blocks.supervised, self.weights.dpace)
            sums.append((weights * ce).sum())
            denominators.append(blocks.valid.sum().to(dtype))
        logits = self.drafter.confidence_logits(states, blocks.predecessors)
        if logits is not None:
            lost = confidence.confidence_loss(logits[rows.index], confidence.overlap_of(found.l1))
            sums.append((rows.weights * lost).sum())
            denominators.append(rows.weights.sum())
        places = rows.places(blocks, found.candidates[:, 0], confidence.overlap_of(told.l1.detach()), seen)
        return Terms(torch.stack(sums), torch.stack(denominators), places)

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        means = normalise(part.sums, window.denominators)
        own = means[0 if self.weights.dpace is None else 1]
        return own + means[-1] if self.drafter.confident else own

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {}


def dpace_weights(likely: Tensor, counted: Tensor, supervised: Tensor, alpha: float) -> Tensor:
    """w_t of R supervised rows.

    Args:
        likely: (R,) the drafter's present probability of each label.
        counted: bool (R,), rows whose cross-entropy counts.
        supervised: bool (N, A, M), which places the rows are.
    """
    shape, index = supervised.shape, supervised.nonzero(as_tuple=True)
    smooth = likely.new_ones(shape).index_put(index, (1 - alpha) * likely + alpha)
    through = smooth.cumprod(-1) * likely.new_zeros(shape).index_put(index, counted.to(likely.dtype))
    behind = through.flip(-1).cumsum(-1).flip(-1)
    return behind[index] * counted
