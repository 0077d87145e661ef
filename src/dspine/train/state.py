"""The state of a run on disk: everything that step k+1 depends on.

One rule: a file is written aside and renamed, so whatever is named `step-*.pt` is whole; the newest is the
state, older ones are kept in case the disk is not to be trusted. Schedules, windows, anchors and draws are
functions of the step (see curriculum, windows, blocks), so they need no state here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspine.durable import writing_aside
from dspine.errors import ConfigError, DataError


@dataclass
class Progress:
    """Counters of a run."""

    step: int = 0  # optimiser steps behind us, skipped ones included
    skipped: int = 0  # of them without a finite loss and gradient
    blocks: int = 0
    tokens: int = 0  # supervised labels
    seconds: float = 0.0  # training alone, over all sessions
    broken: int = 0  # sequences left out of a step because a number of theirs was not finite
    best_tau: float = 0.0  # of the drafter in `best/`, on held-out prompts
    best_step: int = 0
    measured: int = 0  # the step after which tau was measured last


def save_state(
    folder: Path,
    progress: Progress,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Any],
    identity: Mapping[str, str],
    keep: int,
) -> Path:
    """Write `step-XXXXXXX.pt` and remove all but the newest `keep`.

    Args:
        identity: what the run must agree on to be continued (recipe, data, head), name to digest.

    Raises:
        DataError: the disk is full or cannot be written; the earlier checkpoints are untouched.
    """
    path = folder / f"step-{progress.step:07d}.pt"
    content = {
        "progress": asdict(progress),
        "model": dict(model),
        "optimizer": dict(optimizer),
        "identity": dict(identity),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with writing_aside(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise DataError(
            f"cannot write the checkpoint {path}: {error}", "Free some space and run the command again; it goes on."
        ) from error
    for old in checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_state(folder: Path, identity: Mapping[str, str]) -> tuple[Progress, dict[str, Tensor], dict[str, Any]] | None:
    """Progress, model and optimiser state of the newest checkpoint, or None when there is none.

    Raises:
        ConfigError: the checkpoint is of another run: other data, target or recipe.
        DataError: the file cannot be read.
    """
    found = checkpoints(folder)
    if not found:
        return None
    path = found[-1]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(
            f"cannot read the checkpoint {path}: {error}",
            f"Remove it to go on from the one before, or remove {folder} to begin anew.",
        ) from error
    other = [name for name, value in identity.items() if content["identity"].get(name) != value]
    if other:
        raise ConfigError(
            f"{path} is of another run: this recipe differs in {', '.join(other)}",
            f"Give another output (--set output=FOLDER), or begin anew: --fresh, or remove {folder}.",
        )
    return Progress(**content["progress"]), content["model"], content["optimizer"]
