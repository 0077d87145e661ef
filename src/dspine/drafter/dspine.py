"""The DSpine drafter: a block-causal parallel backbone with adjacent causal injection and a transition cache.

One rule: the layers run once per block, for training and for decoding alike, through `_states`; only where keys and
values are kept differs. Source: DSpine (arXiv 2609.36173), sections on the backbone, injection, and
predecessor-conditioned decoding.

Row 0 of a block is the anchor, rows 1..M carry the mask token; row t lies at position s+t and predicts the token there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.config import DSpineConfig
from dspine.drafter.injection import Injection
from dspine.drafter.masks import CAUSAL
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.tables import TargetTables
from dspine.drafter.transfer import TransferSpace
from dspine.drafter.transitions import predecessors, walked
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.packed import pack
from dspine.stages import stage


@dataclass(frozen=True)
class BlockStates:
    """What one pass over blocks leaves behind, place 1..M of each block.

    hidden: (..., M, d) the ordinary output after the final norm.
    last: (..., M, d) u_L, the last layer's state before its injection.
    readouts: per layer, unit vectors (..., M, r): the readout of the state *after* that layer's injection; empty
        unless asked for.
    """

    hidden: Tensor
    last: Tensor
    readouts: list[Tensor]


@dataclass(frozen=True)
class Replacement:
    """Correct predecessors for the first layers of some blocks (training only).

    codes: (B, M, r) unit codes of the tokens x_s .. x_{s+M-1} that precede places 1..M.
    chosen: bool (B, 1, 1), the blocks whose draw came up.
    layers: how many layers are replaced, from the first.
    """

    codes: Tensor
    chosen: Tensor
    layers: int


class DSpine(nn.Module):
    """A drafter for one target.

    Args:
        config: sizes.
        embedding, head: the target's, see `TargetTables`.
        space: transfer space made from that head.
        draft_ids: (V_d) sorted ids that may be proposed; None = the whole vocabulary. Anchors and predecessors may be
            any token all the same.
    """

    def __init__(
        self,
        config: DSpineConfig,
        embedding: nn.Module,
        head: Tensor,
        space: TransferSpace,
        draft_ids: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.form = BlockForm(config.block_size, config.mask_token_id, (CAUSAL,) * config.num_hidden_layers)
        self.backbone = Backbone(config)
        self.injection = Injection(
            config.num_hidden_layers,
            config.hidden_size,
            config.transfer_rank,
            config.message_size,
            space.directions,
        )
        self.space = space
        self.tables = TargetTables(embedding, head, draft_ids)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self.backbone)
        self.tables.pack(self.dtype)

    @property
    def block_size(self) -> int:
        return self.config.block_size

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
    def codes(self) -> Tensor:
        """C (V, r) float32."""
        return self.space.codes

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.norm.weight.dtype

    # ---------------------------------------------------------------- the block pass

    def _states(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        replacement: Replacement | None,
        with_readouts: bool,
    ) -> BlockStates:
        """Run all layers over packed blocks.

        Args:
            tokens: (B, W) int64, W a multiple of M+1: the anchors at row 0 of each block, mask tokens elsewhere.
            positions: (B, W).
            attend: where keys and values go.
            replacement: correct predecessors, over (B·W/(M+1)) blocks.
            with_readouts: whether the readouts after injection are kept.

        Returns:
            states over (blocks, M, ·), blocks in row-major order.
        """
        size = self.block_size
        x = self.tables.embedding(tokens).to(self.dtype)
        rotary = self.backbone.rotary(positions, x.dtype)
        anchor_code = self.codes[tokens.reshape(-1, size)[:, 0]].unsqueeze(1)  # (blocks, 1, r)
        readouts: list[Tensor] = []
        final = len(self.backbone.layers) - 1
        last = x
        for index, layer in enumerate(self.backbone.layers):
            with stage("draft/backbone"):
                x = layer(index, x, rotary, attend)
            with stage("draft/injection"):
                blocks = x.reshape(-1, size, x.shape[-1])
                state = blocks[:, 1:]  # (blocks, M, d)
                receiver = self.injection.readout(index, state)
                predecessor = torch.cat((anchor_code.to(receiver.dtype), receiver[:, :-1]), dim=1)
                if replacement is not None and index < replacement.layers:
                    predecessor = torch.where(replacement.chosen, replacement.codes.to(predecessor.dtype), predecessor)
                heard = self.injection.deliver(index, state, receiver, predecessor)
                if with_readouts:
                    readouts.append(self.injection.readout(index, heard))
                if index == final:
                    last, hidden = state, self.backbone.norm(heard)
                else:
                    x = torch.cat((blocks[:, :1], heard), dim=1).view(x.shape)
        return BlockStates(hidden=hidden, last=last, readouts=readouts)

    def refine(self, last: Tensor, predecessors: Tensor) -> Tensor:
        """Last-write refinement: the last layer's injection redone with tokens that are known.

        Args:
            last: u_L (..., d).
            predecessors: token ids (...), broadcastable to last's leading dimensions.

        Returns:
            final-normed states (..., d).
        """
        layer = len(self.backbone.layers) - 1
        receiver = self.injection.readout(layer, last)
        code = self.codes[predecessors].to(receiver.dtype)
        refined: Tensor = self.backbone.norm(self.injection.deliver(layer, last, receiver, code))
        return refined

    def candidate_scores(self, hidden: Tensor, candidates: Tensor) -> Tensor:
        """Scores of given tokens: hidden (..., d), token ids (..., K) → (..., K)."""
        rows = self.head[candidates].to(hidden.dtype)  # (..., K, d)
        return torch.einsum("...d,...kd->...k", hidden, rows)

    def top_candidates(self, hidden: Tensor) -> Tensor:
        """V_t: the K likeliest token ids of the ordinary output, (..., d) → (..., K), likeliest first."""
        return self.tables.top(hidden, self.config.top_k)[1]

    # ---------------------------------------------------------------- training

    def blocks(
        self,
        features: Tensor,
        lengths: Tensor,
        anchors: Tensor,
        tokens: Tensor,
        replaced: Tensor | None = None,
        replaced_layers: int = 0,
    ) -> BlockStates:
        """All blocks of a batch of sequences in one pass.

        Args:
            features: (N, S, m·d), target features of positions 0..S-1, padded behind `lengths`.
            lengths: (N) int64, real positions of each sequence.
            anchors: (N, A) int64 positions of the anchors; a block sees features strictly before its own.
            tokens: (N, A, M+1) int64, x_s .. x_{s+M}; only x_s is an input, the others serve as correct predecessors.
            replaced: bool (N, A), blocks whose first layers hear correct predecessors; None = no block.
            replaced_layers: how many layers that concerns.

        Returns:
            BlockStates over (N, A, M, ·).
        """
        batch, per_row = anchors.shape
        replacement = None
        if replaced is not None and replaced_layers:
            codes = self.codes[tokens[..., :-1]].flatten(0, 1)
            replacement = Replacement(codes, replaced.reshape(-1, 1, 1), replaced_layers)

        def run(inputs: Tensor, positions: Tensor, attend: Attend) -> BlockStates:
            return self._states(inputs, positions, attend, replacement, with_readouts=True)

        states = training_pass(self.form, self.backbone, features.to(self.dtype), lengths, anchors, tokens[..., 0], run)
        return BlockStates(
            hidden=states.hidden.reshape(batch, per_row, *states.hidden.shape[1:]),
            last=states.last.reshape(batch, per_row, *states.last.shape[1:]),
            readouts=[readout.reshape(batch, per_row, *readout.shape[1:]) for readout in states.readouts],
        )

    # ---------------------------------------------------------------- decoding

    def new_cache(self, rows: int) -> RowCache:
        return self.backbone.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.backbone.observe(cache, span, features, counts)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        states = self.draft_block(cache, first, anchors)
        with stage("draft/head"):
            candidates = self.top_candidates(states.hidden)  # (B, M, K)
        with stage("draft/scores"):
            scores = self.transition_cache(states.last, anchors, candidates)
        with stage("draft/walk"):
            return walked(scores, candidates, law, uniforms)

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> BlockStates:
        """One pass over one block a row: anchors (B,) at the rows' context lengths → states over (B, M, ·)."""

        def run(tokens: Tensor, positions: Tensor, attend: Attend) -> BlockStates:
            return self._states(tokens, positions, attend, None, with_readouts=False)

        return decode_pass(self.form, cache, first, anchors, run)

    def transition_cache(self, last: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
        """T (B, M, K, K): the refined score at place t of candidate j, had predecessor i been chosen.

        Args:
            last: u_L (B, M, d).
            anchors: (B,) the one predecessor of place 1, so that all its K rows are alike.
            candidates: V_t (B, M, K) token ids.
        """
        refined = self.refine(last.unsqueeze(2), predecessors(anchors, candidates))  # (B, M, K, d)
        rows = self.head[candidates].to(refined.dtype)  # (B, M, K, d)
        return refined @ rows.transpose(2, 3)
