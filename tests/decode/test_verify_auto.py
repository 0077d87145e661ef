"""Whatever number of candidates is verified, and however it changes: the output is the same, or has the same law."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, count

import pytest
import torch
from tests.decode.test_batching import visible
from tests.decode.test_engine_law import ConstantDrafter, P, chi_square
from tests.decode.test_engine_law import target as constant_target  # noqa: F401  a fixture
from tests.support.oracle import OracleDrafter, TableDrafter, oracle
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

import dspine.decode.request
from dspine.decode import costbook
from dspine.decode.backlog import SLOTS
from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.rows import Row
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError
from dspine.target.model import Target

PROMPTS = [tuple(b"alpha"), tuple(b"a longer prompt of many bytes"), tuple(b"be"), tuple(b"gamma rays")]
ONE = PROMPTS[:1]
FLAT = Costs({8: {1: 1.0, 16: 1.0}}, {8: 0.1})
STEEP = Costs({8: {1: 1.0, 2: 2.0, 16: 16.0}}, {8: 0.5})
HOPELESS = Costs({8: {1: 1.0, 2: 9.0, 16: 90.0}}, {8: 9.0})  # not even a perfect drafter pays


class Whims:
    """Costs that are others each time they are asked for: all numbers of candidates are tried, in any order."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def covering(self, rows: int) -> Costs:
        steps = [self._chance.choice([0, 0.01, 0.1, 0.5, 3]) for _ in range(4)]
        times = accumulate(steps, initial=1.0)
        return Costs({8: dict(zip((1, 2, 4, 8, 16), times, strict=True))}, {8: self._chance.choice([0.01, 0.3])})


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, [(0,)] * 4, length=220)


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed draw known ones."""
    numbers: Iterator[int] = iter(range(10**6))
    monkeypatch.setattr(dspine.decode.request.secrets, "randbits", lambda _: next(numbers))


# ---------------------------------------------------------------- greedy


@pytest.mark.parametrize("seed", range(6))
def test_greedy_output_is_the_plain_one_whatever_n_does(target: Target, taught: OracleDrafter, seed: int) -> None:
    """The oracle compares every feature and token that it is shown, late or not, with those of its sequences."""
    chance = random.Random(seed)
    taught.rescript(*[[chance.choice([0, 0, 1, 3, 9, 15]) for _ in range(41)] for _ in PROMPTS])
    asked = [SamplingParams(max_new_tokens=cap, ignore_eos=True) for cap in (210, 60, 150, 200)]
    engine = Engine(target, taught, max_batch=3, verify="auto", costs=Whims(seed))
    got = engine.generate(PROMPTS, asked)
    for known, params, completion in zip(taught.known, asked, got, strict=True):
        assert list(completion.token_ids) == known.tokens[len(known.prompt) :][: params.max_new_tokens]
    numbers = {r.proposed for c in got for r in c.rounds}
    assert 0 in numbers
    assert len(numbers) > 4


@pytest.mark.parametrize("verify", [1, 2, 15])
def test_a_fixed_number_is_verified_in_every_round(target: Target, taught: OracleDrafter, verify: int) -> None:
    taught.rescript(*[(15, 0, 1)] * 4)
    [got] = Engine(target, taught, verify=verify).generate(ONE, SamplingParams(max_new_tokens=100, ignore_eos=True))
    known = taught.known[0]
    assert list(got.token_ids) == known.tokens[len(known.prompt) :][:100]
    assert {r.proposed for r in got.rounds[:-5]} == {verify}
    assert max(r.accepted for r in got.rounds) == verify
    assert 0 < got.verified <= verify


def test_where_all_costs_the_same_all_are_verified(target: Target, taught: OracleDrafter) -> None:
    taught.rescript(*[(15,)] * 4)
    params = SamplingParams(max_new_tokens=1 + 3 * 16, ignore_eos=True)
    [auto] = Engine(target, taught, verify="auto", costs=FLAT).generate(ONE, params)
    [full] = Engine(target, taught).generate(ONE, params)
    assert auto == full


# ---------------------------------------------------------------- rest


def test_a_drafter_that_cannot_pay_is_never_run(target: Target, taught: OracleDrafter) -> None:
    taught.rescript(*[(15,)] * 4)
    taught.calls = 0
    engine = Engine(target, taught, verify="auto", costs=HOPELESS)
    got = engine.generate(PROMPTS, SamplingParams(max_new_tokens=200, ignore_eos=True))
    assert taught.calls == 0
    assert all(completion.verified == 0 for completion in got)
    assert [c.token_ids for c in got] == [tuple(k.tokens[len(k.prompt) :][:200]) for k in taught.known]


def test_a_drafter_without_luck_is_run_now_and_then(target: Target, taught: OracleDrafter) -> None:
    taught.rescript(*[(0,)] * 4)
    taught.calls = 0
    engine = Engine(target, taught, verify="auto", costs=STEEP)
    got = engine.generate(PROMPTS, SamplingParams(max_new_tokens=200, ignore_eos=True))
    assert 0 < taught.calls < 20
    assert sum(r.proposed > 0 for r in got[0].rounds) == taught.calls


class Switch:
    """Costs that keep the drafter at rest until they are changed."""

    costs = HOPELESS

    def covering(self, rows: int) -> Costs:
        return self.costs


def test_the_context_catches_up_after_a_rest(target: Target, taught: OracleDrafter) -> None:
    """More rounds of rest than features wait for, rows that come and go meanwhile, then a drafter that is right."""
    taught.rescript(*[(15,)] * 4)
    switch = Switch()
    engine = Engine(target, taught, max_batch=3, verify="auto", costs=switch)
    brief, long = (SamplingParams(max_new_tokens=cap, ignore_eos=True) for cap in (SLOTS + 5, 150))
    for prompt, params in zip(PROMPTS, (brief, long, long, long), strict=True):
        engine.add(prompt, params)
    ended: dict[int, Completion] = {}
    turns = 0
    while engine.pending:
        turns += 1
        switch.costs = FLAT if turns > 2 * SLOTS + 10 else HOPELESS
        ended |= {u.request_id: u.completion for u in engine.step() if u.completion is not None}
    for number, known in enumerate(taught.known):
        assert list(ended[number].token_ids) == known.tokens[len(known.prompt) :][: len(ended[number].token_ids)]
    assert [r.accepted for r in ended[1].rounds if r.proposed == 15] == [15] * 4
    assert ended[0].verified == 0


@pytest.mark.parametrize("failing", range(4))
def test_a_round_that_fails_while_features_wait_is_run_again(
    target: Target, taught: OracleDrafter, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """One row keeps its token, or some do, or all but the last; then the drafter is shown what each row missed."""
    taught.rescript(*[(15,)] * 4)
    switch, params = Switch(), SamplingParams(max_new_tokens=60, ignore_eos=True)
    engine = Engine(target, taught, verify="auto", costs=switch)
    numbers = [engine.add(prompt, params) for prompt in PROMPTS]
    for _ in range(6):
        engine.step()
    take, calls = Row.take, count()

    def interrupted(row: Row, *tokens: object) -> int:
        if next(calls) == failing:
            raise OSError("the text could not be read")
        return take(row, *tokens)

    monkeypatch.setattr(Row, "take", interrupted)
    with pytest.raises(OSError, match="could not be read"):
        engine.step()
    switch.costs = FLAT
    ended: dict[int, Completion] = {}
    while engine.pending:
        ended |= {u.request_id: u.completion for u in engine.step() if u.completion is not None}
    for number, known in zip(numbers, taught.known, strict=True):
        assert list(ended[number].token_ids) == known.tokens[len(known.prompt) :][:60]
        assert [r.accepted for r in ended[number].rounds if r.proposed == 15] == [15] * 3


def test_the_backlog_is_counted_and_does_not_grow(target: Target, taught: OracleDrafter) -> None:
    engine = Engine(target, taught, verify="auto", costs=HOPELESS)
    before = engine.bytes
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=40, ignore_eos=True))
    held = engine.bytes
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=200, ignore_eos=True))
    assert before < held == engine.bytes


# ---------------------------------------------------------------- sampling


def test_the_law_of_sampled_tokens_is_the_targets(constant_target: Target, seeds: None) -> None:  # noqa: F811
    """n follows the luck of earlier rounds closely, and yet tokens are independent draws from the target's law."""
    rows, length = 8, 300
    costs = Costs({8: {1: 1.0, 2: 1.4, 4: 2.0, 8: 3.3}}, {8: 0.1})
    params = SamplingParams(temperature=1.0, max_new_tokens=length)
    got = Engine(constant_target, ConstantDrafter(), verify="auto", costs=costs).generate([(120,)] * rows, params)
    numbers = [r.proposed for c in got for r in c.rounds[:-5]]
    assert min(numbers.count(n) for n in (0, 1, 2)) > 30
    tokens = torch.tensor([c.token_ids for c in got])
    assert chi_square(torch.bincount(tokens.flatten(), minlength=5), P * tokens.numel()) < 18.5  # df 4, 0.1 %
    pairs = P[:, None] * P
    for first, second in ((tokens[:, 0::2], tokens[:, 1::2]), (tokens[0::2], tokens[1::2])):
        joint = torch.bincount((5 * first + second).flatten(), minlength=25).view(5, 5)
        assert chi_square(joint, pairs * first.numel()) < 51.2  # df 24, 0.1 %


