"""Cross-entropy and ℓ1 against the target's law over the draft vocabulary, for the rows of one micro-batch.

One rule: at no time do more than `chunk` rows of vocabulary-sized numbers exist. So the gradient of both sums
with respect to the hidden rows is taken while a chunk's logits are at hand, and kept as two (R, d) tensors:

    ∂CE/∂logits = w (q - onehot),     ∂|q-p|_1/∂logits = w q ⊙ (sgn - Σ q sgn),  sgn = sign(q - p)

Source: DSpine (arXiv 2609.36173), L_dist of the ordinary output. A restricted vocabulary V_d: labels outside
leave the cross-entropy, ℓ1 adds the target's mass outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

ROWS = 64


@dataclass(frozen=True)
class DraftVocabulary:
    """The frozen LM head of the ids a drafter can propose.

    head (V_d, d); ids (V_d,) int64 ascending, or None when the draft vocabulary is the target's.
    `fast` holds the head in bfloat16 where the big products may be taken in bfloat16, else None.
    """

    head: Tensor
    ids: Tensor | None
    fast: Tensor | None = None

    @staticmethod
    def of(head: Tensor, ids: Tensor | None, *, precision: torch.dtype) -> DraftVocabulary:
        """Rows `ids` of the target's head (V, d)."""
        rows = (head if ids is None else head[ids]).detach()
        return DraftVocabulary(rows, ids, rows.bfloat16() if precision == torch.bfloat16 else None)

    def logits(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """(R, d) -> (R, V_d) in `dtype`."""
        if self.fast is not None:
            return (_whole(hidden.to(self.fast.dtype)) @ self.fast.T)[: len(hidden)].to(dtype)
        return self.exact_logits(hidden, dtype)

    def exact_logits(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """The same with the product itself in `dtype`: for the teacher, whose logsumexp is of such logits."""
        return hidden.to(dtype) @ self.head.to(dtype).T

    def back(self, gradient: Tensor) -> Tensor:
        """(R, V_d) gradient of logits -> (R, d) gradient of the hidden rows."""
        if self.fast is not None:
            return (_whole(gradient.to(self.fast.dtype)) @ self.fast)[: len(gradient)].to(gradient.dtype)
        return gradient @ self.head.to(gradient.dtype)

    def index(self, tokens: Tensor) -> Tensor:
        """Row of each token id; meaningless where `contains` is False."""
        if self.ids is None:
            return tokens
        return torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)

    def contains(self, tokens: Tensor) -> Tensor:
        """Which token ids can be proposed, bool of the same shape."""
        if self.ids is None:
            return torch.ones_like(tokens, dtype=torch.bool)
        return self.ids[self.index(tokens)] == tokens

    def tokens(self, index: Tensor) -> Tensor:
        """Token id of each row."""
        return index if self.ids is None else self.ids[index]


def _whole(rows: Tensor) -> Tensor:
    """Zero rows added up to a multiple of `ROWS`, so that few shapes occur: each is compiled and kept for good."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % ROWS))


@dataclass(frozen=True)
class Teacher:
    """The target's law: final-normed hidden states (..., d) and logsumexp (...) of its logits over all of V."""

    hidden: Tensor
    lse: Tensor


@dataclass(frozen=True)
class OrdinaryTerms:
    """ce, l1: scalars with gradient. candidates (R, K) token ids and the target's probability of each. apart: (R,) ℓ1
    of each row, without gradient."""

    ce: Tensor
    l1: Tensor
    candidates: Tensor
    candidate_probs: Tensor
    apart: Tensor


def ordinary_terms(
    hidden: Tensor,
    vocabulary: DraftVocabulary,
    labels: Tensor,
    weights: Tensor,
    teacher: Teacher,
    *,
    candidates: int,
    chunk: int,
) -> OrdinaryTerms:
    """Σ w·CE and Σ w·ℓ1 of R rows, and the top-K of the ordinary output (no gradient flows through the choice).

    Args:
        hidden: (R, d) final-normed draft rows.
        labels: (R,) token ids; weights: (R,) in the dtype of the losses.
        teacher: the target's states at the position before each label, (R, d) and (R,).
    """
    with torch.autocast(hidden.device.type, enabled=False):  # which product is in which type is said in there
        needs_gradient = torch.is_grad_enabled() and hidden.requires_grad
        ce, l1, index, probs, apart = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
            hidden, vocabulary, labels, weights, teacher, candidates, chunk, needs_gradient
        )
    return OrdinaryTerms(ce, l1, vocabulary.tokens(index), probs, apart)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        vocabulary: DraftVocabulary,
        labels: Tensor,
        weights: Tensor,
        teacher: Teacher,
        candidates: int,
        chunk: int,
        needs_gradient: bool,
    ) -> tuple[Tensor, ...]:
        rows, dtype = len(hidden), weights.dtype
        index = torch.empty(rows, candidates, dtype=torch.int64, device=hidden.device)
        probs = torch.empty(rows, candidates, dtype=dtype, device=hidden.device)
        gradients = torch.empty(2 if needs_gradient else 0, *hidden.shape, dtype=dtype, device=hidden.device)
        apart = torch.empty(rows, dtype=dtype, device=hidden.device)
        sums = torch.zeros(2, dtype=dtype, device=hidden.device)
        for first in range(0, rows, chunk):
            part = slice(first, min(first + chunk, rows))
            row, inside = vocabulary.index(labels[part])[:, None], vocabulary.contains(labels[part])
            w, counted = weights[part, None], (weights[part] * inside)[:, None]

            logits = vocabulary.logits(hidden[part], dtype)  # (c, V_d)
            index[part] = logits.topk(candidates, dim=-1).indices
            log_q = logits.log_softmax(-1)
            sums[0] -= (counted * log_q.gather(1, row)).sum()
            q = log_q.exp_()

            p = vocabulary.exact_logits(teacher.hidden[part], dtype).sub_(teacher.lse[part, None].to(dtype)).exp_()
            probs[part] = p.gather(1, index[part])
            outside = 0.0 if vocabulary.ids is None else (1 - p.sum(-1, keepdim=True)).clamp(min=0)
            gap = torch.sub(q, p, out=p)
            apart[part] = (gap.abs().sum(-1, keepdim=True) + outside)[:, 0]
            sums[1] += (w[:, 0] * apart[part]).sum()
            if needs_gradient:
                sign = gap.sign_()
                sign.sub_((q * sign).sum(-1, keepdim=True)).mul_(q).mul_(w)
                gradients[1, part] = vocabulary.back(sign)
                q.mul_(counted)
                q.scatter_add_(1, row, -counted)
                gradients[0, part] = vocabulary.back(q)
        ctx.save_for_backward(gradients)
        ctx.mark_non_differentiable(index, probs, apart)
        ctx.dtype = hidden.dtype  # type: ignore[attr-defined]
        return sums[0].clone(), sums[1].clone(), index, probs, apart

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors  # type: ignore[attr-defined]
        hidden = (outer[0] * gradients[0] + outer[1] * gradients[1]).to(ctx.dtype)  # type: ignore[attr-defined]
        return hidden, None, None, None, None, None, None, None
