"""A progress bar for long work.

One rule: it goes to standard error, so that standard output carries results alone.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


def progress_bar(unit: str, *, shown: bool = True) -> Progress:
    """A bar with count, rate of the task's field `done` (in `unit` a second) and time left; a context manager."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        _Rate(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )


class _Rate(ProgressColumn):
    """Units done a second since the bar began, as the task's field `done` counts them."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        done, seconds = task.fields.get("done", 0), task.elapsed or 0.0
        return Text(f"{done / seconds:.0f} {self._unit}/s" if done and seconds else "")
