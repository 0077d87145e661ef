"""How much of what was looked up is verified: by what it was worth, and what it costs."""

from __future__ import annotations

import pytest
import torch
from tests.support.oracle import OracleDrafter, outcome
from tests.support.repeating import repeating_target
from tests.support.tiny_target import tiny_model

from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.lookup import LONGEST
from dspine.decode.policy import FULL
from dspine.decode.sampling import SamplingParams
from dspine.decode.schedule import Adaptive, Seat
from dspine.decode.trust import Trust
from dspine.target.model import Target


def costs_of(token: float, draft: float) -> Costs:
    """A round of B rows costs B, and so much for every candidate; a table for each number of rows up to 3."""
    verify = {rows: {1: float(rows), 16: rows * (1 + 15 * token)} for rows in (1, 2, 3)}
    return Costs(verify, dict.fromkeys(verify, draft), ragged=True)


FREE = costs_of(0.0, 1.0)
HALF = costs_of(0.5, 9.0)
STEEP = costs_of(1.0, 0.5)  # a candidate costs what a round of one row costs


def trust(costs: Costs) -> Trust:
    return Trust(Adaptive(7, costs))


def seats(*rooms: int) -> list[Seat]:
    return [Seat(request, room) for request, room in enumerate(rooms)]


def taught(costs: Costs, offer: int, stood: int, rounds: int = 200) -> Trust:
    """One that has seen so many candidates of offers of a length stand."""
    found = trust(costs)
    for _ in range(rounds):
        found.learn([[1] * offer], [[1] * stood + [0]])
    return found


def test_where_tokens_cost_nothing_all_of_an_offer_is_followed_and_where_they_cost_a_token_none() -> None:
    assert trust(FREE).followed([6, 0, 15], seats(7, 7, 7)) == [6, 0, 15]
    assert trust(STEEP).followed([6, 0, 15], seats(7, 7, 7)) == [0, 0, 0]
    assert trust(FREE).followed([0, 0], seats(7, 7)) == [0, 0]


def test_as_many_are_followed_as_stand_often_enough_to_pay() -> None:
    assert taught(HALF, 8, 8).followed([8], seats(7)) == [8]
    assert taught(HALF, 8, 3).followed([8], seats(7)) == [3]
    assert taught(HALF, 8, 0).followed([8], seats(7)) == [0]


def test_long_offers_are_known_apart_from_others() -> None:
    found = taught(HALF, LONGEST, LONGEST)
    for _ in range(200):
        found.learn([[1] * 6], [[0]])
    assert found.followed([LONGEST, 6], seats(7, 7)) == [LONGEST, 0]


def test_it_learns_from_rounds_that_followed_nothing_as_far_as_they_tell() -> None:
    found = taught(HALF, 8, 0)
    for _ in range(300):
        found.learn([[1] * 8], [[1]])  # a plain round's only token
    assert found.followed([8], seats(7))[0] > 4  # places of which little is known are like the one before
    found.learn([[1] * 8, []], [[], [1, 2]])  # nothing kept, nothing offered: nothing is learnt
    assert found.followed([8], seats(7))[0] > 4


def test_what_a_draft_promises_more_is_drafted() -> None:
    schedule = Adaptive(7, FREE)
    for _ in range(200):
        schedule.learn([Seat(0, 7, FULL)], [7], [7])  # drafts always stand
    found = Trust(schedule)
    assert found.followed([2], seats(7)) == [0]  # two of an offer, or seven of a draft
    assert found.followed([2], seats(0)) == [2]  # a row that is not drafted


def test_a_row_with_its_own_rule_follows_whatever_is_thought() -> None:
    own = [Seat(0, 7, FULL), Seat(1, 7)]
    assert taught(STEEP, 6, 0).followed([6, 6], own) == [6, 0]


# ---------------------------------------------------------------- in the engine

PROMPTS = [tuple(b"abcabcabcab"), tuple(b"a longer prompt, a longer"), tuple(b"3"), tuple(b"no two alik")]
GREEDY = SamplingParams(max_new_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return repeating_target(tiny_model(dtype=torch.float64, num_hidden_layers=4))


def oracle(target: Target, *script: int) -> OracleDrafter:
    """It checks that every feature before an anchor is shown to it, in order, whenever it drafts."""
    drafter = OracleDrafter(target, 5)
    answers = Engine(target).generate(PROMPTS, GREEDY.model_copy(update={"max_new_tokens": 100}))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        drafter.learn(prompt, answer.token_ids, script)
    return drafter


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("costs", [FREE, HALF, STEEP], ids=["free", "half", "steep"])
def test_the_drafter_rests_while_rows_follow_their_texts_and_misses_nothing(
    target: Target, costs: Costs, batch: int
) -> None:
    plain = Engine(target).generate(PROMPTS, GREEDY)
    drafter = oracle(target, 4, 0, 2, 0, 0)
    found = Engine(target, drafter, max_batch=batch, verify="auto+lookup", costs=costs).generate(PROMPTS, GREEDY)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    records = [record for completion in found for record in completion.rounds]
    looked_up = [record for record in records if record.looked_up]
    if costs is STEEP:
        assert not looked_up
        return
    assert sum(record.accepted for record in looked_up) > 20
    assert drafter.calls < len(records)
    assert any(record.proposed and not record.looked_up for record in records) == (drafter.calls > 0)


def test_records_say_where_candidates_came_from(target: Target) -> None:
    found = Engine(target, oracle(target, 2), verify="full+lookup").generate(PROMPTS, GREEDY)
    for completion in found:
        for record in completion.rounds:
            assert record.nodes == 0
            assert record.verified == record.proposed
            assert record.looked_up or record.proposed <= 4
    assert any(record.looked_up for completion in found for record in completion.rounds)
