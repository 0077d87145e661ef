"""What the parts of a round cost on one machine.

One rule: plain numbers, in seconds, whoever measured them (`decode/costbook.py`). Longer blocks never cost less, sizes
between measured ones lie on the line between them, and a count of rows is read off the next larger count that was
measured, at the same number of tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

FILLED = 32  # tokens by which attention fills rows up in the time of a call of its own, about


@dataclass(frozen=True)
class Runs:
    """Seconds of several runs of each size, of one count of rows.

    verify: by tokens a row. draft: of drafting.
    wide: of verifying a whole block of one row and the anchors alone of the others; empty where rows are not ragged.
    """

    verify: Mapping[float, Sequence[float]]
    draft: Sequence[float]
    wide: Sequence[float] = ()

    @property
    def each(self) -> list[Sequence[float]]:
        """The runs of every size."""
        return [*self.verify.values(), self.draft, *([self.wide] if self.wide else [])]


@dataclass(frozen=True)
class Costs:
    """A cost table.

    verify: by count of rows, then by tokens a row (anchor included; where rows are ragged, on average): seconds of the
        target's forward up to its choices.
    draft: by count of rows: seconds of drafting one block a row, and of taking in what a round keeps.
    ragged: whether rows of different widths cost what their tokens cost; else each costs as much as the widest.
    apart: by count of rows, where they are ragged: seconds that one row costs in addition for being much wider than the
        others, since attention takes it apart (`kernels/rows_attention.py`).

    An empty table covers nothing and cannot be asked.
    """

    verify: Mapping[int, Mapping[float, float]] = field(default_factory=dict)
    draft: Mapping[int, float] = field(default_factory=dict)
    ragged: bool = False
    apart: Mapping[int, float] = field(default_factory=dict)

    def covering(self, rows: int) -> Costs:
        """The table to ask about `rows` rows: this one, as it is all there is."""
        return self

    def covers(self, rows: int) -> bool:
        """Whether a count of rows was measured, or one that is at most twice as large."""
        return any(rows <= count <= 2 * rows for count in self.verify)

    def plain(self, rows: int) -> float:
        """Seconds of a round without candidates."""
        return self._seconds(rows, rows)

    def undrafted_rows(self, lengths: Sequence[int]) -> float:
        """Seconds of a round that verifies so many candidates of each row, none of them drafted."""
        rows = len(lengths)
        if not self.ragged:
            return self._seconds(rows, rows * (1 + max(lengths)))
        seconds = self._seconds(rows, rows + sum(lengths))
        call = self.apart.get(self._count(rows), 0.0)
        return seconds + call * _calls(lengths) if call else seconds

    def drafted(self, rows: int, candidates: int) -> float:
        """Seconds of a round that drafts and verifies `candidates` candidates a row."""
        return self.drafted_rows([candidates] * rows)

    def drafted_rows(self, lengths: Sequence[int]) -> float:
        """Seconds of a round that drafts, and verifies so many candidates of each row."""
        return self.draft[self._count(len(lengths))] + self.undrafted_rows(lengths)

    def extended(self, rows: int, runs: Runs) -> Costs:
        """The table with one more count of rows.

        The quickest run counts, as whatever disturbs a run makes it longer: on a busy machine medians of a few runs
        differ by tens of per cent, minima by a few. Where a shorter block seems dearer than a longer one, it is
        their mean.
        """
        widths = sorted(runs.verify)
        seconds = non_decreasing([min(runs.verify[width]) for width in widths])
        fresh = dict(zip(widths, seconds, strict=True))
        known = replace(self, verify={**self.verify, rows: fresh}, draft={**self.draft, rows: min(runs.draft)})
        if not runs.wide:
            return known
        alone = known._seconds(rows, rows - 1 + round(widths[-1]))
        return replace(known, apart={**self.apart, rows: max(0.0, min(runs.wide) - alone)})

    def numbers(self) -> dict[str, Any]:
        """The seconds for a JSON file; `from_numbers` reads them."""
        return {"verify": self.verify, "draft": self.draft, "apart": self.apart}

    @classmethod
    def from_numbers(cls, found: Mapping[str, Any]) -> Costs:
        """A table from a JSON file, of rows that cost as much as the widest.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is none.
        """
        verify = {
            int(rows): {float(width): _positive(seconds) for width, seconds in sizes.items()}
            for rows, sizes in found["verify"].items()
        }
        draft = {int(rows): _positive(seconds) for rows, seconds in found["draft"].items()}
        apart = {int(rows): _duration(seconds) for rows, seconds in found["apart"].items()}
        if set(verify) != set(draft) or not set(apart) <= set(draft) or any(1 not in each for each in verify.values()):
            raise ValueError("not a cost table")
        return cls(verify, draft, apart=apart)

    def _count(self, rows: int) -> int:
        """The smallest measured count of at least `rows` rows, else the largest."""
        return min((count for count in self.verify if count >= rows), default=max(self.verify))

    def _seconds(self, rows: int, tokens: int) -> float:
        """Of verifying `tokens` tokens of all rows together."""
        return interpolated(*self._lines[self._count(rows)], tokens)

    @cached_property
    def _lines(self) -> dict[int, tuple[list[float], list[float]]]:
        """By count of rows: tokens of all rows, and the seconds of each."""
        return {
            count: ([count * size for size in sorted(sizes)], [sizes[size] for size in sorted(sizes)])
            for count, sizes in self.verify.items()
        }


def interpolated(points: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a place by the straight line between its neighbours; flat before the first point, and on the line
    of the last two behind the last."""
    if at <= points[0] or len(points) == 1:
        return values[0]
    right = min(bisect_left(points, at), len(points) - 1)
    (x, y), (x1, y1) = (points[right - 1], values[right - 1]), (points[right], values[right])
    return y + (y1 - y) * (at - x) / (x1 - x)


def _calls(lengths: Sequence[int]) -> float:
    """What rows of different widths cost attention, in calls: by some width narrower rows are filled up to, while wider
    ones have calls of their own, the one that costs least."""
    return min(
        sum((width - length) / FILLED if length < width else length > width for length in lengths)
        for width in set(lengths)
    )


def non_decreasing(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (least squares): neighbours in the wrong order share their mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, count = (mean * count + before * more) / (count + more), count + more
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _positive(seconds: float) -> float:
    if not _duration(seconds):
        raise ValueError(f"{seconds} is no duration of work")
    return float(seconds)


def _duration(seconds: float) -> float:
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds} is no duration")
    return float(seconds)
