"""Files that a kill cannot spoil: written aside and renamed, or grown by whole lines.

One rule: whatever interrupts, what was there before is still there, and what is new is there wholly or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dspine.errors import DataError


def write_aside(path: Path, data: bytes) -> None:
    """Write a file so that it is there wholly or not at all, whatever interrupts.

    Raises:
        DataError: the disk is full or the place cannot be written; nothing is left behind.
    """
    with writing_aside(path) as file:
        file.write(data)


@contextmanager
def writing_aside(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which is `path` once the block ends well, and is gone if it does not.

    Raises:
        DataError: as `write_aside`.
    """
    aside = path.with_name(f".{path.name}.part")  # one name: what a kill leaves behind is written over
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> DataError:
    """The error that says why `path` could not be written, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "Free some space and run the same command again: it goes on where it stopped."
        return DataError(f"no space left on the disk while writing {path}", fix)
    return DataError(f"cannot write {path}: {error.strerror}")


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder against another process that would write the same there.

    Args:
        what: is written, for the message.

    Raises:
        DataError: another process holds it, or it cannot be opened.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "Wait for it, or give another folder."
            raise DataError(f"another process is writing {what} {folder}", fix) from error
        yield
    finally:
        os.close(handle)


class LineFile:
    """A file of JSON objects, one a line, open for appending by this process alone; made if it is not there.

    Raises:
        DataError: it cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a line is with the system once `append` returns, and outlives a kill.
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise DataError(
                f"{path} is being written by another process", "Wait for it, or give this run another file."
            ) from error

    @property
    def whole(self) -> int:
        """Bytes of the file up to the end of its last whole line."""
        return self.path.read_bytes().rfind(b"\n") + 1

    def trim(self) -> None:
        """Remove a last line that a kill cut off."""
        self._file.truncate(self.whole)

    def clear(self) -> None:
        """Remove all lines."""
        self._file.truncate(0)

    def append(self, value: Mapping[str, Any]) -> None:
        """Add a line; it is wholly in the file when this returns, and not at all when it raises."""
        end = self._file.seek(0, os.SEEK_END)
        data = (json.dumps(value, ensure_ascii=False) + "\n").encode()
        try:
            while data:  # the system may take less than it is given
                data = data[self._file.write(data) :]
        except BaseException as error:
            self._file.truncate(end)
            if isinstance(error, OSError):
                raise cannot_write(self.path, error) from error
            raise

    def close(self) -> None:
        """Have the system put everything on the disk, and let others write."""
        try:
            os.fsync(self._file.fileno())
        except OSError as failure:
            raise cannot_write(self.path, failure) from failure
        finally:
            self._file.close()
