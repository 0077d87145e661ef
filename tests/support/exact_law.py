"""Exact chances of what follows a prompt under sampling parameters, and counts of sampled answers held to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from scipy.stats import chisquare

from dspine.decode.sampling import SamplingParams, law_of
from dspine.kernels.kv import Span
from dspine.kernels.law import law_probs
from dspine.target.model import Target

RARE = 5.0  # expected counts below it are pooled

Chances = dict[tuple[int, ...], float]


def exact_chances(target: Target, prompt: list[int], params: SamplingParams, length: int, answers: int) -> Chances:
    """Chance of every continuation of `length` tokens whose beginning is not rare among `answers`."""
    chances: Chances = {(): 1.0}
    for _ in range(length):
        grown: Chances = {}
        for beginning, chance in chances.items():
            if chance * answers < RARE:
                grown[beginning] = chance  # a cell of its own: everything that begins so
                continue
            ids = torch.tensor([[*prompt, *beginning]])
            hidden = target.forward(ids, target.new_cache(1), Span(0, (0,), ids.shape[1])).hidden[:, -1]
            law = law_probs(torch.nn.functional.linear(hidden, target.head_weight), law_of([params]))[0]
            for token in law.nonzero().flatten().tolist():
                grown[(*beginning, token)] = chance * float(law[token])
        chances = grown
    return chances


def surprise(chances: Chances, answers: Sequence[Sequence[int]]) -> tuple[float, int]:
    """The p-value of sampled answers by chi-square, and how many cells they were counted in."""
    longest = max(map(len, chances))
    cells = {cell: chance for cell, chance in chances.items() if chance * len(answers) >= RARE}
    counts: Counter[tuple[int, ...] | None] = Counter()
    for answer in answers:
        tokens = tuple(answer)
        known = [tokens[:length] for length in range(longest + 1) if tokens[:length] in chances]
        assert known, f"{tokens} cannot be drawn"
        counts[known[-1] if known[-1] in cells else None] += 1
    rest = max(1 - sum(cells.values()), 1e-12)
    observed = [*(counts[cell] for cell in cells), counts[None]]
    expected = [*(chance * len(answers) for chance in cells.values()), rest * len(answers)]
    return float(chisquare(observed, expected).pvalue), len(cells)
