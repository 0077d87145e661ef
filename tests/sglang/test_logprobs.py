"""Log-probabilities under DSPINE, by SGLang's own acceptance list: counted, shifted and mixed as without a drafter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.nano_prompts import asked

CLOSE = 2e-4  # a block is summed in another order than single tokens
LENGTH = 30


@pytest.fixture
def prompts(target) -> list[list[int]]:
    return asked(target, 4)


def values(entries) -> list[float]:
    return [each[0] for each in entries if each[0] is not None]


def ids(entries) -> list[int]:
    return [each[1] for each in entries]


@pytest.mark.parametrize("start", [0, 7, -1])
def test_the_prompts_own_begin_where_they_are_asked_to(plain, drafted, prompts, start):
    body = {"return_logprob": True, "logprob_start_len": start}
    ours, theirs = (each.generate(prompts[0], body, max_new_tokens=LENGTH)["meta_info"] for each in (drafted, plain))
    for kind in ("input_token_logprobs", "output_token_logprobs"):
        assert ids(ours[kind]) == ids(theirs[kind])
        assert values(ours[kind]) == pytest.approx(values(theirs[kind]), abs=CLOSE)
    assert len(ours["output_token_logprobs"]) == ours["completion_tokens"]


def test_those_of_an_answer_are_those_of_a_prompt_that_holds_it(drafted, prompts):
    body = {"return_logprob": True}
    answer = drafted.generate(prompts[1], body, max_new_tokens=LENGTH, ignore_eos=True)
    whole = [*prompts[1], *answer["output_ids"]]
    drafted.flush()  # else the prefix is not run again
    again = drafted.generate(whole, body | {"logprob_start_len": len(prompts[1]) - 1}, max_new_tokens=1)
    found = again["meta_info"]["input_token_logprobs"][1:]
    assert ids(found) == answer["output_ids"]
    assert values(found) == pytest.approx(values(answer["meta_info"]["output_token_logprobs"]), abs=CLOSE)


def test_requests_with_and_without_share_a_batch(plain, drafted, prompts):
    bodies = [{"return_logprob": True, "top_logprobs_num": row} if row % 2 else {} for row in range(len(prompts))]

    def ask(row: int):
        return drafted.generate(prompts[row], bodies[row], max_new_tokens=LENGTH, ignore_eos=True)

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(ask, range(len(prompts))))
    for row, answer in enumerate(answers):
        expected = plain.generate(prompts[row], bodies[row], max_new_tokens=LENGTH, ignore_eos=True)
        assert answer["output_ids"] == expected["output_ids"]
        found = answer["meta_info"].get("output_token_logprobs") or []
        assert len(found) == (LENGTH if row % 2 else 0)
        assert values(found) == pytest.approx(
            values(expected["meta_info"].get("output_token_logprobs") or []), abs=CLOSE
        )
        if row % 2:
            assert {len(likeliest) for likeliest in answer["meta_info"]["output_top_logprobs"]} == {row}


def test_named_tokens_may_be_others_in_every_request(plain, drafted, prompts):
    named = [[5, 40], [7], [9, 11, 13], [2]]

    def ask(server, row: int):
        body = {"return_logprob": True, "token_ids_logprob": named[row]}
        return server.generate(prompts[row], body, max_new_tokens=12, ignore_eos=True)["meta_info"]

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda row: ask(drafted, row), range(len(prompts))))
    for row, answer in enumerate(answers):
        expected = ask(plain, row)["output_token_ids_logprobs"]
        assert len(answer["output_token_ids_logprobs"]) == 12
        for found, other in zip(answer["output_token_ids_logprobs"], expected, strict=True):
            assert ids(found) == ids(other) == named[row]
            assert values(found) == pytest.approx(values(other), abs=CLOSE)


def test_there_are_as_many_as_tokens_under_a_grammar(plain, drafted, prompts):
    body, pattern = {"return_logprob": True}, r"(yes|no), [0-9]{3}\."
    ours, theirs = (each.generate(prompts[0], body, regex=pattern, max_new_tokens=40) for each in (drafted, plain))
    assert ours["output_ids"] == theirs["output_ids"]
    found = ours["meta_info"]["output_token_logprobs"]
    assert ids(found) == ours["output_ids"]
    assert len(found) == ours["meta_info"]["completion_tokens"]
