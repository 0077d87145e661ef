"""Copies of the target's embedding and head in a drafter's file, held to the target's own.

One rule: a drafter here borrows the target's tables, so a copy must be the same to the last bit of its number format;
one that was trained on is refused. Source: DeepSpec's and speculators' files, which hold frozen copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from dspine.checkpoint.public.names import EMBEDDING, HEAD
from dspine.checkpoint.weights import StoredTensor, check_dtypes, read
from dspine.errors import CheckpointError


class Tabled(Protocol):
    """What is asked of a target here: ours, or one that another engine has loaded."""

    @property
    def name(self) -> str: ...
    @property
    def embedding(self) -> nn.Module: ...
    @property
    def head_weight(self) -> Tensor: ...


def check_tables(tables: Mapping[str, StoredTensor], target: Tabled, draft_ids: Tensor | None, folder: Path) -> None:
    """Compare copies with the target's tables, row for row.

    Args:
        draft_ids: (V_d) ids that the rows of a head stand for; None: all.

    Raises:
        CheckpointError: a copy of another shape, or of other values.
    """
    check_dtypes(tables.values(), str(folder))
    for name in sorted(tables):  # one at a time: each is as large as the target's
        copy = read({name: tables[name]})[name]
        ours = cast(Tensor, target.embedding.weight) if name == EMBEDDING else target.head_weight
        if name == HEAD and draft_ids is not None:
            ours = ours[draft_ids.to(ours.device)]
        _compare(copy, ours.detach().cpu(), name, folder, target.name)


def _compare(copy: Tensor, ours: Tensor, name: str, folder: Path, of: str) -> None:
    if copy.shape != ours.shape:
        raise CheckpointError(
            f"{folder}: {name} is {list(copy.shape)}, and that of {of} {list(ours.shape)}",
            "Use the target that it was trained for.",
        )
    coarse = min((copy.dtype, ours.dtype), key=lambda dtype: torch.finfo(dtype).bits)
    if torch.equal(copy.to(coarse), ours.to(coarse)):
        return
    apart = float((copy.float() - ours.float()).abs().max())
    raise CheckpointError(
        f"{folder}: {name} differs from that of {of} by up to {apart:.3g}: it was trained on, or is another model's",
        "Use the target that it was trained for; a drafter with tables of its own runs where it was trained.",
    )
