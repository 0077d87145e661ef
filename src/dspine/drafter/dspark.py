"""The DSpark drafter: the parallel backbone, a Markov head that biases its scores by the token before, a confidence.

One rule: scores_k = U_k + the bias of the predecessor; what is drawn from them is q. Over the whole vocabulary place
after place, as DeepSpec does, or, for the vanilla head, tabulated for the K likeliest of U and walked by lookup.
Source: DSpark (arXiv 2607.05147) and DeepSpec: row k predicts the next token, so M rows draft M tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import ParallelConfig, fraction
from dspine.drafter.markov import ConfidenceHead, Head, MarkovHead
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.proposal import Proposal
from dspine.drafter.serial import serial_walk
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import Transitions, predecessors, walked
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.arithmetic import REFERENCE, Kernels
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


class MarkovSelection(nn.Module):
    """Scores biased by the token before, and a confidence.

    kernels: whose walk is used, where scores are tabulated.
    """

    kernels: Kernels

    def __init__(self, config: DSparkConfig, tables: TargetTables) -> None:
        super().__init__()
        self.config = config
        self.tables = tables
        width, rank = config.hidden_size, config.markov_rank
        self.markov_head = MarkovHead(config.markov_head, config.vocab_size, tables.size, width, rank)
        self.kernels = REFERENCE
        self.confidence_head: ConfidenceHead | None = None
        if config.confidence:
            self.confidence_head = ConfidenceHead(width + rank * config.confidence_with_markov)

    @property
    def confident(self) -> bool:
        return self.confidence_head is not None

    def pack(self) -> None:
        if not self.config.tabulated:  # a table looks up rows of W_2
            pack(self.markov_head)

    # ---------------------------------------------------------------- training

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

    def forced(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        scores = self.tables.logits(hidden)  # U (..., M, V_d)
        biased = scores + self.correction(hidden, predecessors) @ self.correction_head.T
        if not self.config.tabulated:
            return self.tables.tokens(biased.argmax(-1))
        index = scores.topk(min(self.config.tabulated, scores.shape[-1]), dim=-1).indices  # (..., M, K)
        best = biased.gather(-1, index).argmax(-1, keepdim=True)
        return self.tables.tokens(index.gather(-1, best)[..., 0])

    # ---------------------------------------------------------------- decoding

    @property
    def tabulates(self) -> bool:
        return self.config.tabulated > 0

    def transitions(self, hidden: Tensor, anchors: Tensor) -> Transitions:
        """Candidates and all their scores: H (B, M, d), anchors (B,)."""
        with stage("draft/head"):
            scores = self.tables.logits(hidden)  # U (B, M, V_d)
        with stage("draft/scores"):
            base, index = scores.topk(min(self.config.tabulated, scores.shape[-1]), dim=-1)  # (B, M, K)
            candidates = self.tables.tokens(index)
            e = self.markov_head.markov_w1(predecessors(anchors, candidates))  # (B, M, K, r)
            biases = e @ self.correction_head[index].transpose(2, 3)  # (B, M, K, K)
            return Transitions(candidates, base.unsqueeze(2) + biases)

    def select(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        drafted = self._tabulated if self.tabulates else self._serial
        proposal = drafted(hidden, anchors, law, uniforms)
        with stage("draft/confidence"):
            logits = self.confidence_logits(hidden, proposal.predecessors(anchors))
        if logits is None or self.confidence_head is None:
            return proposal
        return replace(proposal, confidence=self.confidence_head.chances(logits))

    def _serial(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        with stage("draft/head"):
            scores = self.tables.logits(hidden)  # U (B, M, V_d)
        state: Tensor | None = None

        def step(place: int, previous: Tensor) -> Tensor:
            nonlocal state
            inner, state = self.markov_head.step(hidden[:, place], previous, state)
            biased: Tensor = scores[:, place] + self.markov_head.markov_w2(inner)
            return biased

        with stage("draft/walk"):
            return self.tables.proposal(*serial_walk(step, anchors, hidden.shape[1], self.tables, law, uniforms))

    def _tabulated(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        table = self.transitions(hidden, anchors)
        with stage("draft/walk"):
            return walked(table.scores, table.candidates, law, uniforms, self.kernels)


def dspark(
    config: DSparkConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
) -> ParallelDrafter[MarkovSelection]:
    """An untrained DSpark drafter over a target's tables, see `TargetTables`."""
    tables = TargetTables(embedding, head, draft_ids)
    return ParallelDrafter(config, Backbone(config), tables, MarkovSelection(config, tables))
