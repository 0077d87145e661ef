"""Greedy answers with a drafter: vLLM's own, token for token, from the blocks that our engine drafts for them."""

from __future__ import annotations

import pytest
from tests.support.nano_prompts import asked, long
from tests.vllm.engines import CONTEXT, STEP, Block, Served, speculative


def assert_drafted(found: list[Block], own: list[Block]) -> None:
    """vLLM drafted our engine's blocks one after the other.

    It also drafts where nobody asks for it: after each part of a prompt but the last, and behind an answer's end.
    """
    assert own
    starts = range(len(found) - len(own) + 1)
    assert any(found[start : start + len(own)] == own for start in starts), (found, own)


@pytest.mark.timeout(1800)
def test_sixteen_answers_of_two_hundred_tokens_are_those_of_a_vllm_without_drafter(plain, drafted, ours):
    prompts = asked(ours.target, 16)
    expected = plain.ids(prompts, max_tokens=200)
    answers = drafted.answers(prompts, max_tokens=200)
    assert [list(answer.outputs[0].token_ids) for answer in answers] == expected
    for prompt, answer, ids in zip(prompts, answers, expected, strict=True):
        own, blocks = ours.drafting(prompt, max_new_tokens=200)
        assert own == ids
        assert_drafted(drafted.drafted_for(answer), blocks)


def test_answers_that_end_by_themselves_are_accepted_as_in_our_engine(plain, drafted, ours):
    prompts = asked(ours.target, 24)
    rounds, accepted = drafted.counted("drafts"), drafted.counted("accepted_tokens")
    answers = drafted.answers(prompts, max_tokens=200, ignore_eos=False)
    rounds, accepted = drafted.counted("drafts") - rounds, drafted.counted("accepted_tokens") - accepted
    assert all(answer.outputs[0].finish_reason == "stop" for answer in answers)
    ids = [list(answer.outputs[0].token_ids) for answer in answers]
    assert ids == plain.ids(prompts, max_tokens=200, ignore_eos=False)
    own = ours.answers(prompts, max_new_tokens=200, ignore_eos=False)
    assert [list(each.token_ids) for each in own] == ids
    assert rounds == sum(len(each.rounds) for each in own)
    assert accepted == sum(round.accepted for each in own for round in each.rounds)
    assert 1 + accepted / rounds > 3  # the drafter drafts


def test_a_prompt_prefilled_in_chunks_is_drafted_from_all_of_it(plain, drafted, ours):
    prompt = long(ours.target, 2 * STEP + 70)
    [answer] = drafted.answers([prompt], max_tokens=60)
    own, blocks = ours.drafting(prompt, max_new_tokens=60)
    assert list(answer.outputs[0].token_ids) == own == plain.ids([prompt], max_tokens=60)[0]
    assert_drafted(drafted.drafted_for(answer), blocks)


def test_a_cached_prefix_keeps_its_draft_context(drafted, ours):
    prompt = long(ours.target, 400)
    [first] = drafted.answers([prompt], max_tokens=300)
    # What the first answer *generated* is a prefix too, whose draft context came from verifications.
    turn = [*prompt, *first.outputs[0].token_ids, *asked(ours.target, 1)[0]]
    [answer] = drafted.answers([turn], max_tokens=60)
    assert answer.num_cached_tokens > len(prompt)
    own, blocks = ours.drafting(turn, max_new_tokens=60)
    assert list(answer.outputs[0].token_ids) == own
    assert_drafted(drafted.drafted_for(answer), blocks)


@pytest.mark.parametrize("cap", [1, 2, 7, 8, 9])
def test_the_cap_is_kept_whatever_a_block_brings(plain, drafted, ours, cap):
    prompts = asked(ours.target, 3)
    [*ids] = drafted.ids(prompts, max_tokens=cap)
    assert all(len(each) == cap for each in ids)
    assert ids == plain.ids(prompts, max_tokens=cap)


def test_an_answer_goes_up_to_the_end_of_the_context(plain, drafted, ours):
    prompt = long(ours.target, CONTEXT - 40)
    [own], [theirs] = (served.ids([prompt], max_tokens=40) for served in (drafted, plain))
    assert len(own) == 40
    assert own == theirs


def test_a_shorter_block_is_the_beginning_of_the_longer_one(plain, ours):
    short = speculative("nano", num_speculative_tokens=3)
    shorter = Served.start("nano", speculative_config=short, disable_log_stats=True)
    prompts = asked(ours.target, 4)
    answers = shorter.answers(prompts, max_tokens=60)
    assert [list(answer.outputs[0].token_ids) for answer in answers] == plain.ids(prompts, max_tokens=60)
    for prompt, answer in zip(prompts, answers, strict=True):
        _, blocks = ours.drafting(prompt, max_new_tokens=60)
        [found] = [drawn for drawn in shorter.drafted_for(answer) if drawn.anchor == blocks[0].anchor][:1]
        assert found.tokens == blocks[0].tokens[:3]
