"""The verdict of a round: how many candidates stand, and which token ends the round.

One rule: pure and exact. Randomness, target law and proposal come in, token ids go out; what is emitted has the
distribution of tokens drawn from the target alone, whatever the proposal. Source: DSpine (arXiv 2609.36173), section
on speculative decoding:

* a candidate y, all before it accepted, stands with probability min(1, p(y) / q(y)), judged as u·q < p;
* at the first that falls, the token comes from normalize(max(0, p - q)), and the rest of the block is void;
* if all stand, one more token comes from the target's next law.

A row may have only its first `lengths` candidates verified. The cap is then the end of its block: candidates
beyond are not looked at, and once `lengths` of them stand the next token comes from the target's law at that place.
(To judge all candidates and draw afresh from that law only where more of them than the cap stand is biased.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.drafter.proposal import Proposal
from dspine.kernels.law import draw


@dataclass(frozen=True)
class Verdict:
    """What a round decided for B rows.

    accepted: (B,) int64, number of leading candidates that stand, 0..lengths.
    next_token: (B,) int64, the token that follows them and becomes the new anchor.
    """

    accepted: Tensor
    next_token: Tensor


def verify(target_probs: Tensor, proposal: Proposal, uniforms: Tensor, lengths: Tensor) -> Verdict:
    """Rejection sampling of a block; with M = 0 it is plain sampling from the target.

    Args:
        target_probs: (B, M+1, V) float32; [:, i] is the law of the token that follows candidates 1..i, one-hot
            in greedy rows. What lies beyond a row's `lengths` is not looked at.
        proposal: M candidates a row with the law q they were drawn from: sparse, dense, or one-hot.
        uniforms: (B, M+1) float32 in [0, 1); the first M judge the candidates, the last one draws the token.
        lengths: (B,) int64, how many candidates of each row to verify, 0..M.

    Returns:
        The verdict. A residual without mass (p = q up to rounding) gives way to p itself.
    """
    places = proposal.tokens.shape[1]
    considered = torch.arange(places, device=lengths.device) < lengths[:, None]  # (B, M)
    tokens = proposal.tokens.masked_fill(~considered, 0)  # an id beyond the cap may be anything, even padding
    p = target_probs[:, :places].gather(2, tokens[..., None]).squeeze(2)
    q = _chance(proposal, tokens)
    # In float64 the product of two float32 is exact, so that p = q accepts at every u < 1, subnormal or not.
    stands = (uniforms[:, :places].double() * q.double() < p.double()) & considered  # (B, M)
    accepted = stands.cumprod(dim=1).sum(dim=1)

    rows = torch.arange(len(accepted), device=accepted.device)
    law = target_probs[rows, accepted]  # (B, V), the one row of p that the draw needs
    if places == 0:
        return Verdict(accepted, draw(law, uniforms[:, 0]))
    residual = _residual(law, proposal, tokens, accepted, rejected=accepted < lengths)
    empty = residual.sum(dim=1, keepdim=True) <= 0
    return Verdict(accepted, draw(torch.where(empty, law, residual), uniforms[:, places]))


def verify_greedy(choices: Tensor, tokens: Tensor, lengths: Tensor) -> Verdict:
    """The verdict of `verify` on one-hot laws, without making them: a candidate stands if it is the choice.

    Args:
        choices: (B, M+1) int64, the target's argmax at each place.
        tokens: (B, M) int64 candidates.
        lengths: (B,) int64, how many candidates of each row to verify, 0..M.
    """
    considered = torch.arange(tokens.shape[1], device=lengths.device) < lengths[:, None]
    accepted = ((tokens == choices[:, :-1]) & considered).cumprod(dim=1).sum(dim=1)
    return Verdict(accepted, choices.gather(1, accepted[:, None]).squeeze(1))


def _chance(proposal: Proposal, tokens: Tensor) -> Tensor:
    """q of each candidate, (B, M)."""
    if proposal.probs is None:
        return torch.ones(tokens.shape, dtype=torch.float32, device=tokens.device)
    if proposal.support is None:
        return proposal.probs.gather(2, tokens[..., None]).squeeze(2)
    return torch.where(proposal.support == tokens[..., None], proposal.probs, 0.0).sum(dim=2)


def _residual(law: Tensor, proposal: Proposal, tokens: Tensor, accepted: Tensor, rejected: Tensor) -> Tensor:
    """max(0, p - q) where a candidate fell, p itself elsewhere: (B, V); q is touched on its support alone."""
    place = accepted.clamp(max=tokens.shape[1] - 1)  # a row without rejection reads some place, subtracts nothing
    rows = torch.arange(len(place), device=place.device)
    if proposal.probs is not None and proposal.support is None:
        q = torch.where(rejected[:, None], proposal.probs[rows, place], 0.0)  # (B, V)
        return (law - q).clamp_(min=0)
    if proposal.probs is None or proposal.support is None:
        support = tokens[rows, place, None]  # (B, 1)
        q = rejected[:, None].to(law.dtype)
    else:
        support = torch.where(rejected[:, None], proposal.support[rows, place], 0)  # (B, K)
        q = torch.where(rejected[:, None], proposal.probs[rows, place], 0.0)
    return law.scatter_add(1, support, -q).clamp_(min=0)
