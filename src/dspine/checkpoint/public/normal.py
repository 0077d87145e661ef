"""The one form that every reader of a public layout hands over.

One rule: behind this form nobody asks which program wrote a file: sizes are those of the drafter's class, tensors bear
the names of our own layout, taps count decoder layers from 0. Source: the published layouts of DFlash
(arXiv 2602.06036), DFlash2, Domino (arXiv 2605.29707), DSpark (arXiv 2607.05147) and EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.weights import StoredTensor
from dspine.drafter.config import BackboneConfig


@dataclass(frozen=True)
class Normal:
    """A drafter of another method, read.

    layout: what messages and `dspine info` call the layout.
    sizes: of the network; their class is the method.
    tensors: the trained ones, by the names of our own layout.
    tables: copies of the target's embedding and head, which a drafter here borrows instead.
    vocabulary: d2t and t2d of a restricted draft vocabulary; empty: the whole one.
    absent: trained tensors that the file may leave out and does; they are zero.
    facts: what the file says of its making.
    unknown: keys of config.json that we do not know, dotted.
    """

    layout: str
    sizes: BackboneConfig
    tensors: Mapping[str, StoredTensor]
    tables: Mapping[str, StoredTensor] = field(default_factory=dict)
    vocabulary: Mapping[str, StoredTensor] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# (config.json and tensor headers, layers of the target or None if it is not at hand) → the drafter
Reader = Callable[[Contents, int | None], Normal]
