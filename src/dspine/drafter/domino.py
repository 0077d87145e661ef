"""The Domino drafter: the parallel backbone, and a recurrent state of the drafted prefix that corrects its scores.

One rule: the state at place t has read the anchor and the tokens of places 1..t-1, in training the correct ones, in
one call; the first place is never corrected, since the backbone has read the anchor already.
Source: Domino (arXiv 2605.29707), with z_t the backbone's row that predicts place t and U_t its scores:

    h_t = GRU(emb(x_s), emb(y_1), .., emb(y_{t-1})),   scores_t = U_t + E_2 SiLU(E_1 [z_t ; h_t])   for t > 1

Its authors' `shift_label` is `logits_start` here: true is 0. All rows that predict are used: with 0, 16 of 16, as in
their own code; SpecForge and SGLang leave the last one out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.proposal import Proposal
from dspine.drafter.serial import serial_walk
from dspine.drafter.tables import TargetTables
from dspine.facts import TargetFacts
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


class PrefixCorrection(nn.Module):
    """Scores corrected by the state of the drafted prefix."""

    def __init__(self, config: DominoConfig, tables: TargetTables) -> None:
        super().__init__()
        self.tables = tables
        width, state, inner = config.hidden_size, config.gru_hidden_size, config.projection_size
        self.prefix_gru = nn.GRU(width, state, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + state, inner, bias=False), nn.SiLU(), nn.Linear(inner, tables.size, bias=False)
        )
        for layer in (self.embed_proj[0], self.embed_proj[2]):
            nn.init.normal_(cast(nn.Linear, layer).weight, std=SPREAD)

    @property
    def confident(self) -> bool:
        return False

    def pack(self) -> None:
        pack(self.embed_proj)

    def correction(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        """What `correction_head` turns into corrections of the scores: zero at place 1.

        Args:
            hidden: z (..., M, d). predecessors: (..., M) the token before each place, the anchor before the first.

        Returns:
            SiLU(E_1 [z ; h]), (..., M, E).
        """
        read = self._embed(predecessors.flatten(0, -2))
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

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tables.embedding(tokens).to(self.prefix_gru.weight_ih_l0.dtype)
        return embedded

    def forced(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        corrected = self.tables.logits(hidden) + self.correction(hidden, predecessors) @ self.correction_head.T
        return self.tables.tokens(corrected.argmax(-1))

    def select(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        with stage("draft/head"):
            scores = self.tables.logits(hidden)  # U (B, M, V_d)
        weights = cast(list[Tensor], [self.prefix_gru.weight_ih_l0, self.prefix_gru.weight_hh_l0])
        state = weights[0].new_zeros(len(anchors), self.prefix_gru.hidden_size)

        def step(place: int, previous: Tensor) -> Tensor:
            nonlocal state
            state = torch.gru_cell(self._embed(previous), state, *weights)  # (B, G)
            if place == 0:
                return scores[:, 0]
            corrected: Tensor = scores[:, place] + self.embed_proj[2](self._inner(hidden[:, place], state))
            return corrected

        with stage("draft/walk"):
            return self.tables.proposal(*serial_walk(step, anchors, hidden.shape[1], self.tables, law, uniforms))


def domino(
    config: DominoConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
) -> ParallelDrafter[PrefixCorrection]:
    """An untrained Domino drafter over a target's tables, see `TargetTables`."""
    tables = TargetTables(embedding, head, draft_ids)
    backbone = Backbone(config)  # first, so that a seed gives every method the same one
    return ParallelDrafter(config, backbone, tables, PrefixCorrection(config, tables), confident=config.confidence)
