"""The DFlash2 drafter: DFlash with convolutions in its layers, and a selector among the likeliest of every place.

One rule: a place's candidates come from the backbone alone; which of them is chosen depends on the one chosen before.
Source: DFlash2 (z-lab), as SGLang, NeMo and speculators agree on it:

    S_t(s, v) = U_t[v] + < A[s] ⊙ (W_h H_t), S[v] >      for the K candidates v of place t, after predecessor s

All K × K scores of a place are tabulated in one pass, as DSpine's are, and walked by lookup; q is the row's law over
the K candidates. The sampling parameters act on that row (SGLang's selector applies the temperature alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.convolution import ConvolvedLayer
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import predecessors, walked
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.kv import RowCache, Span
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


class DFlash2(nn.Module):
    """A drafter for one target. Arguments as `DFlash`."""

    def __init__(
        self, config: DFlash2Config, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        taps, group = config.conv_taps, config.conv_group_size
        self.backbone = Backbone(config, lambda sizes: ConvolvedLayer(sizes, config.block_size, taps, group))
        self.candidate_selector = CandidateSelector(config.vocab_size, config.hidden_size, config.selector_rank)
        self.tables = TargetTables(embedding, head, draft_ids)
        self.form = BlockForm(config.block_size, config.mask_token_id, config.sights)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self.backbone)
        pack(self.candidate_selector)
        self.tables.pack(self.dtype)

    @property
    def block_size(self) -> int:
        return self.candidates + 1

    @property
    def candidates(self) -> int:
        return self.config.candidates

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def head(self) -> Tensor:
        """The target's LM head (V, d)."""
        return self.tables.head

    @property
    def draft_ids(self) -> Tensor | None:
        return self.tables.draft_ids

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.norm.weight.dtype

    def _hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Packed blocks (B, W) → (blocks, M, d), final-normed rows that predict places 1..M."""
        x = self.tables.embedding(tokens).to(self.dtype)
        out: Tensor = self.backbone(x, positions, attend)
        return out.reshape(-1, self.form.rows, out.shape[-1])[:, self.config.logits_start :]

    # ---------------------------------------------------------------- training

    def blocks(self, features: Tensor, lengths: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """H of all blocks of a batch of sequences: (N, A, M, d). Arguments as in `DFlash.blocks`."""
        hidden = training_pass(
            self.form, self.backbone, features.to(self.dtype), lengths, anchors, tokens[..., 0], self._hidden
        )
        return hidden.view(*anchors.shape, *hidden.shape[1:])

    # ---------------------------------------------------------------- decoding

    def new_cache(self, rows: int) -> RowCache:
        return self.backbone.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.backbone.observe(cache, span, features, counts)

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> Tensor:
        """H of one block a row: anchors (B,) at the rows' context lengths → (B, M, d)."""
        return decode_pass(self.form, cache, first, anchors, self._hidden)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        hidden = self.draft_block(cache, first, anchors)
        with stage("draft/head"):
            base, candidates = self.top_candidates(hidden)
        with stage("draft/scores"):
            scores = self.transition_cache(hidden, base, anchors, candidates)
        with stage("draft/walk"):
            return walked(scores, candidates, law, uniforms)

    def top_candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Scores U (..., K) and token ids (..., K) of the K likeliest by H (..., d) alone, likeliest first."""
        scores = self.tables.logits(hidden)
        base, index = scores.topk(min(self.config.top_k, scores.shape[-1]), dim=-1)
        return base, self.tables.tokens(index)

    def transition_cache(self, hidden: Tensor, base: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
        """S (B, M, K, K): the score at place t of candidate j, had predecessor i been chosen.

        Args:
            hidden: H (B, M, d). base: U (B, M, K). anchors: (B,) the one predecessor of place 1.
            candidates: (B, M, K) token ids.
        """
        added: Tensor = self.candidate_selector(hidden, predecessors(anchors, candidates), candidates)
        return base.unsqueeze(2) + added
