"""What is looked up in a row's own text: the right candidates, and an output that does not tell whence they came."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from tests.support.hybrid_target import hybrid_model
from tests.support.oracle import OracleDrafter, outcome
from tests.support.parallel import over
from tests.support.repeating import repeating_target
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_model

from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.lookup import LONGEST, Lookup
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.decode.schedule import Adaptive
from dspine.drafter.proposal import Proposal
from dspine.drafter.tree import Tree
from dspine.errors import ConfigError, RequestError
from dspine.target.model import Target

PROMPTS = [tuple(b"abcabcabcab"), tuple(b"a longer prompt, a longer"), tuple(b"3"), tuple(b"no two alik")]
CHEAP = Costs({1: {1: 1.0, 2: 1.0, 8: 1.02}, 4: {1: 1.0, 2: 1.0, 8: 1.02}}, {1: 0.01, 4: 0.01})
GREEDY = SamplingParams(max_new_tokens=60, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.3, seed=5, max_new_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return repeating_target(tiny_model(dtype=torch.float64, num_hidden_layers=4))


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    ("text", "shortest", "most", "found"),
    [
        ("the cat sat; the c", 3, 9, "at sat; t"),  # "the c" was said: ten would be allowed
        ("the cat sat; the c", 3, 4, "at s"),
        ("xyzq wxyz", 3, 9, "q wxyz"),  # three said before: six
        ("xyzq wxyz", 4, 9, ""),
        ("ab1 cab2.ab", 2, 9, "2.ab"),  # where it was said last, twice as much as was said
        ("ab1 ab2 ab", 2, 9, "2 ab2 "),  # " ab" as well; in a circle, beyond the end of the text
        ("aaaa", 2, 9, "aaaaaa"),
        ("ababab", 2, 5, "ababa"),
        ("abc", 3, 9, ""),
        ("ab", 3, 9, ""),
        ("abcabc", 3, 0, ""),
    ],
)
def test_what_followed_the_newest_tokens_where_they_were_said_before(
    text: str, shortest: int, most: int, found: str
) -> None:
    assert bytes(Lookup(shortest).found(list(text.encode()), most)).decode() == found


def test_a_text_that_grows_is_read_once_and_gives_what_a_fresh_look_gives() -> None:
    chance = random.Random(3)
    text = [chance.randrange(3) for _ in range(400)]
    grown = Lookup(3)
    for end in sorted(chance.sample(range(1, 400), 120)):
        found = grown.found(text[:end], 8)
        assert found == Lookup(3).found(text[:end], 8)
        assert found == _by_hand(text[:end], 3, 8)


def _by_hand(text: Sequence[int], shortest: int, most: int) -> list[int]:
    """Every place is looked at, the last one first."""
    for begin in range(len(text) - 1, shortest - 1, -1):
        if text[begin - shortest : begin] != text[-shortest:]:
            continue
        same = next((n for n in range(begin) if text[begin - n - 1] != text[-n - 1]), begin)
        period, count = len(text) - begin, min(most, 2 * same)
        return [text[begin + step % period] for step in range(count)]
    return []


def test_a_line_is_a_tree_without_branches() -> None:
    tree = Tree.in_line([7, 8, 9])
    assert (tree.tokens, tree.parents, tree.line, tree.places) == ((7, 8, 9), (-1, 0, 1), 3, 3)


# ---------------------------------------------------------------- the law that goes with it


@pytest.mark.parametrize("kind", ["greedy", "sparse", "dense", "not drafted"])
def test_rows_with_something_found_are_one_hot_and_the_others_stay(kind: str) -> None:
    size, support, probs = 12, None, None
    tokens = torch.tensor([[1, 2], [3, 4], [5, 6]])
    if kind == "not drafted":
        tokens = tokens[:, :0]
    if kind == "sparse":
        support = torch.arange(4).expand(3, 2, 4)
        probs = torch.full((3, 2, 4), 0.25)
    if kind == "dense":
        probs = torch.full((3, 2, size), 1 / size)
    before = Proposal(tokens, support, probs, confidence=torch.rand(tokens.shape))
    kept = [each.clone() for each in before.held()[1]]
    found = [[], [2, 0, 11], [9]]
    after = before.given(found)

    assert after.confidence is None
    for ours, own in zip(after.tokens.tolist(), found, strict=True):
        assert ours[: len(own)] == own
    assert after.tokens.shape == (3, 3)
    assert after.tokens[0, : tokens.shape[1]].tolist() == tokens[0].tolist()
    for field, old in zip(before.held()[1], kept, strict=True):
        assert torch.equal(field, old)
    if probs is None:
        assert after.probs is None
        return
    law = _dense(after, size)
    assert torch.equal(law[0, :2], _dense(before, size)[0])
    for row, own in enumerate(found):
        for place, token in enumerate(own):
            assert law[row, place].tolist() == [float(index == token) for index in range(size)]


def _dense(proposal: Proposal, size: int) -> torch.Tensor:
    assert proposal.probs is not None
    if proposal.support is None:
        return proposal.probs
    for place in proposal.support.flatten(0, 1).tolist():
        assert len(set(place)) == len(place) or place == [0] * len(place)  # behind a row's own candidates
        assert 0 <= min(place) <= max(place) < size
    return torch.zeros(*proposal.probs.shape[:2], size).scatter_add_(2, proposal.support, proposal.probs)


# ---------------------------------------------------------------- whole answers


def _drafter(target: Target, kind: str):
    if kind == "dspine":
        return tiny_drafter(target, dtype=torch.float64, lively=True, target_layer_ids=(0, 1))
    return over(target, kind, target_layer_ids=(0, 1, 2), block_size=4)


def _longest(completions: Sequence[Completion]) -> int:
    return max(record.accepted for completion in completions for record in completion.rounds)


def _failed(completions: Sequence[Completion], candidates: int) -> int:
    """Rounds of more candidates than any draft has, in which one fell."""
    rounds = [record for completion in completions for record in completion.rounds]
    return sum(candidates < record.proposed and record.accepted < record.verified for record in rounds)


@pytest.mark.parametrize(
    ("kind", "verify"),
    [("dspine", word) for word in ("full+lookup", "2+lookup:2", "tree:5+lookup", "tree:1+lookup:1", "auto+lookup")]
    + [("dflash2", "tree:5+lookup:2"), ("dspark", "full+lookup"), ("eagle3", "auto+lookup:4")],
)
def test_greedy_answers_are_plain_ones_and_repetitions_come_in_few_rounds(
    target: Target, kind: str, verify: str
) -> None:
    drafter = _drafter(target, kind)
    plain = Engine(target).generate(PROMPTS, GREEDY)
    for batch in (1, 3):
        found = Engine(target, drafter, max_batch=batch, verify=verify, costs=CHEAP).generate(PROMPTS, GREEDY)
        assert [outcome(c) for c in found] == [outcome(c) for c in plain]
        assert _longest(found) == (2 if verify.startswith("2") else LONGEST)  # more than any block of this drafter
        assert verify.startswith("2") or _failed(found, drafter.candidates)
        for completion in found:
            assert sum(record.kept for record in completion.rounds) == len(completion.token_ids) - 1


@pytest.mark.parametrize("verify", ["full+lookup:1", "3+lookup:1", "tree:5+lookup:1", "auto+lookup:1"])
def test_a_seed_gives_its_tokens_alone_and_in_any_batch(target: Target, verify: str) -> None:
    drafter = _drafter(target, "dspine")
    each = [SAMPLED.model_copy(update={"seed": 5 + index % 3 if index % 4 else None}) for index in range(8)]
    each = [p if p.seed else GREEDY for p in each]
    prompts = [*PROMPTS, *PROMPTS]
    alone = [
        Engine(target, drafter, verify=verify, costs=CHEAP).generate([prompt], own)[0]
        for prompt, own in zip(prompts, each, strict=True)
    ]
    together = Engine(target, drafter, max_batch=3, prefill_chunk=4, verify=verify, costs=CHEAP).generate(prompts, each)
    assert [outcome(c) for c in together] == [outcome(c) for c in alone]
    assert _longest(together) == 3 if verify.startswith("3") else _longest(together) > drafter.candidates
    if verify.startswith("tree"):  # the target's own draws
        assert [outcome(c) for c in together] == [outcome(c) for c in Engine(target).generate(prompts, each)]


def test_without_a_drafter_things_are_looked_up_all_the_same(target: Target) -> None:
    plain = Engine(target).generate(PROMPTS, GREEDY)
    for verify, most in (("full+lookup", LONGEST), ("2+lookup:2", 2)):
        found = Engine(target, max_batch=2, verify=verify).generate(PROMPTS, GREEDY)
        assert [outcome(c) for c in found] == [outcome(c) for c in plain]
        assert _longest(found) == most
    for verify in ("auto+lookup", "tree:4+lookup"):
        with pytest.raises(ConfigError, match="with a lookup, and there is no drafter"):
            Engine(target, verify=verify)
    sampled = Engine(target, verify="full+lookup:1").generate(PROMPTS, SAMPLED)
    assert [c.seed for c in sampled] == [5] * 4


def test_a_row_that_repeats_itself_is_not_drafted(target: Target) -> None:
    prompt = PROMPTS[0]
    plain = Engine(target).generate([prompt], SamplingParams(max_new_tokens=60, ignore_eos=True))[0]
    drafter = OracleDrafter(target, 5)
    drafter.learn(prompt, plain.token_ids, (0,))  # every draft of its own fails at once
    asked = SamplingParams(max_new_tokens=50, ignore_eos=True)
    found = Engine(target, drafter, verify="full+lookup").generate([prompt], asked)[0]
    assert found.token_ids == plain.token_ids[:50]
    looked_up = [record for record in found.rounds if record.proposed != drafter.candidates]
    assert drafter.calls <= len(found.rounds) - len(looked_up) < len(found.rounds)
    assert [r.accepted for r in found.rounds if r not in looked_up].count(0) == drafter.calls


@pytest.mark.parametrize("params", [GREEDY, SAMPLED.model_copy(update={"seed": None})], ids=["trees", "lines"])
def test_what_was_looked_up_is_none_of_the_schedules_merit(
    target: Target, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its gains would pay for drafts that fail."""
    heard, learn = [], Adaptive.learn

    def listened(self: Adaptive, seats: object, lengths: list[int], stood: list[int]) -> None:
        heard.extend(zip(lengths, stood, strict=True))
        learn(self, seats, lengths, stood)

    monkeypatch.setattr(Adaptive, "learn", listened)
    engine = Engine(target, _drafter(target, "dspine"), max_batch=2, verify="auto+lookup:1", costs=CHEAP)
    rounds = [record for completion in engine.generate(PROMPTS, params) for record in completion.rounds]
    assert sum(record.accepted for record in rounds if record.looked_up) > 20
    assert heard
    assert all(accepted <= length for length, accepted in heard)


