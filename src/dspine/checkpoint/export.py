"""From one layout to another: a drafter as it is, in the files that other programs read.

One rule: nothing is trained and nothing rounded anew: the weights keep their bits and their number format, and the
facts of the training run go along. Source: the SpecForge layout of DSpine (arXiv 2609.36173) drafters.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspine.checkpoint.keys import OBJECTIVE
from dspine.checkpoint.loading import load_drafter
from dspine.checkpoint.opening import Checkpoint, find_drafter, open_checkpoint
from dspine.checkpoint.record import CheckpointConfig, read_json
from dspine.checkpoint.saving import export_specforge
from dspine.checkpoint.specforge import SPECFORGE
from dspine.checkpoint.switches import refuse_switched
from dspine.drafter.dspine import DSpine
from dspine.errors import CheckpointError

if TYPE_CHECKING:
    from dspine.target.model import Target

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def check_export(name_or_path: str | Path, folder: str | Path) -> CheckpointConfig:
    """What the drafter says of itself, if it can be written to `folder`; neither weights nor target are needed.

    Raises:
        CheckpointError: no such drafter, one that is in SpecForge's layout already or that it cannot express, or a
            folder that is not empty.
    """
    source, folder = find_drafter(name_or_path), Path(folder)
    checkpoint = open_checkpoint(source)
    refuse_switched(checkpoint.config.dspine, SPECFORGE.name)
    if checkpoint.config.layout == SPECFORGE.name:
        raise CheckpointError(f"{source} is in SpecForge's layout already", "Take it as it is: copy the folder.")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists", "Name a new or an empty folder.")
    return checkpoint.config


def to_specforge(
    name_or_path: str | Path, folder: str | Path, target: Target, *, dtype: torch.dtype | None = None
) -> None:
    """Write a drafter of any layout into a new folder in SpecForge's layout.

    Args:
        name_or_path: as `load_drafter` takes it.
        folder: to be made; it may exist if it is empty.
        target: the model that it drafts for: the codes of the whole vocabulary are made from its head.
        dtype: of the trained weights, bfloat16 or float32; None: as they are stored.

    Raises:
        CheckpointError: as `check_export` does, and for a drafter that does not fit the target or a folder that cannot
            be written.
    """
    config = check_export(name_or_path, folder)
    drafter = load_drafter(name_or_path, target, dtype=torch.float32, packed=False)
    assert isinstance(drafter, DSpine)  # as the config says
    export_specforge(
        drafter,
        folder,
        target,
        training={**_objective(config.folder), **config.training},
        thinking=config.target is not None and config.target.thinking,
        dtype=dtype or _stored_dtype(open_checkpoint(config.folder)),
        extra=config.unknown,
    )


def _objective(folder: Path) -> dict[str, Any]:
    """What the source's `dspine_config` says of the training objective."""
    said = read_json(folder).get("dspine_config", {})
    return {name: said[name] for name in OBJECTIVE if name in said}


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The number format of the trained weights; float32 for formats that no layout is written in."""
    stored = {_DTYPES.get(checkpoint.tensors[name].dtype, torch.float32) for name in checkpoint.trained}
    return stored.pop() if len(stored) == 1 else torch.float32
