"""Which candidates of a batch to verify, by their confidences and what rounds cost: DSpark's prefix scheduler.

One rule: whether a candidate is verified may depend on the tokens before it, never on itself or on what follows from
it; so a block may grow step by step, and stops at the first step that does not pay. The best of all lengths in
hindsight would be biased: the confidence behind a candidate tells which token was drawn there.
Source: DSpark (arXiv 2607.05147), algorithm 1, and its asynchronous form, as SGLang has it:

    survival a_{r,j} = Π_{i≤j} c_{r,i};   Θ = (R + Σ of admitted a) / seconds of the round

A step is what a batch can be widened by. Where a batch costs what its tokens cost (`Target.ragged`), that is a single
candidate, the likeliest to be kept first. Where its rows go through the target side by side, each as wide as the
widest, it is a *place*, and every row that has room gets its candidate there: they cost no more.

The lagged form splits the decision: how many steps, by an unconstrained maximum over the confidences of two rounds
ago, which cannot know the tokens at hand; which candidates these are, by the present rows. No round waits for its own
confidences then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dspine.decode.cost import Costs
from dspine.decode.schedule import CostSource, Seat, free

Confidences = Sequence[Sequence[float]]  # by row, by place
Price = Callable[[Sequence[int]], float]  # seconds of a round that verifies so many candidates of each row

LEAST = 1e-6  # a candidate that is less likely to be reached and to stand is never verified
LAG = 2  # rounds


@dataclass(frozen=True)
class Step:
    """Candidates that are admitted together: the next one of each of some rows, or of one.

    gain: kept tokens that they promise.
    """

    rows: tuple[int, ...]
    gain: float


def survival(confidence: Sequence[float], room: int) -> list[float]:
    """The chance at each place that its candidate and all before it stand, as far as it is worth a look."""
    chances: list[float] = []
    chance = 1.0
    for each in confidence[:room]:
        chance *= each
        if not chance >= LEAST:  # nor is NaN
            break
        chances.append(chance)
    return chances


def steps_by_place(confidences: Confidences, rooms: Sequence[int]) -> list[Step]:
    """The steps of a batch that goes through the target side by side, place 1 first.

    Args:
        rooms: the most candidates that each row can use; 0 for rows that are not chosen for.
    """
    chances = [survival(each, room) for each, room in zip(confidences, rooms, strict=True)]
    deepest = max(map(len, chances), default=0)
    return [
        Step(
            tuple(row for row, each in enumerate(chances) if len(each) > place),
            sum(each[place] for each in chances if len(each) > place),
        )
        for place in range(deepest)
    ]


def steps_by_candidate(confidences: Confidences, rooms: Sequence[int]) -> list[Step]:
    """The steps of a batch that costs what its tokens cost, the candidate that is likeliest to be kept first.

    Equal ones by place, then by row: never by what was drawn, and no row's candidate before the one it follows.

    Args:
        rooms: the most candidates that each row can use; 0 for rows that are not chosen for.
    """
    ranked = sorted(
        (-chance, place, row)
        for row, (each, room) in enumerate(zip(confidences, rooms, strict=True))
        for place, chance in enumerate(survival(each, room))
    )
    return [Step((row,), -negative) for negative, _, row in ranked]


def grown(lengths: Sequence[int], steps: Sequence[Step]) -> list[int]:
    """Lengths after some steps."""
    longer = list(lengths)
    for step in steps:
        for row in step.rows:
            longer[row] += 1
    return longer


def early_stopped(steps: Sequence[Step], lengths: Sequence[int], kept: float, price: Price) -> int:
    """How many steps to take: on, as long as each makes more tokens a second than without it.

    Args:
        lengths: candidates of each row before the first step. kept: tokens that they promise, the target's included.
    """
    speed = kept / price(lengths)
    for taken, step in enumerate(steps):
        lengths, kept = grown(lengths, [step]), kept + step.gain
        if kept / price(lengths) <= speed:
            return taken
        speed = kept / price(lengths)
    return len(steps)


def best_budget(steps: Sequence[Step], lengths: Sequence[int], kept: float, price: Price) -> int:
    """The number of steps with most tokens a second, of all: for confidences in which present tokens have no part."""
    gains = accumulate((step.gain for step in steps), initial=kept)
    sizes = accumulate(steps, lambda size, step: grown(size, [step]), initial=list(lengths))
    speeds = [gain / price(size) for gain, size in zip(gains, sizes, strict=True)]
    return speeds.index(max(speeds))


class Scheduled:
    """By the confidences of the block at hand, with early stop. A block is always drafted: only then it has any.

    Args:
        costs: what rounds cost; not asked where nothing is to be chosen.
    """

    reads_confidence = True
    looks_back = False

    def __init__(self, costs: CostSource) -> None:
        self._costs = costs

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        return [seat.room for seat in seats]

    def cut(self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Confidences | None) -> list[int]:
        if confidences is None or not free(seats):
            return list(lengths)
        costs = self._costs.covering(len(seats))
        start, kept = _settled(seats, lengths, confidences)
        steps = _steps(seats, lengths, confidences, costs)
        return grown(start, steps[: early_stopped(steps, start, kept, costs.drafted_rows)])

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        """It remembers nothing."""


class Lagged:
    """How many steps by the confidences of two rounds ago; a request without them is taken to be sure of itself.

    Args:
        costs: what rounds cost; not asked where nothing is to be chosen.
    """

    reads_confidence = True
    looks_back = True

    def __init__(self, costs: CostSource) -> None:
        self._costs = costs
        self._said: dict[int, deque[list[float]]] = {}  # by request: the confidences of its last `LAG` rounds

    def lengths(self, seats: Sequence[Seat]) -> list[int]:
        return [seat.room for seat in seats]

    def cut(self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Confidences | None) -> list[int]:
        if confidences is None or not free(seats):
            return list(lengths)
        before = [self._before(seat) for seat in seats]
        costs = self._costs.covering(len(seats))
        start, kept = _settled(seats, lengths, before)
        budget = best_budget(_steps(seats, lengths, before, costs), start, kept, costs.drafted_rows)
        self._said = {seat.request: self._said.get(seat.request, deque(maxlen=LAG)) for seat in seats}
        for seat, said in zip(seats, confidences, strict=True):
            self._said[seat.request].append(list(said))
        return grown(start, _steps(seats, lengths, confidences, costs)[:budget])

    def learn(self, seats: Sequence[Seat], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        """What stood is no matter: it goes by what was said."""

    def _before(self, seat: Seat) -> list[float]:
        said = self._said.get(seat.request)
        return said[0] if said is not None and len(said) == LAG else [1.0] * seat.room


def _steps(seats: Sequence[Seat], lengths: Sequence[int], confidences: Confidences, costs: Costs) -> list[Step]:
    """The steps of the rows that are chosen for."""
    rooms = [0 if seat.bound else length for seat, length in zip(seats, lengths, strict=True)]
    return (steps_by_candidate if costs.ragged else steps_by_place)(confidences, rooms)


def _settled(seats: Sequence[Seat], lengths: Sequence[int], confidences: Confidences) -> tuple[list[int], float]:
    """What a round is before the first step: lengths, and tokens that it promises."""
    start = [length if seat.bound else 0 for seat, length in zip(seats, lengths, strict=True)]
    sure = sum(sum(survival(said, length)) for said, length in zip(confidences, start, strict=True))
    return start, len(seats) + sure
