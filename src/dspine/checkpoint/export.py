"""From one layout to another: a drafter as it is, in the files that other programs read.

One rule: nothing is trained and nothing rounded anew: the weights keep their bits and their number format, and the
facts of the training run and a calibration of confidences go along. Source: the SpecForge layout of DSpine
(arXiv 2609.36173) drafters; the layouts of SpecForge and speculators for drafters of the other methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspine.checkpoint.keys import FORMAT, OBJECTIVE
from dspine.checkpoint.loading import load_drafter
from dspine.checkpoint.opening import Checkpoint, find_drafter, open_checkpoint
from dspine.checkpoint.own import OWN
from dspine.checkpoint.public import speculators, write_specforge, write_speculators
from dspine.checkpoint.public.writing import Written, cannot
from dspine.checkpoint.record import CheckpointConfig, read_json
from dspine.checkpoint.saving import export_specforge, format_section, save_drafter, trained_tensors, write_folder
from dspine.checkpoint.specforge import SPECFORGE
from dspine.checkpoint.switches import refuse_switched
from dspine.checkpoint.temperatures import TEMPERATURES
from dspine.drafter.config import DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import Network
from dspine.durable import write_aside
from dspine.errors import CheckpointError

if TYPE_CHECKING:
    from dspine.target.model import Target

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class LayoutName(StrEnum):
    """Layouts that a drafter can be written in; `dspine` is our own."""

    specforge = "specforge"
    speculators = "speculators"
    dspine = "dspine"


_TITLES = {
    LayoutName.specforge: SPECFORGE.name,
    LayoutName.speculators: speculators.NAME,
    LayoutName.dspine: OWN.name,
}


def check_export(
    name_or_path: str | Path, folder: str | Path, layout: LayoutName, target_layers: int | None = None
) -> CheckpointConfig:
    """What the drafter says of itself, if it can be written to `folder`; neither weights nor target are needed.

    Args:
        target_layers: as in `open_checkpoint`.

    Raises:
        CheckpointError: no such drafter, one that is in that layout already or that it cannot express, or a folder
            that is not empty.
    """
    source, folder = find_drafter(name_or_path), Path(folder)
    config = open_checkpoint(source, target_layers).config
    if config.layout == _TITLES[layout]:
        raise CheckpointError(f"{source} is in {config.layout}'s layout already", "Take it as it is: copy the folder.")
    _check_expressible(config, layout)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists", "Name a new or an empty folder.")
    return config


def _check_expressible(config: CheckpointConfig, layout: LayoutName) -> None:
    sizes, restricted = config.drafter, config.vocabulary is not None
    if isinstance(sizes, DSpineConfig):
        if layout is LayoutName.dspine:
            raise CheckpointError(
                f"{config.folder}: the basis of its transfer space is not in {config.layout}'s files, and our own "
                "layout is made from it",
                "Use the drafter as it is: dspine reads that layout too.",
            )
        if layout is LayoutName.speculators:
            raise cannot(speculators.NAME, "a DSpine drafter", LayoutName.specforge)
        refuse_switched(sizes, SPECFORGE.name)
    elif layout is LayoutName.specforge:
        write_specforge.refuse(sizes, restricted)
    elif layout is LayoutName.speculators:
        write_speculators.refuse(sizes, restricted)


def export_drafter(
    name_or_path: str | Path,
    folder: str | Path,
    target: Target,
    layout: LayoutName = LayoutName.specforge,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a drafter of any layout into a new folder in another one.

    Args:
        name_or_path: as `load_drafter` takes it.
        folder: to be made; it may exist if it is empty.
        target: the model that it drafts for: what a layout holds of its tables, or codes made from its head, is taken
            from it.
        dtype: of the trained weights, bfloat16 or float32; None: as they are stored.

    Raises:
        CheckpointError: as `check_export` does, and for a drafter that does not fit the target or a folder that cannot
            be written.
    """
    config = check_export(name_or_path, folder, layout, target.num_layers)
    dtype = dtype or _stored_dtype(open_checkpoint(config.folder, target.num_layers))
    drafter = load_drafter(name_or_path, target, dtype=torch.float32, packed=False)
    training = {**_objective(config.folder), **config.training}
    thinking = config.target is not None and config.target.thinking
    if layout is LayoutName.dspine:
        save_drafter(
            drafter, folder, target=target, training=training, thinking=thinking, dtype=dtype, extra=config.unknown
        )
    elif isinstance(drafter, DSpine):
        export_specforge(
            drafter, folder, target, training=training, thinking=thinking, dtype=dtype, extra=config.unknown
        )
    else:
        _write_public(drafter, Path(folder), target, layout, training, thinking, dtype, config.unknown)
    if (calibration := config.folder / TEMPERATURES).is_file():
        write_aside(Path(folder) / TEMPERATURES, calibration.read_bytes())


def _write_public(
    drafter: Network,
    folder: Path,
    target: Target,
    layout: LayoutName,
    training: Mapping[str, Any],
    thinking: bool,
    dtype: torch.dtype,
    extra: Mapping[str, Any],
) -> None:
    files = {
        LayoutName.specforge: write_specforge.specforge_files,
        LayoutName.speculators: write_speculators.speculators_files,
    }[layout]
    config, tensors = files(Written(drafter, target, trained_tensors(drafter, dtype), dtype))
    config[FORMAT] = format_section(_TITLES[layout], target, training, thinking)
    write_folder(folder, config, tensors, None, extra)


def _objective(folder: Path) -> dict[str, Any]:
    """What the source's `dspine_config` says of the training objective."""
    said = read_json(folder).get("dspine_config", {})
    return {name: said[name] for name in OBJECTIVE if name in said}


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The number format of the trained weights; float32 for formats that no layout is written in."""
    names = checkpoint.trained.keys() - checkpoint.absent
    stored = {_DTYPES.get(checkpoint.tensors[name].dtype, torch.float32) for name in names}
    return stored.pop() if len(stored) == 1 else torch.float32
