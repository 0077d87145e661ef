"""The verdict of a round on the device: `decode/verify.py` for one request.

One rule: pure, and held to that definition by a test. Only the product u·q is rounded to float32 here, as
Apple's GPUs have no float64: where p = q to the last bit a candidate may fall once in 2^24 draws, and the token is then
drawn from p.
Source: DSpine (arXiv 2609.36173), section on speculative decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dspine.serve.mlx.law import draw
from dspine.serve.mlx.proposal import Proposal


@dataclass(frozen=True)
class Verdict:
    """How many leading candidates stand, 0..length, and the token that follows them; both () int32."""

    accepted: mx.array
    next_token: mx.array


def verify(target_probs: mx.array, proposal: Proposal, uniforms: mx.array, length: mx.array) -> Verdict:
    """Rejection sampling of a block; with M = 0 it is plain sampling from the target.

    Args:
        target_probs: (M+1, V) float32; [i] is the law of the token that follows candidates 1..i.
        uniforms: (M+1,) in [0, 1); the first M judge the candidates, the last one draws the token.
        length: () how many candidates to verify, 0..M.
    """
    places = proposal.candidates
    if places == 0:
        return Verdict(mx.array(0), draw(target_probs[0], uniforms[0]))
    tokens = proposal.tokens
    p = mx.take_along_axis(target_probs[:places], tokens[:, None], axis=1).squeeze(1)
    stands = uniforms[:places] * _chance(proposal) < p
    accepted = _leading(stands, length)
    law = mx.take(target_probs, accepted, axis=0)  # (V,), the one row of p that the draw needs
    residual = mx.where(accepted < length, _residual(law, proposal, mx.minimum(accepted, places - 1)), law)
    return Verdict(accepted, draw(mx.where(residual.sum() > 0, residual, law), uniforms[places]))


def verify_greedy(choices: mx.array, proposal: Proposal, length: mx.array) -> Verdict:
    """The same on one-hot laws: a candidate stands if it is the target's choice; choices (M+1,)."""
    accepted = _leading(proposal.tokens == choices[:-1], length) if proposal.candidates else mx.array(0)
    return Verdict(accepted, mx.take(choices, accepted))


def _leading(stands: mx.array, length: mx.array) -> mx.array:
    """How many of the first `length` stand before the first that falls."""
    considered = stands & (mx.arange(stands.shape[0]) < length)
    return mx.cumprod(considered.astype(mx.int32)).sum()


def _chance(proposal: Proposal) -> mx.array:
    """q of each candidate, (M,)."""
    if proposal.probs is None:
        return mx.ones(proposal.tokens.shape)
    if proposal.support is None:
        return mx.take_along_axis(proposal.probs, proposal.tokens[:, None], axis=1).squeeze(1)
    return mx.where(proposal.support == proposal.tokens[:, None], proposal.probs, 0.0).sum(axis=1)


def _residual(law: mx.array, proposal: Proposal, place: mx.array) -> mx.array:
    """max(0, p - q) at a place: (V,); q is touched on its support alone."""
    if proposal.probs is None:
        q, support = mx.ones((1,)), mx.take(proposal.tokens, place)[None]
    elif proposal.support is None:
        return mx.maximum(law - mx.take(proposal.probs, place, axis=0), 0.0)
    else:
        q, support = mx.take(proposal.probs, place, axis=0), mx.take(proposal.support, place, axis=0)
    return mx.maximum(law.at[support].subtract(q), 0.0)
