"""Measuring a drafter: the prompts of tasks answered with it and without, each answer kept, and the figures of both.

One rule: every figure is computed from answers on disk. The same call goes on where it was stopped, and the plain
answers, which depend on no drafter, are made once for all.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from dspine import __version__
from dspine.decode.engine import Engine
from dspine.decode.policy import Verify
from dspine.decode.sampling import SamplingParams
from dspine.errors import DataError
from dspine.evaluate.accuracy import Accuracy, accuracy
from dspine.evaluate.answers import AnswerFile, AnswerRecord
from dspine.evaluate.collect import Question, collect
from dspine.evaluate.margin import first_margin
from dspine.evaluate.prompts import TaskPrompt, texts_digest
from dspine.evaluate.results import ACCEPTANCE, ResultFile, file_name
from dspine.evaluate.sources import Asked
from dspine.evaluate.summary import Summary, summarise
from dspine.progress import Meter
from dspine.target import Target
from dspine.target.chat import Message, render, template_digest


@dataclass(frozen=True)
class Lossless:
    """Whether drafting changed greedy answers.

    compared: answers that had the same prompt with the drafter and without.
    identical: those that are the same, token for token.
    margins: for the others, how far apart the target sees the two tokens that first differ, in logits; infinity where
        they are not its two likeliest.
    """

    compared: int
    identical: int
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """What was measured on a task.

    digest: of the first turns' texts.
    lossless: None if nothing was compared.
    accuracy, plain_accuracy: of the drafted and of the plain answers, where they could be scored.
    """

    task: str
    source: str
    digest: str
    summary: Summary
    lossless: Lossless | None
    accuracy: Accuracy | None
    plain_accuracy: Accuracy | None


@dataclass(frozen=True)
class Measurement:
    """The models, and where their answers are kept.

    drafter: digest of the drafter that `drafted` has.
    plain: an engine without a drafter, for the comparison; None: nothing is compared.
    turns: most user messages of a prompt to ask; later ones follow on the model's own answers.
    execute_code: run the code of answers, to score it.
    means: kernels and capture of both engines where they are forced, see `forced_means`.
    """

    target: Target
    drafted: Engine
    drafter: str
    verify: Verify
    plain: Engine | None
    out: Path
    turns: int = 1
    batch: int = 8
    execute_code: bool = False
    means: Mapping[str, str] = field(default_factory=dict)

    def results(self, tasks: Sequence[Asked], params: SamplingParams) -> list[Result]:
        """What was measured on each task; answers that are not on disk yet are made.

        Raises:
            DataError: answers of other settings or prompts lie there, or the folder cannot be written.
            RequestError: a prompt or parameters that cannot be honoured.
        """
        ours = self.answers(self.drafted, self.drafter, tasks, params)
        theirs = None
        if self.plain is not None and params.greedy:
            theirs = self.answers(self.plain, None, tasks, params)
        return [self._result(asked, ours, theirs) for asked in tasks]

    def settings(self, drafter: str | None, params: SamplingParams) -> dict[str, Any]:
        """What an answer depends on, beside its prompt."""
        return {
            "target": self.target.name,
            "head_digest": self.target.head_digest,
            "template_digest": template_digest(self.target),
            "thinking": False,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "device": self.target.device.type,
            "drafter": drafter,
            "verify": None if drafter is None else self.verify,
            **({} if drafter is None else self.target.brought_back),
            "temperature": params.temperature,
            "seed": params.seed,
            "max_new_tokens": params.max_new_tokens,
            **self.means,
        }

    def name(self, drafter: str | None, params: SamplingParams) -> str:
        """Of the files of these settings: one a drafter, number format, temperature and cap."""
        who = "plain" if drafter is None else drafter[:12]
        verify = "" if drafter is None or self.verify == "full" else f"-verify-{str(self.verify).replace(':', '-')}"
        dtype = str(self.target.dtype).removeprefix("torch.")
        way = self.target.rollback.asked
        back = "" if drafter is None or way == "auto" else f"-{way}"
        means = "".join(f"-{name}-{choice}" for name, choice in self.means.items())
        return file_name(f"{who}-{dtype}-t{params.temperature:g}-{params.max_new_tokens}{verify}{back}{means}")

    def result_file(self, tasks: Sequence[Asked], name: str, measured_on: Mapping[str, Any]) -> ResultFile:
        """The file that the results of tasks go into.

        Raises:
            DataError: it holds a result of one of them on other prompts.
        """
        file = ResultFile.beside(self.out, f"acceptance-{name}", ACCEPTANCE, measured_on)
        for asked in tasks:
            held, digest = file.lines.get(asked.task.name), texts_digest(asked.prompts)
            if held is not None and held["digest"] != digest:
                raise DataError(
                    f"{file.path} holds {asked.task.name} on other prompts: {held['source']} ({held['digest']}) → "
                    f"{asked.source} ({digest})",
                    "Give this measurement another folder (--out), or move the file away.",
                )
        return file

    def answers(
        self, engine: Engine, drafter: str | None, tasks: Sequence[Asked], params: SamplingParams
    ) -> dict[str, AnswerRecord]:
        """Answers by id, from the file of these settings or made now."""
        name = self.name(drafter, params)
        total = sum(min(self.turns, 1 + len(prompt.later)) for asked in tasks for prompt in asked.prompts)
        path = self.out / f"{name}.jsonl"
        with (
            AnswerFile(
                path, self.settings(drafter, params), about_machine(self.target) | {"batch": self.batch}
            ) as file,
            Meter(name, total, "tokens") as meter,
        ):
            done = tokens = 0
            for turn in range(self.turns):
                questions = self._questions(tasks, turn, file.answers)
                kept = sum(question.id in file.answers for question in questions)
                if kept:
                    meter.say(f"{path}: {kept} of {len(questions)} answers are there")
                done += kept
                for answer in collect(engine, questions, params, file):
                    tokens += len(answer.tokens)
                    done += 1
                    meter.update(done, tokens)
            return file.answers

    def _questions(self, tasks: Sequence[Asked], turn: int, answers: Mapping[str, AnswerRecord]) -> list[Question]:
        return [
            Question(turn_id(prompt.id, turn), asked.task.name, self._prompt_ids(prompt, turn, answers))
            for asked in tasks
            for prompt in asked.prompts
            if turn <= len(prompt.later)
        ]

    def _prompt_ids(self, prompt: TaskPrompt, turn: int, answers: Mapping[str, AnswerRecord]) -> list[int]:
        messages: list[Message] = []
        for number, text in enumerate((prompt.text, *prompt.later)[: turn + 1]):
            if number:
                said = answers[turn_id(prompt.id, number - 1)].text
                messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": text})
        return render(self.target, messages)

    def _result(
        self, asked: Asked, ours: Mapping[str, AnswerRecord], theirs: Mapping[str, AnswerRecord] | None
    ) -> Result:
        ids = [question.id for turn in range(self.turns) for question in self._questions([asked], turn, ours)]
        return Result(
            task=asked.task.name,
            source=asked.source,
            digest=texts_digest(asked.prompts),
            summary=summarise([ours[name] for name in ids]),
            lossless=None if theirs is None else self._lossless(asked, ours, theirs),
            accuracy=self._accuracy(asked, ours),
            plain_accuracy=None if theirs is None else self._accuracy(asked, theirs),
        )

    def _lossless(self, asked: Asked, ours: Mapping[str, AnswerRecord], theirs: Mapping[str, AnswerRecord]) -> Lossless:
        compared, margins = 0, []
        for turn in range(self.turns):
            for question in self._questions([asked], turn, ours):
                mine, other = ours[question.id], theirs[question.id]
                if mine.prompt != other.prompt:  # a later turn after answers that differed
                    continue
                compared += 1
                margin = first_margin(self.target, question.prompt_ids, mine.tokens, other.tokens)
                if margin is not None:
                    margins.append(margin)
        return Lossless(compared, compared - len(margins), tuple(margins))

    def _accuracy(self, asked: Asked, answers: Mapping[str, AnswerRecord]) -> Accuracy | None:
        answered = [(prompt.row, answers[prompt.id].text) for prompt in asked.prompts if prompt.row is not None]
        return accuracy(asked.task, answered, execute_code=self.execute_code)


def turn_id(name: str, turn: int) -> str:
    """The id of a prompt's turn, counted from 0: the first has the prompt's own."""
    return name if turn == 0 else f"{name}#{turn + 1}"


def about_machine(target: Target) -> dict[str, Any]:
    """Versions and machine: what a reader wants to know of a figure, beside its settings."""
    device = target.device
    return {
        "versions": {"dspine": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "processor": platform.processor() or platform.machine(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
    }
