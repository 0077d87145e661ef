"""Sampled answers with a drafter have the target's law, and leave greedy ones beside them alone."""

from __future__ import annotations

import pytest
import torch
from tests.support.exact_law import exact_chances, surprise
from tests.support.nano_prompts import asked
from vllm import SamplingParams as VllmParams
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

from dspine import SamplingParams

ANSWERS = 480
LENGTH = 2  # the prefill's token, and the first of a round
SURE = 1e-4  # chance of a false alarm
WHICH, ANSWERED = 2, 3  # where nano hesitates: a prompt, and how much of its greedy answer is there already
CASES = [{"temperature": 1.5}, {"temperature": 1.8, "top_p": 0.8}, {"temperature": 2.0, "top_k": 6}]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_continuations_have_their_exact_chances(drafted, plain, ours, sampling):
    prompt = asked(ours.target, WHICH + 1)[WHICH]
    prompt += plain.ids([prompt], max_tokens=ANSWERED)[0]
    chances = exact_chances(ours.target, prompt, SamplingParams(**sampling), LENGTH, ANSWERS)
    accepted = drafted.counted("accepted_tokens")
    answers = drafted.ids([prompt] * ANSWERS, max_tokens=LENGTH + 2, **sampling)  # the last token is not drafted for
    assert drafted.counted("accepted_tokens") - accepted > ANSWERS // 20
    chance, cells = surprise(chances, [answer[:LENGTH] for answer in answers])
    assert cells > 5  # else the test could not tell laws apart
    assert chance > SURE


def test_greedy_answers_do_not_depend_on_sampled_ones_beside_them(drafted, plain, ours):
    prompts = asked(ours.target, 8)
    expected = plain.ids(prompts, max_tokens=60)
    params = [
        VllmParams(temperature=index % 2, top_p=0.9 if index % 2 else 1, max_tokens=60, ignore_eos=True)
        for index in range(8)
    ]
    answers = drafted.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    assert found[::2] == expected[::2]
    assert found[1::2] != expected[1::2]


def test_a_seeded_request_is_repeated(drafted, ours):
    prompts = asked(ours.target, 2)
    first, again = (drafted.ids(prompts, max_tokens=40, temperature=1.0, seed=5) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("kind", [torch.float32, torch.int32, torch.int64])
def test_values_of_requests_reach_their_tokens_in_every_number_format(drafted, kind):
    values = torch.tensor([2, 0, 5, 3], dtype=kind)
    ends = torch.tensor([3, 4, 4, 6], dtype=torch.int32)
    found = expand_batch_to_tokens(values, ends, 6, replace_from=0, replace_to=1)
    assert found.dtype == kind
    assert found.tolist() == [2, 2, 2, 1, 3, 3]
