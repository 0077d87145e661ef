"""Whatever the switches of the design: what comes out is the target's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.blocks import small_drafter
from tests.support.markov import TOKENS, fit, marginals
from tests.support.network_toy import NetworkToy
from tests.support.switches import VARIANTS
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]
DRAWN = ("no refinement", "tokens alone", "reach 2")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS.keys())
def test_greedy_answers_are_the_plain_ones(target: Target, switches: dict[str, Any]) -> None:
    drafter = tiny_drafter(target, lively=True, **switches).eval()
    plain = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=16))
    drafted = Engine(target, drafter, max_batch=2).generate(PROMPTS, SamplingParams(max_new_tokens=16))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]


@pytest.mark.parametrize("name", DRAWN)
def test_sampled_answers_have_the_targets_law(name: str) -> None:
    params = SamplingParams(temperature=1.3, top_k=6, top_p=0.8, min_p=0.05)
    drafter = small_drafter(draft_ids=torch.arange(TOKENS), block_size=4, **VARIANTS[name])
    toy = NetworkToy.of(drafter, params)
    output = toy.generate(6_000, 3, drafter.candidates)
    first = torch.zeros(len(output), dtype=torch.int64)
    for place, law in enumerate(marginals(toy.p, 3)):
        assert fit(first, output[:, place], law.expand(TOKENS, TOKENS)).chance > 1e-4
    assert fit(output[:, 1], output[:, 2], toy.p).chance > 1e-4
    assert 0.1 < toy.log[0][1].accepted.double().mean() < 2.5, "the chain's law and the drafter's overlap, and differ"
