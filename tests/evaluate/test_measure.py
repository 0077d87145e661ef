"""A measurement: what it keeps, what it compares, what it scores, and that it goes on where it was stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import DataError
from dspine.evaluate.answers import read_answers
from dspine.evaluate.measure import Measurement, turn_id
from dspine.evaluate.prompts import TaskPrompt
from dspine.evaluate.sources import Asked, Source, task_prompts
from dspine.evaluate.tasks import find_task

GREEDY = SamplingParams(max_new_tokens=10)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def measurement(target, tmp_path):
    drafted = Engine(target, tiny_drafter(target, lively=True), max_batch=3)
    plain = Engine(target, max_batch=3)
    return Measurement(target, drafted, "d" * 64, "full", plain, tmp_path / "out")


def asked(name, count=3):
    task = find_task(name)
    return Asked(task, "samples", task_prompts(task, Source(), "report", count))


def test_greedy_answers_are_the_plain_ones_and_scored(measurement):
    math, chat = measurement.results([asked("gsm8k"), asked("arena_hard")], GREEDY)
    for result in (math, chat):
        assert (result.lossless.compared, result.lossless.identical, result.lossless.margins) == (3, 3, ())
        assert result.summary.requests == 3
    assert (math.accuracy.right, math.accuracy.scored, math.accuracy.how) == (0, 3, "match")
    assert math.plain_accuracy == math.accuracy
    assert chat.accuracy is None


def test_a_second_run_answers_nothing_anew(measurement, monkeypatch):
    first = measurement.results([asked("gsm8k")], GREEDY)
    monkeypatch.setattr(Engine, "step", None)
    assert measurement.results([asked("gsm8k")], GREEDY) == first


def test_sampled_answers_are_not_compared(measurement):
    [result] = measurement.results([asked("gsm8k")], SamplingParams(max_new_tokens=6, temperature=1.0, seed=0))
    assert result.lossless is None
    assert result.plain_accuracy is None
    assert result.summary.whole.rounds


def test_a_changed_answer_is_counted_with_its_margin(measurement, monkeypatch):
    measurement.results([asked("gsm8k")], GREEDY)
    path = measurement.out / f"{measurement.name('d' * 64, GREEDY)}.jsonl"
    _, answers = read_answers(path)
    first = next(iter(answers.values()))
    spoiled = (first.tokens[0], (first.tokens[1] + 1) % 50, *first.tokens[2:])
    text = path.read_text().replace(str(list(first.tokens)), str(list(spoiled)), 1)
    path.write_text(text)
    [result] = measurement.results([asked("gsm8k")], GREEDY)
    assert (result.lossless.compared, result.lossless.identical) == (3, 2)
    assert len(result.lossless.margins) == 1


def test_later_turns_follow_on_the_models_own_answer(measurement, target):
    both = replace(measurement, turns=2, out=measurement.out / "both")
    chat = asked("mt_bench", 2)
    [result] = both.results([chat], GREEDY)
    assert result.summary.requests == result.lossless.identical == 4
    _, answers = read_answers(both.out / f"{both.name('d' * 64, GREEDY)}.jsonl")
    prompt = chat.prompts[0]
    said = answers[prompt.id].text
    messages = [prompt.text, said, prompt.later[0]]
    roles = ("user", "assistant", "user")
    from dspine.evaluate.answers import prompt_digest
    from dspine.target.chat import render

    expected = render(target, [{"role": r, "content": c} for r, c in zip(roles, messages, strict=True)])
    assert answers[turn_id(prompt.id, 1)].prompt == prompt_digest(expected)


def test_code_is_run_only_where_that_was_asked_for(measurement, monkeypatch):
    ran = []
    monkeypatch.setattr("dspine.evaluate.accuracy.ends_well", lambda program: ran.append(program) or True)
    [result] = measurement.results([asked("humaneval", 2)], GREEDY)
    assert result.accuracy is None
    assert ran == []
    [result] = replace(measurement, execute_code=True).results([asked("humaneval", 2)], GREEDY)
    assert (result.accuracy.right, result.accuracy.how) == (2, "executed")
    assert len(ran) == 4, "drafted and plain"


def test_another_wording_is_not_mixed_in(measurement):
    chosen = asked("gsm8k", 2)
    measurement.results([chosen], GREEDY)
    other = replace(chosen, prompts=[TaskPrompt(p.id, p.text + "!", row=p.row) for p in chosen.prompts])
    with pytest.raises(DataError, match="another prompt"):
        measurement.results([other], GREEDY)
