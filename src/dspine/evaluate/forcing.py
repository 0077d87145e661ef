"""Teacher forcing: what a drafter proposes at each place when everything before it is correct.

One rule: it goes through the network's training forward over the target's own answers, so that whatever it says differs
from decoding only in what stood before. Source: DSpine (arXiv 2609.36173), refined output with correct predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dspine.decode.agreement import begun
from dspine.decode.records import Completion
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3
from dspine.drafter.registry import Network
from dspine.kernels.kv import Span
from dspine.target.model import Target

ANCHORS = 64  # of one answer, spread evenly
SCORES = 1 << 25  # numbers of vocabulary-sized scores at once


@dataclass(frozen=True)
class Passage:
    """A prompt and the target's answer to it.

    ids: (S,) int64. taps: the layer that each (S, d) of `features` is the output of. anchors: (A,) positions inside the
    answer. starts: (R,) the anchors of the rounds that drafted it, see `begun`.
    """

    ids: Tensor
    taps: tuple[int, ...]
    features: tuple[Tensor, ...]
    anchors: Tensor
    starts: Tensor

    @classmethod
    def of(cls, target: Target, answer: Completion, taps: Sequence[int]) -> Passage:
        """One forward of the target over an answer, tapped at all of `taps`."""
        ids = torch.tensor([*answer.prompt_ids, *answer.token_ids], device=target.device)
        span = Span(first=0, starts=(0,), width=len(ids), whole=True)
        features = target.forward(ids[None], target.new_cache(1), span, taps).features
        assert features is not None
        first, last = len(answer.prompt_ids), len(ids) - 2
        count = min(ANCHORS, max(0, last - first + 1))
        anchors = torch.linspace(first, last, count).long() if count else torch.empty(0, dtype=torch.int64)
        return cls(
            ids,
            tuple(taps),
            torch.split(features[0], target.hidden_size, dim=-1),
            anchors.to(ids.device),
            torch.tensor([start for start, _ in begun(answer)], dtype=torch.int64, device=ids.device),
        )

    def tapped(self, taps: Sequence[int], shift: int = 0) -> Tensor:
        """Features (1, S, m·d) of these layers; of the position `shift` further on, which is one off where it is 1."""
        chosen = torch.cat([self.features[self.taps.index(tap)] for tap in taps], dim=-1)
        return chosen.roll(-shift, dims=0)[None]


@dataclass(frozen=True)
class Forced:
    """What was proposed at N anchors and M places.

    right: (N, M) bool, it is the target's token. known: (N, M) bool, there is such a token. likelihood: (N, M) float32,
    natural logarithm of the ordinary output's probability of it; 0 where the drafter cannot propose it. cosine:
    (N, M) float32, cosine of the last readout and the token's code; 0 without codes.
    """

    right: Tensor
    known: Tensor
    likelihood: Tensor
    cosine: Tensor

    @property
    def places(self) -> list[float]:
        """Accuracy by place."""
        counts = self.known.sum(0).clamp(min=1)
        return ((self.right & self.known).sum(0) / counts).tolist()

    @property
    def accuracy(self) -> float:
        """Over all places."""
        return float(self.right[self.known].float().mean()) if bool(self.known.any()) else float("nan")


@torch.no_grad()
def forced(
    drafter: Network,
    passages: Sequence[Passage],
    *,
    taps: Sequence[int] | None = None,
    shift: int = 0,
    late: int = 0,
    at_rounds: bool = False,
) -> Forced:
    """Let the drafter fill the blocks of all passages, each place with the correct token before it.

    Args:
        taps: other layers than the drafter's. shift: see `Passage.tapped`.
        late: compare place t with the token of place t + late.
        at_rounds: at the anchors of the rounds, instead of everywhere.
    """
    parts = []
    for passage in passages:
        anchors = passage.starts if at_rounds else passage.anchors
        features = passage.tapped(taps or drafter.target_layer_ids, shift)
        size = max(1, SCORES // (drafter.candidates * drafter.tables.size))
        parts += [
            _block(drafter, passage.ids, features, part, late) for part in torch.split(anchors, size) if len(part)
        ]
    if not parts:
        nothing = torch.zeros(0, drafter.candidates)
        return Forced(nothing.bool(), nothing.bool(), nothing, nothing)
    return Forced(*(torch.cat(side).cpu() for side in zip(*parts, strict=True)))


def _block(
    drafter: Network, ids: Tensor, features: Tensor, anchors: Tensor, late: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four tensors of `Forced` for some anchors (A,)."""
    at = anchors[:, None] + torch.arange(drafter.candidates + 1, device=ids.device)  # (A, M+1)
    goals_at = at[:, 1:] + late
    goals, known = _tokens(ids, goals_at), (goals_at < len(ids)) & (goals_at > anchors[:, None])
    before, cosine = _tokens(ids, goals_at - 1), torch.zeros(goals.shape, device=ids.device)
    if isinstance(drafter, Eagle3):
        unrolled = drafter.unroll(features, ids[None])  # its row s-1 drafts behind the anchor s
        scores = drafter.logits(unrolled[:, 0, anchors - 1].transpose(0, 1))  # (A, M, V_d)
        proposed = drafter.tables.tokens(scores.argmax(-1))
    else:
        blocks = features, torch.tensor([len(ids)], device=ids.device), anchors[None], _tokens(ids, at)[None]
        if isinstance(drafter, DSpine):
            states = drafter.blocks(*blocks)
            hidden, proposed = states.hidden, drafter.forced(states, before[None])[0]
            cosine = (states.readouts[-1][0].float() * drafter.codes[goals]).sum(-1)
        else:
            hidden = drafter.blocks(*blocks)
            proposed = drafter.selection.forced(hidden, before[None])[0]
        scores = drafter.tables.logits(hidden[0])
    likelihood = _likelihood(scores.float().log_softmax(-1), drafter.draft_ids, goals)
    return proposed == goals, known, likelihood, cosine


def _likelihood(scores: Tensor, draft_ids: Tensor | None, goals: Tensor) -> Tensor:
    if draft_ids is None:
        return scores.gather(-1, goals[..., None])[..., 0]
    index = torch.searchsorted(draft_ids, goals).clamp(max=len(draft_ids) - 1)
    found = scores.gather(-1, index[..., None])[..., 0]
    return torch.where(draft_ids[index] == goals, found, torch.zeros_like(found))


def _tokens(ids: Tensor, at: Tensor) -> Tensor:
    """Tokens at positions, 0 behind the end."""
    padded = F.pad(ids, (0, 1))
    return padded[at.clamp(0, len(ids))]
