"""Every definition of tau by hand, acceptance by place, and rounds cut where a response is cut."""

from __future__ import annotations

from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine.decode.records import RoundRecord
from dspine.evaluate.acceptance import (
    accept_rate,
    places,
    tau,
    tau_deepspec,
    tau_macro,
    tau_modelopt,
    tau_sglang,
    tau_specforge,
    tau_untrimmed,
    tau_vllm,
    until,
    verify_rate,
)

# Two answers: 8 tokens in 3 rounds, the last one cut by an end token among its candidates; and 9 tokens in one round.
SHORT = [RoundRecord(7, 3, 4), RoundRecord(7, 0, 1), RoundRecord(7, 5, 2)]
LONG = [RoundRecord(7, 7, 8)]


@st.composite
def whole_rounds(draw, candidates=7):
    """Rounds that nothing cut: a round keeps what was accepted, and the target's own token."""
    shapes = st.integers(1, candidates).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
    pairs = draw(st.lists(shapes, min_size=1, max_size=8))
    return [RoundRecord(proposed, accepted, accepted + 1) for proposed, accepted in pairs]


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        (tau, (4 + 1 + 2 + 8) / 4),
        (tau_macro, (7 / 3 + 8 / 1) / 2),
        (tau_sglang, (8 / 3 + 9 / 1) / 2),
        (tau_vllm, 1 + (3 + 0 + 5 + 7) / 4),
        (tau_untrimmed, ((4 + 1 + 6) / 3 + 8 / 1) / 2),
        (tau_specforge, (8 + 9) / (3 + 1)),
        (tau_modelopt, (8 / 4 + 9 / 2) / 2),
        (accept_rate, (3 + 0 + 5 + 7) / (4 * 7)),
        (verify_rate, (4 + 1 + 6 + 8) / (4 * 7 + 4)),
    ],
)
def test_the_definitions_by_hand(definition, value):
    assert definition([SHORT, LONG]) == pytest.approx(value)


def test_the_rates_of_trees_are_over_nodes_and_their_places_are_places():
    rounds = [[RoundRecord(4, 2, 3, nodes=9), RoundRecord(3, 0, 1, nodes=7)]]
    assert accept_rate(rounds) == pytest.approx(2 / 16)
    assert verify_rate(rounds) == pytest.approx(4 / 18)
    assert [(place.proposed, place.reached, place.accepted) for place in places(rounds)] == [
        (2, 2, 1),
        (2, 1, 1),
        (2, 1, 0),
        (1, 0, 0),
    ]


def test_deepspec_trims_an_end_token_and_keeps_what_ran_past_the_cap():
    assert tau_deepspec([SHORT, LONG], [False, False]) == (4 + 1 + 2 + 8) / 4
    assert tau_deepspec([SHORT, LONG], [True, False]) == (4 + 1 + 6 + 8) / 4


def test_long_answers_weigh_more_in_a_pooled_tau_and_the_same_in_a_mean():
    eager, slow = [RoundRecord(7, 7, 8)] * 2, [RoundRecord(7, 1, 2)] * 30
    assert tau([eager, slow]) == (16 + 60) / 32
    assert tau_macro([eager, slow]) == (8 + 2) / 2
    assert tau_specforge([eager, slow]) == (17 + 61) / 32
    assert tau_sglang([eager, slow]) == (17 / 2 + 61 / 30) / 2


def test_an_answer_without_rounds_is_in_no_mean():
    for definition in (tau, tau_macro, tau_untrimmed, tau_sglang, tau_specforge, tau_vllm):
        assert definition([SHORT, [], LONG]) == definition([SHORT, LONG])


@pytest.mark.parametrize("requests", [[], [[]]])
def test_nothing_to_divide_by_is_not_a_number(requests):
    assert all(isnan(definition(requests)) for definition in (tau, tau_macro, tau_sglang, tau_vllm))
    assert places(requests) == []


def test_a_round_without_a_draft_is_a_round_but_no_draft():
    requests = [[RoundRecord(4, 1, 2), RoundRecord(0, 0, 1)]]
    assert tau(requests) == 1.5
    assert tau_vllm(requests) == 2
    assert places(requests)[0].drafts == 1


def test_places_by_hand():
    found = [(p.place, p.proposed, p.reached, p.accepted) for p in places([SHORT, LONG])]
    # The third round of SHORT ends the answer at place 2: behind it nothing was proposed, whatever stood there.
    assert found == [(1, 4, 4, 3), (2, 4, 3, 3), (3, 3, 2, 2), (4, 2 + 1, 2, 1), *((t, 3, 1, 1) for t in (5, 6, 7))]
    third = places([SHORT, LONG])[2]
    assert third.drafts == 4
    assert third.conditional == 1
    assert third.unconditional == 2 / 4
    assert isnan(places([[RoundRecord(2, 0, 1)]])[1].conditional)
    assert places([[RoundRecord(2, 0, 1), RoundRecord(9, 4, 5, looked_up=True)]]) == places([[RoundRecord(2, 0, 1)]])


@given(st.lists(whole_rounds(), min_size=1, max_size=4))
def test_rates_by_place_add_up_to_vllms_tau(requests):
    found = places(requests)
    assert 1 + sum(place.unconditional for place in found) == pytest.approx(tau_vllm(requests))
    assert tau(requests) == pytest.approx(tau_vllm(requests))  # nothing was cut
    assert all(place.accepted <= place.reached <= place.proposed <= place.drafts for place in found)
    assert all(later.reached <= earlier.accepted for earlier, later in pairwise(found))


def test_a_cut_inside_a_round_counts_the_tokens_before_it():
    rounds = [RoundRecord(7, 3, 4), RoundRecord(7, 6, 7), RoundRecord(7, 2, 3)]  # tokens 1..4, 5..11, 12..14
    assert until(rounds, 15) == rounds
    assert until(rounds, 12) == rounds[:2]
    assert until(rounds, 8) == [rounds[0], RoundRecord(3, 3, 3)]
    assert until(rounds, 6) == [rounds[0], RoundRecord(1, 1, 1)]
    assert until([RoundRecord(9, 4, 5, looked_up=True)], 4) == [RoundRecord(3, 3, 3, looked_up=True)]
    assert until(rounds, 5) == rounds[:1]
    assert until(rounds, 1) == []


@given(whole_rounds(), st.data())
def test_cut_rounds_make_up_the_tokens_before_the_cut(rounds, data):
    tokens = 1 + sum(record.kept for record in rounds)
    length = data.draw(st.integers(1, tokens))
    before = until(rounds, length)
    assert 1 + sum(record.kept for record in before) == length
    assert all(record.kept for record in before)
    again = data.draw(st.integers(1, length))
    assert until(before, again) == until(rounds, again)
