"""A parallel drafter of the DFlash family: backbone, the target's tables, and a selection.

One rule: the backbone fills a block in one pass; what becomes of its rows is the selection's alone, and nothing else
tells the drafters of this family apart (DFlash2's backbone has layers of its own besides).
Source: DFlash (arXiv 2602.06036) for the pass; each selection names its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import ParallelConfig
from dspine.drafter.markov import ConfidenceHead
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Fusable, Proposal
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import Transitions
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.layer import Attend
from dspine.stages import stage


class Selection(Protocol):
    """A module that turns the backbone's rows into a proposal."""

    @property
    def confident(self) -> bool:
        """Whether its proposals carry confidences."""

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels, as far as their rows are not looked up."""

    def forced(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        """The likeliest token of every place had the tokens before it been chosen: H (..., M, d), token ids (..., M) of
        the one before each → token ids (..., M)."""

    def select(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        """Choose a token a place.

        Args:
            hidden: H (B, M, d), final-normed rows that predict places 1..M.
            anchors: (B,) tokens before place 1.
            law, uniforms: as in `Drafter.propose`.
        """


@runtime_checkable
class TabulatingSelection(Protocol):
    """A selection that may be able to tell all its scores."""

    @property
    def tabulates(self) -> bool:
        """Whether it is: a score depends on the token before its place at most."""

    def transitions(self, hidden: Tensor, anchors: Tensor) -> Transitions:
        """All scores of rows H (B, M, d) behind anchors (B,)."""


S = TypeVar("S", bound=Selection)


class ParallelDrafter(nn.Module, Generic[S]):
    """A drafter for one target.

    Args:
        config: sizes.
        backbone: of these sizes.
        tables: the target's, and which tokens may be proposed.
        selection: a module over the same tables.
        confident: whether a head estimates how likely each candidate is to be accepted, from the row H_t that predicts
            it and the embedding of the token before it, [H_t ; E(x_{t-1}) / RMS]. Selections that do so themselves
            have none here.
    """

    selection: S

    def __init__(
        self,
        config: ParallelConfig,
        backbone: Backbone,
        tables: TargetTables,
        selection: S,
        *,
        confident: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.tables = tables
        self.selection = selection
        self.confidence_head = ConfidenceHead(2 * config.hidden_size) if confident else None
        self.form = BlockForm(config.block_size, config.mask_token_id, config.sights)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        self.backbone.pack()
        self.selection.pack()
        self.tables.pack(self.dtype)

    @property
    def block_size(self) -> int:
        return self.candidates + 1

    @property
    def candidates(self) -> int:
        return self.config.candidates

    @property
    def draft_width(self) -> int:
        return self.form.rows

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def confident(self) -> bool:
        return self.confidence_head is not None or self.selection.confident

    @property
    def kernels(self) -> Kernels:
        """Whose walk a selection of tabulated scores uses; others have none, and go by the definitions."""
        tabulating: object = self.selection
        return tabulating.kernels if isinstance(tabulating, Fusable) else REFERENCE

    @kernels.setter
    def kernels(self, kernels: Kernels) -> None:
        tabulating: object = self.selection
        if isinstance(tabulating, Fusable):
            tabulating.kernels = kernels

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

    def blocks(self, features: Tensor, lengths: Tensor, anchors: Tensor, tokens: Tensor) -> Tensor:
        """H of all blocks of a batch of sequences in one pass: (N, A, M, d), final-normed.

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
        self.take_in(cache, span, features, tokens)
        cache.commit_span(span, counts)

    def take_in(self, cache: RowCache, span: Span | DeviceSpan, features: Tensor, tokens: Tensor) -> None:
        self.backbone.take_in(cache, span, features)

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> Tensor:
        """H of one block a row: anchors (B,) at the rows' context lengths → (B, M, d), final-normed."""
        return self._block(cache, self.form.span(cache, first, len(anchors)), anchors)

    def _block(self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor) -> Tensor:
        return decode_pass(self.form, cache, span, anchors, self._hidden)

    @property
    def tabulates(self) -> bool:
        selection: object = self.selection
        return isinstance(selection, TabulatingSelection) and selection.tabulates

    def transitions(self, cache: RowCache, first: int, anchors: Tensor) -> Transitions:
        """See `Tabulating`."""
        selection: object = self.selection
        assert isinstance(selection, TabulatingSelection)
        return selection.transitions(self.draft_block(cache, first, anchors), anchors)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        return self.propose_at(cache, self.form.span(cache, first, len(anchors)), anchors, law, uniforms)

    def propose_at(
        self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor, law: Law, uniforms: Tensor | None
    ) -> Proposal:
        hidden = self._block(cache, span, anchors)
        proposal = self.selection.select(hidden, anchors, law, uniforms)
        with stage("draft/confidence"):
            logits = self.confidence_logits(hidden, proposal.predecessors(anchors))
        if logits is None or self.confidence_head is None:
            return proposal
        return replace(proposal, confidence=self.confidence_head.chances(logits))

    def confidence_logits(self, hidden: Tensor, predecessors: Tensor) -> Tensor | None:
        """ζ (..., M) of the head beside the selection, by H (..., M, d), detached, and the token before each place."""
        if self.confidence_head is None:
            return None
        before = self.tables.embedding(predecessors).to(hidden.dtype)
        read = torch.cat((hidden.detach(), F.rms_norm(before, before.shape[-1:], eps=1e-6)), dim=-1)
        logits: Tensor = self.confidence_head(read)
        return logits

    def _hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Packed blocks (B, W) → (blocks, M, d), final-normed rows that predict places 1..M."""
        x = self.tables.embedding(tokens).to(self.dtype)
        out: Tensor = self.backbone(x, positions, attend)
        return out.reshape(-1, self.form.rows, out.shape[-1])[:, self.config.logits_start :]
