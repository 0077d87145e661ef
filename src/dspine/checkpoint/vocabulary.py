"""The side file of a restricted draft vocabulary.

One rule: the id list stays out of the main file, which keeps its published schema; the config holds its digest, so
that a list of another run cannot slip in. Source: DSpine (arXiv 2609.36173), training on small machines.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dspine.checkpoint.record import CheckpointConfig, VocabularyRecord
from dspine.checkpoint.weights import read, stored_in
from dspine.errors import CheckpointError

VOCABULARY = "draft_vocab.safetensors"
IDS = "ids"


def write_vocabulary(ids: Tensor, folder: Path) -> VocabularyRecord:
    """Write the sorted ids (V_d) int64 and say what the config is to hold of them."""
    ids = ids.detach().cpu().contiguous()
    save_file({IDS: ids}, folder / VOCABULARY, metadata={"format": "pt"})
    return VocabularyRecord(size=len(ids), sha256=_digest(ids))


def read_vocabulary(config: CheckpointConfig) -> Tensor | None:
    """The ids (V_d) int64 that drafts are made of, or None for the whole vocabulary.

    Raises:
        CheckpointError: the side file is missing, is another one, is there without being named, or is no id list.
    """
    path = config.folder / VOCABULARY
    if config.vocabulary is None:
        if path.exists():
            raise CheckpointError(
                f"{path} lies there, but config.json names no draft vocabulary",
                "Config and side file are of different drafters: fetch the folder again.",
            )
        return None
    if not path.is_file():
        raise CheckpointError(
            f"{config.folder}: {VOCABULARY} is missing, the {config.vocabulary.size} ids that drafts are made of",
            "Fetch the file: the weights mean nothing without it.",
        )
    stored = stored_in(path)
    if stored.keys() != {IDS} or stored[IDS].dtype != "I64" or len(stored[IDS].shape) != 1:
        found = ", ".join(str(tensor) for tensor in stored.values())
        raise CheckpointError(f"{path}: holds {found}, not the int64 list '{IDS}'", "Fetch the file again.")
    ids = read(stored)[IDS]
    if len(ids) != config.vocabulary.size or _digest(ids) != config.vocabulary.sha256:
        raise CheckpointError(
            f"{path}: not the draft vocabulary that config.json records", "Fetch the folder again, as a whole."
        )
    _check_ids(ids, config)
    return ids


def _check_ids(ids: Tensor, config: CheckpointConfig) -> None:
    rows, fewest = config.drafter.vocab_size, getattr(config.drafter, "top_k", 1)
    sound = len(ids) >= fewest and bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < rows
    if not sound:
        raise CheckpointError(
            f"{config.folder / VOCABULARY}: ids must be at least {fewest}, strictly rising and in 0..{rows - 1}",
            "The file was not written by dspine: train the drafter again with its own vocabulary.",
        )


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(ids.to(torch.int64).numpy().astype("<i8").tobytes()).hexdigest()
