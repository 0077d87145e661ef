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
from dspine.train.blocks import Blocks
from dspine.train.curriculum import draw_replaced
from dspine.train.curriculum import replaced_layers as replaced_of
from dspine.train.objectives import confidence
from dspine.train.objectives.objective import Moment, Terms, normalise
from dspine.train.objectives.row_losses import Rows, row_losses
from dspine.train.objectives.vocabulary_loss import DraftVocabulary, OrdinaryTerms, Teacher, ordinary_terms
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
    rows = Rows.of(blocks, vocabulary, weights.gamma, torch.promote_types(states.hidden.dtype, torch.float32))
    hidden, law, w = states.hidden[rows.index], rows.teacher(blocks, teacher), rows.weights
    ordinary = ordinary_terms(hidden, vocabulary, rows.labels, w, law, candidates=candidates, chunk=weights.chunk)
    refined = _refined(drafter, states, blocks, rows, ordinary, weights) if drafter.refines else None
    nothing = (w.new_zeros(()), w.new_zeros(()))
    pairs = [(ordinary.ce, rows.counted.sum()), (ordinary.l1, w.sum())]
    pairs += [nothing, nothing] if refined is None else [refined.ce, refined.l1]
    pairs.append(_alignment(drafter, vocabulary, states, rows, codes, weights))
    overlap = confidence.overlap_of(ordinary.apart) if refined is None else refined.overlap
    if drafter.confidence_head is not None:
        seen = hidden if refined is None else refined.hidden
        doubt = confidence.confidence_loss(drafter.confidence_head(seen.detach()), overlap)
        pairs.append(((w * doubt).sum(), w.sum()))
    likeliest = ordinary.candidates[:, 0] if refined is None else refined.likeliest
    places = rows.places(blocks, likeliest, overlap)
    sums, denominators = (torch.stack(side) for side in zip(*pairs, strict=True))
    return Terms(sums, denominators, places)


@dataclass(frozen=True)
class _Refined:
    """The refined output of R rows.

    ce, l1: sum and denominator. hidden: (R, d) final-normed. likeliest: (R,) token ids. overlap: (R,) Σ min(p, q),
    without gradient.
    """

    ce: tuple[Tensor, Tensor]
    l1: tuple[Tensor, Tensor]
    hidden: Tensor
    likeliest: Tensor
    overlap: Tensor


def _refined(
    drafter: Refines, states: States, blocks: Blocks, rows: Rows, ordinary: OrdinaryTerms, weights: Weights
) -> _Refined:
    """The output after the correct predecessor, over the candidates of the ordinary one."""
    # Over all places, supervised or not: a shape that changes with every step would fill the caches of the library
    # that multiplies matrices (gigabytes in an hour), and few places are unsupervised.
    hidden = drafter.refine(states.last, blocks.predecessors, states.farther)[rows.index]
    w, present = rows.weights, ordinary.candidate_probs  # (R, K) the target's, not normalised
    with torch.autocast(hidden.device.type, enabled=False):  # K scores a row: small, so exact
        log_q = drafter.candidate_scores(hidden.to(w.dtype), ordinary.candidates).log_softmax(-1)  # (R, K)
    mass = present.sum(-1)
    heavy = mass > weights.candidate_mass
    p = present / torch.where(heavy, mass, 1.0)[:, None]
    hit = ordinary.candidates == rows.labels[:, None]
    ce = -(w * torch.where(hit, log_q, 0.0).sum(-1)).sum()
    l1 = (w * heavy * (log_q.exp() - p).abs().sum(-1)).sum()
    return _Refined(
        ce=(ce, (w * hit.any(-1)).sum()),
        l1=(l1, (w * heavy).sum()),
        hidden=hidden,
        likeliest=ordinary.candidates.gather(1, log_q.argmax(-1, keepdim=True))[:, 0],
        overlap=confidence.shared_mass(present, log_q.detach().exp()),
    )


def _alignment(
    drafter: Refines, vocabulary: DraftVocabulary, states: States, rows: Rows, codes: Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """What the layers are held to, summed over them: sum over rows, and denominator."""
    dtype = rows.weights.dtype
    if weights.alignment == "token":
        early = [drafter.final(state)[rows.index] for state in states.heard[:-1]]
        losses = [row_losses(state, vocabulary, rows.labels, dtype, chunk=weights.chunk).ce for state in early]
        total = sum(((rows.counted * ce).sum() for ce in losses), rows.weights.new_zeros(()))
        return total, rows.counted.sum()
    goal = codes[rows.labels].to(dtype)
    cosines = torch.stack([(readout[rows.index].to(dtype) * goal).sum(-1) for readout in states.readouts])  # (L, R)
    return (rows.weights * (1 - cosines)).sum(), rows.weights.sum()
