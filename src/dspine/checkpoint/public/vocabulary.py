"""Draft vocabularies that lie in the weight file: `d2t`, and often `t2d`.

One rule: `d2t` holds offsets (target id = draft id + d2t) as published; where `t2d` (which ids there are) says that it
holds the ids themselves, it is believed. Source: EAGLE-3 (arXiv 2503.01840), SpecForge, speculators.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dspine.checkpoint.public.names import D2T, T2D
from dspine.checkpoint.weights import StoredTensor, read
from dspine.errors import CheckpointError

_FIX = "The vocabulary is damaged or of another drafter: fetch the checkpoint again."


def vocabulary_size(maps: Mapping[str, StoredTensor], folder: Path) -> int:
    """V_d, by the shape of d2t.

    Raises:
        CheckpointError: there is no d2t, or it is no list of integers, or t2d is none of flags.
    """
    wanted = {D2T: ("I64", "I32"), T2D: ("BOOL",)}
    for name, dtypes in wanted.items():
        if name in maps and (maps[name].dtype not in dtypes or len(maps[name].shape) != 1):
            raise CheckpointError(f"{folder}: {maps[name]} is no list of {' or '.join(dtypes)}", _FIX)
    if D2T not in maps:
        raise CheckpointError(
            f"{folder}: {T2D} without {D2T}: which target ids the head's rows are for is not said", _FIX
        )
    return maps[D2T].shape[0]


def mapped_ids(maps: Mapping[str, StoredTensor], vocab_size: int, folder: Path) -> Tensor:
    """The ids (V_d) int64 that the rows of the head stand for, rising.

    Raises:
        CheckpointError: d2t gives no such list, or t2d names other ids.
    """
    loaded = read(maps)
    d2t = loaded[D2T].to(torch.int64)
    offsets = d2t + torch.arange(len(d2t))
    allowed = loaded.get(T2D)
    if allowed is None:
        if _rising(offsets, vocab_size):
            return offsets
        hint = ": as ids, not offsets, they would be sound" if _rising(d2t, vocab_size) else ""
        raise CheckpointError(
            f"{folder}: {D2T} added to draft ids gives no rising ids in 0..{vocab_size - 1}{hint}",
            f"{_FIX} Files of absolute ids need a {T2D} beside them that says so.",
        )
    named = allowed.nonzero().flatten()
    if len(allowed) == vocab_size:
        for ids in (offsets, d2t):
            if torch.equal(ids, named):
                return ids
    raise CheckpointError(
        f"{folder}: {T2D} names {len(named)} of {len(allowed)} ids, and {D2T} is neither their offsets nor themselves, "
        f"for a vocabulary of {vocab_size}",
        _FIX,
    )


def _rising(ids: Tensor, vocab_size: int) -> bool:
    return bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocab_size
