"""Tensor names of public files, brought to those of our own layout.

One rule: a name is changed by a rule that a published file has shown, and by nothing else; what stays unknown fails
the strict check that follows. Source: the tensor lists of the published DFlash, Domino, DFlash2 and EAGLE-3 layouts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dspine.checkpoint.layout import Contents
from dspine.checkpoint.weights import StoredTensor
from dspine.errors import CheckpointError

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
D2T, T2D = "d2t", "t2d"

_PREFIX = re.compile(r"^(model|draft_model|dflash_module)\.")
_RENAMED = (
    (re.compile(r"^logit_head\."), ""),  # Domino's first files
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
    (re.compile(r"^(candidate_selector\.\w+_codebook)\.weight$"), r"\1"),  # z-lab's own module is an embedding
)
_DERIVED = re.compile(r"(^|\.)rotary_emb\.")  # angles, made from the config


def common_names(contents: Contents) -> dict[str, StoredTensor]:
    """The tensors by common names.

    Raises:
        CheckpointError: two of them come to the same one.
    """
    found: dict[str, StoredTensor] = {}
    for name, tensor in contents.tensors.items():
        if _DERIVED.search(name):
            continue
        common = _PREFIX.sub("", name)
        for pattern, replacement in _RENAMED:
            common = pattern.sub(replacement, common)
        if common in found:
            raise CheckpointError(
                f"{contents.folder}: {found[common].name} and {name} are both {common}",
                "Fetch the checkpoint again, or leave one of the two out.",
            )
        found[common] = tensor
    return found


def as_midlayer(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """EAGLE-3's one layer, which others number, by its published name."""
    return {
        f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name: tensor
        for name, tensor in tensors.items()
    }


def split(
    tensors: Mapping[str, StoredTensor], own_head: bool = False
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor], dict[str, StoredTensor]]:
    """Trained tensors, copies of the target's tables, and the maps of a draft vocabulary.

    Args:
        own_head: whether the head in the file is trained, not a copy.
    """
    tables = {EMBEDDING} if own_head else {EMBEDDING, HEAD}
    maps = {D2T, T2D}
    return (
        {name: tensor for name, tensor in tensors.items() if name not in tables | maps},
        {name: tensor for name, tensor in tensors.items() if name in tables},
        {name: tensor for name, tensor in tensors.items() if name in maps},
    )
