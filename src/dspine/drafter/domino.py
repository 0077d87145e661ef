"""The Domino drafter: the parallel backbone, and a recurrent state of the drafted prefix that corrects its scores.

One rule: the state at place t has read the anchor and the tokens of places 1..t-1, in training the correct ones, in
one call; the first place is never corrected, since the backbone has read the anchor already.
Source: Domino (arXiv 2605.29707), with z_t the backbone's row that predicts place t and U_t its scores:

    h_t = GRU(emb(x_s), emb(y_1), .., emb(y_{t-1})),   scores_t = U_t + E_2 SiLU(E_1 [z_t ; h_t])   for t > 1

Its authors' `shift_label` is `logits_start` here: true is 0. All rows that predict are used: with 0, 16 of 16, as in
their own code; SpecForge and SGLang leave the last one out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.serial import serial_walk
from dspine.drafter.tables import TargetTables
from dspine.facts import TargetFacts
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.packed import pack
from dspine.stages import stage

SPREAD = 0.02  # standard deviation of the head's initial weights


@dataclass(frozen=True)
class DominoConfig(ParallelConfig):
    """Sizes of a Domino drafter; the defaults are the authors' for Qwen3-8B.

    gru_hidden_size: G, of the state. projection_size: E, between state and scores.
    """

    logits_start: int = 0
    gru_hidden_size: int = 1024
    projection_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive(("gru_hidden_size", "projection_size"))

    @classmethod
    def proportions(cls, facts: TargetFacts) -> dict[str, int]:
        return {"gru_hidden_size": fraction(facts.hidden_size, 4), "projection_size": fraction(facts.hidden_size, 16)}


class Domino(nn.Module):
    """A drafter for one target. Arguments as `DFlash`."""

    def __init__(
        self, config: DominoConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.tables = TargetTables(embedding, head, draft_ids)
        self.form = BlockForm(config.block_size, config.mask_token_id, config.sights)
        width, state, inner = config.hidden_size, config.gru_hidden_size, config.projection_size
        self.prefix_gru = nn.GRU(width, state, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + state, inner, bias=False), nn.SiLU(), nn.Linear(inner, self.tables.size, bias=False)
        )
        for layer in (self.embed_proj[0], self.embed_proj[2]):
            nn.init.normal_(cast(nn.Linear, layer).weight, std=SPREAD)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self.backbone)
        pack(self.embed_proj)
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
        """z of all blocks of a batch of sequences: (N, A, M, d). Arguments as in `DFlash.blocks`."""
        hidden = training_pass(
            self.form, self.backbone, features.to(self.dtype), lengths, anchors, tokens[..., 0], self._hidden
        )
        return hidden.view(*anchors.shape, *hidden.shape[1:])

    def correction(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        """What `correction_head` turns into corrections of the scores: zero at place 1.

        Args:
            hidden: z (..., M, d). predecessors: (..., M) the token before each place, the anchor before the first.

        Returns:
            SiLU(E_1 [z ; h]), (..., M, E).
        """
        read = self.tables.embedding(predecessors.flatten(0, -2)).to(self.dtype)
        states = self.prefix_gru(read)[0].view(*predecessors.shape, -1)  # (..., M, G)
        inner = self._inner(hidden[..., 1:, :], states[..., 1:, :])
        return torch.cat((torch.zeros_like(inner[..., :1, :]), inner), dim=-2)

    @property
    def correction_head(self) -> Tensor:
        """E_2 (V_d, E)."""
        return cast(nn.Linear, self.embed_proj[2]).weight

    def _inner(self, hidden: Tensor, state: Tensor) -> Tensor:
        inner: Tensor = self.embed_proj[:2](torch.cat((hidden, state.to(hidden.dtype)), dim=-1))
        return inner

    # ---------------------------------------------------------------- decoding

    def new_cache(self, rows: int) -> RowCache:
        return self.backbone.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.backbone.observe(cache, span, features, counts)

    def draft_block(self, cache: RowCache, first: int, anchors: Tensor) -> Tensor:
        """z of one block a row: anchors (B,) at the rows' context lengths → (B, M, d)."""
        return decode_pass(self.form, cache, first, anchors, self._hidden)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        hidden = self.draft_block(cache, first, anchors)
        with stage("draft/head"):
            scores = self.tables.logits(hidden)  # U (B, M, V_d)
        state: Tensor | None = None

        def step(place: int, previous: Tensor) -> Tensor:
            nonlocal state
            read = self.tables.embedding(previous[:, None]).to(self.dtype)
            state = self.prefix_gru(read, state)[1]  # (1, B, G)
            if place == 0:
                return scores[:, 0]
            corrected: Tensor = scores[:, place] + self.embed_proj[2](self._inner(hidden[:, place], state[0]))
            return corrected

        with stage("draft/walk"):
            tokens, probs = serial_walk(step, anchors, self.candidates, self.tables, law, uniforms)
            return self.tables.proposal(tokens, probs)
