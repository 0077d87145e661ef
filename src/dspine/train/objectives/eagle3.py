"""The objective of EAGLE-3: in the training-time test every step learns the target's law at its own place.

One rule: all steps that draft the same token learn from the same law p, the target's over the draft vocabulary,
renormalised. Source: EAGLE-3 (arXiv 2503.01840); weights and decay as in SpecForge and DeepSpec:

    L = Σ_σ 0.8^σ · Σ_rows mask · (-Σ_v p_v log q_v) / number of positions

Row i at step σ (from 0) drafts x_{i+2+σ} and learns from the target's law at i+1+σ. Their mask, kept here: the loss
mask at i+σ, and the target's likeliest token inside the draft vocabulary. Beside it the drafted token must be trained
on itself, since no law is kept elsewhere (theirs has padding there). The denominator counts all positions of the
sequences, trained on or not, as theirs does; padding is left out, so that it does not depend on how they are batched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.drafter.eagle3 import Eagle3
from dspine.train.blocks import Blocks
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, count_places, normalise
from dspine.train.objectives.row_losses import by_chunks
from dspine.train.objectives.vocabulary_loss import DraftVocabulary
from dspine.train.sequences import SequenceBatch, teachers


@dataclass(frozen=True)
class Eagle3Weights:
    """step_decay: weight of a step over the one before. chunk: rows of scores at once."""

    step_decay: float = 0.8
    chunk: int = 1024


class Eagle3Objective:
    """See the module. It learns from every position; the anchors that the learner draws say what is counted by place.

    The terms: mean cross-entropy of each step over its rows that count, and their mean number a position, by which the
    loss is made.
    """

    def __init__(self, drafter: Eagle3, weights: Eagle3Weights, *, precision: torch.dtype) -> None:
        self.drafter = drafter
        self.weights = weights
        self.steps = drafter.candidates
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        own = (*(f"ce_{step}" for step in range(1, self.steps + 1)), "rows")
        return (*own, confidence.NAME) if self.drafter.confident else own

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        states = self.drafter.unroll(batch.features, batch.ids)  # (σ, N, S, d)
        dtype = torch.promote_types(states.dtype, torch.float32)
        taught = teachers(batch.loss_mask) & F.pad(batch.loss_mask[:, :-1], (1, 0))  # (N, S): by position i+1+σ
        row, place = taught.nonzero(as_tuple=True)  # R laws
        drafting = place[:, None] - 1 - torch.arange(self.steps, device=place.device)  # (R, σ): i, the row that drafts
        hidden = states[torch.arange(self.steps, device=place.device), row[:, None], drafting.clamp(min=0)]

        def of(part: slice) -> tuple[Tensor, ...]:
            teacher = batch.hidden[row[part], place[part]]
            inside = self._inside(teacher, dtype)
            scores = self.vocabulary.exact_logits(teacher, dtype)  # (c, V_d)
            p = scores.softmax(-1)
            log_q = self._scores(hidden[part], dtype).log_softmax(-1)  # (c, σ, V_d)
            ce = -torch.einsum("rv,rsv->rs", p, log_q)
            with torch.no_grad():  # p here is the target's over all of its vocabulary
                p = (scores - batch.lse[row[part], place[part], None].to(dtype)).exp()
                overlap = torch.stack([torch.minimum(q.exp(), p).sum(-1) for q in log_q.unbind(1)], 1)
                likeliest = self.vocabulary.tokens(log_q.argmax(-1))
            head = self.drafter.confidence_head
            doubt = overlap if head is None else confidence.confidence_loss(head(hidden[part].detach()), overlap)
            return ce, inside, likeliest, overlap, doubt

        with torch.autocast(states.device.type, enabled=False):  # which product is in which type is said in there
            ce, inside, likeliest, overlap, doubt = by_chunks(of, len(row), max(1, self.weights.chunk // self.steps))
        counted = ((drafting >= 0) & inside[:, None]).to(dtype)
        rows = counted.sum(0)
        positions = batch.lengths.sum().to(dtype)
        sums = [(counted * ce).sum(0), rows.sum()[None]]
        denominators = [rows, positions[None]]
        if self.drafter.confident:
            weights = (drafting >= 0) * self._decay(dtype, place.device)
            sums.append((weights * doubt).sum()[None])
            denominators.append(weights.sum()[None])
        places = self._places(batch, blocks, row, place, drafting, likeliest, overlap)
        return Terms(torch.cat(sums), torch.cat(denominators), places)

    def _places(
        self,
        batch: SequenceBatch,
        blocks: Blocks,
        row: Tensor,
        place: Tensor,
        drafting: Tensor,
        likeliest: Tensor,
        overlap: Tensor,
    ) -> Tensor:
        """By place (4, M), of the chains that begin at the anchors: row i drafts behind the anchor i+1."""
        anchored = torch.zeros_like(batch.loss_mask)
        anchored[blocks.valid.nonzero()[:, 0], blocks.anchors[blocks.valid]] = True
        size = anchored.shape[1]
        counted = (drafting >= 0) & anchored[row[:, None], (drafting + 1).clamp(0, size - 1)]
        labels = batch.ids[row, (place + 1).clamp(max=size - 1)][:, None].expand_as(drafting)
        steps = torch.arange(self.steps, device=place.device).expand_as(drafting)
        return count_places(steps[counted], self.steps, (likeliest == labels)[counted], overlap[counted])

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        decay = self._decay(part.sums.dtype, part.sums.device)
        loss: Tensor = normalise((decay * part.sums[: self.steps]).sum(), window.denominators[self.steps])
        return loss + normalise(part.sums[-1], window.denominators[-1]) if self.drafter.confident else loss

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {}

    def _decay(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """0.8^σ, (steps,)."""
        return self.weights.step_decay ** torch.arange(self.steps, dtype=dtype, device=device)

    def _scores(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """(..., d) → (..., V_d), by the drafter's own head where it has one."""
        if self.drafter.lm_head is None:
            return self.vocabulary.logits(hidden.flatten(0, -2), dtype).view(*hidden.shape[:-1], -1)
        kind = dtype if self.vocabulary.fast is None else self.vocabulary.fast.dtype
        return (hidden.to(kind) @ self.drafter.lm_head.weight.to(kind).T).to(dtype)

    @torch.no_grad()
    def _inside(self, teacher: Tensor, dtype: torch.dtype) -> Tensor:
        """Whether the target's likeliest token can be proposed: (c, d) → bool (c,)."""
        if self.vocabulary.ids is None:
            return torch.ones(len(teacher), dtype=torch.bool, device=teacher.device)
        return self.vocabulary.contains((teacher.to(dtype) @ self.drafter.head.to(dtype).T).argmax(-1))
