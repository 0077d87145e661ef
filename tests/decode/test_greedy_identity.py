"""Greedy speculative decoding gives plain decoding's tokens, whatever the drafter gets right (float64, so exactly)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.oracle import OracleDrafter, oracle, outcome
from tests.support.tiny_target import tiny_target
from torch import Tensor
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target

PROMPT = tuple(b"once upon a time")
OTHER = tuple(b"def f(x):")
SCRIPTS = [(15,), (0,), (3, 0, 15, 1), (7, 2)]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, [PROMPT, OTHER], [(0,), (0,)])


def run(target: Target, drafter: OracleDrafter | None, params: SamplingParams) -> list[Completion]:
    return Engine(target, drafter).generate([PROMPT], params)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_cap_gives_the_plain_prefix(target: Target, taught: OracleDrafter, script: tuple[int, ...]) -> None:
    taught.rescript(script, script)
    engine = Engine(target, taught)
    plain = taught.known[0].tokens[len(PROMPT) :]
    for cap in range(1, 41):
        [got] = engine.generate([PROMPT], SamplingParams(max_new_tokens=cap))
        assert list(got.token_ids) == plain[:cap]
        assert got.finish_reason == "length"
        assert sum(r.kept for r in got.rounds) + 1 == cap == got.usage.completion_tokens


def test_all_caps_in_one_ragged_batch(target: Target, taught: OracleDrafter) -> None:
    taught.rescript((3, 0, 15, 1), (7, 2))
    asked = [SamplingParams(max_new_tokens=cap) for cap in range(1, 41)]
    prompts = [(PROMPT, OTHER)[cap % 2] for cap in range(1, 41)]
    got = Engine(target, taught, max_batch=5).generate(prompts, asked)
    for prompt, params, completion in zip(prompts, asked, got, strict=True):
        known = next(k for k in taught.known if k.prompt == prompt)
        start = len(prompt)
        assert list(completion.token_ids) == known.tokens[start : start + params.max_new_tokens]


def test_eos_at_every_offset_of_a_block(target: Target, taught: OracleDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = taught.known[0].tokens[len(PROMPT) :]
    for offset in range(33):
        if tokens[offset] in tokens[:offset]:
            continue  # it would end the request earlier
        monkeypatch.setattr(target, "eos_ids", frozenset({tokens[offset]}))
        [plain] = run(target, None, SamplingParams())
        assert list(plain.token_ids) == tokens[: offset + 1]
        for script in ((15,), (3, 0, 15, 1), (0, 7)):
            taught.rescript(script, script)
            [drafted] = run(target, taught, SamplingParams())
            assert outcome(drafted) == outcome(plain)
            assert drafted.finish_reason == "stop"
            assert sum(r.kept for r in drafted.rounds) + 1 == offset + 1


def test_any_of_several_eos_ids_ends(target: Target, taught: OracleDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    taught.rescript((15,), (15,))
    tokens = taught.known[0].tokens[len(PROMPT) :]
    late, early = tokens[20], tokens[9]
    monkeypatch.setattr(target, "eos_ids", frozenset({late, early}))
    [got] = run(target, taught, SamplingParams())
    assert list(got.token_ids) == tokens[: 1 + min(tokens.index(late), tokens.index(early))]
    [beyond] = run(target, taught, SamplingParams(ignore_eos=True, max_new_tokens=30))
    assert list(beyond.token_ids) == tokens[:30]


def test_stop_wins_where_cap_and_stop_meet(target: Target, taught: OracleDrafter) -> None:
    taught.rescript((15,), (15,))
    tokens = taught.known[0].tokens[len(PROMPT) :]
    place = next(i for i in range(8, 30) if tokens[i] not in tokens[:i])
    for cap, reason in ((place, "length"), (place + 1, "stop"), (place + 2, "stop")):
        [got] = run(target, taught, SamplingParams(max_new_tokens=cap, stop_token_ids=[tokens[place]]))
        assert got.finish_reason == reason
        assert list(got.token_ids) == tokens[: min(cap, place + 1)]


def automaton(ids: Tensor, scores: Tensor) -> Tensor:
    """A mask of five states, walked over the output; refuses histories that it forbids, as grammar engines do."""
    state = 0
    for token in ids[0, len(PROMPT) :].tolist():
        assert token % 5 == state, "an illegal history"
        state = (2 * state + token // 5) % 5
    allowed = torch.arange(scores.shape[1]) % 5 == state
    return scores.masked_fill(~allowed, -torch.inf)


CONSTRAINED = {
    "repetition": {"repetition_penalty": 1.7},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 0.8},
    "bias": {"logit_bias": {65: 9.0, 66: 8.0, 200: -50.0}, "frequency_penalty": 1.0},
    "n-gram": {"processors": LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])},
    "automaton": {"processors": [automaton]},
    "all": {"processors": [automaton], "repetition_penalty": 1.3, "logit_bias": {70: 5.0}, "presence_penalty": 1.0},
}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_processed_logits_are_those_of_plain_decoding(target: Target, name: str) -> None:
    params = SamplingParams(max_new_tokens=30, **CONSTRAINED[name])
    [plain] = run(target, None, params)
    assert plain.token_ids != run(target, None, SamplingParams(max_new_tokens=30))[0].token_ids  # it does act
    drafter = oracle(target, [PROMPT], [(0,)], params=params, length=46)
    for script in SCRIPTS:
        drafter.rescript(script)
        [drafted] = run(target, drafter, params)
        assert outcome(drafted) == outcome(plain)
        assert drafted.rounds[0].accepted == script[0]  # the oracle knows the constrained sequence


@pytest.mark.parametrize("least", [1, 4, 17, 40])
def test_min_new_tokens_holds_back_every_end(target: Target, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = oracle(target, [PROMPT], [(0,)]).known[0].tokens[len(PROMPT) :]
    monkeypatch.setattr(target, "eos_ids", frozenset(free[2:5]))
    params = SamplingParams(min_new_tokens=least, max_new_tokens=50, stop_token_ids=[free[7]])
    [plain] = run(target, None, params)
    drafter = OracleDrafter(target)
    drafter.learn(PROMPT, plain.token_ids, (0,))
    for script in SCRIPTS:
        drafter.rescript(script)
        [drafted] = run(target, drafter, params)
        assert outcome(drafted) == outcome(plain)
        assert len(drafted.token_ids) >= least


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    other=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    caps=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_any_scripts_side_by_side(
    target: Target, taught: OracleDrafter, script: list[int], other: list[int], caps: tuple[int, int]
) -> None:
    taught.rescript(script, other)
    got = Engine(target, taught).generate([PROMPT, OTHER], [SamplingParams(max_new_tokens=cap) for cap in caps])
    for known, cap, completion in zip(taught.known, caps, got, strict=True):
        assert list(completion.token_ids) == known.tokens[len(known.prompt) :][:cap]


@pytest.mark.parametrize(("kind", "window"), [("qwen3", None), ("qwen3", 8), ("llama", None)])
def test_plain_and_drafted_equal_transformers_generate(kind: str, window: int | None) -> None:
    target = tiny_target(kind, dtype=torch.float64, window=window, num_hidden_layers=3)
    model = target.model
    ids = torch.tensor([PROMPT])
    hidden = list(range(target.decodable, target.vocab_size))  # padding rows of the head, which are never emitted
    reference = model.generate(
        ids, max_new_tokens=48, do_sample=False, eos_token_id=-1, pad_token_id=0, suppress_tokens=hidden
    )[0, len(PROMPT) :].tolist()
    drafter = oracle(target, [PROMPT], [(4, 0, 9)], length=60)
    params = SamplingParams(max_new_tokens=48, ignore_eos=True)
    for engine in (Engine(target), Engine(target, drafter), Engine(target, drafter, prefill_chunk=5)):
        assert list(engine.generate([PROMPT], params)[0].token_ids) == reference


@pytest.mark.parametrize("seed", range(5))
def test_float32_identity_over_200_tokens(seed: int) -> None:
    target = tiny_target(seed=seed, num_hidden_layers=3)
    drafter = oracle(target, [PROMPT], [(15, 0, 7, 3, 1)], length=220)
    [drafted] = run(target, drafter, SamplingParams(max_new_tokens=200, ignore_eos=True))
    assert list(drafted.token_ids) == drafter.known[0].tokens[len(PROMPT) :][:200]


ROPES = [
    {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32}
    | {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8},
    {"rope_type": "dynamic", "factor": 4.0},
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_filling_beyond_the_context_leaves_other_rows_alone(rope: dict[str, object]) -> None:
    """Frequencies change there: a short row, filled up to the widest, must not reach so far."""
    target = tiny_target(
        "llama",
        dtype=torch.float64,
        num_hidden_layers=3,
        max_position_embeddings=32,
        rope_parameters={"rope_theta": 1e4, **rope},
    )
    prompts = [bytes(range(start, start + length)) for start, length in ((40, 24), (90, 5), (150, 9), (200, 14))]
    asked = [SamplingParams(max_new_tokens=target.context_limit - len(prompt)) for prompt in prompts]
    drafter = oracle(target, prompts, [(3, 0, 7, 1)] * 4, length=32, block_size=8)
    for params, known, got in zip(asked, drafter.known, Engine(target, drafter).generate(prompts, asked), strict=True):
        start = len(known.prompt)
        assert list(got.token_ids) == known.tokens[start : start + params.max_new_tokens]
