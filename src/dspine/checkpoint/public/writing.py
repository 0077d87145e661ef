"""What the writers of public layouts share.

One rule: what a layout cannot say is refused before anything is written, with the layout that can. Source: the
published layouts of SpecForge and speculators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dspine.checkpoint.keys import FULL
from dspine.checkpoint.public.names import D2T, HEAD, T2D
from dspine.checkpoint.public.sizes import SLIDING
from dspine.drafter.config import BackboneConfig, ParallelConfig
from dspine.drafter.dspark import DSparkConfig
from dspine.drafter.eagle3 import Eagle3Config
from dspine.errors import CheckpointError

if TYPE_CHECKING:
    from dspine.drafter.registry import Network
    from dspine.target.model import Target


@dataclass(frozen=True)
class Written:
    """A drafter about to be written: `tensors` by our own layout's names, in their final number format."""

    drafter: Network
    target: Target
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype

    def head_rows(self) -> Tensor:
        """The target's head, of the draft vocabulary's rows."""
        head, ids = self.target.head_weight.detach(), self.drafter.draft_ids
        return (head if ids is None else head[ids.to(head.device)]).to("cpu", self.dtype).contiguous()

    def with_head(self) -> dict[str, Tensor]:
        """The tensors, and the target's head where the drafter has none of its own."""
        return {**self.tensors} if HEAD in self.tensors else {**self.tensors, HEAD: self.head_rows()}

    def maps(self) -> dict[str, Tensor]:
        """d2t as offsets and t2d as flags; of the whole vocabulary where nothing is restricted."""
        size = self.drafter.config.vocab_size
        ids = self.drafter.draft_ids
        ids = torch.arange(size) if ids is None else ids.cpu()
        flags = torch.zeros(size, dtype=torch.bool)
        flags[ids] = True
        return {D2T: ids - torch.arange(len(ids)), T2D: flags}

    def draft_size(self) -> int:
        """V_d."""
        ids = self.drafter.draft_ids
        return self.drafter.config.vocab_size if ids is None else len(ids)


def attention_json(sizes: ParallelConfig) -> dict[str, Any]:
    """What each layer of a parallel drafter attends to."""
    kinds = [SLIDING if layer in sizes.sliding_layers else FULL for layer in range(sizes.num_hidden_layers)]
    return {
        "layer_types": kinds,
        "sliding_window": sizes.sliding_window,
        "use_sliding_window": bool(sizes.sliding_layers),
    }


def refuse_confidence(layout: str, sizes: BackboneConfig) -> None:
    """Refuse a confidence head beside a method that has none of its own: whoever reads the layout would not know it.

    Raises:
        CheckpointError: the drafter has one.
    """
    if isinstance(sizes, ParallelConfig | Eagle3Config) and sizes.confidence and not isinstance(sizes, DSparkConfig):
        raise CheckpointError(
            f"{layout}'s layout cannot hold the confidence head of a drafter that is not DSpark's",
            "Keep it in dspine's own layout, or train without drafter.confidence: drafts are the same.",
        )


def cannot(layout: str, what: str, other: str) -> CheckpointError:
    """The refusal of a drafter that a layout has no words for."""
    return CheckpointError(f"{layout}'s layout cannot hold {what}", f"Write it in another one: --layout {other}")
