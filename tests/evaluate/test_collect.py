"""Measured answers are the engine's own, come once each, and do not depend on where a run was stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import DataError, RequestError
from dspine.evaluate.answers import AnswerFile, prompt_digest, read_answers
from dspine.evaluate.collect import Question, collect

GREEDY = SamplingParams(max_new_tokens=9)
SAMPLED = SamplingParams(max_new_tokens=9, temperature=1.0, seed=3)
QUESTIONS = [Question(f"{'ab'[i % 2]}/{i}", "ab"[i % 2], [10 + i] * (3 + i)) for i in range(5)]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def engine(target):
    return Engine(target, tiny_drafter(target, lively=True), max_batch=3)


def run(engine, path, params=GREEDY, questions=QUESTIONS, stop_after=None):
    with AnswerFile(path, {"temperature": params.temperature}) as file:
        made = []
        for answer in collect(engine, questions, params, file):
            made.append(answer.id)
            if len(made) == stop_after:
                break
    return made


def test_answers_are_the_engines_own_with_their_rounds(target, engine, tmp_path):
    run(engine, tmp_path / "a.jsonl")
    _, answers = read_answers(tmp_path / "a.jsonl")
    for question in QUESTIONS:
        [expected] = engine.generate([question.prompt_ids], GREEDY)
        found = answers[question.id]
        assert (found.tokens, found.finish) == (expected.token_ids, expected.finish_reason)
        assert found.rounds == expected.rounds
        assert (found.task, found.seed) == (question.task, None)
        assert found.prompt == prompt_digest(question.prompt_ids)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_a_run_that_was_stopped_goes_on_to_the_same_answers(engine, tmp_path, params):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    assert sorted(run(engine, whole, params)) == sorted(question.id for question in QUESTIONS)
    first = run(engine, parts, params, stop_after=2)
    assert engine.pending == 0, "what was not answered is aborted"
    second = run(engine, parts, params, questions=QUESTIONS[::-1])
    assert sorted(first + second) == sorted(question.id for question in QUESTIONS)
    assert run(engine, parts, params) == []
    assert read_answers(parts) == read_answers(whole)


def test_each_sampled_request_has_its_own_seed(engine, tmp_path):
    run(engine, tmp_path / "a.jsonl", SAMPLED)
    run(engine, tmp_path / "b.jsonl", SAMPLED.model_copy(update={"seed": 4}))
    seeds = [answer.seed for name in "ab" for answer in read_answers(tmp_path / f"{name}.jsonl")[1].values()]
    assert len(set(seeds)) == 2 * len(QUESTIONS)
    assert None not in seeds


def test_a_prompt_that_has_changed_is_refused(engine, tmp_path):
    run(engine, tmp_path / "a.jsonl", questions=QUESTIONS[:1])
    changed = replace(QUESTIONS[0], prompt_ids=[1, 2])
    with pytest.raises(DataError, match="holds an answer to 'a/0' with another prompt"):
        run(engine, tmp_path / "a.jsonl", questions=[changed])


def test_two_questions_of_one_id_are_refused(engine, tmp_path):
    with pytest.raises(DataError, match="two questions have the id 'a/0'"):
        run(engine, tmp_path / "a.jsonl", questions=[QUESTIONS[0], *QUESTIONS])


def test_a_prompt_that_cannot_be_honoured_stops_it_before_anything_runs(engine, tmp_path):
    with pytest.raises(RequestError, match="c: the prompt is empty"):
        run(engine, tmp_path / "a.jsonl", questions=[*QUESTIONS, Question("c", "c", [])])
    assert engine.pending == 0
    assert read_answers(tmp_path / "a.jsonl")[1] == {}


def test_an_error_of_a_request_is_raised_and_not_written(engine, tmp_path):
    def broken(ids, scores):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run(engine, tmp_path / "a.jsonl", GREEDY.model_copy(update={"processors": (broken,)}))
    assert engine.pending == 0
    assert read_answers(tmp_path / "a.jsonl")[1] == {}