SEEDED = SamplingParams(temperature=10.0, seed=7, max_new_tokens=24, ignore_eos=True)
FREE = SamplingParams(temperature=10.0, max_new_tokens=30, ignore_eos=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_seeded_request_is_the_same_alone_and_in_a_batch(target: Target, seeds: None, seed: int) -> None:
    drafter = TableDrafter(target)
    full = Engine(target, drafter).generate(ONE, SEEDED)
    alone = Engine(target, drafter, verify="auto", costs=STEEP).generate(ONE, SEEDED)
    engine = Engine(target, drafter, max_batch=3, verify="auto", costs=Whims(seed))
    engine.generate(PROMPTS, FREE)
    together = engine.generate([*PROMPTS[1:], *ONE, *PROMPTS], [FREE] * 3 + [SEEDED] + [FREE] * 4)
    assert visible(full) == visible(alone) == visible([together[3]])
    assert full[0].seed == alone[0].seed == together[3].seed == 7


def test_a_seed_is_given_back_where_it_gives_the_same_tokens_again(target: Target, seeds: None) -> None:
    drafter = TableDrafter(target)
    for verify in ("full", 2):
        engine = Engine(target, drafter, verify=verify)
        [first] = engine.generate(ONE, FREE)
        [again] = engine.generate(ONE, FREE.model_copy(update={"seed": first.seed}))
        assert again.token_ids == first.token_ids
    [auto] = Engine(target, drafter, verify="auto", costs=FLAT).generate(ONE, FREE)
    assert auto.seed is None
    assert Engine(target, verify="auto").generate(ONE, FREE)[0].seed is not None


# ---------------------------------------------------------------- the engine's own costs


def test_without_a_table_the_engine_measures_once(
    tmp_path: object, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costbook, "cache_root", lambda: tmp_path)
    deep = tiny_target()
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    asked = []
    original = costbook.measure
    monkeypatch.setattr(costbook, "measure", lambda *given: asked.append(given[2]) or original(*given))
    engine = Engine(deep, tiny_drafter(deep, lively=True), max_batch=4, verify="auto")
    got = engine.generate(PROMPTS, params)
    assert [c.token_ids for c in got] == [c.token_ids for c in Engine(deep).generate(PROMPTS, params)]
    assert asked[0] == 4
    engine.generate(PROMPTS, params)
    assert sorted(set(asked)) == sorted(asked)


@pytest.mark.parametrize("verify", ["all", 0, 16, True])
def test_what_cannot_be_verified_is_refused(target: Target, taught: OracleDrafter, verify: object) -> None:
    with pytest.raises(ConfigError, match="verify is"):
        Engine(target, taught, verify=verify)
    if verify != 16:
        with pytest.raises(ConfigError, match="verify is"):
            Engine(target, verify=verify)
