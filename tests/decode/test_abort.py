"""Requests end when they are told to, at any time, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from tests.support.oracle import OracleDrafter, oracle
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.records import Update
from dspine.decode.sampling import SamplingParams
from dspine.target.model import Target

PROMPTS = [tuple(b"one"), tuple(b"two and more"), tuple(b"three!")]
LONG = SamplingParams(max_new_tokens=40)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=3)


@pytest.fixture
def drafter(target: Target) -> OracleDrafter:
    return oracle(target, PROMPTS, [(3, 0), (1,), (0, 6)])


def answer(drafter: OracleDrafter, index: int, length: int = 40) -> list[int]:
    return drafter.known[index].tokens[len(PROMPTS[index]) :][:length]


def finish(engine: Engine) -> dict[int, Update]:
    ended = {}
    while engine.pending:
        ended |= {u.request_id: u for u in engine.step() if u.finished}
    return ended


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_abort_between_rounds(target: Target, drafter: OracleDrafter, steps: int, which: int) -> None:
    engine = Engine(target, drafter, max_batch=3)
    numbers = [engine.add(p, LONG) for p in PROMPTS]
    for _ in range(steps):
        engine.step()
    cut = engine.abort(numbers[which])
    assert cut is not None
    assert cut.finish_reason == "abort"
    assert list(cut.token_ids) == answer(drafter, which, len(cut.token_ids))
    assert sum(r.kept for r in cut.rounds) + (steps > 0) == len(cut.token_ids)
    assert engine.abort(numbers[which]) is None
    numbers.append(engine.add(PROMPTS[which], LONG))  # takes the free row
    ended = finish(engine)
    assert numbers[which] not in ended
    for number, prompt in zip(numbers, [0, 1, 2, which], strict=True):
        if number != numbers[which]:
            assert list(ended[number].completion.token_ids) == answer(drafter, prompt)


@pytest.mark.parametrize("call", [1, 3])
def test_abort_between_draft_and_verify(target: Target, drafter: OracleDrafter, call: int) -> None:
    engine = Engine(target, drafter)
    numbers = [engine.add(p, LONG) for p in PROMPTS]
    cut = []
    drafter.before_verify = lambda now: cut.append(engine.abort(numbers[1])) if now == call else None
    ended = finish(engine)
    assert cut[0] is not None
    assert list(cut[0].token_ids) == answer(drafter, 1, 1 + 2 * (call - 1))
    assert [list(ended[numbers[i]].completion.token_ids) for i in (0, 2)] == [answer(drafter, 0), answer(drafter, 2)]
    assert numbers[1] not in ended


def test_abort_of_a_request_that_waits(target: Target, drafter: OracleDrafter) -> None:
    engine = Engine(target, drafter, max_batch=1)
    numbers = [engine.add(p, LONG) for p in PROMPTS]
    engine.step()
    cut = engine.abort(numbers[1])
    assert cut is not None
    assert (cut.token_ids, cut.text, cut.rounds, cut.finish_reason) == ((), "", (), "abort")
    assert list(finish(engine)) == [numbers[0], numbers[2]]


def test_the_row_is_free_at_once(target: Target, drafter: OracleDrafter) -> None:
    engine = Engine(target, drafter, max_batch=1)
    first, second = (engine.add(p, LONG) for p in PROMPTS[:2])
    engine.step()
    engine.abort(first)
    assert [u.request_id for u in engine.step()] == [second]


def test_nothing_is_aborted_twice_or_unknown(target: Target) -> None:
    engine = Engine(target)
    number = engine.add(PROMPTS[0], SamplingParams(max_new_tokens=1))
    assert engine.abort(number + 1) is None
    engine.step()
    assert engine.abort(number) is None


def test_a_stream_that_is_closed_ends_its_request(target: Target, drafter: OracleDrafter) -> None:
    engine = Engine(target, drafter)
    other = engine.add(PROMPTS[1], LONG)
    stream = engine.stream(PROMPTS[0], LONG)
    next(stream)
    assert engine.pending == 2
    stream.close()
    assert engine.pending == 1
    assert list(finish(engine)[other].completion.token_ids) == answer(drafter, 1)


def test_a_stream_that_was_never_started_asks_for_nothing(target: Target) -> None:
    engine = Engine(target)
    engine.stream(PROMPTS[0])
    assert engine.pending == 0


def test_an_aborted_stream_ends_with_what_there_is(target: Target, drafter: OracleDrafter) -> None:
    engine = Engine(target, drafter)
    stream = engine.stream(PROMPTS[2], LONG)
    updates = [next(stream), next(stream)]
    engine.abort(updates[0].request_id)
    updates += stream
    assert updates[-1].completion.finish_reason == "abort"
    tokens = [token for update in updates for token in update.token_ids]
    assert tokens == list(updates[-1].completion.token_ids) == answer(drafter, 2, len(tokens))
    assert "".join(u.text for u in updates) == updates[-1].completion.text


def test_an_interrupted_generate_leaves_nothing_running(
    target: Target, drafter: OracleDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(target, drafter)
    other = engine.add(PROMPTS[1], LONG)

    def interrupt(now: int) -> None:
        if now == 3:
            raise KeyboardInterrupt

    drafter.before_verify = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPTS[0], PROMPTS[2]], LONG)
    assert engine.pending == 1
    assert list(finish(engine)[other].completion.token_ids) == answer(drafter, 1)
