"""The arithmetic of a round on a CPU, in few calls: what `kernels/injection.py` and `kernels/reference.py` define.

One rule: the same functions up to rounding, as `kernels/equality.py` finds at start-up. A call of torch costs some
microseconds whatever it does, and right behind the target's forward, whose weights have driven everything else out of
the processor's caches, several times as much; so products of one input are one, norms are the library's, and what looks
at a handful of numbers is plain Python.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.kernels import reference
from dspine.kernels.injection import MessageWeights
from dspine.kernels.law import Law
from dspine.kernels.reference import TINY


def neighbour_message(said: Tensor, anchor: Tensor, weights: MessageWeights) -> Tensor:
    """As `dspine.kernels.injection.neighbour_message`: one product for gates and messages of all rows."""
    size = len(weights.bias)
    rows = torch.cat((weights.scale * anchor.unsqueeze(1), _scaled_unit(said)), dim=1).to(said.dtype)
    parts: Tensor = weights.joined(rows)  # (B, M+1, 3a)
    receiver, gate, message = parts[:, 1:, :size], parts[:, :-1, size : 2 * size], parts[:, :-1, 2 * size :]
    return (receiver + gate).sigmoid_().mul_(message)


def candidate_message(said: Tensor, codes: Tensor, before: Tensor, weights: MessageWeights) -> Tensor:
    """As `dspine.kernels.injection.candidate_message`."""
    size = len(weights.bias)
    receiver: Tensor = weights.receiver(_scaled_unit(said).to(said.dtype)).unsqueeze(2)
    parts: Tensor = weights.sender((weights.scale * codes[before]).to(said.dtype))  # (B, M, K, 2a)
    return (receiver + parts[..., :size]).sigmoid_().mul_(parts[..., size:])


def write_and_norm(block: Tensor, written: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `dspine.kernels.injection.write_and_norm`."""
    out = block.clone()
    heard = out[:, 1:]
    heard.addcmul_(_rms(heard), written)
    return out, F.rms_norm(out, out.shape[-1:], weight, eps)


def refined_scores(
    last: Tensor, written: Tensor, weight: Tensor, eps: float, head: Tensor, candidates: Tensor
) -> Tensor:
    """As `dspine.kernels.injection.refined_scores`, the few products in float32: packing the rows would cost more."""
    refined = torch.addcmul(last.unsqueeze(2), _rms(last).unsqueeze(2), written)  # (B, M, K, d)
    size = refined.shape[-1:]
    refined = F.rms_norm(refined.float(), size, weight.float(), eps)
    rows = head[candidates].float()
    return (refined @ rows.transpose(2, 3)).to(last.dtype)


def walk(scores: Tensor, law: Law, uniforms: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As `dspine.kernels.reference.walk`."""
    if not law.greedy:
        return reference.walk(scores, law, uniforms)
    chosen = []
    for best in scores.argmax(dim=-1).tolist():  # M lists of K: the successor of every predecessor
        index, path = 0, []
        for successors in best:
            index = successors[index]
            path.append(index)
        chosen.append(path)
    return torch.tensor(chosen, dtype=torch.int64).view(scores.shape[:2]), None


def accept_greedy(choices: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """As `dspine.kernels.accept.accept_greedy`."""
    verdicts = []
    for chosen, drafts, length in zip(choices.tolist(), tokens.tolist(), lengths.tolist(), strict=True):
        stands = 0
        while stands < length and drafts[stands] == chosen[stands]:
            stands += 1
        verdicts.append((stands, chosen[stands]))
    accepted, following = torch.tensor(verdicts, dtype=torch.int64).view(-1, 2).unbind(1)
    return accepted, following


def _scaled_unit(said: Tensor) -> Tensor:
    """√r · said / |said| (..., r), float32; a zero vector stays zero."""
    rank = said.shape[-1]
    return F.rms_norm(said.float(), (rank,), None, TINY / rank)


def _rms(state: Tensor) -> Tensor:
    """Root mean square (..., d) → (..., 1) in the type of the state; what keeps a gradient finite is left out."""
    norm: Tensor = torch.linalg.vector_norm(state, dim=-1, keepdim=True, dtype=torch.float32)
    return (norm / math.sqrt(state.shape[-1])).to(state.dtype)
