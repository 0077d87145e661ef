"""The drafters by name: what a recipe or a checkpoint calls them.

One rule: a name stands for a class of sizes and a way to build the network from sizes and the target's two tables;
whatever else a network needs is made from those here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dspine.drafter.config import BackboneConfig, DSpineConfig
from dspine.drafter.dflash import DFlashConfig, dflash
from dspine.drafter.dflash2 import DFlash2Config, dflash2
from dspine.drafter.domino import DominoConfig, domino
from dspine.drafter.dspark import DSparkConfig, dspark
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3, Eagle3Config
from dspine.drafter.markov import ConfidenceHead
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.transfer import TransferSpace

Network = DSpine | ParallelDrafter[Any] | Eagle3


@dataclass(frozen=True)
class Kind:
    """A method of drafting.

    title: as its authors write it.
    config: class of its sizes.
    build: (sizes of that class, embedding, head (V, d), draft ids or None) → an untrained network.
    """

    title: str
    config: type[BackboneConfig]
    build: Callable[[Any, nn.Module, Tensor, Tensor | None], Network]


def _dspine(config: DSpineConfig, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None) -> DSpine:
    return DSpine(config, embedding, head, TransferSpace.fit(head, config.transfer_rank), draft_ids)


KINDS: dict[str, Kind] = {
    "dspine": Kind("DSpine", DSpineConfig, _dspine),
    "dflash": Kind("DFlash", DFlashConfig, dflash),
    "domino": Kind("Domino", DominoConfig, domino),
    "dspark": Kind("DSpark", DSparkConfig, dspark),
    "dflash2": Kind("DFlash2", DFlash2Config, dflash2),
    "eagle3": Kind("EAGLE-3", Eagle3Config, Eagle3),
}


def kind_of(drafter: Network) -> str:
    """The name of a network's kind."""
    return next(name for name, kind in KINDS.items() if type(drafter.config) is kind.config)


def kind_for(config: BackboneConfig) -> Kind:
    """The kind whose sizes these are."""
    return next(kind for kind in KINDS.values() if kind.config is type(config))


def confidence_head_of(drafter: object) -> ConfidenceHead | None:
    """The confidence head of a network, its own or its selection's; None: it gives no confidences."""
    for owner in (drafter, getattr(drafter, "selection", None)):
        if isinstance(head := getattr(owner, "confidence_head", None), ConfidenceHead):
            return head
    return None
