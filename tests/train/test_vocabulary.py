"""The restricted draft vocabulary: which ids, in which order, and how much of the responses they hold."""

from __future__ import annotations

import pytest

from dspine.errors import ConfigError
from dspine.train.vocabulary import coverage, most_frequent

RESPONSES = [[5, 5, 5, 7, 7, 2], [7, 3, 5, 9, 9, 2]]


def chosen(size, eos=(0,), vocab_size=12):
    return most_frequent(RESPONSES, size, eos_ids=eos, vocab_size=vocab_size).tolist()


def test_the_most_frequent_ids_ascending_ties_to_the_smaller():
    assert chosen(3) == [0, 5, 7]  # 5: four times, 7: three times
    assert chosen(4) == [0, 2, 5, 7]  # 2 and 9: twice each
    assert chosen(6) == [0, 2, 3, 5, 7, 9]


def test_every_end_token_is_in_though_it_was_never_seen():
    assert chosen(4, eos=(11, 0)) == [0, 5, 7, 11]


def test_ids_that_were_never_seen_fill_up():
    assert chosen(8) == [0, 1, 2, 3, 4, 5, 7, 9]
    assert chosen(12) == list(range(12))


@pytest.mark.parametrize("size", [1, 13])
def test_impossible_sizes(size):
    with pytest.raises(ConfigError, match=f"draft_vocabulary is {size}"):
        chosen(size)


def test_coverage_is_the_share_of_response_tokens():
    assert coverage(RESPONSES, most_frequent(RESPONSES, 3, eos_ids=[0], vocab_size=12)) == pytest.approx(7 / 12)
    assert coverage([], most_frequent(RESPONSES, 3, eos_ids=[0], vocab_size=12)) == 0
