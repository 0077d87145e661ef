"""Whatever rule says how many candidates to verify: the law is the target's (F3), greedy output the plain one.

And a rule that is not admissible is seen: one that looks at the candidate itself, at confidences that follow from it,
or, by noise that is read again, at the tokens of a round to come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.decode.test_batching import visible
from tests.decode.test_chi_square import COUNT, FAILS, HOLDS, LAWS, check, worst
from tests.decode.test_engine_law import ConstantDrafter, P, chi_square
from tests.decode.test_engine_law import target as constant_target  # noqa: F401  a fixture
from tests.support.confidence import SURE, Confident
from tests.support.markov import MarkovToy
from tests.support.oracle import OracleDrafter, TableDrafter, oracle
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.decode import prefix
from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.policy import FULL, Own
from dspine.decode.prefix import Lagged, Scheduled
from dspine.decode.sampling import SamplingParams
from dspine.decode.schedule import Schedule, Seat
from dspine.drafter.proposal import Proposal
from dspine.target.model import Target

REQUESTS = 12_000
FEW, MANY = 6_000, 15_000
ROWS = 4  # of a batch
CANDIDATES = 5
RISING = Costs({ROWS: {1: 1.0, 2: 1.3, 3: 1.55, 4: 1.75, 5: 1.9, 6: 2.1, 16: 9.0}}, {ROWS: 0.1})
JUMP = Costs({1: {1: 1.0, 2: 2.7, 8: 2.7}}, {1: 0.1})  # a long block or none
LINE = replace(RISING, ragged=True)  # rows cost what their tokens cost

# ---------------------------------------------------------------- the Markov toy


class Batches:
    """Lengths of the toy's requests, `rows` at a time, each batch with a schedule of its own."""

    def __init__(self, schedule: Callable[[], Schedule], rows: int = ROWS, seats: Sequence[Seat] | None = None) -> None:
        self._seats = seats or [Seat(row, CANDIDATES) for row in range(rows)]
        self._schedule = schedule
        self._schedules: list[Schedule] = []
        self.lengths: list[Tensor] = []

    def __call__(self, proposal: Proposal) -> Tensor:
        assert proposal.confidence is not None
        said, rows = proposal.confidence.tolist(), len(self._seats)
        self._schedules = self._schedules or [self._schedule() for _ in range(len(said) // rows)]
        found: list[int] = []
        for index, schedule in enumerate(self._schedules):
            own = said[index * rows : (index + 1) * rows]
            most = [s.own.cut(s.room, c) if s.own else s.room for s, c in zip(self._seats, own, strict=True)]
            found += schedule.cut(self._seats, most, own)
        self.lengths.append(torch.tensor(found))
        return self.lengths[-1]

    @property
    def kinds(self) -> set[int]:
        return set(torch.cat(self.lengths).tolist())


def by_threshold(level: float) -> Callable[[Proposal], Tensor]:
    rule = Own(threshold=level)

    def lengths(proposal: Proposal) -> Tensor:
        assert proposal.confidence is not None
        return torch.tensor([rule.cut(CANDIDATES, said) for said in proposal.confidence.tolist()])

    return lengths


@pytest.mark.parametrize("form", ["sparse", "one-hot"])
@pytest.mark.parametrize("level", [0.5, 0.65])
def test_a_threshold_keeps_the_law(form: str, level: float) -> None:
    toy = MarkovToy.under(LAWS["temperature 1"], form)
    output = toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=by_threshold(level))
    assert len({int(n) for seen, _ in toy.log for n in seen.lengths}) > 3
    assert worst(check(toy, output)) > HOLDS


@pytest.mark.parametrize(
    ("law", "costs"),
    [("temperature 1", RISING), ("top-p 0.7", RISING), ("temperature 1", LINE)],
    ids=["by place", "by place, top-p", "by candidate"],
)
@pytest.mark.parametrize("schedule", [Scheduled, Lagged])
def test_a_schedule_keeps_the_law(schedule: type[Scheduled | Lagged], law: str, costs: Costs) -> None:
    toy = MarkovToy.under(LAWS[law])
    batches = Batches(lambda: schedule(costs))
    output = toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=batches, fresh=schedule.looks_back)
    assert len(batches.kinds) > 2
    assert worst(check(toy, output)) > HOLDS


