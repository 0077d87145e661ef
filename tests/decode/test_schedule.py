"""The choice of n: costs and acceptance decide it, and a purse bounds what a wrong choice costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dspine.decode.acceptance import Acceptance
from dspine.decode.cost import Costs
from dspine.decode.policy import FULL, Own
from dspine.decode.schedule import Adaptive, Schedule, Seat, Unshared, best

M = 7
FREE = [M]


def table(*verify: float, draft: float = 0.2, rows: int = 1) -> Costs:
    """Costs of blocks of 1, 2, 4 and 8 tokens, in plain rounds."""
    return Costs({rows: dict(zip((1, 2, 4, 8), verify, strict=True))}, {rows: draft})


FLAT = table(1, 1, 1, 1)
GROWING = table(1, 1.3, 1.9, 3.1)
STEEP = table(1, 2, 4, 8)


def survival(rate: float) -> list[float]:
    return [rate**place for place in range(1, M + 1)]


# ---------------------------------------------------------------- the choice


def test_where_longer_blocks_cost_nothing_all_are_verified() -> None:
    assert best(survival(0.5), FREE, FLAT) == M


def test_growing_costs_shrink_the_number() -> None:
    assert [best(survival(0.7), FREE, costs) for costs in (FLAT, GROWING, STEEP)] == [7, 2, 0]


def test_acceptance_raises_it() -> None:
    assert [best(survival(rate), FREE, GROWING) for rate in (0.2, 0.6, 0.8, 0.95)] == [0, 2, 3, 7]


def test_it_is_the_best_by_trying_all() -> None:
    for rate in (0.3, 0.5, 0.7, 0.9, 0.97):
        speed = {0: 1.02} | {n: (1 + sum(survival(rate)[:n])) / GROWING.drafted(1, n) for n in range(1, M + 1)}
        assert best(survival(rate), FREE, GROWING) == max(speed, key=lambda n: speed[n])


def test_drafting_that_hardly_gains_is_left_alone() -> None:
    assert best(survival(0.33), FREE, table(1, 1.1, 3, 9)) == 1
    assert best(survival(0.31), FREE, table(1, 1.1, 3, 9)) == 0


def test_rows_count_as_far_as_they_have_room() -> None:
    costs = table(1, 1.3, 1.9, 3.1, rows=4)
    assert best(survival(0.9), [7, 7, 7, 7], costs) == 6
    assert best(survival(0.9), [7, 7, 0, 0], costs) == 4
    assert best(survival(0.9), [7, 0, 0, 0], costs) == 0
    assert best(survival(0.9), [2, 2, 2, 2], costs) == 2


def test_a_small_purse_allows_small_numbers_only() -> None:
    assert best(survival(0.9), FREE, GROWING) == 6
    assert best(survival(0.9), FREE, GROWING, purse=0.85) == 2
    assert best(survival(0.9), FREE, GROWING, purse=0.1) == 0
    assert best(survival(0.1), FREE, GROWING, least=1) == 1


# ---------------------------------------------------------------- rounds


def play(
    schedule: Schedule, costs: Costs, accept: Callable[[int, int, int], int], rounds: int, rows: int = 1, base: int = 0
) -> tuple[float, float, list[int]]:
    """Run rounds: `accept(round, row, n)` says how many stand. Returns seconds, tokens a row, and each round's n."""
    seconds, tokens, numbers = 0.0, 0, []
    for number in range(rounds):
        seats = [Seat(base + row, M) for row in range(rows)]
        lengths = schedule.lengths(seats)
        n = max(lengths)
        accepted = [min(accept(number, row, n), n) for row in range(rows)]
        schedule.learn(seats, lengths, accepted)
        seconds += costs.drafted(rows, n) if n else costs.plain(rows)
        tokens += rows + sum(accepted)
        numbers.append(n)
    return seconds, tokens / rows, numbers


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("verify", [(1, 1, 1, 1), (1, 1.3, 1.9, 3.1), (1, 2, 4, 8)])
def test_without_acceptance_it_ends_at_none_and_loses_little(rows: int, verify: tuple[float, ...]) -> None:
    costs = table(*verify, rows=rows)
    seconds, tokens, numbers = play(Adaptive(M, costs), costs, lambda *_: 0, 400, rows)
    assert numbers[-100:].count(0) > 80
    assert seconds / tokens < 1.05 * costs.plain(rows)


def test_many_rows_lose_less_to_tries_than_one_as_one_try_tells_more() -> None:
    lost = {}
    for rows in (1, 4, 16):
        costs = table(1, 1.3, 1.9, 3.1, rows=rows)
        schedule = Adaptive(M, costs)
        play(schedule, costs, lambda *_: 0, 1000, rows)
        seconds, tokens, _ = play(schedule, costs, lambda *_: 0, 8000, rows)
        lost[rows] = seconds / (tokens * costs.plain(rows)) - 1
    assert lost[1] == pytest.approx(0.015, rel=0.1)
    assert lost[4] == pytest.approx(0.015 / 2, rel=0.1)
    assert lost[16] == pytest.approx(0.015 / 4, rel=0.1)


@pytest.mark.parametrize("rows", [1, 8])
def test_it_recovers_when_candidates_stand_again(rows: int) -> None:
    costs = table(1, 1.1, 1.2, 1.4, rows=rows)
    schedule = Adaptive(M, costs)
    play(schedule, costs, lambda *_: 0, 1000, rows)
    seconds, tokens, numbers = play(schedule, costs, lambda *_: M, 400, rows)
    assert numbers[-100:] == [M] * 100
    assert tokens / seconds > 2.5


