"""Which candidates stand, and the token that follows them: the arithmetic of the verdict, on tensors alone.

One rule: exact. What it emits has the distribution of tokens drawn from the target alone, whatever q was. A candidate
y stands, if all before it do, where u·q(y) < p(y); the first that falls gives way to a draw from
normalize(max(0, p - q)).
Source: DSpine (arXiv 2609.36173), section on speculative decoding; the conventions are those of `decode/verify.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspine.kernels.law import draw


def accept(
    target_probs: Tensor,
    tokens: Tensor,
    support: Tensor | None,
    probs: Tensor | None,
    uniforms: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rejection sampling of a block; with M = 0 it is plain sampling from the target.

    Args:
        target_probs: p (B, M+1, V) float32.
        tokens: (B, M) int64 candidates.
        support, probs: q as in `Proposal`: (B, M, K) both, or probs (B, M, V) alone, or neither (one-hot).
        uniforms: (B, M+1) float32 in [0, 1); the first M judge, the last one draws.
        lengths: (B,) int64, how many candidates of each row to look at, 0..M.

    Returns:
        accepted (B,) and the next token (B,), int64. A residual without mass gives way to p itself.
    """
    places = tokens.shape[1]
    considered = torch.arange(places, device=lengths.device) < lengths[:, None]  # (B, M)
    tokens = tokens.masked_fill(~considered, 0)  # an id beyond the cap may be anything, even padding
    p = target_probs[:, :places].gather(2, tokens[..., None]).squeeze(2)
    q = _chance(tokens, support, probs)
    # In float64 the product of two float32 is exact, so that p = q accepts at every u < 1, subnormal or not.
    stands = (uniforms[:, :places].double() * q.double() < p.double()) & considered  # (B, M)
    accepted = stands.cumprod(dim=1).sum(dim=1)

    rows = torch.arange(len(accepted), device=accepted.device)
    law = target_probs[rows, accepted]  # (B, V), the one row of p that the draw needs
    if places == 0:
        return accepted, draw(law, uniforms[:, 0])
    residual = _residual(law, tokens, support, probs, accepted, rejected=accepted < lengths)
    empty = residual.sum(dim=1, keepdim=True) <= 0
    return accepted, draw(torch.where(empty, law, residual), uniforms[:, places])


def accept_greedy(choices: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same on one-hot laws, without making them: a candidate stands if it is the target's choice.

    Args:
        choices: (B, M+1) int64, the target's argmax at each place.
        tokens: (B, M) int64. lengths: (B,) int64.
    """
    considered = torch.arange(tokens.shape[1], device=lengths.device) < lengths[:, None]
    accepted = ((tokens == choices[:, :-1]) & considered).cumprod(dim=1).sum(dim=1)
    return accepted, choices.gather(1, accepted[:, None]).squeeze(1)


def _chance(tokens: Tensor, support: Tensor | None, probs: Tensor | None) -> Tensor:
    """q of each candidate, (B, M)."""
    if probs is None:
        return torch.ones(tokens.shape, dtype=torch.float32, device=tokens.device)
    if support is None:
        return probs.gather(2, tokens[..., None]).squeeze(2)
    return torch.where(support == tokens[..., None], probs, 0.0).sum(dim=2)


def _residual(
    law: Tensor, tokens: Tensor, support: Tensor | None, probs: Tensor | None, accepted: Tensor, rejected: Tensor
) -> Tensor:
    """max(0, p - q) where a candidate fell, p itself elsewhere: (B, V); q is touched on its support alone."""
    place = accepted.clamp(max=tokens.shape[1] - 1)  # a row without rejection reads some place, subtracts nothing
    rows = torch.arange(len(place), device=place.device)
    if probs is not None and support is None:
        q = torch.where(rejected[:, None], probs[rows, place], 0.0)  # (B, V)
        return (law - q).clamp_(min=0)
    if probs is None or support is None:
        ids = tokens[rows, place, None]  # (B, 1)
        q = rejected[:, None].to(law.dtype)
    else:
        ids = torch.where(rejected[:, None], support[rows, place], 0)  # (B, K)
        q = torch.where(rejected[:, None], probs[rows, place], 0.0)
    return law.scatter_add(1, ids, -q).clamp_(min=0)
