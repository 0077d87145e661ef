"""The running estimate: what it learns, what it assumes, what it forgets."""

from __future__ import annotations

import pytest

from dspine.decode.acceptance import PRIOR, Acceptance


def taught(*rounds: tuple[int, int], times: int = 1, places: int = 4) -> Acceptance:
    acceptance = Acceptance(places)
    for _ in range(times):
        for verified, accepted in rounds:
            acceptance.note(verified, accepted)
    return acceptance


def test_it_begins_with_the_prior_everywhere() -> None:
    acceptance = Acceptance(3)
    assert acceptance.rates() == [PRIOR] * 3
    assert acceptance.survival() == pytest.approx([PRIOR, PRIOR**2, PRIOR**3])


def test_rates_are_conditional() -> None:
    # Place 1 stands in three of four rounds, place 2 in one of the three that reach it, place 3 in every one.
    rates = taught((3, 3), (3, 0), (3, 1), (3, 1), times=100, places=3).rates()
    assert rates == pytest.approx([0.75, 1 / 3, 0.95], abs=0.07)


def test_places_behind_the_last_one_verified_are_taken_to_be_like_it() -> None:
    rates = taught((2, 2), times=100).rates()
    assert rates[1] > 0.95
    assert rates[2:] == [rates[1]] * 2
    low = taught((2, 1), times=100).rates()
    assert low[0] > 0.9
    assert low[1] < 0.1
    assert low[2:] == [low[1]] * 2


def test_a_place_that_is_no_longer_verified_is_forgotten() -> None:
    acceptance = taught((4, 2), times=50)  # place 3 always falls
    assert acceptance.rates()[2] < 0.2
    for _ in range(500):
        acceptance.note(2, 2)
    assert acceptance.rates()[2] > 0.8


def test_new_rounds_outweigh_old_ones() -> None:
    acceptance = taught((4, 0), times=500)
    for _ in range(150):
        acceptance.note(4, 4)
    assert acceptance.rates()[0] > 0.7


def test_rest_lets_it_forget_as_rounds_do() -> None:
    acceptance = taught((4, 0), times=500)
    low = acceptance.rates()[0]
    acceptance.rest(8)
    assert low < acceptance.rates()[0] < PRIOR / 2
    acceptance.rest(5000)
    assert acceptance.rates()[0] == pytest.approx(PRIOR, abs=0.01)
