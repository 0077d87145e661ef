"""What a layout is.

One rule: layouts differ in how the transfer space is stored and in what must be put right before the common schema
holds; the trained tensors, the strict check of names and the building of the network are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dspine.checkpoint.schema import Shapes
from dspine.checkpoint.weights import StoredTensor
from dspine.drafter.config import DSpineConfig
from dspine.drafter.transfer import TransferSpace


@dataclass(frozen=True)
class Contents:
    """A folder's config.json and tensor headers; `notes` are warnings about what was put right."""

    folder: Path
    raw: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...] = field(default=())


def as_stored(contents: Contents) -> Contents:
    """For layouts that follow the common schema to the letter."""
    return contents


@dataclass(frozen=True)
class Layout:
    """A way to store a DSpine drafter.

    name: what messages and `dspine info` call it.
    transfer: shapes of the tensors beside the trained ones, by name.
    space: makes the transfer space out of those tensors and the target's LM head (V, d).
    arrange: brings config and tensor names into the common schema.
    """

    name: str
    transfer: Callable[[DSpineConfig], Shapes]
    space: Callable[[Mapping[str, Tensor], Tensor], TransferSpace]
    arrange: Callable[[Contents], Contents] = as_stored
