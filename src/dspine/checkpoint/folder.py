"""Replacing a folder as a whole.

One rule: at any moment the folder is the old one or the new one. Files are written into a folder beside it and
renamed; an error or an interrupt removes what was begun and leaves the old folder as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

from dspine.errors import CheckpointError


@contextmanager
def replacing(folder: Path, is_ours: Callable[[str], bool]) -> Iterator[Path]:
    """Give a fresh folder to write into, which takes the place of `folder` when the block ends well.

    Args:
        folder: the place; it may exist.
        is_ours: whether a name in the old folder belongs to what is replaced. Anything else that lies there
            (a model card, a trainer's state) moves into the new one.

    Raises:
        CheckpointError: nothing could be written (no space, no permission); the old folder is untouched.
    """
    folder = Path(os.path.realpath(folder))  # renaming a link would leave what it points to
    beside = f".{folder.name}.{uuid4().hex[:8]}"
    begun, previous = folder.with_name(f"{beside}.partial"), folder.with_name(f"{beside}.previous")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun.mkdir()
        yield begun
        _settle(begun)
        _swap(folder, begun, previous)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: could not be written ({error}); nothing was changed",
            "Free some space or choose another folder, and save again.",
        ) from error
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    if previous.exists():
        _move_over(previous, folder, is_ours)
        shutil.rmtree(previous, ignore_errors=True)


def left_over(folder: Path) -> Path | None:
    """The old folder of a replacement that was killed between its two renames, if there is one."""
    found = sorted(folder.parent.glob(f".{folder.name}.*.previous"))
    return found[-1] if found and not folder.exists() else None


def _settle(folder: Path) -> None:
    """Bring the files to the disk before the rename makes them the only ones, readable by whoever may open the folder.

    safetensors writes files for their owner alone; the folder was made under the user's umask, and says who else.
    """
    mode = folder.stat().st_mode & 0o666
    for file in folder.iterdir():
        file.chmod(mode)
        descriptor = os.open(file, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(folder: Path, begun: Path, previous: Path) -> None:
    try:
        if folder.exists():
            folder.rename(previous)
        begun.rename(folder)
    except BaseException:  # an interrupt as well: the old folder goes back to its place
        if previous.exists() and not folder.exists():
            previous.rename(folder)
        raise


def _move_over(previous: Path, folder: Path, is_ours: Callable[[str], bool]) -> None:
    for entry in previous.iterdir():
        if not is_ours(entry.name) and not (folder / entry.name).exists():
            entry.rename(folder / entry.name)
