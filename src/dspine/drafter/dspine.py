"""The DSpine drafter: a block-causal parallel backbone with adjacent causal injection and a transition cache.

One rule: the layers run once per block, for training and for decoding alike, through `_states`; only where keys and
values are kept differs. Source: DSpine (arXiv 2609.36173), sections on the backbone, injection, and
predecessor-conditioned decoding.

A confidence head, where there is one, reads the very states that the candidates' laws are made from: refined with the
chosen predecessor, so they know the tokens before a place and not the one at it.

Row 0 of a block is the anchor, rows 1..M carry the mask token; row t lies at position s+t and predicts the token there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import DSpineConfig
from dspine.drafter.fused import fusable, fused_pass, fused_scores
from dspine.drafter.injection import Injection
from dspine.drafter.markov import ConfidenceHead
from dspine.drafter.masks import CAUSAL, Sight
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.states import BlockStates, Replacement
from dspine.drafter.tables import TargetTables
from dspine.drafter.transfer import TransferSpace
from dspine.drafter.transitions import Transitions, predecessors, transition_scores, walked
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.layer import Attend
from dspine.stages import stage


class DSpine(nn.Module):
    """A drafter for one target.

    Args:
        config: sizes.
        embedding, head: the target's, see `TargetTables`.
        space: transfer space made from that head.
        draft_ids: (V_d) sorted ids that may be proposed; None = the whole vocabulary. Anchors and predecessors may be
            any token all the same.

    kernels: whose arithmetic drafting uses; training goes by the definitions always.
    """

    kernels: Kernels

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
        sight = CAUSAL if config.is_causal else Sight(causal=False)
        self.form = BlockForm(config.block_size, config.mask_token_id, (sight,) * config.num_hidden_layers)
        self.backbone = Backbone(config)
        self.injection = Injection(
            config.num_hidden_layers,
            config.hidden_size,
            config.transfer_rank,
            config.message_size,
            space.directions,
            injected=config.injected,
            gated=config.gated,
            reach=config.reach,
        )
        self.space = space
        self.tables = TargetTables(embedding, head, draft_ids)
        self.confidence_head = ConfidenceHead(config.hidden_size) if config.confidence else None
        self.kernels = REFERENCE

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        self.backbone.pack()
        self.injection.pack()
        self.tables.pack(self.dtype)

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def candidates(self) -> int:
        return self.config.candidates

    @property
    def refines(self) -> bool:
        """Whether the last write is redone with chosen tokens."""
        return self.config.refined

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
        return self.confidence_head is not None

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

    @property
    def _fuses(self) -> bool:
        """Whether the block goes through fused kernels, which have no gradient."""
        kernels = self.kernels
        served = kernels.fused and (self.injection.packed or not kernels.packs)
        return served and fusable(self.config) and not torch.is_grad_enabled()

    # ---------------------------------------------------------------- the block pass

    def _states(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        replacement: Replacement | None,
        supervised: bool,
    ) -> BlockStates:
        """Run all layers over packed blocks.

        Args:
            tokens: (B, W) int64, W a multiple of M+1: the anchors at row 0 of each block, mask tokens elsewhere.
            positions: (B, W).
            attend: where keys and values go.
            replacement: correct predecessors, over (B·W/(M+1)) blocks.
            supervised: whether the states after injection and their readouts are kept.

        Returns:
            states over (blocks, M, ·), blocks in row-major order.
        """
        size = self.block_size
        x = self.tables.embedding(tokens).to(self.dtype)
        rotary = self.backbone.rotary(positions, x.dtype)
        anchor_code = self.codes[tokens.reshape(-1, size)[:, 0]].unsqueeze(1)  # (blocks, 1, r)
        states: list[Tensor] = []
        readouts: list[Tensor] = []
        farther: Tensor | None = None
        final = len(self.backbone.layers) - 1
        last = x
        for index in range(len(self.backbone.layers)):
            with stage("draft/backbone"):
                x = self.backbone.layer(index, x, rotary, attend)
            with stage("draft/injection"):
                blocks = x.reshape(-1, size, x.shape[-1])
                state = blocks[:, 1:]  # (blocks, M, d)
                heard, farther = self._hear(index, state, anchor_code, replacement)
                if supervised:
                    states.append(heard)
                    readouts.append(self.injection.readout(index, heard))
                if index == final:
                    last, hidden = state, self.backbone.norm(heard)
                else:
                    x = torch.cat((blocks[:, :1], heard), dim=1).view(x.shape)
        return BlockStates(hidden=hidden, last=last, farther=farther, heard=states, readouts=readouts)

    def _hear(
        self, layer: int, state: Tensor, anchor_code: Tensor, replacement: Replacement | None
    ) -> tuple[Tensor, Tensor | None]:
        """One layer's injection in the parallel pass.

        Args:
            state: u_l (blocks, M, d). anchor_code: (blocks, 1, r).

        Returns:
            h_l (blocks, M, d), and what it heard from farther away (blocks, M, a), if it listens there.
        """
        if layer not in self.config.injected:
            return state, None
        receiver = self.injection.readout(layer, state)
        anchor_code = anchor_code.to(receiver.dtype)
        if self.config.predecessor == "none":
            first = self.injection.deliver(layer, state[:, :1], receiver[:, :1], anchor_code)
            return torch.cat((first, state[:, 1:]), dim=1), None
        predecessor = torch.cat((anchor_code, receiver[:, :-1]), dim=1)
        if replacement is not None and layer < replacement.layers:
            predecessor = torch.where(replacement.chosen, replacement.codes.to(predecessor.dtype), predecessor)
        farther = None if self.config.reach == 1 else self.injection.from_farther(predecessor)
        return self.injection.deliver(layer, state, receiver, predecessor, farther), farther

    def refine(self, last: Tensor, predecessors: Tensor, farther: Tensor | None = None) -> Tensor:
        """Last-write refinement: the last layer's injection redone with tokens that are known.

        Only the predecessor's part depends on the token: what is heard from farther away stays as it was drafted, so
        that a table over pairs of candidates says all.

        Args:
            last: u_L (..., d).
            predecessors: token ids (...), broadcastable to last's leading dimensions.
            farther: of the same pass (..., a), where the drafter's reach is beyond the predecessor.

        Returns:
            final-normed states (..., d).
        """
        if (farther is None) != (self.config.reach == 1):
            raise ValueError(f"a drafter of reach {self.config.reach} refines with what it heard from farther away")
        layer = len(self.backbone.layers) - 1
        receiver = self.injection.readout(layer, last)
        code = self.codes[predecessors].to(receiver.dtype)
        return self.final(self.injection.deliver(layer, last, receiver, code, farther))

    def final(self, state: Tensor) -> Tensor:
        """What the head reads of a layer's state (..., d): the final norm of it."""
        normed: Tensor = self.backbone.norm(state)
        return normed

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
            return self._states(inputs, positions, attend, replacement, supervised=True)

        states = training_pass(self.form, self.backbone, features.to(self.dtype), lengths, anchors, tokens[..., 0], run)
        return states.grouped(batch, per_row)

    def forced(self, states: BlockStates, predecessors: Tensor) -> Tensor:
        """The likeliest token of every place had the tokens before it been chosen: states over (..., M, ·), token ids
        (..., M) of the one before each → token ids (..., M)."""
        if not self.config.refined:
            return self.tables.tokens(self.tables.logits(states.hidden).argmax(-1))
        candidates = self.top_candidates(states.hidden)  # (..., M, K)
        refined = self.refine(states.last, predecessors, states.farther)
        best = self.candidate_scores(refined, candidates).argmax(-1, keepdim=True)
        return candidates.gather(-1, best)[..., 0]

    # ---------------------------------------------------------------- decoding

    def new_cache(self, rows: int) -> RowCache:
        return self.backbone.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.take_in(cache, span, features, tokens)
        cache.commit_span(span, counts)

    def take_in(self, cache: RowCache, span: Span | DeviceSpan, features: Tensor, tokens: Tensor) -> None:
        self.backbone.take_in(cache, span, features)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        return self.propose_at(cache, self.form.span(cache, first, len(anchors)), anchors, law, uniforms)

    def propose_at(
        self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor, law: Law, uniforms: Tensor | None
    ) -> Proposal:
        states = self._block(cache, span, anchors)
        proposal = self._chosen(states, anchors, law, uniforms)
        if self.confidence_head is None:
            return proposal
        with stage("draft/confidence"):
            state = states.hidden
            if self.config.refined:
                state = self.refine(states.last, proposal.predecessors(anchors), states.farther)
            return replace(proposal, confidence=self.confidence_head.chances(self.confidence_head(state)))

    def _chosen(self, states: BlockStates, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        if not self.config.refined:
            return self.tables.independent(states.hidden, law, uniforms)
        table = self._tabulated(states, anchors)
        with stage("draft/walk"):
            return walked(table.scores, table.candidates, law, uniforms, self.kernels)

    @property
    def tabulates(self) -> bool:
        return True

    def transitions(self, cache: RowCache, first: int, anchors: Tensor) -> Transitions:
        """See `Tabulating`."""
        states = self.draft_block(cache, first, anchors)
        if self.config.refined:
            return self._tabulated(states, anchors)
        with stage("draft/head"):
            return self.tables.transitions(states.hidden, self.config.top_k)

    def _tabulated(self, states: BlockStates, anchors: Tensor) -> Transitions:
        with stage("draft/head"):
            candidates = self.top_candidates(states.hidden)  # (B, M, K)
        with stage("draft/scores"):
            return Transitions(candidates, self.transition_cache(states.last, anchors, candidates, states.farther))

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> BlockStates:
        """One pass over one block a row: anchors (B,) at the rows' context lengths → states over (B, M, ·)."""
        return self._block(cache, self.form.span(cache, first, len(anchors)), anchors)

    def _block(self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor) -> BlockStates:

        def run(tokens: Tensor, positions: Tensor, attend: Attend) -> BlockStates:
            if not self._fuses:
                return self._states(tokens, positions, attend, None, supervised=False)
            hidden, last = fused_pass(self, self.kernels, tokens, positions, attend)
            return BlockStates(hidden, last, farther=None, heard=[], readouts=[])

        return decode_pass(self.form, cache, span, anchors, run)

    def transition_cache(
        self, last: Tensor, anchors: Tensor, candidates: Tensor, farther: Tensor | None = None
    ) -> Tensor:
        """T (B, M, K, K): the refined score at place t of candidate j, had predecessor i been chosen.

        Args:
            last: u_L (B, M, d).
            anchors: (B,) the one predecessor of place 1, so that all its K rows are alike.
            candidates: V_t (B, M, K) token ids.
            farther: (B, M, a), see `refine`.
        """
        if self._fuses:
            return fused_scores(self, self.kernels, last, anchors, candidates)
        beyond = None if farther is None else farther.unsqueeze(2)
        refined = self.refine(last.unsqueeze(2), predecessors(anchors, candidates), beyond)  # (B, M, K, d)
        return transition_scores(refined, self.head, candidates)
