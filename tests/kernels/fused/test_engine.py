"""Losslessness with the switch on `fused`: what the engine emits is the target's, whoever computes."""

from __future__ import annotations

import pytest
import torch
from tests.support import markov
from tests.support.blocks import small_drafter
from tests.support.markov import TOKENS, fit, marginals
from tests.support.network_toy import NetworkToy
from tests.support.parallel import over
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_model, tiny_tokenizer

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.decode.verify import verify
from dspine.kernels.choice import choose
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_check_at_start_up_finds_them_equal(device, dtype):
    assert choose("fused", device, dtype).fused


@pytest.fixture(scope="module")
def target(device):
    return Target(tiny_model(num_hidden_layers=5).to(device), tiny_tokenizer(), name="tiny")


def test_greedy_output_is_the_plain_output(target):
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    plain = Engine(target, kernels="reference").generate(PROMPTS, params)
    drafter = tiny_drafter(target, lively=True).to(target.device)
    by_definition = Engine(target, drafter, kernels="reference").generate(PROMPTS, params)
    fused = Engine(target, drafter, kernels="fused").generate(PROMPTS, params)
    assert drafter.kernels.fused
    assert [c.token_ids for c in fused] == [c.token_ids for c in plain]
    assert [c.rounds for c in fused] == [c.rounds for c in by_definition]


def test_a_seed_gives_the_same_tokens_with_either(target):
    drafter = tiny_drafter(target, lively=True).to(target.device)
    params = [
        SamplingParams(temperature=1.0, seed=4, max_new_tokens=8, ignore_eos=True),
        SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, seed=5, max_new_tokens=8, ignore_eos=True),
    ]
    by_definition = Engine(target, drafter, kernels="reference").generate(PROMPTS, params)
    fused = Engine(target, drafter, kernels="fused").generate(PROMPTS, params)
    assert [(c.token_ids, c.rounds) for c in fused] == [(c.token_ids, c.rounds) for c in by_definition]


@torch.no_grad()
def test_a_row_does_not_depend_on_how_many_are_drafted_beside_it(target, device):
    drafter = tiny_drafter(target, lively=True).to(device)
    drafter.kernels = choose("fused", device, torch.float32)
    cache = drafter.new_cache(3)
    features = torch.randn(3, 6, drafter.config.feature_size, generator=torch.Generator().manual_seed(1)).to(device)
    drafter.observe(cache, Span(0, (0, 0, 0), 6), features, [6, 3, 4], torch.zeros(3, 6, dtype=torch.int64))
    noise = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(2)).to(device)
    anchors = torch.tensor([3, 50, 71], device=device)
    law = Law.of([1.0] * 3, [0] * 3, [0.9] * 3, [0.0] * 3, device)
    together = drafter.propose(cache, 0, anchors, law, noise)
    alone = drafter.propose(cache, 0, anchors[:1], law.rows([0]), noise[:1])
    assert torch.equal(together.tokens[:1], alone.tokens)
    torch.testing.assert_close(together.probs[:1], alone.probs, atol=1e-5, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA; their books are kept on a CPU too")
@pytest.mark.parametrize("kind", ["dspine", "dflash", "domino", "dspark", "dflash2", "eagle3"])
def test_captured_rounds_give_the_tokens_of_eager_ones(target, kind):
    made = tiny_drafter(target, lively=True) if kind == "dspine" else over(target, kind, block_size=5)
    drafter = made.to(target.device)
    for params in (
        SamplingParams(max_new_tokens=24, ignore_eos=True),
        SamplingParams(temperature=1.0, top_p=0.9, seed=4, max_new_tokens=24, ignore_eos=True),
    ):
        eager = Engine(target, drafter, kernels="fused", capture="off").generate(PROMPTS, params)
        captured = Engine(target, drafter, kernels="fused", capture="on").generate(PROMPTS, params)
        assert [(c.token_ids, c.rounds) for c in captured] == [(c.token_ids, c.rounds) for c in eager]


@torch.no_grad()
def test_sampled_output_has_the_targets_law(device, monkeypatch):
    """The Markov chain of the decode room's tests, fewer rounds; the verdict is the fused one, too."""
    if device.type != "cpu":
        pytest.skip("the chain lives on the CPU")
    kernels = choose("fused", device, torch.float32)
    monkeypatch.setattr(markov, "verify", lambda *arguments: verify(*arguments, kernels))
    drafter = small_drafter(draft_ids=torch.arange(TOKENS), block_size=3)
    drafter.kernels = kernels
    toy = NetworkToy.of(drafter, SamplingParams(temperature=1))
    output = toy.generate(80, 2, drafter.candidates)
    first = torch.zeros(len(output), dtype=torch.int64)
    for place, law in enumerate(marginals(toy.p, 2)):
        assert fit(first, output[:, place], law.expand(TOKENS, TOKENS)).chance > 1e-4
