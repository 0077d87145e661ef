"""The list of a prepared folder's files, by which damage is noticed.

One rule: every file was read through and compared with its digest since it last changed. Reading half a gigabyte at
every start would take about as long as loading it, so sizes are compared always, and digests whenever a
modification time is not the one that was seen when the digest last agreed (say after a copy or a restore).
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "manifest.json"


def sha256_of(file: Path) -> str:
    """sha256 of a file's bytes (hex)."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_manifest(folder: Path, source: dict[str, Any]) -> None:
    """Record size and digest of every file in `folder`, and what they were made from."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != NAME)
    _store(folder, {"source": source, "files": {file.name: _entry(file, sha256_of(file)) for file in files}})


def damage(folder: Path) -> str | None:
    """What is wrong with a prepared folder, in words; None if it is as it was written."""
    try:
        manifest = json.loads((folder / NAME).read_text(encoding="utf-8"))
        entries: dict[str, dict[str, Any]] = manifest["files"]
        seen = {name: _entry(folder / name, entry["sha256"]) for name, entry in entries.items()}
        for name, entry in entries.items():
            if seen[name]["bytes"] != entry["bytes"]:
                return f"{name} has {seen[name]['bytes']} bytes instead of {entry['bytes']}"
            if seen[name]["mtime_ns"] != entry["mtime_ns"] and sha256_of(folder / name) != entry["sha256"]:
                return f"{name} has other contents than were written"
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{NAME} cannot be read"
    if seen != entries:
        _remember(folder, {**manifest, "files": seen})
    return None


def _entry(file: Path, digest: str) -> dict[str, Any]:
    stat = file.stat()
    return {"bytes": stat.st_size, "sha256": digest, "mtime_ns": stat.st_mtime_ns}


def _store(folder: Path, manifest: dict[str, Any]) -> None:
    aside = folder / f".{NAME}.{os.getpid()}"
    aside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, folder / NAME)


def _remember(folder: Path, manifest: dict[str, Any]) -> None:
    # A cache that may only be read stays as it is: its digests are compared again next time.
    with suppress(OSError):
        _store(folder, manifest)
