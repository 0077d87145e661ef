"""Where a response begins to loop, on token lists made by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine.evaluate.loops import loop_start

NEW = list(range(1000, 1040))  # forty tokens that never come again


def test_a_text_without_repetition_does_not_loop():
    assert loop_start(NEW) is None
    assert loop_start([]) is None
    assert loop_start(NEW + NEW) is None, "a 16-gram seen twice is no loop"


def test_a_sentence_said_three_times_is_cut_at_its_third_start():
    sentence = list(range(20))
    assert loop_start(NEW + sentence * 2 + sentence[:15]) is None, "fifteen of sixteen tokens"
    assert loop_start(NEW + sentence * 2 + sentence[:16]) == 40 + 2 * 20
    assert loop_start(NEW + sentence * 5) == 40 + 2 * 20


def test_the_three_need_not_follow_each_other():
    sentence = list(range(16))
    assert loop_start([*sentence, 50, *sentence, 60, 61, *sentence]) == 16 + 1 + 16 + 2


def test_short_periods_overlap():
    assert loop_start(NEW + [1, 2, 3] * 20) == 40 + 2 * 3
    assert loop_start(NEW + [5] * 17) is None
    assert loop_start(NEW + [5] * 18) == 40 + 2
    assert loop_start([5] * 18) == 2


def test_the_earliest_of_several_loops_counts():
    tokens = [1] * 30 + NEW + [2] * 30
    assert loop_start(tokens) == 2


def test_length_and_number_can_be_chosen():
    assert loop_start([1, 2, 9, 1, 2], ngram=2, times=2) == 3
    assert loop_start([1, 1], ngram=1, times=3) is None


def by_definition(tokens, ngram, times):
    grams = [tokens[i : i + ngram] for i in range(len(tokens) - ngram + 1)]
    return next((i for i, gram in enumerate(grams) if grams[: i + 1].count(gram) == times), None)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5), st.integers(1, 4))
def test_it_is_what_its_definition_says(tokens, ngram, times):
    assert loop_start(tokens, ngram=ngram, times=times) == by_definition(tokens, ngram, times)


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=10))
def test_what_follows_does_not_move_it(tokens, later):
    start = loop_start(tokens, ngram=3)
    if start is not None:
        assert loop_start(tokens + later, ngram=3) == start
