"""A drafter and the target that an engine serves, brought together.

One rule: it fits or it is refused; what is made here of the target's head is all that the drafter needs beside the
engine's own tables. Source: DSpine (arXiv 2609.36173), transfer space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dspine.checkpoint.fit import check_fit, check_sizes, warnings_of
from dspine.checkpoint.opening import Checkpoint
from dspine.checkpoint.vocabulary import read_vocabulary
from dspine.errors import ServeError
from dspine.serve.adapter.target import ServedTarget


@dataclass(frozen=True)
class Attachment:
    """What a drafter takes from its target.

    codes: C (V, r) float32. draft_ids: (V_d) sorted ids that may be proposed; None = all of V.
    warnings: what may lower acceptance.
    """

    codes: Tensor
    draft_ids: Tensor | None
    warnings: tuple[str, ...]


def attach(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], target: ServedTarget, context_option: str
) -> Attachment:
    """Make codes of the target's head, once it is known to be the drafter's.

    Args:
        tensors: of the checkpoint, by common names.
        context_option: how the engine is told how many positions requests may use.

    Raises:
        CheckpointError: it was trained for another target. ServeError: it has too few positions.
    """
    config = checkpoint.config
    (check_sizes if target.tokenizer is None else check_fit)(config, target)
    if target.context > config.dspine.max_position_embeddings:
        raise ServeError(
            f"{config.folder} was made for {config.dspine.max_position_embeddings} positions, and requests may "
            f"use {target.context}",
            f"{context_option} {config.dspine.max_position_embeddings}",
        )
    assert checkpoint.transfer is not None  # as it is a DSpine drafter
    beside = {name: tensors[name] for name in checkpoint.beside}
    codes = checkpoint.transfer.space(beside, target.head_weight).codes
    ids = read_vocabulary(config)
    return Attachment(
        codes=codes,
        draft_ids=None if ids is None else ids.to(codes.device),
        warnings=() if target.tokenizer is None else tuple(warnings_of(config, target, None)),
    )
