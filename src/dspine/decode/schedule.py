"""How many candidates to verify: what a schedule is, and the one that goes by past rounds.

One rule: whether a candidate is verified may depend on past rounds, costs, and the tokens before it, never on itself.
So the output keeps its law whatever the numbers are. Rows with a rule of their own (`decode/policy.py`) are not chosen
for: their tokens must not depend on the rounds of others.

`Adaptive` decides before a block is drafted. The number is one for the whole batch, from the acceptance of all its
rows: the one that promises most kept tokens a second. None at all is a plain round, in which the drafter rests.
Source: scheduled verification of DSpark (arXiv 2607.05147), with running acceptance rates in place of a
confidence head; `decode/prefix.py` has it with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol, runtime_checkable

from dspine.decode.acceptance import Acceptance
from dspine.decode.cost import Costs
from dspine.decode.policy import Own

SHARE = (
    0.015  # of the time, which drafting may lose where it does not pay; by the root of the number of rows, since one
)
# try of many rows tells more
LUCK = 8.0  # plain rounds whose time one row alone may lose at once; its luck varies most
LUCK_OF_MANY = 1.5  # ... and the rows of a batch on average
DEBT = 2.0  # ... and any of them while others gain
GAIN = 1.02  # drafting must promise to be this much faster than a plain round


class CostSource(Protocol):
    """Whoever knows what rounds cost."""

    def covering(self, rows: int) -> Costs:
        """A table that can be asked about `rows` rows."""


@dataclass(frozen=True)
class Seat:
    """A row as far as the number of its candidates goes.

    request: the number of its request.
    room: the most candidates that it can use; 0 where it is not drafted.
    own: its own rule, within the room already; None: the schedule chooses.
    """

    request: int
    room: int
    own: Own | None = None

    @property
    def bound(self) -> bool:
        """Whether its number depends on nothing else."""
        return self.own is not None


@runtime_checkable
class Schedule(Protocol):
    """Says how many candidates of each row to verify, and hears what came of it.

    reads_confidence: whether `cut` asks for confidences.
    looks_back: whether it remembers the confidences of candidates that fell. Their draws are read again for the same
        positions unless each round draws from noise of its own, and a number that knows of them would know its tokens.
    """

    reads_confidence: bool
    looks_back: bool

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        """Before drafting: the most candidates of each row to verify; a bound row's room. No row any: no draft."""

    def cut(
        self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """After drafting: how many to verify, none above `lengths`; a bound row's stays.

        Args:
            confidences: by row, by place; None where nothing was drafted or they are not read.
        """

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        """Hear of a round: how many candidates of each row were verified, and how many of them stood."""


class Unshared:
    """Chooses nothing: for batches whose rows all have a rule of their own."""

    reads_confidence = False
    looks_back = False

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        return [seat.room for seat in seats]

    def cut(
        self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Sequence[Sequence[float]] | None
    ) -> list[int]:
        return list(lengths)

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        """There is nothing to learn for."""


class Adaptive:
    """The number with most kept tokens a second, by a cost table and the acceptance so far.

    Acceptance is estimated for all rows together: they share the number, and pooled rates give exactly the tokens that
    they may expect together, from more evidence than one row has.

    The estimate may be wrong, and a row on which drafting fails may sit beside one on which it shines. So what a row
    may lose is bounded: the time that rounds take beyond plain ones for the same tokens is drawn from its purse, which
    gains fill again up to its brim, as does a small share of all time. A round is drafted if the purses can pay, on
    average, for one that keeps no candidate, and none is deep in debt. A drafter that rests is tried again, as if
    nothing were known of it, once the purses are full enough.

    Args:
        places: M, candidates of a block.
        costs: what rounds cost; not asked as long as bound rows leave nothing to choose.

    Attributes:
        costs: as given.
    """

    reads_confidence = False
    looks_back = False

    def __init__(self, places: int, costs: CostSource) -> None:
        self.costs = costs
        self._places = places
        self._acceptance = Acceptance(places)
        self._purses: dict[int, float] = {}  # by request, in plain rounds
        self._level: float | None = None  # what a new row's purse holds: as much as the others' did

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        rooms = [seat.room for seat in seats]
        if not free(seats):
            return rooms
        if not _open(seats):
            costs = self.costs.covering(len(seats))
            return beside(self._acceptance.survival(), seats, costs)
        self._greet(seats)
        count = self._count(rooms)
        return [min(count, room) for room in rooms]

    def cut(
        self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Sequence[Sequence[float]] | None
    ) -> list[int]:
        return list(lengths)  # decided already

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        for verified, stood in zip(lengths, accepted, strict=True):
            if verified:
                self._acceptance.note(verified, stood)
        if not _open(seats):
            return
        rows, count = len(seats), max(lengths)
        if count == 0:
            self._acceptance.rest(rows)
        costs = self.costs.covering(rows)
        price = (costs.drafted_rows(lengths) if count else costs.plain(rows)) / costs.plain(rows)
        brim = self._brim(costs, rows)
        for seat, stood in zip(seats, accepted, strict=True):
            gained = 1 + stood - (1 - SHARE / sqrt(rows)) * price
            self._purses[seat.request] = min(min(self._purses[seat.request], brim) + gained, brim)
        self._level = sum(self._purses.values()) / rows

    def promise(self, seats: Sequence[Seat]) -> float:
        """Kept tokens a second of these rows, by the number that promises most; none may be drafted."""
        costs, survival = self.costs.covering(len(seats)), self._acceptance.survival()
        rooms = [seat.room for seat in seats]
        count = best(survival, rooms, costs)
        lengths = [min(count, room) for room in rooms]
        seconds = costs.drafted_rows(lengths) if count else costs.plain(len(seats))
        return (len(seats) + sum(sum(survival[:length]) for length in lengths)) / seconds

    def _greet(self, seats: Sequence[Seat]) -> None:
        """Purses of the present rows, and of no others; where others come, the text changes."""
        rows = len(seats)
        fresh = sum(seat.request not in self._purses for seat in seats)
        if fresh:
            self._acceptance.fade(1 - 0.75 * fresh / rows)
        level = _start(self.costs.covering(rows), rows) if self._level is None else self._level
        self._purses = {seat.request: self._purses.get(seat.request, level) for seat in seats}

    def _count(self, rooms: Sequence[int]) -> int:
        rows = len(rooms)
        costs = self.costs.covering(rows)
        brim = self._brim(costs, rows)
        held = [min(purse, brim) for purse in self._purses.values()]
        purse = sum(held) / rows if min(held) > -DEBT else 0.0
        limit = purse * costs.plain(rows)
        count = best(self._acceptance.survival(), rooms, costs, limit)
        if count or purse < _start(costs, rows) or not best([1.0] * self._places, rooms, costs):
            return count
        self._acceptance.fade(0.0)
        survival = self._acceptance.survival()
        return best(survival, rooms, costs, limit) or best(survival, rooms, costs, limit, least=1)

    def _brim(self, costs: Costs, rows: int) -> float:
        """The most that a purse can hold, in plain rounds: gains must be able to pay for any number of candidates."""
        return max(_start(costs, rows), costs.drafted(rows, self._places) / costs.plain(rows) - 1)


def best(
    survival: Sequence[float], rooms: Sequence[int], costs: Costs, purse: float = float("inf"), least: int = 0
) -> int:
    """The number of candidates with most kept tokens a second.

    Args:
        survival: by place, the chance that its candidate and all before it stand.
        rooms: the most candidates that each row can use.
        costs: what a round of so many rows costs.
        purse: seconds that the round may lose against a plain one at worst.
        least: the smallest number to consider; 0 is the plain round, which wins unless drafting is well worth it.

    Returns:
        0 where no number is allowed, or none pays.
    """
    rows = len(rooms)
    plain, kept = costs.plain(rows), float(rows)
    chosen, speed = 0, 0.0 if least else GAIN * rows / plain
    for place, chance in enumerate(survival[: max(rooms)], 1):
        kept += chance * sum(room >= place for room in rooms)
        seconds = costs.drafted_rows([min(place, room) for room in rooms])
        if place >= least and seconds - plain <= purse and kept / seconds > speed:
            chosen, speed = place, kept / seconds
    return chosen


def beside(survival: Sequence[float], seats: Sequence[Seat], costs: Costs) -> list[int]:
    """Lengths with most kept tokens a second, where some rows have theirs and are drafted for in any case.

    Where rows cost as much as the widest, the others have as many candidates as that one at least.

    Args:
        survival: as in `best`.
    """

    def lengths(count: int) -> list[int]:
        return [seat.room if seat.bound else min(count, seat.room) for seat in seats]

    def speed(count: int) -> float:
        chosen = lengths(count)
        return (len(seats) + sum(sum(survival[:length]) for length in chosen)) / costs.drafted_rows(chosen)

    most = max(seat.room for seat in seats if not seat.bound)
    return lengths(max(range(most + 1), key=speed))


def free(seats: Sequence[Seat]) -> bool:
    """Whether there is a row to choose for."""
    return any(seat.room and not seat.bound for seat in seats)


def _open(seats: Sequence[Seat]) -> bool:
    """Whether there is one number to choose: some row is drafted, and none that is has its own."""
    return free(seats) and not any(seat.room and seat.bound for seat in seats)


def _start(costs: Costs, rows: int) -> float:
    """What a purse holds at first, in plain rounds: enough for some luck, and for one candidate at least."""
    return max(LUCK if rows == 1 else LUCK_OF_MANY, costs.drafted(rows, 1) / costs.plain(rows) - 1)
