"""Sampled answers under DSPINE have the target's law: counts of what follows a prompt, against its exact chances."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from tests.sglang.prompts import asked

from dspine.decode.sampling import SamplingParams, law_of
from dspine.kernels.kv import Span
from dspine.kernels.law import law_probs

ANSWERS = 480
LENGTH = 2  # the prefill's token, and the first of a round
RARE = 5.0  # expected counts below it are pooled
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


def exact(target, prompt: list[int], params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Chance of every continuation of `LENGTH` tokens whose beginning is not rare."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: dict[tuple[int, ...], float] = {}
        for beginning, chance in chances.items():
            if chance * ANSWERS < RARE:
                grown[beginning] = chance  # a cell of its own: everything that begins so
                continue
            ids = torch.tensor([[*prompt, *beginning]])
            hidden = target.forward(ids, target.new_cache(1), Span(0, (0,), ids.shape[1])).hidden[:, -1]
            law = law_probs(torch.nn.functional.linear(hidden, target.head_weight), law_of([params]))[0]
            for token in law.nonzero().flatten().tolist():
                grown[(*beginning, token)] = chance * float(law[token])
        chances = grown
    return chances


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_continuations_have_their_exact_chances(drafted, plain, target, sampling):
    prompt = asked(target, WHICH + 1)[WHICH]
    prompt += plain.generate(prompt, max_new_tokens=ANSWERED)["output_ids"]
    chances = exact(target, prompt, SamplingParams(**sampling))
    cells = {cell: chance for cell, chance in chances.items() if chance * ANSWERS >= RARE}
    assert len(cells) > 5  # else the test could not tell laws apart
    answers = []
    for _ in range(0, ANSWERS, 16):
        answers += drafted.together([prompt] * 16, max_new_tokens=LENGTH, ignore_eos=True, **sampling)
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > ANSWERS // 20
    counts: Counter[tuple[int, ...] | None] = Counter()
    for answer in answers:
        tokens = tuple(answer["output_ids"])
        known = [tokens[:length] for length in range(LENGTH + 1) if tokens[:length] in chances]
        assert known, f"{tokens} cannot be drawn"
        counts[known[-1] if known[-1] in cells else None] += 1
    rest = 1 - sum(cells.values())
    observed = [*(counts[cell] for cell in cells), counts[None]]
    expected = [*(chance * ANSWERS for chance in cells.values()), rest * ANSWERS]
    assert chisquare(observed, expected).pvalue > SURE
