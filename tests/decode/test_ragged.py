"""Rounds whose rows verify different numbers of candidates, on a target that takes them end to end.

What a round costs is counted, not timed: the tokens that its matrix products see are the candidates that are verified,
and an anchor a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.confidence import SURE, Confident
from tests.support.oracle import OracleDrafter, TableDrafter, oracle
from tests.support.processor import needs_alike, needs_onednn
from tests.support.tiny_target import tiny_model, tiny_tokenizer

from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.policy import Verify
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.kernels.packed import PackedLinear
from dspine.target.model import Target

pytestmark = needs_onednn

PROMPTS = [tuple(b"alpha"), tuple(b"a longer prompt of many bytes"), tuple(b"be"), tuple(b"gamma rays")]
SCRIPTS = [(0, 15, 3, 1), (15,), (2, 9, 0), (7, 7, 1)]
LINE = Costs({4: {1: 1.0, 2: 1.3, 3: 1.55, 4: 1.75, 5: 1.9, 6: 2.1, 16: 9.0}}, {4: 0.1}, ragged=True)
POLICIES: list[Verify] = ["confidence:0.5", "scheduled", "lagged", "auto", 3]


def packed(dtype: torch.dtype, **overrides: Any) -> Target:
    target = Target(
        tiny_model("qwen3", dtype=dtype, num_hidden_layers=3, **overrides), tiny_tokenizer(), name="packed", packed=True
    )
    assert target.ragged
    return target


@pytest.fixture(scope="module")
def target() -> Target:
    return packed(torch.float32)


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, SCRIPTS, length=50)


def ragged_rounds(answers: Sequence[Completion]) -> int:
    """Rounds in which rows that began together verify different numbers."""
    return sum(len({r.proposed for r in each}) > 1 for each in zip(*(a.rounds for a in answers), strict=False))


@pytest.mark.parametrize("verify", POLICIES)
def test_greedy_output_is_the_plain_one(target: Target, taught: OracleDrafter, verify: Verify) -> None:
    taught.rescript(*SCRIPTS)
    asked = [SamplingParams(max_new_tokens=cap, ignore_eos=True) for cap in (34, 11, 22, 30)]
    engine = Engine(target, Confident(taught), max_batch=4, verify=verify, costs=LINE)
    got = engine.generate(PROMPTS, asked)
    assert [c.token_ids for c in got] == [c.token_ids for c in Engine(target, max_batch=1).generate(PROMPTS, asked)]
    assert ragged_rounds(got)


@needs_alike
def test_greedy_output_in_bfloat16_is_the_plain_one_bit_for_bit() -> None:
    """Sums as long as a real model's; logits are compared, so that no near-tie is needed to see a difference."""
    target = packed(torch.bfloat16, hidden_size=576, intermediate_size=1536, initializer_range=0.05)
    assert target.alike is not None
    drafter = Confident(oracle(target, PROMPTS, SCRIPTS, length=30))
    params = SamplingParams(max_new_tokens=24, ignore_eos=True, logprobs=2)
    got = Engine(target, drafter, max_batch=4, verify="confidence:0.5").generate(PROMPTS, params)
    plain = Engine(target, max_batch=1).generate(PROMPTS, params)
    assert [(c.token_ids, c.logprobs) for c in got] == [(c.token_ids, c.logprobs) for c in plain]
    assert ragged_rounds(got)


def test_greedy_and_sampled_rows_with_processors_and_logprobs_are_what_they_are_alone(target: Target) -> None:
    rules = ["confidence:0.7", 2, "full", "confidence:0.95"]
    kinds = [{"temperature": 0.0, "repetition_penalty": 1.3}, {"logprobs": 3}, {"top_p": 0.9}, {"temperature": 0.0}]
    asked = [
        SamplingParams(**{"temperature": 8.0, "seed": 7, "max_new_tokens": 24, "verify": rule, **kind})
        for rule, kind in zip(rules, kinds, strict=True)
    ]
    drafter = Confident(TableDrafter(target))
    together = Engine(target, drafter, max_batch=4).generate(PROMPTS, asked)
    for prompt, params, got in zip(PROMPTS, asked, together, strict=True):
        [alone] = Engine(target, drafter).generate([prompt], params)
        assert (alone.token_ids, alone.rounds) == (got.token_ids, got.rounds)
        for one, other in zip(alone.logprobs or (), got.logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert ragged_rounds(together)


@pytest.mark.parametrize("verify", ["confidence:0.5", "scheduled", "lagged"])
def test_a_round_multiplies_by_the_candidates_that_it_verifies(
    target: Target, taught: OracleDrafter, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught.rescript(*SCRIPTS)
    engine = Engine(target, Confident(taught, SURE), max_batch=4, verify=verify, costs=LINE)
    ids = [engine.add(prompt, SamplingParams(max_new_tokens=40, ignore_eos=True)) for prompt in PROMPTS]
    engine.step()  # the prefill
    product, seen = PackedLinear._product, set[int]()
    monkeypatch.setattr(
        PackedLinear, "_product", lambda self, x, then: seen.add(x[..., 0].numel()) or product(self, x, then)
    )
    for _ in range(6):
        seen.clear()
        rounds = [update.rounds[-1] for update in engine.step()]
        assert len(rounds) == len(ids)
        assert seen == {sum(record.proposed + 1 for record in rounds)}  # in the layers and in the head
