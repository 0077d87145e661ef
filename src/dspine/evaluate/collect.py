"""Answering the questions of a measurement, a batch at a time.

One rule: no answer is lost and none is made twice. An answer is on disk before the next round begins, and depends on
its prompt, the settings and its own seed alone, so that a run that was stopped goes on with what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.errors import DataError, RequestError
from dspine.evaluate.answers import AnswerFile, AnswerRecord, prompt_digest


@dataclass(frozen=True)
class Question:
    """A prompt of a task, as token ids."""

    id: str
    task: str
    prompt_ids: list[int]


def collect(
    engine: Engine, questions: Sequence[Question], params: SamplingParams, file: AnswerFile
) -> Iterator[AnswerRecord]:
    """Answer what the file does not hold yet, and yield each answer once it is in the file.

    Args:
        engine: answers, as many at once as it was made for.
        params: of every request; where they are sampled, `params.seed` (None: 0) and a question's id make its seed.

    Raises:
        DataError: a question was answered before with another prompt, two have one id, or the file cannot be written.
        RequestError: a prompt or parameters that cannot be honoured; nothing is run then.
    """
    live: dict[int, Question] = {}
    try:
        for question in _open_questions(questions, file):
            try:
                number = engine.add(question.prompt_ids, params.keyed(question.id))
            except RequestError as error:
                raise RequestError(f"{question.id}: {error.what}", error.fix) from error
            live[number] = question
        while live:
            for update in engine.step():
                if update.error is not None:  # such a request has no answer: writing it would spoil the file
                    raise update.error
                if update.completion is not None:
                    answer = _record(live.pop(update.request_id), update.completion)
                    file.append(answer)
                    yield answer
    finally:
        for number in live:
            engine.abort(number)


def _open_questions(questions: Sequence[Question], file: AnswerFile) -> list[Question]:
    names = [question.id for question in questions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two questions have the id {twice!r}", "Give each an id of its own.")
    for question in questions:
        known = file.answers.get(question.id)
        if known is not None and known.prompt != prompt_digest(question.prompt_ids):
            raise DataError(
                f"{file.path} holds an answer to {question.id!r} with another prompt",
                "The prompts' wording or rows have changed: give this measurement another file.",
            )
    return [question for question in questions if question.id not in file.answers]


def _record(question: Question, answer: Completion) -> AnswerRecord:
    return AnswerRecord(
        id=question.id,
        task=question.task,
        prompt=prompt_digest(question.prompt_ids),
        tokens=answer.token_ids,
        text=answer.text,
        finish=answer.finish_reason,
        rounds=answer.rounds,
        seed=answer.seed,
    )
