"""Answers in OpenAI's form: whole ones, and the chunks of streamed ones.

One rule: nothing is counted twice. Usage comes from the completions' own records, after the cut; a candidate is
accepted if it reached the output and rejected if it was verified in vain, so `completion_tokens` is what was
returned and contains no rejected one. Ids, where they are asked for, stand where vLLM has them: a choice's own beside
its text, those of the prompt in a chat's body, and in a completion's choice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Protocol

from dspine.decode.records import Completion, Logprob, Update
from dspine.serve.http.requests import Asked
from dspine.serve.http.service import Service
from dspine.serve.http.thread import Job

Json = dict[str, Any]


def usage_of(answers: Sequence[Completion], prompts: int = 1) -> Json:
    """Tokens of all choices.

    Args:
        answers: by choice; those of one prompt side by side.
        prompts: how many prompts there were: each counts once, however many choices it has.
    """
    asked = sum(answer.usage.prompt_tokens for answer in answers[:: len(answers) // prompts])
    given = sum(answer.usage.completion_tokens for answer in answers)
    rounds = [record for answer in answers for record in answer.rounds]
    return {
        "prompt_tokens": asked,
        "completion_tokens": given,
        "total_tokens": asked + given,
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(record.landed for record in rounds),
            "rejected_prediction_tokens": sum(record.verified - record.landed for record in rounds),
            "rounds": len(rounds),  # our own: tau = (completion_tokens - choices) / rounds
        },
    }


class Form(Protocol):
    """How one kind of answer is written."""

    def whole(self, answers: Sequence[Completion]) -> Json:
        """The body of a finished answer."""

    def opening(self, choices: int) -> list[Json]:
        """Chunks before the first token."""

    def chunk(self, index: int, update: Update) -> Json | None:
        """The chunk of one step of one choice; None if it has nothing to tell."""

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        """Chunks after the last token."""


class _Head:
    """The fields that every body of one answer shares."""

    def __init__(self, service: Service, kind: str, prefix: str, asked: Asked, prompts: int) -> None:
        self._fields = {
            "id": f"{prefix}-{token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": service.fingerprint,
        }
        self._chunks = asked.wants_usage
        self.with_ids = asked.return_token_ids
        self.prompts = prompts

    def body(self, choices: list[Json], **fields: Any) -> Json:
        return {**self._fields, "choices": choices, **fields}

    def chunk(self, choice: Json, **fields: Any) -> Json:
        return self.body([choice], **fields, **({"usage": None} if self._chunks else {}))

    def ids(self, tokens: Sequence[int]) -> Json:
        """Ids of a choice, where they are asked for."""
        return {"token_ids": list(tokens)} if self.with_ids else {}

    def tells(self, update: Update) -> bool:
        """Whether a step has anything to say to the client."""
        return bool(update.text or update.logprobs or update.finished or (self.with_ids and update.token_ids))

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        return [self.body([], usage=usage_of(answers, self.prompts))] if self._chunks else []


class ChatForm:
    """Chat completions."""

    def __init__(self, service: Service, asked: Asked, jobs: Sequence[Job]) -> None:
        kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        self._head = _Head(service, kind, "chatcmpl", asked, 1)
        self._prompt = {"prompt_token_ids": list(jobs[0].prompt)} if asked.return_token_ids else {}
        self._vocabulary = service.vocabulary

    def whole(self, answers: Sequence[Completion]) -> Json:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
                **self._head.ids(answer.token_ids),
            }
            for index, answer in enumerate(answers)
        ]
        return self._head.body(choices, usage=usage_of(answers, self._head.prompts), **self._prompt)

    def opening(self, choices: int) -> list[Json]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._head.chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, **self._prompt)
            for index in range(choices)
        ]

    def chunk(self, index: int, update: Update) -> Json | None:
        if not self._head.tells(update):
            return None
        reason = update.completion.finish_reason if update.completion is not None else None
        return self._head.chunk(
            {
                "index": index,
                "delta": {"content": update.text} if update.text else {},
                "logprobs": self._logprobs(update.logprobs),
                "finish_reason": reason,
                **self._head.ids(update.token_ids),
            }
        )

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        return self._head.closing(answers)

    def _logprobs(self, logprobs: Sequence[Logprob] | None) -> Json | None:
        if logprobs is None:
            return None
        content = [
            self._entry(each.token, each.logprob) | {"top_logprobs": [self._entry(*likely) for likely in each.top]}
            for each in logprobs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Json:
        return {
            "token": self._vocabulary.name(token),
            "logprob": logprob,
            "bytes": self._vocabulary.bytes_of(token),
        }


class CompletionForm:
    """Completions, OpenAI's older interface."""

    def __init__(self, service: Service, asked: Asked, jobs: Sequence[Job]) -> None:
        self._head = _Head(service, "text_completion", "cmpl", asked, len(jobs) // asked.n)
        self._prompts = {index: list(job.prompt) for index, job in enumerate(jobs)}  # of choices not begun
        self._vocabulary = service.vocabulary
        self._offsets: dict[int, int] = {}  # characters of a choice's tokens so far

    def whole(self, answers: Sequence[Completion]) -> Json:
        choices = [self._choice(index, answer, answer.finish_reason) for index, answer in enumerate(answers)]
        return self._head.body(choices, usage=usage_of(answers, self._head.prompts))

    def opening(self, choices: int) -> list[Json]:
        return []

    def chunk(self, index: int, update: Update) -> Json | None:
        if not self._head.tells(update):
            return None
        reason = update.completion.finish_reason if update.completion is not None else None
        return self._head.chunk(self._choice(index, update, reason))

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        return self._head.closing(answers)

    def _choice(self, index: int, said: Completion | Update, reason: str | None) -> Json:
        told = None if said.logprobs is None else self._logprobs(index, said.logprobs)
        begun = {"prompt_token_ids": self._prompts.pop(index)} if self._head.with_ids and index in self._prompts else {}
        ids = self._head.ids(said.token_ids)
        return {"index": index, "text": said.text, "logprobs": told, "finish_reason": reason, **begun, **ids}

    def _logprobs(self, index: int, logprobs: Sequence[Logprob]) -> Json:
        name = self._vocabulary.name
        offsets = [self._offsets.get(index, 0)]
        for each in logprobs:
            offsets.append(offsets[-1] + len(name(each.token)))
        self._offsets[index] = offsets.pop()
        return {
            "tokens": [name(each.token) for each in logprobs],
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [{name(token): value for token, value in each.top} for each in logprobs],
            "text_offset": offsets,
        }
