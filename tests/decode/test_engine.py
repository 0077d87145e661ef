"""The round's bookkeeping, refusals, prefill, caches and recovery after errors."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from tests.support.oracle import OracleDrafter, TableDrafter, oracle, outcome
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.decode.batch import KEPT_SLOTS
from dspine.decode.engine import Engine
from dspine.decode.records import RoundRecord
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, RequestError, TargetError
from dspine.kernels.choice import choose
from dspine.stages import StageClock
from dspine.target.model import Target

PROMPT = tuple(b"the quick brown fox")
OTHER = tuple(b"SELECT 1")
BRIEF = SamplingParams(max_new_tokens=30)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


# ---------------------------------------------------------------- the round


def test_a_block_of_16_gives_15_proposals_and_16_tokens(target: Target) -> None:
    drafter = oracle(target, [PROMPT], [(15,)], length=80)
    [got] = Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=1 + 3 * 16))
    assert got.rounds == (RoundRecord(15, 15, 16),) * 3
    assert got.tau == 16


def test_no_candidate_is_proposed_beyond_the_cap(target: Target) -> None:
    drafter = oracle(target, [PROMPT], [(15,)])
    [got] = Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=1 + 16 + 4))
    assert got.rounds == (RoundRecord(15, 15, 16), RoundRecord(3, 3, 4))
    [one_left] = Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=1 + 16 + 1))
    assert one_left.rounds == (RoundRecord(15, 15, 16), RoundRecord(0, 0, 1))
    drafter.calls = 0
    [first] = Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=1))
    assert (first.rounds, first.tau, drafter.calls) == ((), 0.0, 0)


def test_records_count_what_was_kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = oracle(target, [PROMPT], [(9,)])
    tokens = drafter.known[0].tokens[len(PROMPT) :]
    place = next(i for i in range(12, 19) if tokens[i] not in tokens[:i])
    monkeypatch.setattr(target, "eos_ids", frozenset({tokens[place]}))
    [got] = Engine(target, drafter).generate([PROMPT])
    assert got.rounds == (RoundRecord(15, 9, 10), RoundRecord(15, 9, place - 10))
    assert got.usage.completion_tokens == len(got.token_ids) == place + 1
    assert got.usage.prompt_tokens == len(PROMPT)


def test_plain_decoding_runs_rounds_of_one_token(target: Target) -> None:
    [got] = Engine(target).generate([PROMPT], SamplingParams(max_new_tokens=5))
    assert got.rounds == (RoundRecord(0, 0, 1),) * 4


def test_many_rounds_with_random_scripts_keep_the_invariants_and_the_memory() -> None:
    target = tiny_target(dtype=torch.float64, num_hidden_layers=2)
    rng = random.Random(3)
    script = [rng.choice([0, 0, 0, 1, 2, 15]) for _ in range(997)]
    prompts = [PROMPT, OTHER, PROMPT[::-1], OTHER[::-1], PROMPT[5:]]
    drafter = oracle(target, prompts, [script[shift:] for shift in range(5)], length=300, taps=(0,))
    engine = Engine(target, drafter, max_batch=4)
    rounds, most = 0, 0
    while rounds < 2000:
        for completion in engine.generate(prompts, SamplingParams(max_new_tokens=290, ignore_eos=True)):
            known = next(k for k in drafter.known if k.prompt == completion.prompt_ids)
            assert list(completion.token_ids) == known.tokens[len(known.prompt) :][:290]
            rounds += len(completion.rounds)
        most = most or engine.bytes
        assert engine.bytes == most  # a second generation takes no more than the first


def test_stages_of_a_round_are_named(target: Target) -> None:
    with StageClock() as clock:
        Engine(target, oracle(target, [PROMPT], [(3,)])).generate([PROMPT], SamplingParams(max_new_tokens=9))
    names = {time.name for time in clock.table()}
    assert names >= {"prefill", "commit/observe", "commit/text"}
    assert names >= {"verify/forward", "verify/head", "verify/law", "verify/accept"}


# ---------------------------------------------------------------- prefill


@pytest.mark.parametrize("chunk", [1, 5, 256])
def test_prefill_chunks_change_nothing(target: Target, chunk: int) -> None:
    """The oracle compares every feature it is shown with those of one forward over the whole sequence."""
    prompts = [PROMPT, OTHER, tuple(range(40, 71))]
    drafter = oracle(target, prompts, [(3, 0, 15, 1), (2,), (0, 7)])
    got = Engine(target, drafter, prefill_chunk=chunk).generate(prompts, SamplingParams(max_new_tokens=40))
    for known, completion in zip(drafter.known, got, strict=True):
        assert list(completion.token_ids) == known.tokens[len(known.prompt) :][:40]
        accepted = [r.accepted for r in completion.rounds]
        expected = [known.script[i % len(known.script)] for i in range(len(accepted))]
        assert accepted[:-1] == expected[:-1]  # the last round may be cut by the cap


@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_a_drafter_that_reads_features_drafts_alike_whatever_the_chunk(target: Target, chunk: int) -> None:
    params = SamplingParams(temperature=10.0, seed=11, max_new_tokens=30, ignore_eos=True)
    whole = Engine(target, TableDrafter(target), prefill_chunk=64).generate([PROMPT, OTHER], params)
    chunked = Engine(target, TableDrafter(target), prefill_chunk=chunk).generate([PROMPT, OTHER], params)
    assert [(c.token_ids, c.rounds) for c in chunked] == [(c.token_ids, c.rounds) for c in whole]
    assert any(r.accepted for r in whole[0].rounds)


# ---------------------------------------------------------------- the ends of the context


def test_the_context_is_the_last_cap(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = oracle(target, [PROMPT], [(15, 4)], length=64)
    monkeypatch.setattr(target, "context_limit", len(PROMPT) + 23)
    for engine in (Engine(target), Engine(target, drafter)):
        [got] = engine.generate([PROMPT], SamplingParams(max_new_tokens=60))
        assert list(got.token_ids) == drafter.known[0].tokens[len(PROMPT) :][:23]
        assert got.finish_reason == "length"


def test_beyond_the_drafters_positions_plain_decoding_goes_on(target: Target) -> None:
    params = SamplingParams(max_new_tokens=50)
    drafter = oracle(target, [PROMPT, OTHER], [(7,), (7,)], max_positions=len(PROMPT) + 30)
    with pytest.warns(RuntimeWarning, match=f"{len(PROMPT) + 30} positions of the drafter") as caught:
        got = Engine(target, drafter).generate([PROMPT], params)
    assert len(caught) == 1
    assert list(got[0].token_ids) == drafter.known[0].tokens[len(PROMPT) :][:50]
    proposed = [r.proposed for r in got[0].rounds]
    assert proposed[0] == 15
    assert proposed[-1] == 0
    with pytest.warns(RuntimeWarning):
        got = Engine(target, drafter).generate([PROMPT, OTHER], params)  # the shorter one is drafted for longer
    assert [list(c.token_ids) for c in got] == [k.tokens[len(k.prompt) :][:50] for k in drafter.known]
    assert got[1].tau > got[0].tau > 1


def test_a_prompt_beyond_the_drafters_positions_is_decoded_plainly_beside_others(target: Target) -> None:
    assert len(PROMPT) > len(OTHER) + 5
    drafter = oracle(target, [PROMPT, OTHER], [(2,), (2,)], block_size=4, max_positions=len(OTHER) + 5)
    with pytest.warns(RuntimeWarning):
        got = Engine(target, drafter, prefill_chunk=4).generate([OTHER, PROMPT], SamplingParams(max_new_tokens=40))
    assert list(got[1].token_ids) == drafter.known[0].tokens[len(PROMPT) :][:40]
    assert list(got[0].token_ids) == drafter.known[1].tokens[len(OTHER) :][:40]
    assert got[1].tau == 1
    assert got[0].rounds[0].accepted == 2


def test_no_warning_where_the_request_ends_within_the_drafters_positions(target: Target) -> None:
    drafter = oracle(target, [PROMPT], [(7,)], max_positions=len(PROMPT) + 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Engine(target, drafter).generate([PROMPT], SamplingParams(max_new_tokens=28))


# ---------------------------------------------------------------- refusals


def test_prompts_that_cannot_be_answered_are_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(target)
    with pytest.raises(RequestError, match="empty"):
        engine.generate([[]])
    with pytest.raises(RequestError, match=r"ids \[-1, 320\] outside the vocabulary of 320"):
        engine.generate([[5, 320, -1]])
    for text in ("hello", "123"):
        with pytest.raises(RequestError, match=r"the prompt is text\n.*tokenizer"):
            engine.generate([text])  # type: ignore[list-item]
    for wrong in ([1.5, 2], ["1"], [None], 7):
        with pytest.raises(RequestError, match="the prompt is no list of token ids"):
            engine.generate([wrong])  # type: ignore[list-item]
    assert engine.generate([torch.tensor([1, 2])], SamplingParams(max_new_tokens=1))[0].prompt_ids == (1, 2)
    monkeypatch.setattr(target, "context_limit", 8)
    for length in (8, 11):
        with pytest.raises(RequestError, match=f"{length} tokens.* 8 positions"):
            engine.stream(list(range(length)))
    with pytest.raises(RequestError, match="2 parameter sets for 1 prompts"):
        engine.generate([[5]], [SamplingParams()] * 2)
    with pytest.raises(RequestError, match="logit_bias"):
        engine.add([5], SamplingParams(logit_bias={400: 1.0}))
    assert engine.pending == 0


def test_engines_that_cannot_run_are_refused(target: Target) -> None:
    with pytest.raises(ConfigError, match="max_batch is 0"):
        Engine(target, max_batch=0)
    with pytest.raises(ConfigError, match="prefill_chunk is 0"):
        Engine(target, prefill_chunk=0)
    with pytest.raises(TargetError, match="target_layer_ids"):
        Engine(target, OracleDrafter(target, target_layer_ids=(0, 2)))
    for wrong in (None, 2.5, "quick", True):
        with pytest.raises(ConfigError, match="verify is"):
            Engine(target, OracleDrafter(target), verify=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [torch.float64, torch.bfloat16])
def test_a_drafter_keeps_its_own_number_format(numbers: torch.dtype) -> None:
    """Its arithmetic is chosen for the numbers that it computes in, which need not be the target's."""
    target = tiny_target(num_hidden_layers=6)
    drafter = tiny_drafter(target, dtype=numbers, lively=True)
    [drafted] = Engine(target, drafter).generate([PROMPT], BRIEF)
    [plain] = Engine(target).generate([PROMPT], BRIEF)
    assert drafted.token_ids == plain.token_ids
    assert drafter.kernels is choose("auto", target.device, numbers)


