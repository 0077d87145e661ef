"""Rates, ratios and predictions of the CPU benchmark, by hand."""

from __future__ import annotations

import pytest

from cpu_contestants import CONTESTANTS, PLAIN_OF, settings
from cpu_cost import Cost, predicted
from cpu_figures import Spread, decode_rates, decode_ratios, pooled_decode_rate, same_tokens, tau_of, whole_ratios


def answer(tokens=(1, 2, 3, 4, 5), decode_tokens=4, decode_seconds=2.0, seconds=2.5, rounds=()):
    return {
        "tokens": list(tokens),
        "decode_tokens": decode_tokens,
        "decode_seconds": decode_seconds,
        "seconds": seconds,
        "rounds": list(rounds),
    }


def test_a_spread_is_the_median_between_its_quartiles():
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert Spread.of([]) is None


def test_ratios_are_taken_prompt_by_prompt():
    ours = [answer(decode_seconds=1.0, seconds=1.25), answer(decode_seconds=2.0, seconds=2.5)]
    theirs = [answer(decode_seconds=3.0, seconds=5.0), answer(decode_seconds=2.0, seconds=2.5)]
    assert decode_ratios(ours, theirs) == [3.0, 1.0]
    assert whole_ratios(ours, theirs) == [4.0, 1.0]
    assert pooled_decode_rate(ours) == 8 / 3


def test_an_answer_that_came_at_once_has_no_decode_rate():
    at_once = answer(tokens=(1,), decode_tokens=0, decode_seconds=0.0)
    assert decode_rates([at_once, answer()]) == [2.0]
    assert decode_ratios([at_once, answer()], [answer(), answer()]) == [1.0]


def test_an_end_token_that_only_one_engine_returns_makes_no_difference():
    assert same_tokens(answer(tokens=(1, 9)), answer(tokens=(1,)), eos=[9])
    assert not same_tokens(answer(tokens=(9, 1)), answer(tokens=(1,)), eos=[9])


def test_acceptance_is_pooled_over_rounds():
    assert tau_of([answer(rounds=[[7, 3]]), answer(rounds=[[7, 1], [7, 2]])]) == 2.0
    assert tau_of([answer()]) is None


def test_the_prediction_sums_what_each_round_verified():
    cost = Cost(plain=2.0, verify={1: 2.0, 3: 3.0, 8: 5.0}, draft=1.0, stages={})
    rounds = [[7, 4], [2, 3], [0, 1]]  # 8 tokens, 5 + 3 + 2 s, of which two rounds drafted
    assert predicted(cost, cost.plain, rounds, with_draft=False) == pytest.approx(16 / 10)
    assert predicted(cost, cost.plain, rounds, with_draft=True) == pytest.approx(16 / 12)


def test_the_forward_share_counts_the_head():
    stages = {"draft/head": 1.0, "verify/forward": 5.0, "verify/head": 1.0, "verify/law": 0.5, "commit/text": 0.5}
    assert Cost(plain=1.0, verify={}, draft=1.0, stages=stages).forward_share == 0.75


def test_every_option_is_tried_at_every_thread_count():
    labels = [setting.label for setting in settings(CONTESTANTS["transformers-lookup"], [1, 2])]
    assert labels[0] == "1 thread, prompt_lookup_num_tokens 3"
    assert labels[-1] == "2 threads, prompt_lookup_num_tokens 10"
    assert len(set(labels)) == 6
    assert all(CONTESTANTS[a].weights == CONTESTANTS[b].weights for a, b in PLAIN_OF.items())
