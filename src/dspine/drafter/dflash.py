"""The DFlash drafter: the parallel backbone and the target's head, nothing else.

One rule: every place is drawn on its own, so that q is a product of the places' laws. Source: DFlash
(arXiv 2602.06036); z-lab 0.1.0 draws with the request's own parameters, DeepSpec's retrain has next-token rows
(`logits_start` 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.config import ParallelConfig
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.tables import TargetTables
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.packed import pack
from dspine.stages import stage


@dataclass(frozen=True)
class DFlashConfig(ParallelConfig):
    """Sizes of a DFlash drafter; the defaults are z-lab's for Qwen3-8B."""


class DFlash(nn.Module):
    """A drafter for one target.

    Args:
        config: sizes.
        embedding, head: the target's, see `TargetTables`.
        draft_ids: (V_d) sorted ids that may be proposed; None = the whole vocabulary.
    """

    def __init__(
        self, config: DFlashConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.tables = TargetTables(embedding, head, draft_ids)
        self.form = BlockForm(config.block_size, config.mask_token_id, config.sights)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self.backbone)
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

    def blocks(self, features: Tensor, lengths: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """All blocks of a batch of sequences in one pass: (N, A, M, d), final-normed.

        Args:
            features, lengths, anchors: see `training_pass`.
            tokens: (N, A, M+1) int64, x_s .. x_{s+M}; only x_s is an input.
        """
        hidden = training_pass(
            self.form, self.backbone, features.to(self.dtype), lengths, anchors, tokens[..., 0], self._hidden
        )
        return hidden.view(*anchors.shape, *hidden.shape[1:])

    def new_cache(self, rows: int) -> RowCache:
        return self.backbone.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.backbone.observe(cache, span, features, counts)

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> Tensor:
        """One pass over one block a row: anchors (B,) at the rows' context lengths → (B, M, d), final-normed."""
        return decode_pass(self.form, cache, first, anchors, self._hidden)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        hidden = self.draft_block(cache, first, anchors)
        with stage("draft/head"):
            scores = self.tables.logits(hidden)  # (B, M, V_d)
        with stage("draft/walk"):
            return self.tables.proposal(*self.tables.choose(scores, law, uniforms))