# ---------------------------------------------------------------- one engine, many requests


def test_a_b_a_gives_a_again(target: Target) -> None:
    drafter = oracle(target, [PROMPT, OTHER], [(3, 0, 15), (8,)])
    engine = Engine(target, drafter)
    first, _, again = (engine.generate([p], BRIEF)[0] for p in (PROMPT, OTHER, PROMPT))
    assert (first.token_ids, first.text, first.rounds) == (again.token_ids, again.text, again.rounds)


def test_a_large_cache_is_let_go_when_the_engine_is_idle(target: Target) -> None:
    engine = Engine(target, max_batch=1)
    engine.generate([PROMPT], SamplingParams(max_new_tokens=3))
    assert engine.bytes > 0
    long = (PROMPT * (KEPT_SLOTS // len(PROMPT) + 1))[: KEPT_SLOTS + 1]
    engine.generate([long], SamplingParams(max_new_tokens=3))
    assert engine.bytes == 0


# ---------------------------------------------------------------- errors inside a step


class Refusal(Exception):
    pass


def refuse_after(length: int):
    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        if ids.shape[1] > length:
            raise Refusal
        return scores

    return processor


@pytest.mark.parametrize(("after", "kept"), [(-1, 0), (0, 1), (9, 10), (13, 14)])
def test_a_failing_processor_ends_its_own_request_only(target: Target, after: int, kept: int) -> None:
    drafter = oracle(target, [PROMPT, OTHER], [(3,), (5,)])
    engine = Engine(target, drafter)
    bad = engine.add(OTHER, SamplingParams(processors=[refuse_after(len(OTHER) + after)]))
    good = engine.add(PROMPT, SamplingParams(max_new_tokens=40))
    ended = {}
    while engine.pending:
        ended |= {u.request_id: u for u in engine.step() if u.finished}
    assert isinstance(ended[bad].error, Refusal)
    assert ended[bad].completion.finish_reason == "error"
    assert list(ended[bad].completion.token_ids) == drafter.known[1].tokens[len(OTHER) :][:kept]
    assert list(ended[good].completion.token_ids) == drafter.known[0].tokens[len(PROMPT) :][:40]
    assert outcome(*engine.generate([OTHER], BRIEF)) == outcome(*Engine(target).generate([OTHER], BRIEF))


@pytest.mark.parametrize("script", [(15,), (7,), (6,), (5,), (0,)])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_what_a_processor_raises_counts_where_the_output_comes_to_it(
    target: Target, script: tuple[int, ...], logprobs: int | None
) -> None:
    """A grammar that has no state behind the stop string is asked about it in a block, and never in plain decoding."""
    drafter = oracle(target, [PROMPT], [script])
    tokens = drafter.known[0].tokens[len(PROMPT) :]
    place = next(i for i in range(5, 60) if tokens[i] not in tokens[:i] and 32 < tokens[i] < 127)
    ends = SamplingParams(
        stop=chr(tokens[place]), logprobs=logprobs, processors=[refuse_after(len(PROMPT) + place)], max_new_tokens=60
    )
    [plain] = Engine(target).generate([PROMPT], ends)
    [drafted] = Engine(target, drafter).generate([PROMPT], ends)
    assert outcome(drafted) == outcome(plain)
    assert plain.finish_reason == "stop"
    assert len(plain.token_ids) == place + 1
    if logprobs:
        assert drafted.logprobs is not None
        assert len(drafted.logprobs) == place + 1

    goes_on = ends.model_copy(update={"stop": ()})
    ended = []
    for engine in (Engine(target), Engine(target, drafter)):
        number = engine.add(PROMPT, goes_on)
        while engine.pending:
            ended += [update for update in engine.step() if update.finished and update.request_id == number]
    assert [type(update.error) for update in ended] == [Refusal, Refusal]
    assert outcome(ended[1].completion) == outcome(ended[0].completion)
    assert sum(r.kept for r in ended[1].completion.rounds) + 1 == place + 1


def test_generate_and_stream_raise_what_a_processor_raised(target: Target) -> None:
    engine = Engine(target)
    broken = SamplingParams(processors=[refuse_after(len(PROMPT) + 4)])
    with pytest.raises(Refusal):
        engine.generate([OTHER, PROMPT, OTHER], [SamplingParams(), broken, SamplingParams()])
    assert engine.pending == 0
    with pytest.raises(Refusal):
        list(engine.stream(PROMPT, broken))
    assert engine.pending == 0


def test_a_minimum_that_the_context_cannot_hold_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "context_limit", len(PROMPT) + 5)
    with pytest.raises(RequestError, match=r"min_new_tokens is 6, .* room for 5"):
        Engine(target).add(PROMPT, SamplingParams(min_new_tokens=6, max_new_tokens=9))
    [answer] = Engine(target).generate([PROMPT], SamplingParams(min_new_tokens=5, max_new_tokens=9))
    assert len(answer.token_ids) == 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_law_that_is_not_a_number_ends_the_request(
    target: Target, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    engine = Engine(target)
    with monkeypatch.context() as patch:
        patch.setattr(target, "logits", lambda hidden: Target.logits(target, hidden) * torch.nan)
        with pytest.raises(TargetError, match="not numbers"):
            engine.generate([PROMPT], SamplingParams(temperature=temperature))
    assert len(engine.generate([PROMPT], SamplingParams(max_new_tokens=4))[0].token_ids) == 4


@pytest.mark.parametrize("place", ["forward", "logits", "observe", "propose", "decode"])
@pytest.mark.parametrize("call", [1, 4])
def test_after_an_interrupted_step_the_next_goes_on_as_if_nothing_had_been(
    target: Target, monkeypatch: pytest.MonkeyPatch, place: str, call: int
) -> None:
    drafter = oracle(target, [PROMPT, OTHER], [(3,), (5, 0)])
    owner = {"observe": drafter, "propose": drafter, "decode": target.tokenizer}.get(place, target)
    usual, calls = getattr(owner, place), 0

    def failing(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError
        return usual(*args, **named)

    monkeypatch.setattr(owner, place, failing)
    engine = Engine(target, drafter, prefill_chunk=8)
    numbers = [engine.add(p, SamplingParams(max_new_tokens=40)) for p in (PROMPT, OTHER)]
    ended, failures = {}, 0
    while engine.pending:
        try:
            ended |= {u.request_id: u.completion for u in engine.step() if u.finished}
        except MemoryError:
            failures += 1
    assert failures == 1
    for number, known in zip(numbers, drafter.known, strict=True):
        assert list(ended[number].token_ids) == known.tokens[len(known.prompt) :][:40]


def test_an_engine_is_not_stepped_from_within(target: Target) -> None:
    engine = Engine(target)
    with pytest.raises(RuntimeError, match="inside a step"):
        engine.generate([PROMPT], SamplingParams(processors=[lambda ids, scores: engine.step() or scores]))