def test_rows_with_rules_of_their_own_keep_it_too() -> None:
    toy = MarkovToy.under(LAWS["temperature 1"])
    seats = [Seat(0, CANDIDATES), Seat(1, 2, Own(most=2)), Seat(2, CANDIDATES, Own(threshold=0.6)), Seat(3, 1, FULL)]
    output = toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=Batches(lambda: Scheduled(RISING), seats=seats))
    assert worst(check(toy, output)) > HOLDS


class Hindsight(Scheduled):
    """A mutant: the best of all lengths by the confidences at hand. Those behind a candidate tell what it is."""

    def cut(
        self, seats: Sequence[Seat], lengths: Sequence[int], confidences: Sequence[Sequence[float]] | None
    ) -> list[int]:
        assert confidences is not None
        price = lambda chosen: JUMP.drafted(len(seats), max(chosen))  # noqa: E731
        steps = prefix.steps_by_place(confidences, lengths)
        start = [0] * len(seats)
        return prefix.grown(start, steps[: prefix.best_budget(steps, start, float(len(seats)), price)])


def test_the_best_in_hindsight_is_seen() -> None:
    toy = MarkovToy.under(LAWS["temperature 1"])
    output = toy.generate(FEW, COUNT, CANDIDATES, lengths=Batches(lambda: Hindsight(JUMP), rows=1))
    assert worst(check(toy, output)) < FAILS


def test_a_threshold_on_the_candidates_own_chance_is_seen() -> None:
    toy = MarkovToy.under(LAWS["temperature 1"])

    def lengths(proposal: Proposal) -> Tensor:
        assert proposal.support is not None
        assert proposal.probs is not None
        own = torch.where(proposal.support == proposal.tokens[..., None], proposal.probs, 0.0).sum(2)
        return (own >= 0.3).cumprod(1).sum(1)

    assert worst(check(toy, toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=lengths))) < FAILS


