"""Rounds with trees: the output is plain decoding's whatever the tree holds, and the tree is used."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.support.hybrid_target import hybrid_target
from tests.support.oracle import outcome
from tests.support.oracle_tree import Aside, OracleTree
from tests.support.parallel import over
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.decode import branching
from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import LogitsProcessor, SamplingParams
from dspine.errors import ConfigError, RequestError
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=4)


def tree_oracle(target: Target, *scripts: Sequence[int], in_line: bool = False) -> OracleTree:
    drafter = OracleTree(target, block_size=5, in_line=in_line)
    answers = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=64, ignore_eos=True))
    for prompt, answer, script in zip(PROMPTS, answers, scripts, strict=True):
        drafter.learn(prompt, answer.token_ids, script)
    return drafter


def accepted(completion: Completion) -> list[int]:
    return [record.accepted for record in completion.rounds]


@pytest.mark.parametrize("in_line", [True, False])
@pytest.mark.parametrize("nodes", [120, 13])
def test_a_path_is_followed_as_far_as_the_tree_holds_it(target: Target, nodes: int, in_line: bool) -> None:
    """The oracle checks every token and feature that it is shown, those of side branches among them."""
    drafter = tree_oracle(target, (4, 2, 0, 3), (1,), (3, 0), in_line=in_line)
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    plain = Engine(target).generate(PROMPTS, params)
    found = Engine(target, drafter, verify=f"tree:{nodes}").generate(PROMPTS, params)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    if nodes == 120:  # 3 + 9 + 27 + 81: all paths
        assert accepted(found[0])[:8] == [4, 2, 0, 3, 4, 2, 0, 3]
        first = found[0].rounds[0]
        assert (first.proposed, first.nodes, first.verified) == (4, 120, 120)
        assert accepted(found[1])[:5] == [1] * 5
        assert accepted(found[2])[:4] == [3, 0, 3, 0]
    elif not in_line:
        assert 1 <= max(accepted(found[0])) < 4
    for completion in found:
        assert sum(record.kept for record in completion.rounds) == len(completion.token_ids) - 1


@pytest.mark.parametrize("kind", ["dspine", "dspine, not refined", "dflash2", "dflash", "dspark"])
@pytest.mark.parametrize("nodes", [1, 4, 30])
def test_drafters_that_tabulate_change_nothing_but_the_rounds(target: Target, kind: str, nodes: int) -> None:
    drafter = _drafter(target, kind)
    for params in (
        SamplingParams(max_new_tokens=16),
        SamplingParams(temperature=8.0, seed=4, max_new_tokens=16, ignore_eos=True),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.8, seed=1, max_new_tokens=16),
    ):
        plain = Engine(target).generate(PROMPTS, params)
        together = Engine(target, drafter, max_batch=2, verify=f"tree:{nodes}").generate(PROMPTS, params)
        assert [outcome(c) for c in together] == [outcome(c) for c in plain]
        alone = [
            Engine(target, drafter, prefill_chunk=3, verify=f"tree:{nodes}").generate([p], params)[0] for p in PROMPTS
        ]
        assert [(c.token_ids, c.rounds) for c in together] == [(c.token_ids, c.rounds) for c in alone]


def test_greedy_and_sampled_rows_share_a_batch_and_come_and_go(target: Target) -> None:
    drafter = _drafter(target, "dspine")
    prompts = [*PROMPTS, *PROMPTS]
    each = [SamplingParams(max_new_tokens=5 + 3 * i, temperature=i % 2 * 1.0, seed=i % 2 * 7 or None) for i in range(6)]
    plain = Engine(target).generate(prompts, each)
    found = Engine(target, drafter, max_batch=3, verify="tree:9").generate(prompts, each)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processing_logprobs_and_ends_are_those_of_plain_decoding(target: Target, temperature: float) -> None:
    drafter = tree_oracle(target, (4, 2), (3,), (4,))
    end = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=20, ignore_eos=True))[0].token_ids[7]
    base = {"max_new_tokens": 24, "temperature": temperature, "seed": 3 if temperature else None}
    for extra in (
        {"logprobs": 3, "ignore_eos": True},
        {"stop_token_ids": (end,)},
        {"min_new_tokens": 12, "stop_token_ids": (end,)},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logprobs": 1},
        {"logit_bias": {end: 4.0}, "stop": ("e",)},
    ):
        params = SamplingParams(**base, **extra)
        plain = Engine(target).generate(PROMPTS, params)
        # An oracle knows one sequence a prompt, and this one depends on what ends it.
        guess = _drafter(target, "dspine") if "min_new_tokens" in extra else _guess(drafter, target, params)
        found = Engine(target, guess, verify="tree:40").generate(PROMPTS, params)
        assert [outcome(c) for c in found] == [outcome(c) for c in plain], extra
        for one, other in zip(found, plain, strict=True):
            assert (one.logprobs is None) == (other.logprobs is None)
            for ours, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
                assert ours.token == theirs.token
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-9)


def test_a_processor_that_raises_ends_its_own_request(target: Target) -> None:
    def refuse(ids: Tensor, scores: Tensor) -> Tensor:
        if ids.shape[1] > len(PROMPTS[0]) + 6:
            raise ValueError("no more")
        return scores

    drafter = tree_oracle(target, (4,), (4,), (4,))
    engine = Engine(target, drafter, verify="tree:40")
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    numbers = [
        engine.add(PROMPTS[0], params.model_copy(update={"processors": (refuse,)})),
        engine.add(PROMPTS[1], params),
    ]
    ended = {}
    while engine.pending:
        ended |= {u.request_id: u for u in engine.step() if u.finished}
    assert isinstance(ended[numbers[0]].error, ValueError)
    assert ended[numbers[1]].completion.token_ids == Engine(target).generate([PROMPTS[1]], params)[0].token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("processors", [(), (lambda ids, scores: scores,)])
def test_logits_that_are_no_numbers_end_their_own_request_where_plain_decoding_ends_it(
    target: Target, monkeypatch: pytest.MonkeyPatch, temperature: float, processors: tuple[LogitsProcessor, ...]
) -> None:
    drafter = tree_oracle(target, (4,), (4,), (4,)) if not temperature else _drafter(target, "dspine")
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=temperature, seed=3, processors=processors)
    own = target.logits
    favourite = (
        Engine(target).generate([PROMPTS[0]], SamplingParams(max_new_tokens=20, ignore_eos=True))[0].token_ids[9]
    )

    def logits(hidden: Tensor) -> Tensor:
        found = own(hidden)
        return found.masked_fill((found.argmax(-1) % 13 == favourite % 13)[..., None], torch.nan)

    monkeypatch.setattr(target, "logits", logits)
    plain, found = (_ends(engine, params) for engine in (Engine(target), Engine(target, drafter, verify="tree:40")))
    assert found == plain
    assert any(error for _, error in plain)


def _ends(engine: Engine, params: SamplingParams) -> list[tuple[tuple[int, ...], str]]:
    """The tokens of each prompt, and what ended it in error."""
    numbers = [engine.add(prompt, params) for prompt in PROMPTS]
    ended = {}
    while engine.pending:
        ended |= {u.request_id: u for u in engine.step() if u.completion is not None}
    return [(ended[number].completion.token_ids, str(ended[number].error or "")) for number in numbers]


def _best_at_zero(ids: Tensor, scores: Tensor) -> Tensor:
    return scores - scores.max()


@pytest.mark.parametrize("processors", [(), (_best_at_zero,)])
def test_what_is_in_doubt_is_decided_in_line(
    target: Target, monkeypatch: pytest.MonkeyPatch, processors: tuple[LogitsProcessor, ...]
) -> None:
    """Where the last bit counts and every choice is in doubt, a round ends with a side branch's first token.

    How much a score may be off does not depend on where the best of them lies.
    """
    drafter = tree_oracle(target, (4,), (4,), (4,))
    params = SamplingParams(max_new_tokens=30, ignore_eos=True, processors=processors)
    plain = Engine(target).generate(PROMPTS, params)
    monkeypatch.setattr(target, "alike", 32)
    monkeypatch.setattr(branching, "DOUBT", 1e9)
    found = Engine(target, drafter, verify="tree:200").generate(PROMPTS, params)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    for record in found[0].rounds[:-1]:
        assert (record.proposed, record.accepted, record.kept) == (1, 1, 1)


def test_what_cannot_have_trees_is_refused_by_name(target: Target) -> None:
    eagle = over(target, "eagle3", target_layer_ids=(0, 1, 2), block_size=4)
    with pytest.raises(ConfigError, match=r"tree:8.*draws place after place"):
        Engine(target, eagle, verify="tree:8")
    drafter = _drafter(target, "dspine")
    with pytest.raises(ConfigError, match="not recorded"):
        Engine(target, drafter, verify="tree:8", capture="on")
    hybrid = hybrid_target("qwen3_5")
    with pytest.raises(ConfigError, match="recurrent states"):
        Engine(hybrid, OracleTree(hybrid), verify="tree:8")
    for word in ("tree:", "tree:0", "tree:-1", "tree:x"):
        with pytest.raises(ConfigError, match="tree:N"):
            Engine(target, drafter, verify=word)
    with pytest.raises(RequestError, match="this engine verifies trees"):
        Engine(target, drafter, verify="tree:8").add(PROMPTS[0], SamplingParams(verify=2))
    with pytest.raises(RequestError, match="concerns all requests"):
        Engine(target, drafter).add(PROMPTS[0], SamplingParams(verify="tree:4"))
    assert Engine(target, verify="tree:8").generate([PROMPTS[0]], SamplingParams(max_new_tokens=3))


def test_an_interrupted_round_is_run_again(target: Target) -> None:
    drafter = tree_oracle(target, (3,), (2,), (4,))
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    plain = Engine(target).generate(PROMPTS, params)

    def stop(call: int) -> None:
        if call in (2, 4):
            raise KeyboardInterrupt

    drafter.before_verify = stop
    engine = Engine(target, drafter, verify="tree:30")
    numbers = [engine.add(prompt, params) for prompt in PROMPTS]
    ended = {}
    while engine.pending:
        try:
            ended |= {u.request_id: u.completion for u in engine.step() if u.finished}
        except KeyboardInterrupt:
            continue
    assert [outcome(ended[number]) for number in numbers] == [outcome(c) for c in plain]


def _drafter(target: Target, kind: str):
    if kind.startswith("dspine"):
        return tiny_drafter(
            target, dtype=torch.float64, lively=True, target_layer_ids=(0, 1), refined="not" not in kind
        )
    sizes = {"tabulated": 6} if kind == "dspark" else {}
    return over(target, kind, target_layer_ids=(0, 1, 2), block_size=4, **sizes)


def _guess(drafter: OracleTree, target: Target, params: SamplingParams) -> OracleTree:
    """The same oracle taught what plain decoding gives with these parameters, beyond any end."""
    asked = params.model_copy(update={"ignore_eos": True, "stop_token_ids": (), "stop": (), "max_new_tokens": 64})
    taught = OracleTree(target, block_size=drafter.block_size)
    for prompt, answer, known in zip(PROMPTS, Engine(target).generate(PROMPTS, asked), drafter.known, strict=True):
        taught.learn(prompt, answer.token_ids, known.script)
    return taught


COSTS = Costs({1: {1: 1.0, 2: 1.0, 8: 1.02}, 4: {1: 1.0, 2: 1.0, 8: 1.02}}, {1: 0.01, 4: 0.01})
DEAR = Costs({1: {1: 1.0, 2: 9.0, 8: 90.0}, 4: {1: 1.0, 2: 9.0, 8: 90.0}}, {1: 1.0, 4: 1.0})


def test_auto_grows_trees_of_greedy_rows(target: Target) -> None:
    drafter = tree_oracle(target, (4, 2), (3,), (4,))
    params = SamplingParams(max_new_tokens=50, ignore_eos=True)
    plain = Engine(target).generate(PROMPTS, params)
    found = Engine(target, drafter, verify="auto", costs=COSTS).generate(PROMPTS, params)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    # Right tokens are off the line from the first place on: a line would never have one.
    assert all(max(accepted(c)) for c in found)


def test_auto_rests_where_trees_do_not_pay_and_forgets_nothing(target: Target) -> None:
    """The oracle would miss a feature that the backlog lost."""
    drafter = tree_oracle(target, (0,), (1, 0, 0, 0), (0,))
    params = SamplingParams(max_new_tokens=60, ignore_eos=True)
    plain = Engine(target).generate(PROMPTS, params)
    found = Engine(target, drafter, verify="auto", costs=DEAR).generate(PROMPTS, params)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    assert sum(record.proposed == 0 for c in found for record in c.rounds) > 20
    drafter = tree_oracle(target, (0, 0, 4), (1, 0, 3), (2,))
    found = Engine(target, drafter, verify="auto", costs=COSTS, max_batch=2).generate(PROMPTS, params)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]


def test_auto_goes_from_trees_to_lines_and_back_as_sampled_rows_come_and_go(target: Target) -> None:
    drafter = _drafter(target, "dspine")
    engine = Engine(target, drafter, verify="auto", costs=COSTS, max_batch=2)
    sampled = SamplingParams(max_new_tokens=9, temperature=1.0, seed=5, ignore_eos=True)
    greedy = SamplingParams(max_new_tokens=40, ignore_eos=True)
    wanted = [Engine(target).generate([p], greedy)[0] for p in PROMPTS]
    alone = Engine(target, drafter, verify="full").generate([PROMPTS[1]], sampled)[0]
    asked = [(PROMPTS[0], greedy), (PROMPTS[1], sampled), (PROMPTS[2], greedy), (PROMPTS[1], sampled)]
    found = engine.generate([prompt for prompt, _ in asked], [params for _, params in asked])
    assert [outcome(found[index]) for index in (0, 2)] == [outcome(wanted[0]), outcome(wanted[2])]
    assert [found[index].token_ids for index in (1, 3)] == [alone.token_ids] * 2


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seeded_request_that_joins_trees_draws_what_it_draws_alone(target: Target, seed: int) -> None:
    """Keys that trees left to be made cost it no round: its own rounds would be others."""
    drafter = _drafter(target, "dspine")
    greedy = SamplingParams(max_new_tokens=60, ignore_eos=True)
    sampled = SamplingParams(max_new_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
    plain = Engine(target).generate([PROMPTS[0]], greedy)[0]
    alone = Engine(target, drafter, verify="full").generate([PROMPTS[1]], sampled)[0]
    aside = Aside(drafter, [*PROMPTS[0], *plain.token_ids], target.vocab_size)
    engine = Engine(target, aside, verify="auto", costs=COSTS, max_batch=2)
    engine.add(PROMPTS[0], greedy)
    for _ in range(3):
        engine.step()
    engine.add(PROMPTS[1], sampled)
    ended = []
    while engine.pending:
        ended += [u.completion for u in engine.step() if u.finished]
    assert outcome(ended[1]) == outcome(plain)
    assert sum(accepted(ended[1])) > 5
    assert (ended[0].token_ids, ended[0].rounds) == (alone.token_ids, alone.rounds)