@pytest.mark.parametrize("rows", [1, 8])
def test_a_drafter_that_is_better_than_expected_is_found(rows: int) -> None:
    costs = table(1, 1.6, 2.2, 3.4, rows=rows)
    schedule = Adaptive(M, costs)
    assert best(Acceptance(M).survival(), [M] * rows, costs) == 0
    _, _, numbers = play(schedule, costs, lambda *_: M, 300, rows)
    assert numbers[-50:] == [M] * 50


def test_a_deeper_block_is_found_again_from_a_short_one() -> None:
    costs = table(1, 1.1, 1.5, 2.3)
    schedule = Adaptive(M, costs)
    chance = random.Random(1)
    _, _, early = play(schedule, costs, lambda *_: int(chance.random() < 0.6), 300)
    _, _, late = play(schedule, costs, lambda *_: M, 300)
    assert max(early[50:]) < 4
    assert late[-1] == M


@pytest.mark.parametrize("seed", range(4))
def test_no_luck_makes_a_batch_much_slower_than_plain(seed: int) -> None:
    """Acceptance that changes at random, rows of every kind: each row's time a token stays near a plain round's."""
    chance = random.Random(seed)
    costs = table(1, *sorted(1 + 3 * chance.random() for _ in range(3)), rows=8)
    schedule = Adaptive(M, costs)
    rates = [chance.random() for _ in range(8)]
    seconds, kept = 0.0, [0] * 8
    for number in range(500):
        if number % 50 == 0:
            rates = [chance.random() if chance.random() < 0.3 else rate for rate in rates]
        seats = [Seat(row, M) for row in range(8)]
        lengths = schedule.lengths(seats)
        n = max(lengths)
        accepted = [next((k for k in range(n) if chance.random() > rate), n) for rate in rates]
        schedule.learn(seats, lengths, accepted)
        seconds += costs.drafted(8, n) if n else costs.plain(8)
        kept = [count + 1 + stood for count, stood in zip(kept, accepted, strict=True)]
    assert seconds < 1.05 * sum(kept) / 8
    assert seconds < 1.06 * min(kept)


def test_one_row_without_luck_stops_the_others_from_slowing_it_down() -> None:
    costs = table(1, 1.1, 1.3, 1.8, rows=8)
    seconds, _, numbers = play(Adaptive(M, costs), costs, lambda _, row, n: n if row else 0, 300, rows=8)
    assert any(numbers)
    assert seconds < 1.05 * 300


def test_new_requests_begin_with_what_the_purses_held() -> None:
    costs = table(1, 1.3, 1.9, 3.1)
    schedule = Adaptive(M, costs)
    seconds = sum(play(schedule, costs, lambda *_: 0, 8, base=100 * request)[0] for request in range(50))
    assert seconds < 1.05 * 400


# ---------------------------------------------------------------- rows that are bound


def test_a_bound_row_has_the_whole_block_and_the_others_as_much_with_it() -> None:
    schedule = Adaptive(M, STEEP)
    seats = [Seat(0, M), Seat(1, 5, FULL), Seat(2, 0)]
    for _ in range(30):
        assert schedule.lengths(seats) == [5, 5, 0]
        schedule.learn(seats, [5, 5, 0], [0, 0, 0])
    assert schedule.lengths(seats[:1]) == [0]
    assert schedule.lengths([Seat(0, M), Seat(1, 0, FULL)]) == [0, 0]


def test_in_a_ragged_batch_a_bound_row_makes_no_room_for_the_others() -> None:
    schedule = Adaptive(M, replace(STEEP, ragged=True))
    seats = [Seat(0, M), Seat(1, 5, FULL), Seat(2, 0)]
    for _ in range(30):
        lengths = schedule.lengths(seats)
        schedule.learn(seats, lengths, [0, 0, 0])
    assert lengths == [0, 5, 0]


def test_in_a_ragged_batch_rows_that_are_nearly_full_make_a_number_cheaper() -> None:
    steep, rooms = table(1, 1.6, 2.4, 4.0, rows=4), [M, 1, 1, 1]
    sure = [0.9**place for place in range(1, M + 1)]
    assert best(sure, rooms, replace(steep, ragged=True)) > best(sure, rooms, steep) == 1


def test_in_a_ragged_batch_rows_without_room_are_not_charged_for_candidates() -> None:
    costs = replace(table(1, 1.1, 1.3, 8, draft=0.02, rows=8), ragged=True)
    schedule, seats = Adaptive(M, costs), [Seat(0, M), *(Seat(row, 0) for row in range(1, 8))]
    for _ in range(20):  # 15 tokens cost little more than 8, and all are kept; 64 would cost eight times as much
        lengths = schedule.lengths(seats)
        assert lengths[0]
        schedule.learn(seats, lengths, lengths)


def test_bound_rows_alone_do_not_ask_for_costs() -> None:
    class Unknown:
        def covering(self, rows: int) -> Costs:
            raise AssertionError("nothing is to be chosen")

    schedule = Adaptive(M, Unknown())
    for seats in ([Seat(0, M, FULL)], [Seat(0, 0)]):
        lengths = schedule.lengths(seats)
        schedule.learn(seats, lengths, [0])
        assert lengths == [seats[0].room]


def test_rows_with_rules_of_their_own_are_left_alone() -> None:
    seats: Sequence[Seat] = [Seat(0, 4, Own(most=4)), Seat(1, 2, FULL), Seat(2, 0)]
    for schedule in (Unshared(), Adaptive(M, FLAT)):
        assert schedule.lengths(seats) == [4, 2, 0]
        assert schedule.cut(seats, [3, 2, 0], None) == [3, 2, 0]
