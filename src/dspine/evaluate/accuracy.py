"""How many answers of a task are right, beside how fast they were drafted.

One rule: what cannot be scored is not scored. Code is run only if that was asked for; without it a task of code has no
accuracy, rather than one that was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dspine.evaluate.rows import Row
from dspine.evaluate.sandbox import ends_well
from dspine.evaluate.tasks.task import Task
from dspine.interval import Interval, bootstrap

RUNNERS = 2  # programs at a time; each is a process of its own


@dataclass(frozen=True)
class Accuracy:
    """right of scored answers; `how` is "match" or "executed", `interval` the 95 % one of their ratio."""

    right: int
    scored: int
    how: str
    interval: Interval

    @property
    def ratio(self) -> float:
        return self.right / self.scored


def accuracy(task: Task, answered: Sequence[tuple[Row, str]], *, execute_code: bool = False) -> Accuracy | None:
    """The accuracy of answers' texts; None where the task cannot be scored, or only by running code.

    Args:
        answered: each row, at least one, with the text that was answered to its first turn.
        execute_code: run the code of the answers, with limits.
    """
    if task.matches is not None:
        return _counted([task.matches(row, text) for row, text in answered], "match")
    if task.program is None or not execute_code:
        return None
    programs = [task.program(row, text) for row, text in answered]
    with ThreadPoolExecutor(RUNNERS) as pool:
        return _counted(list(pool.map(ends_well, programs)), "executed")


def _counted(right: Sequence[bool], how: str) -> Accuracy:
    return Accuracy(sum(right), len(right), how, bootstrap([(float(each), 1.0) for each in right]))
