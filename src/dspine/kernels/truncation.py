"""Top-k, top-p and min-p: which tokens of a law stay.

One rule: no more of a vocabulary is put in order than has to be. What stays is the beginning of the tokens in the order
of their scores (equal ones in the order of their ids). So the head of that order is enough where it goes beyond what
stays; it gives bit for bit what ordering all tokens gives, since sums run from token to token, in float64, and nothing
depends on what lies behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HEADS = (128, 2048)  # sizes of head to try before the whole vocabulary


@dataclass(frozen=True)
class Cut:
    """How N rows are truncated, each (N, 1): top_k int64 (0: off), top_p and min_p float32 (1 and 0: off)."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def rows(self, index: Tensor) -> Cut:
        """The truncation of some rows, in the order of `index`."""
        return Cut(self.top_k[index], self.top_p[index], self.min_p[index])


def truncated(scores: Tensor, probs: Tensor, cut: Cut) -> Tensor:
    """The laws after truncation: top-k, then top-p over what it leaves, and min-p; renormalised.

    Args:
        scores: (N, V) float32, the temperature applied.
        probs: (N, V) float32, their softmax.
        cut: what to keep; the likeliest token stays in any case.

    Returns:
        (N, V) float32, each row summing to 1.
    """
    size = scores.shape[1]
    # To ask how much of it a head is enough for, the host would wait for a device: it puts all in order instead.
    heads = HEADS if scores.device.type == "cpu" else ()
    out = torch.zeros_like(probs)
    rows = torch.arange(len(scores), device=scores.device)  # those whose law is not made yet
    for width in (*(head for head in heads if head < size), size):
        values, ids = _ordered(scores if len(rows) == len(scores) else scores[rows], width)
        if not heads:
            return out.scatter_(1, ids, _kept(probs.gather(1, ids), cut)[0])
        kept, needed = _kept(probs[rows[:, None], ids], cut.rows(rows))
        holds = torch.ones_like(rows, dtype=torch.bool) if width == size else _holds(values, needed)
        out[rows[holds][:, None], ids[holds]] = kept[holds]
        rows = rows[~holds]
        if not len(rows):
            break
    return out


def _ordered(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best scores of each row and their ids, (n, W) each; equal scores in the order of their ids."""
    if width == scores.shape[1]:
        values, ids = scores.sort(dim=1, descending=True, stable=True)
        return values, ids
    ids = scores.topk(width, dim=1, sorted=False).indices.sort(dim=1).values
    values, order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _kept(chance: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """The law over a head, (n, W) float32, and the number of tokens (n, 1) that it was made from.

    Args:
        chance: (n, W) the head's chances before truncation, likeliest first.
    """
    rank = torch.arange(chance.shape[1], device=chance.device)
    chance = chance.masked_fill((cut.top_k > 0) & (rank >= cut.top_k), 0.0)
    sums = chance.double().cumsum(1)  # float32 would drift over a vocabulary
    total = torch.where(cut.top_k > 0, sums[:, -1:], 1.0)  # without top-k it is that of a softmax
    keep = ((sums - chance < cut.top_p * total) | (cut.top_p >= 1)) & (chance >= cut.min_p * chance[:, :1])
    keep[:, 0] = True  # whatever rounding did to the bounds
    law = chance.double().masked_fill(~keep, 0.0)
    law = (law / law.cumsum(1)[:, -1:]).float()  # `sum` adds in an order that depends on the width
    return law, torch.where(cut.top_k > 0, cut.top_k, keep.sum(1, keepdim=True))


def _holds(values: Tensor, needed: Tensor) -> Tensor:
    """Whether a head is enough, bool (n): a token worse than all that were needed is in it, or none is left outside.

    An equal one would not do, as the order of equal scores is known only where all of them are seen.
    """
    last = values[:, -1:]
    worst = values.gather(1, (needed - 1).clamp(max=values.shape[1] - 1))
    return ((worst > last) | (last == -torch.inf)).squeeze(1)