def test_looking_back_at_draws_that_are_read_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why a row whose number looks back draws every block from noise of its own.

    Laws that are the same after every token, so that a void candidate is drawn again as it was, and one round of lag
    in place of two, show it clearly.
    """
    monkeypatch.setattr(prefix, "LAG", 1)
    chain = MarkovToy.under(LAWS["temperature 1"])
    p, support, q = (part[:1].expand_as(part) for part in (chain.p, chain.support, chain.q))
    toy = MarkovToy(p, support, q, drawn=q)
    costs = Costs({1: {1: 1.0, 2: 3.75, 8: 3.75}}, {1: 0.1})  # from three sure ones on it pays
    outcomes = {}
    for fresh in (False, True):
        batches = Batches(lambda: Lagged(costs), rows=1)

        def lengths(proposal: Proposal, batches: Batches = batches) -> Tensor:
            sure = torch.where(proposal.tokens[:, :-1] == support[0, 0], 1.0, 0.01)  # by the token before
            return batches(replace(proposal, confidence=torch.nn.functional.pad(sure, (1, 0), value=1.0)))

        outcomes[fresh] = worst(check(toy, toy.generate(MANY, COUNT, CANDIDATES, lengths=lengths, fresh=fresh)))
        assert 0 in batches.kinds
        assert len(batches.kinds) > 2
    assert outcomes[True] > HOLDS
    assert outcomes[False] < FAILS


# ---------------------------------------------------------------- the engine

PROMPTS = [tuple(b"alpha"), tuple(b"a longer prompt of many bytes"), tuple(b"be"), tuple(b"gamma rays")]
POLICIES = ["confidence:0.5", "confidence:0.95", "scheduled", "lagged"]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture(scope="module")
def taught(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, [(0, 15, 3, 1), (15,), (2, 9, 0), (7, 7, 1)], length=120)


@pytest.mark.parametrize("verify", POLICIES)
def test_greedy_output_is_the_plain_one_in_ragged_batches(target: Target, taught: OracleDrafter, verify: str) -> None:
    taught.rescript((0, 15, 3, 1), (15,), (2, 9, 0), (7, 7, 1))
    asked = [SamplingParams(max_new_tokens=cap, ignore_eos=True) for cap in (100, 31, 64, 90)]
    engine = Engine(target, Confident(taught), max_batch=3, verify=verify, costs=RISING)
    got = engine.generate(PROMPTS, asked)
    for known, params, completion in zip(taught.known, asked, got, strict=True):
        assert list(completion.token_ids) == known.tokens[len(known.prompt) :][: params.max_new_tokens]
    numbers = {record.proposed for completion in got for record in completion.rounds}
    assert len(numbers) > 3
    assert 0 in numbers


@pytest.mark.parametrize("verify", ["confidence:0.5", "scheduled", "lagged"])
def test_a_drafter_with_a_head_of_its_own_serves_each(target: Target, verify: str) -> None:
    drafter = tiny_drafter(
        target, lively=True, target_layer_ids=(0, 1), dtype=torch.float64, block_size=8, confidence=True
    )
    with torch.no_grad():
        drafter.confidence_head.proj.weight.mul_(40)
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    got = Engine(target, drafter.eval(), max_batch=3, verify=verify, costs=RISING).generate(PROMPTS, params)
    plain = Engine(target).generate(PROMPTS, params)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    assert len({record.proposed for c in got for record in c.rounds[:-7]}) > 1


@pytest.mark.parametrize("verify", ["scheduled", "lagged", "confidence:0.5"])
def test_sampled_tokens_are_independent_draws_from_the_targets_law(constant_target: Target, verify: str) -> None:  # noqa: F811
    rows, length = 8, 200
    params = SamplingParams(temperature=1.0, max_new_tokens=length)
    drafter = Confident(ConstantDrafter(), SURE[:5])
    costs = Costs({rows: {1: 1.0, 2: 1.15, 4: 1.6, 8: 3.3}}, {rows: 0.1})
    got = Engine(constant_target, drafter, verify=verify, costs=costs).generate([(120,)] * rows, params)
    assert len({record.proposed for completion in got for record in completion.rounds[:-5]}) > 2
    tokens = torch.tensor([c.token_ids for c in got])
    assert chi_square(torch.bincount(tokens.flatten(), minlength=5), P * tokens.numel()) < 18.5  # df 4, 0.1 %
    pairs = P[:, None] * P
    for first, second in ((tokens[:, 0::2], tokens[:, 1::2]), (tokens[0::2], tokens[1::2])):
        joint = torch.bincount((5 * first + second).flatten(), minlength=25).view(5, 5)
        assert chi_square(joint, pairs * first.numel()) < 51.2  # df 24, 0.1 %


SEEDED = SamplingParams(temperature=10.0, seed=7, max_new_tokens=24, ignore_eos=True)
FREE = SamplingParams(temperature=10.0, max_new_tokens=30, ignore_eos=True)


@pytest.mark.parametrize("verify", POLICIES)
def test_a_seeded_request_is_the_same_alone_and_beside_others(target: Target, verify: str) -> None:
    drafter = Confident(TableDrafter(target))
    engine = Engine(target, drafter, verify=verify, costs=RISING)
    [alone] = engine.generate(PROMPTS[:1], SEEDED)
    together = engine.generate([*PROMPTS[1:], PROMPTS[0]], [FREE, FREE, FREE, SEEDED])[3]
    assert visible([alone]) == visible([together])
    assert alone.rounds == together.rounds
    assert together.seed == 7
    if not verify.startswith("confidence"):
        assert visible([alone]) == visible(Engine(target, drafter).generate(PROMPTS[:1], SEEDED))


def test_a_request_may_bring_its_own_rule(target: Target) -> None:
    drafter = Confident(TableDrafter(target))
    rules = [None, 2, "confidence:0.7", "full"]
    asked = [SEEDED.model_copy(update={"verify": rule}) for rule in rules]
    together = Engine(target, drafter, verify="scheduled", costs=RISING).generate(PROMPTS, asked)
    for prompt, rule, got in zip(PROMPTS, rules, together, strict=True):
        [alone] = Engine(target, drafter, verify=rule or "full").generate([prompt], SEEDED)
        assert (alone.token_ids, alone.rounds) == (got.token_ids, got.rounds)
    assert max(record.proposed for record in together[1].rounds) == 2
    assert len({record.proposed for record in together[2].rounds}) > 2


@pytest.mark.parametrize(("verify", "repeatable"), [("confidence:0.7", True), ("scheduled", False), ("lagged", False)])
def test_a_drawn_seed_is_given_back_where_it_gives_the_tokens_again(
    target: Target, verify: str, repeatable: bool
) -> None:
    engine = Engine(target, Confident(TableDrafter(target)), verify=verify, costs=RISING)
    [first] = engine.generate(PROMPTS[:1], FREE)
    assert (first.seed is not None) == repeatable
    if repeatable:
        assert (
            engine.generate(PROMPTS[:1], FREE.model_copy(update={"seed": first.seed}))[0].token_ids == first.token_ids
        )
