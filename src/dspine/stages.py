"""Named sections of a round, so that anybody can see where its time goes.

One rule: a section costs nothing unless a `StageClock` is active. Names are paths (`draft/backbone`); the first
part is the phase of the round (`prefill`, `draft`, `verify`, `commit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

_active: ContextVar[StageClock | None] = ContextVar("dspine_stage_clock", default=None)
_idle: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class StageTime:
    """Time spent in one section: its name, how often it was entered, and seconds in all."""

    name: str
    calls: int
    seconds: float


class Marks(Protocol):
    """Points in time: of the host, or of what an accelerator has been given to do."""

    def mark(self) -> Any:
        """Now."""

    def seconds(self, start: Any, stop: Any) -> float:
        """Seconds between two marks, once both are reached."""


class HostMarks:
    """The host's wall clock."""

    def mark(self) -> float:
        return perf_counter()

    def seconds(self, start: float, stop: float) -> float:
        return stop - start


class StageClock:
    """Collects the sections entered while it is active (a context manager).

    Args:
        marks: whose time it is. The host's wall clock is exact on a CPU; on an accelerator, work that is only queued
            inside a section is charged by it to the section that waits for it: give marks of the device there.
    """

    def __init__(self, marks: Marks | None = None) -> None:
        self._marks = marks or HostMarks()
        self._spans: dict[str, list[tuple[Any, Any]]] = {}

    def __enter__(self) -> StageClock:
        self._token = _active.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.reset(self._token)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        spans = self._spans.setdefault(name, [])
        start = self._marks.mark()
        try:
            yield
        finally:
            spans.append((start, self._marks.mark()))

    def table(self) -> list[StageTime]:
        """The sections in the order in which they were first entered."""
        return [
            StageTime(name, len(spans), sum(self._marks.seconds(start, stop) for start, stop in spans))
            for name, spans in self._spans.items()
        ]


@contextmanager
def unclocked() -> Iterator[None]:
    """Sections entered inside belong to no clock."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def stage(name: str) -> AbstractContextManager[None]:
    """Mark a section of a round: `with stage("draft/backbone"): ...`."""
    clock = _active.get()
    return _idle if clock is None else clock.section(name)
