"""Answers in OpenAI's form: whole ones, and the chunks of streamed ones.

One rule: nothing is counted twice. Usage comes from the completions' own records, after the cut; a candidate is
accepted if it reached the output and rejected if it was verified in vain, so `completion_tokens` is what was
returned and contains no rejected one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Protocol

from dspine.decode.records import Completion, Logprob, Update
from dspine.serve.http.requests import Asked
from dspine.serve.http.service import Service

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
            "rejected_prediction_tokens": sum(record.proposed - record.landed for record in rounds),
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
        self.prompts = prompts

    def body(self, choices: list[Json], **fields: Any) -> Json:
        return {**self._fields, "choices": choices, **fields}

    def chunk(self, choice: Json) -> Json:
        return self.body([choice], **({"usage": None} if self._chunks else {}))

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        return [self.body([], usage=usage_of(answers, self.prompts))] if self._chunks else []


class ChatForm:
    """Chat completions."""

    def __init__(self, service: Service, asked: Asked) -> None:
        kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        self._head = _Head(service, kind, "chatcmpl", asked, 1)
        self._vocabulary = service.vocabulary

    def whole(self, answers: Sequence[Completion]) -> Json:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        return self._head.body(choices, usage=usage_of(answers, self._head.prompts))

    def opening(self, choices: int) -> list[Json]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._head.chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})
            for index in range(choices)
        ]

    def chunk(self, index: int, update: Update) -> Json | None:
        reason = update.completion.finish_reason if update.completion is not None else None
        if not (update.text or update.logprobs or reason):
            return None
        return self._head.chunk(
            {
                "index": index,
                "delta": {"content": update.text} if update.text else {},
                "logprobs": self._logprobs(update.logprobs),
                "finish_reason": reason,
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

    def __init__(self, service: Service, asked: Asked, prompts: int) -> None:
        self._head = _Head(service, "text_completion", "cmpl", asked, prompts)
        self._vocabulary = service.vocabulary
        self._offsets: dict[int, int] = {}  # characters of a choice's tokens so far

    def whole(self, answers: Sequence[Completion]) -> Json:
        choices = [
            self._choice(index, answer.text, answer.logprobs, answer.finish_reason)
            for index, answer in enumerate(answers)
        ]
        return self._head.body(choices, usage=usage_of(answers, self._head.prompts))

    def opening(self, choices: int) -> list[Json]:
        return []

    def chunk(self, index: int, update: Update) -> Json | None:
        reason = update.completion.finish_reason if update.completion is not None else None
        if not (update.text or update.logprobs or reason):
            return None
        return self._head.chunk(self._choice(index, update.text, update.logprobs, reason))

    def closing(self, answers: Sequence[Completion]) -> list[Json]:
        return self._head.closing(answers)

    def _choice(self, index: int, text: str, logprobs: Sequence[Logprob] | None, reason: str | None) -> Json:
        told = None if logprobs is None else self._logprobs(index, logprobs)
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}

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
