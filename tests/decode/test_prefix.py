"""The prefix scheduler: steps, early stop, and the budget of the lagged form."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.decode.test_schedule import GROWING, table

from dspine.decode.cost import Costs
from dspine.decode.policy import FULL
from dspine.decode.prefix import (
    LAG,
    Lagged,
    Scheduled,
    Step,
    best_budget,
    early_stopped,
    grown,
    steps_by_candidate,
    steps_by_place,
    survival,
)
from dspine.decode.schedule import Seat

Kind = Callable[[Sequence[Sequence[float]], Sequence[int]], list[Step]]

M = 7
JUMP = Costs({2: {1: 1.0, 2: 3.0, 4: 3.0, 8: 3.0}}, {2: 0.2})  # one candidate never pays, many do


def random_rows(seed: int, rows: int) -> tuple[list[list[float]], list[int]]:
    chance = random.Random(seed)
    return [[chance.random() for _ in range(M)] for _ in range(rows)], [chance.randrange(M + 1) for _ in range(rows)]


# ---------------------------------------------------------------- steps


def test_survival_is_the_product_and_ends_where_it_is_hopeless() -> None:
    assert survival([0.5, 0.5, 1.0, 0.2], 3) == [0.5, 0.25, 0.25]
    assert survival([1.0, 1e-7, 1.0], 3) == [1.0]
    assert survival([1.0, math.nan, 1.0], 3) == [1.0]
    assert survival([1.0, 1.0], 0) == []


def test_a_step_is_a_place_of_every_row_that_has_room() -> None:
    steps = steps_by_place([[0.5, 0.5, 0.5], [0.9, 0.1, 1.0], [1.0, 1.0, 1.0]], [3, 2, 0])
    assert [step.rows for step in steps] == [(0, 1), (0, 1), (0,)]
    assert [step.gain for step in steps] == pytest.approx([1.4, 0.25 + 0.09, 0.125])


def test_a_step_of_a_ragged_batch_is_the_likeliest_candidate() -> None:
    steps = steps_by_candidate([[0.5, 0.5, 0.5], [0.9, 0.1, 1.0], [1.0, 1.0, 1.0]], [3, 2, 0])
    assert [step.rows for step in steps] == [(1,), (0,), (0,), (0,), (1,)]
    assert [step.gain for step in steps] == pytest.approx([0.9, 0.5, 0.25, 0.125, 0.09])


def test_equal_candidates_go_by_place_and_row() -> None:
    steps = steps_by_candidate([[0.5, 1.0], [0.5, 1.0]], [2, 2])
    assert [step.rows for step in steps] == [(0,), (1,), (0,), (1,)]


@pytest.mark.parametrize("kind", [steps_by_place, steps_by_candidate])
@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_prefixes_that_grow_with_the_budget_and_stay_in_their_rooms(seed: int, kind: Kind) -> None:
    confidences, rooms = random_rows(seed, 5)
    steps = kind(confidences, rooms)
    budgets = [grown([0] * 5, steps[:budget]) for budget in range(len(steps) + 1)]
    for before, after in itertools.pairwise(budgets):
        assert all(b <= a <= b + 1 for b, a in zip(before, after, strict=True))
    assert all(length <= room for length, room in zip(budgets[-1], rooms, strict=True))
    assert [step.gain for step in steps] == sorted((step.gain for step in steps), reverse=True)


# ---------------------------------------------------------------- how many


def test_early_stop_takes_no_step_behind_one_that_does_not_pay() -> None:
    steps = [Step((0, 1), 1.8)] * M
    price = lambda lengths: JUMP.drafted(2, max(lengths))  # noqa: E731
    assert early_stopped(steps, [0, 0], 2.0, price) == 0
    assert best_budget(steps, [0, 0], 2.0, price) == M


@pytest.mark.parametrize("seed", range(20))
def test_a_ragged_batch_against_all_lengths_that_there_are(seed: int) -> None:
    """With costs that only rise, candidates in the order of their chance reach the best of all combinations."""
    confidences, rooms = random_rows(seed, 3)
    rises = [random.Random(seed).uniform(0.1, 0.8) for _ in range(3)]
    costs = replace(table(*itertools.accumulate([1.0, *rises]), rows=3), ragged=True)

    def speed(lengths: Sequence[int]) -> float:
        kept = 3 + sum(
            math.prod(said[:place]) for said, length in zip(confidences, lengths, strict=True)
            for place in range(1, length + 1)
        )  # fmt: skip
        return kept / costs.drafted_rows(lengths)

    steps = steps_by_candidate(confidences, rooms)
    chosen = grown([0] * 3, steps[: best_budget(steps, [0] * 3, 3.0, costs.drafted_rows)])
    best = max(itertools.product(*(range(room + 1) for room in rooms)), key=speed)
    assert speed(chosen) == pytest.approx(speed(best), rel=1e-5)  # hopeless candidates are left out of the steps
    stopped = early_stopped(steps, [0] * 3, 3.0, costs.drafted_rows)
    speeds = [speed(grown([0] * 3, steps[:taken])) for taken in range(len(steps) + 1)]
    assert all(after > before for before, after in itertools.pairwise(speeds[: stopped + 1]))
    assert stopped == len(steps) or speeds[stopped + 1] <= speeds[stopped]


@pytest.mark.parametrize("seed", range(20))
def test_both_against_slow_references(seed: int) -> None:
    confidences, rooms = random_rows(seed, 3)
    rises = [random.Random(seed).uniform(0, 0.8) for _ in range(3)]
    costs = table(*itertools.accumulate([1.0, *rises]), rows=3)
    steps = steps_by_place(confidences, rooms)

    def speed(width: int) -> float:
        kept = 3 + sum(
            math.prod(said[:place]) for said, room in zip(confidences, rooms, strict=True)
            for place in range(1, min(width, room) + 1)
        )  # fmt: skip
        return kept / costs.drafted(3, width)

    price = lambda lengths: costs.drafted(3, max(lengths))  # noqa: E731
    width = 0
    while width < max(rooms) and speed(width + 1) > speed(width):
        width += 1
    assert early_stopped(steps, [0] * 3, 3.0, price) == width
    assert best_budget(steps, [0] * 3, 3.0, price) == max(range(len(steps) + 1), key=speed)


# ---------------------------------------------------------------- the schedules


def test_confidence_and_costs_decide() -> None:
    seats = [Seat(0, M)]
    schedule = Scheduled(GROWING)
    assert schedule.lengths(seats) == [M]
    lengths = [schedule.cut(seats, [M], [[c] * M])[0] for c in (0.2, 0.6, 0.8, 0.95)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] == M
    assert schedule.cut(seats, [M], [[0.95, 0.95, 0.1, 0.95, 0.95, 0.95, 0.95]]) == [2]
    assert schedule.cut(seats, [M], None) == [M]


@pytest.mark.parametrize("schedule", [Scheduled, Lagged])
def test_bound_rows_keep_theirs_and_widen_the_batch_for_the_others(schedule: type[Scheduled | Lagged]) -> None:
    steep = table(1, 2, 4, 8, rows=3)
    doubtful = [[0.3] * M] * 3
    made = schedule(steep)
    for _ in range(LAG):
        made.cut([Seat(row, M) for row in range(3)], [M] * 3, doubtful)
    free = made.cut([Seat(0, M), Seat(1, M), Seat(2, 2)], [M, M, 2], doubtful)
    beside = made.cut([Seat(0, M), Seat(1, 5, FULL), Seat(2, 2)], [M, 5, 2], doubtful)
    assert free == [0, 0, 0]
    assert beside == [5, 5, 2]  # as wide as the bound row makes it; no wider, and within each room


@pytest.mark.parametrize("schedule", [Scheduled, Lagged])
def test_in_a_ragged_batch_a_bound_row_makes_no_room_for_the_others(schedule: type[Scheduled | Lagged]) -> None:
    made = schedule(replace(table(1, 2, 4, 8, rows=3), ragged=True))
    said = [[0.9] * M, [0.3] * M, [0.01] * M]
    for _ in range(LAG):
        made.cut([Seat(row, M) for row in range(3)], [M] * 3, said)
    free = made.cut([Seat(0, M), Seat(1, M), Seat(2, 2)], [M, M, 2], said)
    beside = made.cut([Seat(0, M), Seat(1, 5, FULL), Seat(2, 2)], [M, 5, 2], said)
    assert free[0] > free[1] >= free[2] == 0
    assert beside[1] == 5
    assert beside[2] == 0


def test_nothing_to_choose_asks_for_no_costs() -> None:
    class Unknown:
        def covering(self, rows: int) -> Costs:
            raise AssertionError("nothing is to be chosen")

    for made in (Scheduled(Unknown()), Lagged(Unknown())):
        assert made.cut([Seat(0, 3, FULL), Seat(1, 0)], [3, 0], [[0.1] * M] * 2) == [3, 0]


def test_the_lagged_budget_is_that_of_two_rounds_ago() -> None:
    schedule = Lagged(table(1, 1.3, 1.9, 3.1, rows=1))
    sure, doubtful = [0.99] * M, [0.2] * M
    numbers = [schedule.cut([Seat(7, M)], [M], [said])[0] for said in (doubtful, sure, sure, doubtful, sure, sure)]
    assert numbers == [M, M, 0, M, M, 0]
    assert schedule.cut([Seat(8, M)], [M], [doubtful]) == [M]  # another request: nothing is known of it
    assert set(schedule._said) == {8}
