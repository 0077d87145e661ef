"""Sampled answers under DSPINE have the target's law: counts of what follows a prompt, against its exact chances."""

from __future__ import annotations

import pytest
from tests.support.exact_law import exact_chances, surprise
from tests.support.nano_prompts import asked

from dspine import SamplingParams

ANSWERS = 480
LENGTH = 2  # the prefill's token, and the first of a round
SURE = 1e-4  # chance of a false alarm

# Where nano hesitates: a prompt, and how much of its greedy answer is there already. The token after the prefill's is a
# candidate; a q that is not the law it was drawn from bends its chances by a chi-square of 24 to 116 here.
WHICH, ANSWERED = 2, 3
CASES = [
    {"temperature": 1.5},
    {"temperature": 1.8, "top_p": 0.8},
    {"temperature": 1.8, "top_k": 6},
    {"temperature": 2.0, "min_p": 0.1, "top_p": 0.95},
    {"temperature": 3.0, "top_k": 6},
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_continuations_have_their_exact_chances(drafted, plain, target, sampling):
    prompt = asked(target, WHICH + 1)[WHICH]
    prompt += plain.generate(prompt, max_new_tokens=ANSWERED)["output_ids"]
    chances = exact_chances(target, prompt, SamplingParams(**sampling), LENGTH, ANSWERS)
    answers = []
    for _ in range(0, ANSWERS, 16):
        answers += drafted.together([prompt] * 16, max_new_tokens=LENGTH, ignore_eos=True, **sampling)
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > ANSWERS // 20
    chance, cells = surprise(chances, [answer["output_ids"] for answer in answers])
    assert cells > 5  # else the test could not tell laws apart
    assert chance > SURE
