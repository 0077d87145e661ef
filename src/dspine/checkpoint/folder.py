"""Replacing a folder as a whole.

One rule: at any moment the folder is the old one or the new one. Files are written into a folder beside it and
renamed; an error or an interrupt removes what was begun and leaves the old folder as it was. What a kill leaves beside
it, the next replacement clears up.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

from dspine.durable import alone
from dspine.errors import CheckpointError, DataError


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
        _remove_abandoned(folder)
        begun.mkdir()
        with _held(begun):
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
    for old in _beside(folder, "previous"):  # this one, and those of replacements that were killed
        _move_over(old, folder, is_ours)
        shutil.rmtree(old, ignore_errors=True)


def left_over(folder: Path) -> Path | None:
    """The old folder of a replacement that was killed between its two renames, if there is one."""
    found = _beside(folder, "previous")
    return found[-1] if found and not folder.exists() else None


def _beside(folder: Path, kind: str) -> list[Path]:
    """What replacements of a folder have left beside it."""
    return sorted(folder.parent.glob(f".{escape(folder.name)}.{'[0-9a-f]' * 8}.{kind}"))


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed replacements had begun; what somebody is writing, or may be writing, stays."""
    for begun in _beside(folder, "partial"):
        with suppress(DataError, OSError), alone(begun, "a drafter in"):
            shutil.rmtree(begun, ignore_errors=True)


@contextmanager
def _held(begun: Path) -> Iterator[None]:
    """Show others that a folder is not abandoned, where the file system knows locks."""
    handle = os.open(begun, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


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
