"""Results on disk: JSON lines under a head that says what they were measured on.

One rule: a file describes itself. Its first line names the format and everything that the figures depend on; the others
are one result each, under a key. Under the same head results are replaced key by key; those of another head belong into
another file, which is why files are named by their heads.

    {"format": "dspine-acceptance/1", "measured_on": {...}}
    {"key": "gsm8k", ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from dspine.durable import cannot_write, write_aside
from dspine.errors import DataError
from dspine.jsonl import finite, json_lines

ACCEPTANCE = "dspine-acceptance/1"
THROUGHPUT = "dspine-throughput/1"
PROBE = "dspine-probe/1"
LAB = "dspine-lab/1"
DECODED = "dspine-decoded/1"
FORMATS = (ACCEPTANCE, THROUGHPUT, PROBE, LAB, DECODED)


def read_results(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a file of results, and its results in their order.

    Raises:
        DataError: no such file, or another kind of file.
    """
    lines = [value for _, _, value in json_lines(Path(path))]
    if not lines or lines[0].get("format") not in FORMATS:
        raise DataError(f"{path} is not a file of results ({', '.join(FORMATS)})")
    return lines[0], lines[1:]


class ResultFile:
    """Results of one head, added to and replaced by their keys; nothing is on disk before the first is added.

    Args:
        measured_on: what the results depend on.

    Attributes:
        lines: the results by key, as they are in the file.

    Raises:
        DataError: the file is something else, or holds results of another head, whose differences are named.
    """

    def __init__(self, path: Path, form: str, measured_on: Mapping[str, Any]) -> None:
        self.path = path
        self.head: dict[str, Any] = json.loads(json.dumps({"format": form, "measured_on": finite(measured_on)}))
        self.lines: dict[str, dict[str, Any]] = {}
        if path.exists():
            written, before = read_results(path)
            _compare(path, written, self.head)
            self.lines = {line["key"]: line for line in before}

    @classmethod
    def beside(cls, folder: Path, stem: str, form: str, measured_on: Mapping[str, Any]) -> ResultFile:
        """The file of such results in a folder: one for every head."""
        return cls(folder / f"{stem}-{digest_of(measured_on)}.jsonl", form, measured_on)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add results, each with its "key", all of them or none.

        Raises:
            DataError: the file cannot be written.
        """
        self.lines |= {line["key"]: finite(line) for line in lines}
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (self.head, *self.lines.values()))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        write_aside(self.path, data.encode())


def _compare(path: Path, written: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if written == asked:
        return
    ours, theirs = (head.get("measured_on", {}) for head in (asked, written))
    names = [name for name in dict.fromkeys((*theirs, *ours)) if ours.get(name) != theirs.get(name)]
    differing = [f"{name}: {theirs.get(name)!r} → {ours.get(name)!r}" for name in names]
    raise DataError(
        f"{path} holds results of something else: {'; '.join(differing) or written.get('format')}",
        "Give this measurement another folder, or move the file away.",
    )


def file_name(text: str) -> str:
    """A text as part of a file's name: letters, digits, points and hyphens."""
    return "".join(character if character.isalnum() or character in "-." else "-" for character in text)


def digest_of(measured_on: Mapping[str, Any]) -> str:
    """First 8 hex digits of the sha256 of a head, to name a file by."""
    return sha256(json.dumps(finite(measured_on), sort_keys=True).encode()).hexdigest()[:8]
