"""The log of a run: a JSONL file for programs, a bar or plain lines on standard error for people.

One rule: one line a step, keyed by the step; when a run goes on from a checkpoint, lines behind it are dropped,
so that the file always tells one story.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dspine.durable import alone, write_aside
from dspine.jsonl import finite
from dspine.train.trackers import Trackers

QUIET = 30.0  # seconds between plain lines where standard error is no terminal


class Journal:
    """A context manager around the steps of a run; until it ends no other process takes up the run.

    Args:
        path: the JSONL file; lines of steps after `step` are dropped. None: neither file nor a word.
        step: steps behind us; total: of the whole run.
        trackers: shown the same numbers, and closed at the end.

    Raises:
        DataError: another process is at this run.
    """

    def __init__(self, path: Path | None, *, step: int, total: int, trackers: Trackers | None = None) -> None:
        self._total = total
        self._trackers = trackers
        self._console = Console(stderr=True, highlight=False, quiet=path is None)
        self._spoken = 0.0
        self._held = ExitStack()
        self._file = None if path is None else self._reopened(path, step)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=path is None or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=total, completed=step, now="")

    def __enter__(self) -> Journal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._trackers is not None:
            self._trackers.close()
        if self._file is not None:
            self._file.close()
        self._held.close()

    def record(self, step: int, values: dict[str, Any], now: str) -> None:
        """Write one line; `now` is the gist of it for people."""
        if self._file is None:
            return
        self._file.write(json.dumps(finite({"step": step, **values}), allow_nan=False) + "\n")
        if self._trackers is not None:
            self._trackers.log(values, step)
        self._bar.update(self._task, completed=step, now=now)
        if not self._console.is_terminal and time.monotonic() - self._spoken > QUIET:
            self.say(f"step {step}/{self._total}  {now}")
            self._spoken = time.monotonic()

    def say(self, text: str) -> None:
        """A line for people, above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _reopened(self, path: Path, step: int) -> TextIO:
        """The file, open for appending, with its lines up to `step`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(alone(path.parent, "the run in"))
        kept = _lines_until(path, step)
        write_aside(path, "".join(line + "\n" for line in kept).encode())
        return path.open("a", encoding="utf-8", buffering=1)


def _lines_until(path: Path, step: int) -> list[str]:
    if not path.exists():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            written = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue  # a line that a kill cut off
        if written <= step:
            kept.append(line)
    return kept
