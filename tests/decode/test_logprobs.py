"""Logprobs are those of the plain run, one a token, whatever was drafted and however the logits were processed."""

from __future__ import annotations

import pytest
import torch
from tests.support.oracle import OracleDrafter, oracle
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.records import Completion, Logprob
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target

PROMPT = tuple(b"what is the chance?")
OTHER = tuple(b"hm")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


def reference(target: Target, completion: Completion, top: int) -> list[Logprob]:
    """From one forward of transformers over prompt and answer."""
    tokens = list(completion.token_ids)
    logits = target.model(torch.tensor([[*completion.prompt_ids, *tokens]])).logits[
        0, len(completion.prompt_ids) - 1 : -1
    ]
    table = logits.log_softmax(-1)
    best, ids = table.topk(top)
    return [
        Logprob(token, float(table[i, token]), tuple(zip(ids[i].tolist(), best[i].tolist(), strict=True)))
        for i, token in enumerate(tokens)
    ]


def assert_alike(got: tuple[Logprob, ...] | None, wanted: list[Logprob]) -> None:
    assert got is not None
    assert [g.token for g in got] == [w.token for w in wanted]
    assert [g.logprob for g in got] == pytest.approx([w.logprob for w in wanted], abs=1e-5)
    for one, other in zip(got, wanted, strict=True):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-5)


@pytest.mark.parametrize("script", [(15,), (0,), (3, 0, 15, 1)])
@pytest.mark.parametrize("top", [0, 5])
def test_logprobs_equal_the_models_own(target: Target, script: tuple[int, ...], top: int) -> None:
    drafter = oracle(target, [PROMPT], [script])
    [got] = Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=37, logprobs=top))
    assert len(got.logprobs) == len(got.token_ids) == 37
    assert_alike(got.logprobs, reference(target, got, top))


def test_logprobs_are_raw_where_logits_are_processed(target: Target) -> None:
    params = SamplingParams(
        max_new_tokens=30, logprobs=3, repetition_penalty=1.5, logit_bias={65: 6.0}, presence_penalty=1.0
    )
    drafter = oracle(target, [PROMPT], [(4, 0)], params=params)
    [got] = Engine(target, drafter).generate([PROMPT], params)
    assert_alike(got.logprobs, reference(target, got, 3))


def test_only_who_asks_gets_logprobs_in_a_mixed_batch(target: Target) -> None:
    drafter = oracle(target, [PROMPT, OTHER], [(4, 0), (2,)])
    asked = [SamplingParams(max_new_tokens=20, logprobs=2), SamplingParams(max_new_tokens=30, min_new_tokens=30)]
    got = Engine(target, drafter).generate([PROMPT, OTHER], asked)
    assert_alike(got[0].logprobs, reference(target, got[0], 2))
    assert got[1].logprobs is None


def test_sampled_tokens_have_their_raw_logprobs(target: Target) -> None:
    params = SamplingParams(temperature=2.0, top_k=20, seed=3, max_new_tokens=20, logprobs=1)
    [got] = Engine(target).generate([PROMPT], params)
    assert_alike(got.logprobs, reference(target, got, 1))


def test_logprobs_are_cut_with_the_tokens(target: Target) -> None:
    drafter: OracleDrafter = oracle(target, [PROMPT], [(15,)])
    tokens = drafter.known[0].tokens[len(PROMPT) :]
    place = next(i for i in range(5, 15) if tokens[i] not in tokens[:i])
    [got] = Engine(target, drafter).generate([PROMPT], SamplingParams(logprobs=0, stop_token_ids=[tokens[place]]))
    assert len(got.logprobs) == len(got.token_ids) == place + 1


def test_a_stream_gives_each_logprob_once(target: Target) -> None:
    drafter = oracle(target, [PROMPT], [(3, 0, 7)])
    updates = list(Engine(target, drafter).stream(PROMPT, SamplingParams(max_new_tokens=25, logprobs=1)))
    assert [entry.token for u in updates for entry in u.logprobs] == [token for u in updates for token in u.token_ids]
    assert tuple(entry for u in updates for entry in u.logprobs) == updates[-1].completion.logprobs
