"""The objective of DFlash2: the cross-entropy of the backbone's scores, and of the selector's over its candidates.

One rule: a label that is not among a place's candidates says nothing to the selector, as it could not choose it either.
Source: DFlash2 (z-lab), whose trainer is unreleased; in NeMo's form (speculators learns from the verifier's argmax and
puts a missing label among the candidates). With both means weighted by exp(-(t-1)/γ), each over its own rows:

    L = CE(U_t, y_t) + α · CE(S_t(y_{t-1}, ·), y_t),   y_t in V_t;   γ = 7 for blocks of 16, 4 for 8, and α = 1

The predecessor is the correct token. The selector's term reaches the backbone through U_t and H_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine.drafter.dflash2 import CandidateSelection
from dspine.drafter.parallel import ParallelDrafter
from dspine.train.blocks import Blocks
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, normalise
from dspine.train.objectives.row_losses import Rows, row_losses, watch
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher
from dspine.train.sequences import SequenceBatch


@dataclass(frozen=True)
class DFlash2Weights:
    """gamma: of the decay. selector_weight: α. chunk: rows of scores at once."""

    gamma: float = 7.0
    selector_weight: float = 1.0
    chunk: int = 1024


class DFlash2Objective:
    """See the module. "recall" is the weighted share of labels among the candidates: what the selector can reach."""

    def __init__(
        self, drafter: ParallelDrafter[CandidateSelection], weights: DFlash2Weights, *, precision: torch.dtype
    ) -> None:
        self.drafter = drafter
        self.weights = weights
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        return ("ce", "selector_ce", "recall", *[confidence.NAME] * self.drafter.confident)

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        states = self.drafter.blocks(batch.features, batch.lengths, blocks.anchors, blocks.tokens)
        dtype = torch.promote_types(states.dtype, torch.float32)
        rows = Rows.of(blocks, self.vocabulary, self.weights.gamma, dtype)
        hidden, law = states[rows.index], Teacher(batch.hidden, batch.lse)
        count = min(self.drafter.selection.top_k, len(self.vocabulary.head))
        how: dict[str, Any] = {"chunk": self.weights.chunk, "candidates": count}
        teacher = rows.teacher(blocks, law) if self.drafter.confident else None
        found = row_losses(hidden, self.vocabulary, rows.labels, dtype, teacher=teacher, **how)
        told, seen = (found, None) if teacher else watch(hidden, self.vocabulary, rows, blocks, law, **how)
        with torch.autocast(hidden.device.type, enabled=False):  # K scores a row: small, so exact
            before = blocks.predecessors[rows.index][:, None]
            added = self.drafter.selection.candidate_selector(hidden.to(dtype), before, found.candidates)[:, 0]
            log_q = (found.candidate_scores + added).log_softmax(-1)  # (R, K)
        hit = found.candidates == rows.labels[:, None]
        reached = (rows.weights * hit.any(-1)).sum()
        selector_ce = -(rows.weights * torch.where(hit, log_q, 0.0).sum(-1)).sum()
        sums = [(rows.counted * found.ce).sum(), selector_ce, reached]
        denominators = [rows.counted.sum(), reached, rows.weights.sum()]
        q = log_q.detach().exp()
        overlap = confidence.shared_mass(told.candidate_probs, q if seen is None else q[seen])
        logits = self.drafter.confidence_logits(states, blocks.predecessors)
        if logits is not None:
            sums.append((rows.weights * confidence.confidence_loss(logits[rows.index], overlap)).sum())
            denominators.append(rows.weights.sum())
        likeliest = found.candidates.gather(1, log_q.argmax(-1, keepdim=True))[:, 0]
        return Terms(torch.stack(sums), torch.stack(denominators), rows.places(blocks, likeliest, overlap, seen))

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        ce, selector_ce, _, *beside = normalise(part.sums, window.denominators)
        loss: Tensor = sum(beside, ce + self.weights.selector_weight * selector_ce)
        return loss

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {}