def test_what_a_request_asks_for_bounds_what_is_looked_up(target: Target) -> None:
    drafter = _drafter(target, "dspine")
    engine = Engine(target, drafter, verify="full+lookup")
    plain = Engine(target).generate(PROMPTS, GREEDY)
    found = engine.generate(PROMPTS, GREEDY.model_copy(update={"verify": 2}))
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    assert _longest(found) == 2
    with pytest.raises(RequestError, match="verify"):
        engine.add(PROMPTS[0], SamplingParams(verify="full+lookup"))


def test_nothing_is_looked_up_beyond_the_cap(target: Target) -> None:
    drafter = _drafter(target, "dspine")
    for cap in (1, 2, 3, 34, 36, 38, 40):  # this answer repeats itself from its twentieth token on
        params = SamplingParams(max_new_tokens=cap, ignore_eos=True)
        plain = Engine(target).generate([PROMPTS[3]], params)
        for verify in ("full+lookup", "tree:4+lookup"):
            (found,) = Engine(target, drafter, verify=verify).generate([PROMPTS[3]], params)
            assert found.token_ids == plain[0].token_ids
            assert sum(record.accepted + 1 for record in found.rounds) == cap - 1  # no round knew too much
            assert cap < 34 or any(record.looked_up for record in found.rounds)


