"""Targets whose layers keep states: greedy speculative decoding gives plain decoding's tokens (float64)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.hybrid_target import FAMILIES, hybrid_target
from tests.support.oracle import OracleDrafter, TableDrafter, oracle
from tests.support.tiny_drafter import tiny_drafter

from dspine.decode.costbook import measure
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target
from dspine.target.rollback import METHODS, Rollback

QUICK = ("qwen3_next", "qwen3_5", "mamba", "falcon_h1")
EACH = [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES]
PROMPTS = [tuple(b"alpha"), tuple(b"a prompt of more"), tuple(b"gamma")]  # two of one length
LENGTH, BLOCK = 20, 6
SCRIPTS = [((5,), (0,), (2,)), ((2, 0, 5, 1), (5, 0), (0, 5))]


def taught_by(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, [(0,)] * 3, length=LENGTH, block_size=BLOCK)


def answers(target: Target, drafter: OracleDrafter, *, cap: int = LENGTH, **options: int) -> list[list[int]]:
    asked = SamplingParams(max_new_tokens=cap, ignore_eos=True)
    return [list(got.token_ids) for got in Engine(target, drafter, **options).generate(PROMPTS, asked)]


@pytest.mark.parametrize("family", EACH)
def test_drafted_is_plain_for_all_scripts(family: str) -> None:
    target = hybrid_target(family)
    taught = taught_by(target)
    plain = [known.tokens[len(known.prompt) :] for known in taught.known]
    assert len({token for tokens in plain for token in tokens}) > 8  # else nothing is shown
    for method in METHODS:
        target.rollback = Rollback(target, method)
        for scripts in SCRIPTS:
            taught.rescript(*scripts)
            assert answers(target, taught, prefill_chunk=256) == plain
        assert answers(target, taught, prefill_chunk=3, max_batch=2) == plain


@pytest.fixture(scope="module")
def taught() -> OracleDrafter:
    return taught_by(hybrid_target("qwen3_next", num_hidden_layers=4))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    each=st.lists(st.lists(st.integers(0, BLOCK - 1), min_size=1, max_size=4), min_size=3, max_size=3),
    method=st.sampled_from(METHODS),
    cap=st.integers(1, LENGTH),
)
def test_any_scripts_in_a_ragged_batch(taught: OracleDrafter, each: list[list[int]], method: str, cap: int) -> None:
    taught.rescript(*each)
    taught.target.rollback = Rollback(taught.target, method)  # type: ignore[arg-type]
    plain = [known.tokens[len(known.prompt) :][:cap] for known in taught.known]
    assert answers(taught.target, taught, cap=cap) == plain


@pytest.mark.parametrize("method", METHODS)
def test_an_abort_between_draft_and_verification_leaves_the_others_alone(taught: OracleDrafter, method: str) -> None:
    target = taught.target
    target.rollback = Rollback(target, method)  # type: ignore[arg-type]
    taught.rescript((2, 0), (3,), (1, 5))
    engine = Engine(target, taught)
    numbers = [engine.add(prompt, SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)) for prompt in PROMPTS]
    done: dict[int, tuple[int, ...]] = {}
    before, taught.calls = taught.calls, 0
    taught.before_verify = lambda call: engine.abort(numbers[0]) if call == 2 else None
    try:
        while engine.pending:
            for update in engine.step():
                if update.completion is not None:
                    done[update.request_id] = tuple(update.completion.token_ids)
    finally:
        taught.before_verify, taught.calls = None, before
    for number, known in list(zip(numbers, taught.known, strict=True))[1:]:
        assert list(done[number]) == known.tokens[len(known.prompt) :]


@pytest.mark.parametrize("method", METHODS)
def test_a_round_that_broke_off_is_run_again(taught: OracleDrafter, method: str, monkeypatch) -> None:
    target = taught.target
    target.rollback = Rollback(target, method)  # type: ignore[arg-type]
    taught.rescript((2, 0), (3,), (1, 5))
    engine = Engine(target, taught)
    asked = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    numbers = [engine.add(prompt, asked) for prompt in PROMPTS]
    engine.step()
    engine.step()
    layer = target._parts.layers[2]

    def fail(*_: object, **__: object) -> torch.Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", fail)
        with pytest.raises(MemoryError):
            engine.step()
    done: dict[int, list[int]] = {}
    while engine.pending:
        done |= {u.request_id: list(u.completion.token_ids) for u in engine.step() if u.completion is not None}
    assert [done[n] for n in numbers] == [known.tokens[len(known.prompt) :] for known in taught.known]


def test_costs_are_measured_from_a_state_that_holds_a_prompt(taught: OracleDrafter) -> None:
    found = measure(taught.target, TableDrafter(taught.target), 2)
    assert sorted(found.verify) == [1, 2, 4, 5]


def test_a_drafter_of_ours_over_a_hybrid_target(taught: OracleDrafter) -> None:
    target = taught.target
    target.rollback = Rollback(target, "replay")
    drafter = tiny_drafter(target, dtype=torch.float64, lively=True, target_layer_ids=(0, 2), block_size=BLOCK)
    asked = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    drafted = Engine(target, drafter).generate(PROMPTS, asked)
    assert sum(len(got.rounds) for got in drafted) > 0
    for got, known in zip(drafted, taught.known, strict=True):
        assert list(got.token_ids) == known.tokens[len(known.prompt) :]
