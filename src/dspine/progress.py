"""How far a long piece of work is.

One rule: it goes to standard error, so that standard output carries results alone; a bar on a terminal, now and then
a line where there is none.
"""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

QUIET = 30.0  # seconds between lines where there is no terminal


def say(text: str) -> None:
    """A line for people on standard error."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


class Meter:
    """Counts finished items, and the units of work in them; a context manager.

    Args:
        name: what the items are.
        total: items in all.
        unit: what the rate is measured in.
        shown: False is silent.
    """

    def __init__(self, name: str, total: int, unit: str, *, shown: bool = True) -> None:
        self._name, self._total, self._unit, self._shown = name, total, unit, shown
        self._console = Console(stderr=True, highlight=False)
        self._began = self._spoken = monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task(name, total=total, rate="")

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, completed: int, done: int) -> None:
        """Say that `completed` items are finished, and that this run did `done` units of work."""
        now = monotonic()
        rate = f"{done / max(now - self._began, 1e-9):.0f} {self._unit}/s"
        self._bar.update(self._task, completed=completed, rate=rate)
        quiet = now - self._spoken < QUIET and completed < self._total
        if self._shown and not self._console.is_terminal and not quiet:
            self.say(f"{self._name} {completed}/{self._total}  {rate}")
            self._spoken = now

    def say(self, text: str) -> None:
        """A line for people, above the bar."""
        if self._shown:
            self._console.print(text, markup=False, soft_wrap=True)
