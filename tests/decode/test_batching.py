"""Rows of a batch know nothing of each other: ragged accept lengths, refilled slots, mixed laws, seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.oracle import OracleDrafter, TableDrafter, oracle
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target

PROMPTS = [tuple(b"alpha"), tuple(b"a longer prompt of many bytes"), tuple(b"be"), tuple(b"gamma rays")]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, [(0,)] * len(PROMPTS))


def visible(completions: Sequence[Completion]) -> list[tuple[object, ...]]:
    return [(c.token_ids, c.text, c.finish_reason, c.rounds, c.logprobs) for c in completions]


def test_ragged_accept_lengths_equal_solo_runs(target: Target, taught: OracleDrafter) -> None:
    taught.rescript((15, 0), (0, 15), (3, 7), (1,))
    asked = [SamplingParams(max_new_tokens=cap) for cap in (45, 50, 20, 33)]
    batch = Engine(target, taught).generate(PROMPTS, asked)
    solo = [Engine(target, taught).generate([p], own)[0] for p, own in zip(PROMPTS, asked, strict=True)]
    assert visible(batch) == visible(solo)
    assert [len(c.token_ids) for c in batch] == [45, 50, 20, 33]


@pytest.mark.parametrize("max_batch", [1, 2, 3])
def test_more_requests_than_slots(target: Target, taught: OracleDrafter, max_batch: int) -> None:
    taught.rescript((15, 0), (0, 15), (3, 7), (1,))
    asked = [SamplingParams(max_new_tokens=3 + 7 * index % 29) for index in range(12)]
    prompts = [PROMPTS[index % 4] for index in range(12)]
    engine = Engine(target, taught, max_batch=max_batch)
    got = engine.generate(prompts, asked)
    for prompt, own, completion in zip(prompts, asked, got, strict=True):
        known = next(k for k in taught.known if k.prompt == prompt)
        assert list(completion.token_ids) == known.tokens[len(prompt) :][: own.max_new_tokens]
    assert engine.pending == 0


@settings(max_examples=15)
@given(
    each=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=5), min_size=4, max_size=4),
    caps=st.lists(st.integers(1, 45), min_size=4, max_size=4),
    max_batch=st.integers(1, 4),
)
def test_any_scripts_caps_and_batch_sizes(
    target: Target, taught: OracleDrafter, each: list[list[int]], caps: list[int], max_batch: int
) -> None:
    taught.rescript(*each)
    asked = [SamplingParams(max_new_tokens=cap) for cap in caps]
    got = Engine(target, taught, max_batch=max_batch).generate(PROMPTS, asked)
    for known, cap, completion in zip(taught.known, caps, got, strict=True):
        assert list(completion.token_ids) == known.tokens[len(known.prompt) :][:cap]


def test_requests_that_come_later_join_the_batch(target: Target, taught: OracleDrafter) -> None:
    taught.rescript((3,), (0,), (7, 1), (2,))
    engine = Engine(target, taught, max_batch=3)
    ended: dict[int, Completion] = {}
    numbers = []
    for prompt in PROMPTS:
        numbers.append(engine.add(prompt, SamplingParams(max_new_tokens=30)))
        for _ in range(3):
            ended |= {u.request_id: u.completion for u in engine.step() if u.completion is not None}
    while engine.pending:
        ended |= {u.request_id: u.completion for u in engine.step() if u.completion is not None}
    for number, known in zip(numbers, taught.known, strict=True):
        assert list(ended[number].token_ids) == known.tokens[len(known.prompt) :][:30]


def test_each_row_is_processed_by_its_own_parameters(target: Target) -> None:
    asked = [
        SamplingParams(max_new_tokens=20, logit_bias={65: 9.0}, frequency_penalty=1.0),
        SamplingParams(max_new_tokens=25),
        SamplingParams(max_new_tokens=15, repetition_penalty=1.8),
        SamplingParams(max_new_tokens=22, logit_bias={66: 9.0}, presence_penalty=2.0, logprobs=1),
    ]
    batch = Engine(target, TableDrafter(target)).generate(PROMPTS, asked)
    for prompt, own, completion in zip(PROMPTS, asked, batch, strict=True):
        assert completion.token_ids == Engine(target).generate([prompt], own)[0].token_ids
    assert 65 in batch[0].token_ids
    assert 66 in batch[3].token_ids


# ---------------------------------------------------------------- seeds


SAMPLED = [
    SamplingParams(temperature=10.0, seed=7, max_new_tokens=24, ignore_eos=True),
    SamplingParams(temperature=9.0, seed=7, top_p=0.95, max_new_tokens=18, ignore_eos=True),
    SamplingParams(temperature=0.0, max_new_tokens=21, ignore_eos=True),
    SamplingParams(temperature=10.0, seed=2**64 - 1, top_k=200, max_new_tokens=30, ignore_eos=True, logprobs=2),
]


@pytest.mark.parametrize("support", [64, None])
def test_a_seed_gives_the_same_tokens_in_any_company(target: Target, support: int | None) -> None:
    drafter = TableDrafter(target, support=support)
    solo = [Engine(target, drafter).generate([p], own)[0] for p, own in zip(PROMPTS, SAMPLED, strict=True)]
    assert sum(r.accepted for c in solo for r in c.rounds) > 3  # candidates do stand
    assert len({c.token_ids for c in solo}) == 4
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        for max_batch in (4, 2):
            engine = Engine(target, drafter, max_batch=max_batch)
            got = engine.generate([PROMPTS[i] for i in order], [SAMPLED[i] for i in order])
            assert visible(got) == visible([solo[i] for i in order])


def test_a_seed_gives_the_same_tokens_after_an_abort(target: Target) -> None:
    drafter = TableDrafter(target)
    solo = Engine(target, drafter).generate([PROMPTS[0]], SAMPLED[0])
    engine = Engine(target, drafter)
    other = engine.add(PROMPTS[1], SAMPLED[3])
    stream = engine.stream(PROMPTS[0], SAMPLED[0])
    updates = [next(stream) for _ in range(4)]
    engine.abort(other)
    updates += stream
    assert visible([updates[-1].completion]) == visible(solo)


def test_plain_sampling_is_the_same_with_a_seed_and_differs_without(target: Target) -> None:
    engine = Engine(target)
    seeded = [engine.generate([PROMPTS[0]], SAMPLED[0])[0] for _ in range(2)]
    assert seeded[0].token_ids == seeded[1].token_ids
    free = SAMPLED[0].model_copy(update={"seed": None})
    first, second = engine.generate([PROMPTS[0]] * 2, free)
    assert first.token_ids != second.token_ids
    again = engine.generate([PROMPTS[0]], free.model_copy(update={"seed": first.seed}))[0]
    assert again.token_ids == first.token_ids
    assert engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=2))[0].seed is None


def test_where_temperature_goes_to_nothing_sampling_is_greedy(target: Target) -> None:
    drafter = TableDrafter(target)
    greedy = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=20))
    cold = SamplingParams(temperature=1e-6, seed=1, max_new_tokens=20)
    for engine in (Engine(target), Engine(target, drafter)):
        assert [c.token_ids for c in engine.generate(PROMPTS, cold)] == [c.token_ids for c in greedy]
