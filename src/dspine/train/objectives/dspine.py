"""The objective of DSpine: two outputs against the target's law, and every layer against the token's code.

One rule: λ is made of the cross-entropy of the whole optimiser window, as every mean is. Source: DSpine
(arXiv 2609.36173), training:

    L = Σ_{ordinary, refined} [α · CE + (1-α) · |q - p|_1]  +  λ · Σ_l (1 - cos(f_l(h_l), C_y)),   λ = β · stopgrad(CE)

each term a mean weighted by w over that term's own valid rows. Where layers are held to the token instead of its code,
their term is β · Σ_{l<L} CE(norm(h_l), y): a cross-entropy already, and the last layer's is the ordinary output's. A
drafter that does not refine has no refined output. A confidence head adds its own term (`objectives/confidence.py`).
Vocabulary-sized work is done for supervised rows only, in chunks, with softmax and losses in float32 (or float64 where
the drafter is).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dspine.drafter.dspine import DSpine
from dspine.train.blocks import Blocks, place_weights
from dspine.train.curriculum import draw_replaced
from dspine.train.curriculum import replaced_layers as replaced_of
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, count_places, normalise
from dspine.train.objectives.row_losses import row_losses
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, Teacher, ordinary_terms
from dspine.train.sequences import SequenceBatch

TERMS = ("ce", "l1", "refined_ce", "refined_l1", "alignment")


class States(Protocol):
    """What the training forward of a drafter yields (see `DSpine.blocks`)."""

    @property
    def hidden(self) -> Tensor: ...  # (N, A, M, d) final-normed ordinary output

    @property
    def last(self) -> Tensor: ...  # (N, A, M, d) output of the last layer before its write

    @property
    def farther(self) -> Tensor | None: ...  # (N, A, M, a) what it hears from farther away

    @property
    def heard(self) -> Sequence[Tensor]: ...  # L of (N, A, M, d), after injection

    @property
    def readouts(self) -> Sequence[Tensor]: ...  # L of (N, A, M, r), unit vectors after injection


class Refines(Protocol):
    """The part of a drafter that the refined output and the layers' supervision need."""

    @property
    def refines(self) -> bool: ...

    @property
    def confidence_head(self) -> Callable[[Tensor], Tensor] | None: ...

    def refine(self, last: Tensor, predecessors: Tensor, farther: Tensor | None) -> Tensor: ...

    def final(self, state: Tensor) -> Tensor: ...

    def candidate_scores(self, hidden: Tensor, candidates: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Weights:
    """Weights of the objective; the defaults are the paper's."""

    ce: float = 0.1  # α
    gamma: float = 7.0
    candidate_mass: float = 1e-4  # the refined ℓ1 needs more than this of the target's mass on the candidates
    alignment: str = "cosine"  # or "token", or "none": then the term is shown and weighs nothing, as β is 0
    chunk: int = 1024  # supervised rows whose draft-vocabulary logits exist at once


class DSpineObjective:
    """The objective of a drafter. Draws of replaced blocks are keyed by `seed`, epoch and sample.

    Args:
        replaced_layers: how many layers of a replaced block hear correct predecessors; None: as many as the paper's.
    """

    def __init__(
        self,
        drafter: DSpine,
        weights: Weights,
        *,
        precision: torch.dtype,
        seed: int,
        replaced_layers: int | None = None,
    ) -> None:
        self.drafter = drafter
        self.weights = weights
        layers = drafter.config.num_hidden_layers
        self.replaced_layers = replaced_of(layers) if replaced_layers is None else replaced_layers
        self.seed = seed
        self.vocabulary = DraftVocabulary.of(drafter.head, drafter.draft_ids, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        return (*TERMS, confidence.NAME) if self.drafter.confident else TERMS

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        counts = blocks.valid.sum(-1).tolist()
        replaced = draw_replaced(
            counts, moment.replacement, seed=self.seed, epoch=moment.epoch, samples=batch.sample_ids
        ).to(blocks.valid.device)
        states = self.drafter.blocks(
            batch.features,
            batch.lengths,
            blocks.anchors,
            blocks.tokens,
            replaced,
            self.replaced_layers,
        )
        return dspine_terms(
            self.drafter,
            self.vocabulary,
            states,
            blocks,
            Teacher(batch.hidden, batch.lse),
            self.drafter.codes,
            candidates=self.drafter.config.top_k,
            weights=self.weights,
        )

    def loss(self, part: Terms, window: Terms, moment: Moment) -> Tensor:
        kind = self.weights.alignment
        return window_loss(part, window, alpha=self.weights.ce, beta=moment.beta, alignment=kind)

    def schedule(self, moment: Moment) -> dict[str, float]:
        return {"beta": moment.beta, "replacement": moment.replacement}


def window_loss(part: Terms, window: Terms, *, alpha: float, beta: float, alignment: str = "cosine") -> Tensor:
    """A micro-batch's share of the window's loss; the shares of a window add up to L.

    Args:
        part: terms of the micro-batch, with gradient.
        window: terms of the whole window: they give the denominators and λ = β · CE.
        alignment: what the layers are held to; to the token: λ = β.
    """
    share = normalise(part.sums, window.denominators)
    ce = 1.0 if alignment == "token" else window.means()[0].detach()
    weights = torch.tensor([alpha, 1 - alpha, alpha, 1 - alpha, 0.0], dtype=share.dtype, device=share.device)
    return (weights * share[:5]).sum() + beta * ce * share[4] + share[5:].sum()


def dspine_terms(
    drafter: Refines,
    vocabulary: DraftVocabulary,
    states: States,
    blocks: Blocks,
    teacher: Teacher,
    codes: Tensor,
    *,
    candidates: int,
    weights: Weights,
) -> Terms:
    """The five sums and denominators of one micro-batch, and a sixth of a confidence head's.

    Args:
        vocabulary: the frozen head on the draft vocabulary.
        states: of `drafter.blocks(...)`.
        teacher: the target's final-normed hidden states (N, S, d) and full-vocabulary logsumexp (N, S).
        codes: (V, r) transfer codes, zero or unit rows.
        candidates: K, the size of the ordinary output's candidate sets.
    """
    rows = blocks.supervised.nonzero(as_tuple=True)  # R supervised (n, a, i)
    labels = blocks.labels[rows]
    hidden = states.hidden[rows]
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    w = place_weights(blocks.supervised.shape[-1], weights.gamma).to(hidden.device, dtype)[rows[2]]

    positions = blocks.anchors[rows[0], rows[1]] + rows[2]  # the target's logits at s+t-1 are the teacher of place t
    law = Teacher(teacher.hidden[rows[0], positions], teacher.lse[rows[0], positions])
    ordinary = ordinary_terms(hidden, vocabulary, labels, w, law, candidates=candidates, chunk=weights.chunk)

    counted = w * vocabulary.contains(labels)
    sums = [ordinary.ce, ordinary.l1]
    denominators = [counted.sum(), w.sum()]
    if drafter.refines:
        # Over all places, supervised or not: a shape that changes with every step would fill the caches of the library
        # that multiplies matrices (gigabytes in an hour), and few places are unsupervised.
        refined = drafter.refine(states.last, blocks.predecessors, states.farther)[rows]
        with torch.autocast(hidden.device.type, enabled=False):  # K scores a row: small, so exact
            log_q = drafter.candidate_scores(refined.to(dtype), ordinary.candidates).log_softmax(-1)  # (R, K)
        mass = ordinary.candidate_probs.sum(-1)
        heavy = mass > weights.candidate_mass
        p = ordinary.candidate_probs / torch.where(heavy, mass, 1.0)[:, None]
        hit = ordinary.candidates == labels[:, None]
        sums.append(-(w * torch.where(hit, log_q, 0.0).sum(-1)).sum())
        sums.append((w * heavy * (log_q.exp() - p).abs().sum(-1)).sum())
        denominators += [(w * hit.any(-1)).sum(), (w * heavy).sum()]
        likeliest = ordinary.candidates.gather(1, log_q.argmax(-1, keepdim=True))[:, 0]
        overlap = torch.minimum(log_q.detach().exp(), ordinary.candidate_probs).sum(-1)
    else:
        likeliest, overlap = ordinary.candidates[:, 0], None
        refined = hidden
        sums += [w.new_zeros(()), w.new_zeros(())]
        denominators += [w.new_zeros(()), w.new_zeros(())]

    places = count_places(rows[2], blocks.supervised.shape[-1], likeliest == labels, overlap)

    if weights.alignment == "token":
        early = [drafter.final(state)[rows] for state in states.heard[:-1]]
        losses = [row_losses(state, vocabulary, labels, dtype, chunk=weights.chunk).ce for state in early]
        sums.append(sum(((counted * ce).sum() for ce in losses), w.new_zeros(())))
        denominators.append(counted.sum())
    else:
        goal = codes[labels].to(dtype)
        cosines = torch.stack([(readout[rows].to(dtype) * goal).sum(-1) for readout in states.readouts])  # (L, R)
        sums.append((w * (1 - cosines)).sum())
        denominators.append(w.sum())
    if drafter.confidence_head is not None:
        if overlap is None:
            with torch.no_grad():
                found = row_losses(hidden, vocabulary, labels, dtype, chunk=weights.chunk, teacher=law)
            overlap = confidence.overlap_of(found.l1)
        logits = drafter.confidence_head(refined.detach())
        sums.append((w * confidence.confidence_loss(logits, overlap)).sum())
        denominators.append(w.sum())
    return Terms(torch.stack(sums), torch.stack(denominators), places)
