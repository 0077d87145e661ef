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

_active: ContextVar[StageClock | None] = ContextVar("dspine_stage_clock", default=None)
_idle: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class StageTime:
    """Time spent in one section: its name, how often it was entered, and seconds in all."""

    name: str
    calls: int
    seconds: float


class StageClock:
    """Collects the sections entered while it is active (a context manager).

    Times are the host's wall clock: exact on a CPU; on an accelerator, work that is only queued inside a
    section is charged to the section that waits for it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}

    def __enter__(self) -> StageClock:
        self._token = _active.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.reset(self._token)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + perf_counter() - start
            self._calls[name] = self._calls.get(name, 0) + 1

    def table(self) -> list[StageTime]:
        """The sections in the order in which they were first entered."""
        return [StageTime(name, self._calls[name], seconds) for name, seconds in self._seconds.items()]


def stage(name: str) -> AbstractContextManager[None]:
    """Mark a section of a round: `with stage("draft/backbone"): ...`."""
    clock = _active.get()
    return _idle if clock is None else clock.section(name)