@pytest.mark.parametrize("verify", ["full+lookup", "2+lookup"])
def test_rows_leave_the_drafters_range_with_the_same_output(target: Target, verify: str) -> None:
    """The oracle is never shown what lies beyond its positions."""
    plain = Engine(target).generate(PROMPTS, GREEDY)
    for positions in range(40, 72, 5):
        drafter = _oracle(target, positions)
        with pytest.warns(RuntimeWarning, match="goes beyond"):
            found = Engine(target, drafter, max_batch=4, verify=verify).generate(PROMPTS, GREEDY)
        assert [outcome(c) for c in found] == [outcome(c) for c in plain]


def _oracle(target: Target, positions: int) -> OracleDrafter:
    drafter = OracleDrafter(target, 5, positions)
    for prompt, answer in zip(PROMPTS, Engine(target).generate(PROMPTS, _longer(GREEDY)), strict=True):
        drafter.learn(prompt, answer.token_ids, (2, 0, 1))
    return drafter


@pytest.mark.parametrize("rollback", ["snapshot", "replay"])
def test_a_target_with_states_goes_back_to_where_a_repetition_ended(rollback: str) -> None:
    hybrid = repeating_target(hybrid_model("qwen3_5", dtype=torch.float64), rollback=rollback)
    plain = Engine(hybrid).generate(PROMPTS, GREEDY)
    found = Engine(hybrid, max_batch=3, verify="full+lookup:2").generate(PROMPTS, GREEDY)
    assert [outcome(c) for c in found] == [outcome(c) for c in plain]
    assert _longest(found) > 10
    assert _failed(found, 2)


def test_an_interrupted_round_is_run_again(target: Target) -> None:
    drafter = OracleDrafter(target, 5)
    plain = Engine(target).generate(PROMPTS, GREEDY)
    for prompt, answer in zip(PROMPTS, Engine(target).generate(PROMPTS, _longer(GREEDY)), strict=True):
        drafter.learn(prompt, answer.token_ids, (2, 0))

    def stop(call: int) -> None:
        if call % 3 == 2:
            raise KeyboardInterrupt

    drafter.before_verify = stop
    engine = Engine(target, drafter, max_batch=3, verify="full+lookup")
    numbers = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    ended = {}
    while engine.pending:
        try:
            ended |= {u.request_id: u.completion for u in engine.step() if u.completion is not None}
        except KeyboardInterrupt:
            continue
    assert [outcome(ended[number]) for number in numbers] == [outcome(c) for c in plain]


def _longer(params: SamplingParams) -> SamplingParams:
    return params.model_copy(update={"max_new_tokens": 80})
