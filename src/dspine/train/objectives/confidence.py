"""What a drafter's optional confidence head is trained for: the chance that its candidate is accepted.

One rule: the head learns from the drafter, the drafter nothing from the head: rows come detached, so that a drafter
with a confidence is the drafter that it would be without. (DSpark's own head, part of its method, does reach the
backbone.) Source: DSpark (arXiv 2607.05147), whose binary cross-entropy this is, with weight 1:

    BCE(ζ, Σ_v min(p_v, q_v))       p the target's law, q the drafter's, after the correct predecessor
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NAME = "confidence"


def confidence_loss(logits: Tensor, overlap: Tensor) -> Tensor:
    """BCE of each row.

    Args:
        logits: ζ (...).
        overlap: (...) Σ_v min(p_v, q_v), which is 1 - |q - p|_1 / 2 for laws; no gradient goes through it.
    """
    goal = overlap.detach().clamp(0, 1)
    return F.binary_cross_entropy_with_logits(logits.to(goal.dtype), goal, reduction="none")


def overlap_of(l1: Tensor) -> Tensor:
    """Σ min(p, q) of laws that are |q - p|_1 apart."""
    return 1 - l1 / 2


def shared_mass(p: Tensor, q: Tensor) -> Tensor:
    """Σ min(p, q) over the last dimension: q a law, p the target's probability of the same tokens."""
    return torch.minimum(p, q).sum(-1)
