"""The DFlash drafter: the parallel backbone and the target's head, nothing else.

One rule: every place is drawn on its own, so that q is a product of the places' laws. Source: DFlash
(arXiv 2602.06036); z-lab 0.1.0 draws with the request's own parameters, DeepSpec's retrain has next-token rows
(`logits_start` 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dspine.drafter.backbone import Backbone
from dspine.drafter.config import ParallelConfig
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.proposal import Proposal
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import Transitions
from dspine.kernels.law import Law

TREE_CANDIDATES = 8  # of a place, for a tree; a block is drawn from the whole law


@dataclass(frozen=True)
class DFlashConfig(ParallelConfig):
    """Sizes of a DFlash drafter; the defaults are z-lab's for Qwen3-8B."""


class Independent(nn.Module):
    """Each place by its own scores."""

    def __init__(self, tables: TargetTables) -> None:
        super().__init__()
        self.tables = tables

    @property
    def confident(self) -> bool:
        return False

    def pack(self) -> None:
        """Nothing: there are no weights."""

    def forced(self, hidden: Tensor, predecessors: Tensor) -> Tensor:
        return self.tables.tokens(self.tables.logits(hidden).argmax(-1))

    def select(self, hidden: Tensor, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        return self.tables.independent(hidden, law, uniforms)

    @property
    def tabulates(self) -> bool:
        return True

    def transitions(self, hidden: Tensor, anchors: Tensor) -> Transitions:
        """The likeliest tokens of every place, H (B, M, d); the token before changes nothing."""
        return self.tables.transitions(hidden, TREE_CANDIDATES)


def dflash(
    config: DFlashConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
) -> ParallelDrafter[Independent]:
    """An untrained DFlash drafter over a target's tables, see `TargetTables`."""
    tables = TargetTables(embedding, head, draft_ids)
    return ParallelDrafter(config, Backbone(config), tables, Independent(tables), confident=config.confidence)
