"""The DFlash2 drafter: DFlash with convolutions in its layers, and a selector among the likeliest of every place.

One rule: a place's candidates come from the backbone alone; which of them is chosen depends on the one chosen before.
Source: DFlash2 (z-lab), as SGLang, NeMo and speculators agree on it:

    S_t(s, v) = U_t[v] + < A[s] ⊙ (W_h H_t), S[v] >      for the K candidates v of place t, after predecessor s

All K × K scores of a place are tabulated in one pass, as DSpine's are, and walked by lookup; q is the row's law over
the K candidates. The sampling parameters act on that row (SGLang's selector applies the temperature alone).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.convolution import ConvolvedLayer
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.proposal import Proposal
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import Transitions, predecessors, walked
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.law import Law
from dspine.kernels.packed import pack
from dspine.stages import stage


@dataclass(frozen=True)
class DFlash2Config(ParallelConfig):
    """Sizes of a DFlash2 drafter.

    conv_taps: κ, rows that a convolution reads. conv_group_size: channels that share an adjustment.
    selector_rank: ρ. top_k: K, candidates of a place.
    """

    block_size: int = 8
    conv_taps: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    top_k: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive(("conv_taps", "conv_group_size", "selector_rank", "top_k"))
        if self.hidden_size % self.conv_group_size:
            raise ConfigError(
                f"drafter config: conv_group_size {self.conv_group_size} does not divide the width {self.hidden_size}",
                "Choose a divisor of hidden_size.",
            )
        if self.top_k > self.vocab_size:
            raise ConfigError(
                f"drafter config: top_k {self.top_k} exceeds the vocabulary of {self.vocab_size}",
                "Choose a smaller one.",
            )

    @classmethod
    def proportions(cls, facts: TargetFacts) -> dict[str, int]:
        return {"selector_rank": fraction(facts.hidden_size, 16)}


class CandidateSelector(nn.Module):
    """What a predecessor adds to the scores of the candidates behind it; nothing before it is trained.

    Args:
        vocabulary: V. width: d. rank: ρ.
    """

    def __init__(self, vocabulary: int, width: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(0.02 * torch.randn(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.hidden_projection = nn.Linear(width, rank, bias=False)

    def forward(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """Hidden (..., d), predecessors (..., P) and candidates (..., K), token ids → (..., P, K)."""
        gate: Tensor = self.hidden_projection(hidden).unsqueeze(-2)
        return (self.predecessor_codebook[before] * gate) @ self.successor_codebook[candidates].transpose(-1, -2)


class CandidateSelection(nn.Module):
    """The K likeliest of every place, chosen among by the selector.

    kernels: whose walk is used.
    """

    kernels: Kernels

    def __init__(self, config: DFlash2Config, tables: TargetTables) -> None:
        super().__init__()
        self.tables = tables
        self.top_k = config.top_k
        self.candidate_selector = CandidateSelector(config.vocab_size, config.hidden_size, config.selector_rank)
        self.kernels = REFERENCE

    @property
    def confident(self) -> bool:
        return False

    def pack(self) -> None:
        pack(self.candidate_selector)

    def forced(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        base, candidates = self.tables.top(hidden, self.top_k)  # (..., M, K)
        added = self.candidate_selector(hidden, predecessors.unsqueeze(-1), candidates)[..., 0, :]
        return candidates.gather(-1, (base + added).argmax(-1, keepdim=True))[..., 0]

    def select(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        table = self.transitions(hidden, anchors)
        with stage("draft/walk"):
            return walked(table.scores, table.candidates, law, uniforms, self.kernels)

    @property
    def tabulates(self) -> bool:
        return True

    def transitions(self, hidden: Tensor, anchors: Tensor) -> Transitions:
        """Candidates and all their scores: H (B, M, d), anchors (B,)."""
        with stage("draft/head"):
            base, candidates = self.tables.top(hidden, self.top_k)
        with stage("draft/scores"):
            return Transitions(candidates, self.transition_cache(hidden, base, anchors, candidates))

    def transition_cache(self, hidden: Tensor, base: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
        """S (B, M, K, K): the score at place t of candidate j, had predecessor i been chosen.

        Args:
            hidden: H (B, M, d). base: U (B, M, K). anchors: (B,) the one predecessor of place 1.
            candidates: (B, M, K) token ids.
        """
        added: Tensor = self.candidate_selector(hidden, predecessors(anchors, candidates), candidates)
        return base.unsqueeze(2) + added


def dflash2(
    config: DFlash2Config, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
) -> ParallelDrafter[CandidateSelection]:
    """An untrained DFlash2 drafter over a target's tables, see `TargetTables`."""
    tables = TargetTables(embedding, head, draft_ids)
    taps, group = config.conv_taps, config.conv_group_size
    backbone = Backbone(config, lambda sizes: ConvolvedLayer(sizes, config.block_size, taps, group))
    selection = CandidateSelection(config, tables)
    return ParallelDrafter(config, backbone, tables, selection, confident=config.confidence)
