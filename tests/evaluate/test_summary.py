"""A task's figures from answers made by hand: whole, and up to where they loop."""

from __future__ import annotations

import pytest

from dspine.decode.records import RoundRecord
from dspine.evaluate.answers import AnswerRecord
from dspine.evaluate.summary import summarise

PLAIN_TEXT = tuple(range(100, 109))  # 9 tokens: the prefill's, and two rounds of four
LOOPING = (*range(10), *([1, 2, 3, 4] * 8))  # the loop begins at 10, its third turn at 18


def answer(name, tokens, rounds, finish="length"):
    return AnswerRecord(name, "a", "ff", tokens, "so", finish, tuple(rounds))


ANSWERS = [
    answer("a/1", PLAIN_TEXT, [RoundRecord(7, 3, 4)] * 2, finish="stop"),
    # Nine rounds of one token (1..9), then rounds of eight: 10..17, 18..25, 26..33, 34..41.
    answer("a/2", LOOPING, [RoundRecord(7, 0, 1)] * 9 + [RoundRecord(7, 7, 8)] * 4),
]


def test_loops_are_cut_off_and_counted():
    found = summarise(ANSWERS)
    assert found.whole.tau == pytest.approx((8 + 9 + 32) / (2 + 13))
    assert found.before_loops.tau == pytest.approx((8 + 9 + 8) / (2 + 10))
    assert (found.requests, found.tokens, found.capped, found.looped) == (2, 9 + 42, 1, 1)
    assert found.cut == pytest.approx((42 - 18) / 51)
    assert (found.whole.rounds, found.before_loops.rounds) == (15, 12)


def test_every_definition_is_of_the_same_rounds():
    found = summarise(ANSWERS)
    assert found.whole.tau_macro == pytest.approx((8 / 2 + 41 / 13) / 2)
    assert found.whole.tau_sglang == pytest.approx((9 / 2 + 42 / 13) / 2)
    assert found.before_loops.tau_sglang == pytest.approx((9 / 2 + 18 / 10) / 2), "tokens before the cut, over rounds"
    assert found.whole.tau_vllm == pytest.approx(1 + (6 + 28) / 15)
    assert found.whole.places[0].reached == 15
    assert found.before_loops.places[0].reached == 12


def test_the_interval_is_of_the_same_ratio():
    found = summarise(ANSWERS)
    assert (found.whole.interval.low, found.whole.interval.high) == pytest.approx((41 / 13, 4))
    assert (found.before_loops.interval.low, found.before_loops.interval.high) == pytest.approx((1.7, 4))


def test_answers_without_a_loop_are_left_whole():
    found = summarise(ANSWERS[:1])
    assert found.whole == found.before_loops
    assert (found.looped, found.cut) == (0, 0)
