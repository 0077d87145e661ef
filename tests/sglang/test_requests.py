"""What requests may ask for: SGLang's own acceptance list, under DSPINE beside a server without drafter."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tests.support.nano_prompts import asked

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "count": {"type": "integer"}, "done": {"type": "boolean"}},
    "required": ["name", "count", "done"],
    "additionalProperties": False,
}


@pytest.fixture
def prompt(target) -> list[int]:
    return asked(target, 1)[0]


def same(plain, drafted, prompt, body=None, **sampling) -> dict:
    """The drafted answer, once it is known to be the plain one."""
    ours, theirs = (server.generate(prompt, body, **sampling) for server in (drafted, plain))
    assert ours.get("output_ids"), ours
    assert ours["output_ids"] == theirs["output_ids"]
    assert ours["text"] == theirs["text"]
    assert ours["meta_info"]["finish_reason"] == theirs["meta_info"]["finish_reason"]
    return ours


def test_a_regular_expression_is_followed(plain, drafted, prompt):
    pattern = r"(yes|no), [0-9]{3}-[a-f]{4}\."
    answer = same(plain, drafted, prompt, regex=pattern, max_new_tokens=40)
    assert re.fullmatch(pattern, answer["text"])
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_json_schema_is_followed_and_nothing_comes_after_it(plain, drafted, prompt):
    answer = same(plain, drafted, prompt, json_schema=json.dumps(SCHEMA), max_new_tokens=200)
    if answer["meta_info"]["finish_reason"]["type"] == "stop":  # nano may write a long number
        assert set(json.loads(answer["text"])) == {"name", "count", "done"}
    else:
        assert answer["text"].lstrip().startswith("{")


def test_a_sampled_answer_follows_its_grammar_too(drafted, prompt):
    for _ in range(4):
        answer = drafted.generate(prompt, temperature=1, regex="[a-c]{6}-[0-9]{2}", max_new_tokens=40)
        assert re.fullmatch("[a-c]{6}-[0-9]{2}", answer["text"]), answer["text"]


@pytest.mark.parametrize("stop", [".", " is", "the ", "nowhere in it"])
def test_a_stop_string_cuts_text_and_ids_alike(plain, drafted, prompt, stop):
    same(plain, drafted, prompt, stop=stop, max_new_tokens=60)
    same(plain, drafted, prompt, stop=stop, max_new_tokens=60, no_stop_trim=True)


def test_a_stop_token_ends_an_answer(plain, drafted, prompt):
    ids = plain.generate(prompt, max_new_tokens=20)["output_ids"]
    answer = same(plain, drafted, prompt, stop_token_ids=[ids[4]], max_new_tokens=60)
    assert answer["output_ids"] == ids[: ids.index(ids[4]) + 1]


def test_an_answer_may_end_with_its_first_token(plain, drafted, prompt):
    first = plain.generate(prompt, max_new_tokens=1)["output_ids"]
    answer = same(plain, drafted, prompt, stop_token_ids=first, max_new_tokens=20)
    assert answer["output_ids"] == first
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_logprobs_are_those_of_a_server_without_drafter(plain, drafted, prompt):
    body = {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
    ours, theirs = (server.generate(prompt, body, max_new_tokens=40, ignore_eos=True) for server in (drafted, plain))
    for kind in ("input_token_logprobs", "output_token_logprobs"):
        found, expected = ours["meta_info"][kind], theirs["meta_info"][kind]
        assert [each[1] for each in found] == [each[1] for each in expected]
        assert [each[0] for each in found][1:] == pytest.approx([each[0] for each in expected][1:], abs=2e-4)
    assert len(ours["meta_info"]["output_token_logprobs"]) == 40
    for found, expected in zip(
        ours["meta_info"]["output_top_logprobs"], theirs["meta_info"]["output_top_logprobs"], strict=True
    ):
        assert [each[0] for each in found] == pytest.approx([each[0] for each in expected], abs=2e-4)


def test_a_logit_bias_acts_at_every_place_of_a_block(plain, drafted, prompt):
    ids = plain.generate(prompt, max_new_tokens=20)["output_ids"]
    bias = {str(token): -100.0 for token in ids[2:6]}
    answer = same(plain, drafted, prompt, logit_bias=bias, max_new_tokens=40, ignore_eos=True)
    assert not {int(token) for token in bias} & set(answer["output_ids"])


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}, {"presence_penalty": 0.5}, {"min_new_tokens": 5}],
)
def test_a_penalty_is_refused_by_name_and_the_server_goes_on(drafted, prompt, penalty):
    [(name, value)] = penalty.items()
    answer = drafted.generate(prompt, max_new_tokens=10, **penalty)
    assert answer["status"] == 400
    assert f"{name}={value}: not supported under DSPINE" in answer["body"]
    assert drafted.generate(prompt, max_new_tokens=3)["output_ids"]


def test_streamed_pieces_make_up_the_answer(drafted, prompt):
    whole = drafted.generate(prompt, max_new_tokens=60, ignore_eos=True)
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
    events = list(drafted.stream("/generate", body))
    texts = [event["text"] for event in events]
    assert len(texts) > 1
    assert texts[-1] == whole["text"]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert "\ufffd" not in texts[-1]


def test_a_request_that_is_aborted_leaves_the_others_alone(drafted, plain, target):
    prompts = asked(target, 4)
    drafted.flush()
    long = {"temperature": 0, "max_new_tokens": 700, "ignore_eos": True}
    with ThreadPoolExecutor() as threads:
        victim = threads.submit(
            drafted.post, "/generate", {"input_ids": prompts[0], "sampling_params": long, "rid": "victim"}
        )
        others = [threads.submit(drafted.generate, ids, max_new_tokens=60, ignore_eos=True) for ids in prompts[1:]]
        others[0].result()  # the victim runs beside them
        drafted_abort(drafted, "victim")
        answers = [other.result()["output_ids"] for other in others]
        aborted = victim.result()
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(aborted["output_ids"]) < 700
    assert answers == [plain.generate(ids, max_new_tokens=60, ignore_eos=True)["output_ids"] for ids in prompts[1:]]
    drafted.flush()  # which a leaked slot would prevent


def drafted_abort(server, request: str) -> None:
    with server._open("/abort_request", {"rid": request}, 60):
        pass


def test_a_client_that_leaves_frees_its_slot(drafted, prompt):
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 700, "ignore_eos": True}}
    events = drafted.stream("/generate", body)
    next(events)
    events.close()
    drafted.flush()


def test_greedy_answers_do_not_depend_on_sampled_ones_beside_them(plain, drafted, target):
    prompts = asked(target, 8)
    with ThreadPoolExecutor(max_workers=8) as threads:
        answers = list(
            threads.map(
                lambda each: drafted.generate(each[1], temperature=each[0] % 2, max_new_tokens=24, ignore_eos=True),
                enumerate(prompts),
            )
        )
    for index in range(0, 8, 2):
        expected = plain.generate(prompts[index], max_new_tokens=24, ignore_eos=True)
        assert answers[index]["output_ids"] == expected["output_ids"]


def test_the_openai_interface_answers(drafted, plain):
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Hello, who are you?"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    ours, theirs = (server.post("/v1/chat/completions", body) for server in (drafted, plain))
    assert ours["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"]
    assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
