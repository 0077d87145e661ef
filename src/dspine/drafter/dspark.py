"""The DSpark drafter: the parallel backbone, a Markov head that biases its scores by the token before, a confidence.

One rule: scores_k = U_k + the bias of the predecessor; what is drawn from them is q. Over the whole vocabulary place
after place, as DeepSpec does, or, for the vanilla head, tabulated for the K likeliest of U and walked by lookup.
Source: DSpark (arXiv 2607.05147) and DeepSpec: row k predicts the next token, so M rows draft M tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Attend, Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.markov import ConfidenceHead, Head, MarkovHead
from dspine.drafter.passes import BlockForm, decode_pass, training_pass
from dspine.drafter.proposal import Proposal
from dspine.drafter.serial import serial_walk
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import predecessors, walked
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.packed import pack
from dspine.stages import stage


@dataclass(frozen=True)
class DSparkConfig(ParallelConfig):
    """Sizes of a DSpark drafter; the defaults are DeepSpec's for Qwen3-8B.

    confidence_with_markov: whether the confidence reads the predecessor's embedding beside the backbone's row.
    tabulated: K, candidates a place in a tabulated walk (vanilla head only); 0: the whole vocabulary, serially.
    """

    block_size: int = 7
    logits_start: int = 0
    markov_rank: int = 256
    markov_head: Head = "vanilla"
    confidence: bool = True
    confidence_with_markov: bool = True
    tabulated: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive(("markov_rank",))
        if self.markov_head not in get_args(Head):
            raise ConfigError(
                f"drafter config: markov_head is {self.markov_head!r}", f"Known: {', '.join(get_args(Head))}."
            )
        if not 0 <= self.tabulated <= self.vocab_size or (self.tabulated and self.markov_head != "vanilla"):
            raise ConfigError(
                f"drafter config: tabulated is {self.tabulated} with a {self.markov_head} head",
                "Only a vanilla head's scores depend on the predecessor alone; give at most the vocabulary, or 0.",
            )

    @classmethod
    def proportions(cls, facts: TargetFacts) -> dict[str, int]:
        return {"markov_rank": fraction(facts.hidden_size, 16)}


class DSpark(nn.Module):
    """A drafter for one target. Arguments as `DFlash`."""

    def __init__(
        self, config: DSparkConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.tables = TargetTables(embedding, head, draft_ids)
        self.form = BlockForm(config.block_size, config.mask_token_id, config.sights)
        width, rank = config.hidden_size, config.markov_rank
        self.markov_head = MarkovHead(config.markov_head, config.vocab_size, self.tables.size, width, rank)
        self.confidence_head: ConfidenceHead | None = None
        if config.confidence:
            self.confidence_head = ConfidenceHead(width + rank * config.confidence_with_markov)

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self.backbone)
        if not self.config.tabulated:  # a table looks up rows of W_2
            pack(self.markov_head)
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

    def correction(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        """What `correction_head` turns into biases: H (..., M, d), tokens (..., M) before each place → (..., M, r)."""
        return self.markov_head.whole(hidden, predecessors)

    @property
    def correction_head(self) -> Tensor:
        """W_2 (V_d, r)."""
        return self.markov_head.markov_w2.weight

    def confidence_logits(self, hidden: Tensor, predecessors: Tensor) -> Tensor | None:
        """ζ (..., M) by H (..., M, d) and the token before each place (..., M); None without a confidence head."""
        if self.confidence_head is None:
            return None
        if self.config.confidence_with_markov:
            hidden = torch.cat((hidden, self.markov_head.markov_w1(predecessors)), dim=-1)
        logits: Tensor = self.confidence_head(hidden)
        return logits

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
            scores = self.tables.logits(hidden)  # U (B, M, V_d)
        drafted = self._tabulated if self.config.tabulated else self._serial
        proposal = drafted(hidden, scores, anchors, law, uniforms)
        with stage("draft/confidence"):
            before = torch.cat((anchors[:, None], proposal.tokens[:, :-1]), dim=1)
            logits = self.confidence_logits(hidden, before)
        return proposal if logits is None else replace(proposal, confidence=logits.sigmoid())

    def _serial(self, hidden: Tensor, scores: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        state: Tensor | None = None

        def step(place: int, previous: Tensor) -> Tensor:
            nonlocal state
            inner, state = self.markov_head.step(hidden[:, place], previous, state)
            biased: Tensor = scores[:, place] + self.markov_head.markov_w2(inner)
            return biased

        with stage("draft/walk"):
            return self.tables.proposal(*serial_walk(step, anchors, self.candidates, self.tables, law, uniforms))

    def _tabulated(
        self, hidden: Tensor, scores: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None
    ) -> Proposal:
        with stage("draft/scores"):
            base, index = scores.topk(min(self.config.tabulated, scores.shape[-1]), dim=-1)  # (B, M, K)
            candidates = self.tables.tokens(index)
            e = self.markov_head.markov_w1(predecessors(anchors, candidates))  # (B, M, K, r)
            biases = e @ self.correction_head[index].transpose(2, 3)  # (B, M, K, K)
        with stage("draft/walk"):
            return walked(base.unsqueeze(2) + biases, candidates, law, uniforms)
