"""Which results there are: files that say at their head what they are, and tables of ablations.

One rule: a folder is searched and what is no result is passed over; a file that is named and is no result is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspine.errors import DataError
from dspine.evaluate.results import FORMATS, read_results

ABLATION = "ablation.json"
_HEAD = 200  # bytes: enough to see the format
_PASSED = ("features", "checkpoints", "drafter")  # folders that hold no results, and may hold much else


@dataclass(frozen=True)
class Result:
    """A file of results.

    form: its format, or the name of an ablation's table. head: its first line. lines: the others.
    """

    path: Path
    form: str
    head: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def measured_on(self) -> dict[str, Any]:
        found: dict[str, Any] = self.head.get("measured_on", {})
        return found


def find(runs: Sequence[Path]) -> list[Result]:
    """The results of files and folders, in their order, each once.

    Raises:
        DataError: nothing is there, a named file is no result, or a file is broken.
    """
    found: dict[Path, Result] = {}
    for run in runs:
        if not run.exists():
            raise DataError(f"{run} is missing", "Give files of results, or folders that hold some.")
        for path in _files(run) if run.is_dir() else [run]:
            if path.resolve() in found:
                continue
            result = _read(path)
            if result is not None:
                found[path.resolve()] = result
            elif path == run:
                raise DataError(
                    f"{path} holds no results", f"A report is made of {', '.join(FORMATS)}, and of {ABLATION}."
                )
    if not found:
        raise DataError(
            f"no results in {', '.join(map(str, runs))}",
            "They are what eval, bench, lab, probe and train --ablate write.",
        )
    return list(found.values())


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _PASSED:
            yield from _files(path)
        elif path.name == ABLATION or path.suffix == ".jsonl":
            yield path


def _read(path: Path) -> Result | None:
    if path.name == ABLATION:
        try:
            runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is no table of an ablation ({error})", "Leave it out, or make it anew.") from error
        return Result(path, ABLATION, {}, runs)
    try:
        with path.open("rb") as file:
            begin = file.read(_HEAD).decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "Leave it out.") from error
    form = next((form for form in FORMATS if begin.startswith(f'{{"format": "{form}"')), None)
    if form is None:
        return None
    head, lines = read_results(path)
    return Result(path, form, head, lines)
