"""The head of a DSpine drafter, as SGLang's DFlash worker calls a candidate selector: candidates, scores, walk.

One rule: all of it can run inside the draft's CUDA graph, so nothing waits for the device or depends on its values;
the walk hands on the very law that it drew from. Source: DSpine (arXiv 2609.36173), predecessor-conditioned decoding.
"""

from __future__ import annotations

from typing import Protocol

import torch
from sglang.srt.models.dflash import candidate_topk
from torch import Tensor, nn

from dspine.drafter.transitions import predecessors, transition_scores
from dspine.kernels.reference import follow


class DraftHead(nn.Module):
    """The target's LM head, or its rows of a restricted draft vocabulary.

    Args:
        rows: the whole head (V, d).
        draft_ids: (V_d) sorted ids that may be proposed; None = all of V.
    """

    def __init__(self, rows: Tensor, draft_ids: Tensor | None) -> None:
        super().__init__()
        self.rows = rows
        self.draft_ids = draft_ids
        # What SGLang's top-k reads of a head.
        self.quant_method = None
        self.weight = rows if draft_ids is None else rows[draft_ids].contiguous()
        self.org_vocab_size = len(self.weight)

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Token ids and scores (N, K) of the likeliest by (N, d), likeliest first."""
        index, scores, _ = candidate_topk(hidden, self, count)
        return (index if self.draft_ids is None else self.draft_ids[index]), scores.float()


class Network(Protocol):
    """What the selector asks of the drafter."""

    @property
    def head(self) -> DraftHead: ...
    @property
    def width(self) -> int: ...
    def refine(self, last: Tensor, predecessors: Tensor) -> Tensor: ...


class TransitionSelector:
    """DSpine's choice of candidates, by the names of SGLang's selector protocol.

    Args:
        network: the drafter that it belongs to.
        top_k: candidates a place, K.
    """

    def __init__(self, network: Network, top_k: int) -> None:
        self._network = network
        self.top_k = top_k

    def build_lattice(
        self, *, candidate_ids: Tensor, unary_logits: Tensor, hidden_states: Tensor, anchor_token_ids: Tensor
    ) -> Tensor:
        """The transition cache (B, M, K, K).

        Args:
            candidate_ids: V_t (B, M, K). unary_logits: their ordinary scores, which refinement replaces.
            hidden_states: (B, M, 2d), the ordinary output and u_L.
            anchor_token_ids: (B,).
        """
        last = hidden_states[..., self._network.width :]
        refined = self._network.refine(last.unsqueeze(2), predecessors(anchor_token_ids, candidate_ids))
        return transition_scores(refined, self._network.head.rows, candidate_ids)

    def sample_path(
        self, *, candidate_ids: Tensor, scores: Tensor, uniforms: Tensor, temperatures: Tensor, greedy_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Walk from left to right: tokens (B, M), and the laws (B, M, K) that they were drawn from.

        Args:
            scores: T (B, M, K, K). uniforms: (B, M). temperatures: (B,), above 0.
            greedy_mask: bool (B,), requests that take the best candidate instead.
        """
        probs = torch.softmax(scores.float() / temperatures.view(-1, 1, 1, 1), dim=-1)
        best = torch.zeros_like(probs).scatter_(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
        chosen, laws = follow(torch.where(greedy_mask.view(-1, 1, 1, 1), best, probs), uniforms)
        return candidate_ids.gather(2, chosen.unsqueeze(2)).squeeze(2), laws
