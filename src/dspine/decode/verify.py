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

from torch import Tensor

from dspine.drafter.proposal import Proposal
from dspine.kernels.arithmetic import REFERENCE, Kernels


@dataclass(frozen=True)
class Verdict:
    """What a round decided for B rows.

    accepted: (B,) int64, number of leading candidates that stand, 0..lengths.
    next_token: (B,) int64, the token that follows them and becomes the new anchor.
    """

    accepted: Tensor
    next_token: Tensor


def verify(
    target_probs: Tensor, proposal: Proposal, uniforms: Tensor, lengths: Tensor, kernels: Kernels = REFERENCE
) -> Verdict:
    """Rejection sampling of a block; with M = 0 it is plain sampling from the target.

    Args:
        target_probs: (B, M+1, V) float32; [:, i] is the law of the token that follows candidates 1..i, one-hot
            in greedy rows. What lies beyond a row's `lengths` is not looked at.
        proposal: M candidates a row with the law q they were drawn from: sparse, dense, or one-hot.
        uniforms: (B, M+1) float32 in [0, 1); the first M judge the candidates, the last one draws the token.
        lengths: (B,) int64, how many candidates of each row to verify, 0..M.
        kernels: whose arithmetic.

    Returns:
        The verdict. A residual without mass (p = q up to rounding) gives way to p itself.
    """
    return Verdict(*kernels.accept(target_probs, proposal.tokens, proposal.support, proposal.probs, uniforms, lengths))


def verify_greedy(choices: Tensor, tokens: Tensor, lengths: Tensor, kernels: Kernels = REFERENCE) -> Verdict:
    """The verdict of `verify` on one-hot laws, without making them: a candidate stands if it is the choice.

    Args:
        choices: (B, M+1) int64, the target's argmax at each place.
        tokens: (B, M) int64 candidates.
        lengths: (B,) int64, how many candidates of each row to verify, 0..M.
        kernels: whose arithmetic.
    """
    return Verdict(*kernels.accept_greedy(choices, tokens, lengths))
