"""Greedy answers under DSPINE: SGLang's own, token for token, in the rounds that our engine takes for them."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.sglang.serving import CHUNK, CONTEXT
from tests.support.nano_prompts import asked, long

from dspine import SamplingParams


def ids_of(answers) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def rounds_of(answers) -> list[Counter[int]]:
    """Of each answer, how many rounds had how many candidates that stood."""
    return [Counter(dict(enumerate(each["meta_info"]["spec_correct_drafts_histogram"]))) for each in answers]


def assert_rounds(answers, completions) -> None:
    """Each answer took the rounds of our engine's, the last aside, where the two let the cap cut differently."""
    for found, ours in zip(rounds_of(answers), completions, strict=True):
        expected = Counter(round.accepted for round in ours.rounds[:-1])
        assert found.total() == len(ours.rounds)
        assert found >= expected


@pytest.mark.timeout(1800)
def test_sixteen_answers_of_two_hundred_tokens_are_those_of_a_server_without_drafter(plain, drafted, engine, target):
    prompts = asked(target, 16)
    answers = drafted.together(prompts, max_new_tokens=200, ignore_eos=True)
    assert all(len(ids) == 200 for ids in ids_of(answers))
    assert ids_of(answers) == ids_of(plain.together(prompts, max_new_tokens=200, ignore_eos=True))
    ours = engine.generate(prompts, SamplingParams(max_new_tokens=200, ignore_eos=True))
    assert ids_of(answers) == [list(each.token_ids) for each in ours]
    assert_rounds(answers, ours)


def test_answers_that_end_by_themselves_are_accepted_as_in_our_engine(plain, drafted, engine, target):
    prompts = asked(target, 24)
    answers = drafted.together(prompts, max_new_tokens=200)
    assert ids_of(answers) == ids_of(plain.together(prompts, max_new_tokens=200))
    assert all(answer["meta_info"]["finish_reason"]["type"] == "stop" for answer in answers)
    ours = engine.generate(prompts, SamplingParams(max_new_tokens=200))
    assert_rounds(answers, ours)
    kept = sum(len(ids) - 1 for ids in ids_of(answers))
    assert kept / sum(rounds.total() for rounds in rounds_of(answers)) > 3  # the drafter drafts


def test_a_prompt_prefilled_in_chunks_is_drafted_from_all_of_it(plain, drafted, engine, target):
    prompt = long(target, 5 * CHUNK + 7)
    drafted.flush()
    [answer] = answers = [drafted.generate(prompt, max_new_tokens=60, ignore_eos=True)]
    assert answer["meta_info"]["cached_tokens"] == 0
    assert ids_of(answers) == [plain.generate(prompt, max_new_tokens=60, ignore_eos=True)["output_ids"]]
    assert_rounds(answers, engine.generate([prompt], SamplingParams(max_new_tokens=60, ignore_eos=True)))


def test_a_prefix_from_the_radix_cache_keeps_its_draft_context(plain, drafted, target):
    prompt = long(target, 4 * CHUNK)
    drafted.flush()
    first = drafted.generate(prompt, max_new_tokens=50, ignore_eos=True)
    again = drafted.generate(prompt, max_new_tokens=50, ignore_eos=True)
    assert first["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["cached_tokens"] == len(prompt) - 1
    assert ids_of([again]) == ids_of([first])
    assert rounds_of([again]) == rounds_of([first])
    # A second turn reuses what the first one *generated*, whose draft context came from verifications.
    turn = [*prompt, *first["output_ids"], *asked(target, 1)[0]]
    reused = drafted.generate(turn, max_new_tokens=50, ignore_eos=True)
    assert reused["meta_info"]["cached_tokens"] > len(prompt) + 40
    drafted.flush()
    fresh = drafted.generate(turn, max_new_tokens=50, ignore_eos=True)
    assert fresh["meta_info"]["cached_tokens"] == 0
    assert ids_of([reused]) == ids_of([fresh]) == ids_of([plain.generate(turn, max_new_tokens=50, ignore_eos=True)])
    assert rounds_of([reused]) == rounds_of([fresh])


@pytest.mark.parametrize("cap", [1, 2, 7, 8, 9])
def test_the_cap_is_kept_whatever_a_block_brings(plain, drafted, target, cap):
    prompt = asked(target, 3)[2]
    answer = drafted.generate(prompt, max_new_tokens=cap, ignore_eos=True)
    assert len(answer["output_ids"]) == cap
    assert answer["output_ids"] == plain.generate(prompt, max_new_tokens=cap, ignore_eos=True)["output_ids"]


def test_an_answer_goes_up_to_the_end_of_the_context(plain, drafted, target):
    prompt = long(target, CONTEXT - 40)
    ours, theirs = (server.generate(prompt, max_new_tokens=39, ignore_eos=True) for server in (drafted, plain))
    assert ours["output_ids"] == theirs["output_ids"]
    assert len(ours["output_ids"]) > 30  # SGLang keeps a position or two back
    assert drafted.healthy()
