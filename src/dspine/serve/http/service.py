"""From a request to the engine's steps, and what becomes of it when its client goes away.

One rule: whoever opens a call closes it. Closing aborts what has not ended and gives the places at the gate back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dspine import __version__
from dspine.decode.records import Completion
from dspine.decode.vocabulary import Vocabulary
from dspine.serve.http.faults import refused
from dspine.serve.http.gate import Gate, Pass
from dspine.serve.http.limits import Limits
from dspine.serve.http.metrics import Metrics
from dspine.serve.http.requests import ChatRequest, CompletionRequest
from dspine.serve.http.thread import EngineThread, Job, Mail, Step, Ticket
from dspine.target.chat import refuse_broken, render
from dspine.target.model import Target


@dataclass
class Call:
    """The answers to one request, on their way.

    jobs: what was asked, one a choice, in the order of the choices.
    """

    jobs: Sequence[Job]
    thread: EngineThread
    claim: Pass
    mail: Mail = field(default_factory=asyncio.Queue)
    tickets: dict[int, Ticket] = field(default_factory=dict)  # of choices that have not ended
    ended: int = 0  # choices that were answered to their end

    async def step(self) -> tuple[int, Step] | None:
        """The next step of any choice, with its index; None when all have ended.

        Raises:
            Exception: what ended one of them; the call is to be closed then.
        """
        if not self.tickets:
            return None
        index, letter = await self.mail.get()
        if isinstance(letter, Exception):
            raise letter
        if letter.update.finished:
            del self.tickets[index]
            self.ended += 1
        return index, letter

    async def all(self) -> list[Completion]:
        """Every choice, whole."""
        found: dict[int, Completion] = {}
        while (step := await self.step()) is not None:
            if step[1].update.completion is not None:
                found[step[0]] = step[1].update.completion
        return [found[index] for index in range(len(self.jobs))]

    def close(self) -> None:
        """Abort what has not ended; doing so again does nothing."""
        for ticket in self.tickets.values():
            self.thread.abort(ticket)
        self.tickets.clear()
        self.claim.give_back(answered=self.ended == len(self.jobs))


@dataclass(frozen=True)
class Service:
    """What the routes have at hand.

    name: what clients call the model.
    measured_on: everything that an answer depends on beside the request, by name.
    thinking: whether the chat template is asked to let the model think.
    """

    target: Target
    thread: EngineThread
    gate: Gate
    limits: Limits
    metrics: Metrics
    vocabulary: Vocabulary
    name: str
    measured_on: Mapping[str, object]
    thinking: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """A short name of all that an answer depends on beside the request."""
        facts = "\n".join(f"{name}={self.measured_on[name]}" for name in sorted(self.measured_on))
        return "fp_" + hashlib.sha256(f"{__version__}\n{facts}".encode()).hexdigest()[:12]

    async def open(self, jobs: Sequence[Job]) -> Call:
        """Let a request in and hand its choices to the engine.

        Raises:
            ApiFault: the server is full or stopping.
            RequestError: what the engine refuses; none of the choices is worked on then.
        """
        call = Call(jobs, self.thread, self.gate.enter(len(jobs)))
        try:
            for index, job in enumerate(jobs):
                call.tickets[index] = await self.thread.submit(index, job, call.mail)
        except BaseException:
            call.close()
            raise
        return call

    async def chat_jobs(self, asked: ChatRequest) -> list[Job]:
        """The choices of a chat request.

        Raises:
            ApiFault, RequestError: what cannot be honoured.
        """
        self.check_name(asked.model)
        messages = [message.rendered() for message in asked.messages]
        prompt = await asyncio.to_thread(render, self.target, messages, thinking=self.thinking)
        return self._jobs(asked, [prompt])

    async def completion_jobs(self, asked: CompletionRequest) -> list[Job]:
        """The choices of a completion request, those of the first prompt first.

        Raises:
            ApiFault, RequestError: what cannot be honoured.
        """
        self.check_name(asked.model)
        prompts = asked.prompts
        if not prompts:
            raise refused("prompt is empty; give at least one", param="prompt")
        return self._jobs(asked, await asyncio.to_thread(lambda: [self._encode(each) for each in prompts]))

    def check_name(self, name: str) -> None:
        """Refuse a model that is not served here (404)."""
        if name != self.name:
            fault = refused(f"model {name} is not served here; this server has {self.name}", param="model")
            fault.status, fault.code = 404, "model_not_found"
            raise fault

    def room(self, prompt: Sequence[int], length: int | None, field: str) -> int:
        """How many new tokens an answer may have.

        Args:
            length: what the request asks for; None: as many as there are.
            field: where it says so.

        Raises:
            ApiFault: more than the context or the limits hold.
        """
        left = self.target.context_limit - len(prompt)
        if left < max(1, length or 1):
            raise refused(
                f"the context of {self.name} holds {self.target.context_limit} tokens: "
                f"{len(prompt)} of the prompt leave no room for {length or 1} more ({field})",
                code="context_length_exceeded",
                param=field if left > 0 else None,
            )
        if length is not None and length > self.limits.max_tokens:
            raise refused(f"{field} is {length}, and this server gives {self.limits.max_tokens} at most", param=field)
        return length or min(left, self.limits.max_tokens)

    def _jobs(self, asked: ChatRequest | CompletionRequest, prompts: Sequence[list[int]]) -> list[Job]:
        most = min(self.limits.choices, self.limits.open)
        if len(prompts) * asked.n > most:
            raise refused(f"{len(prompts) * asked.n} answers are asked for, and {most} are the most", param="n")
        jobs = []
        for prompt in prompts:
            room = self.room(prompt, asked.length, asked.length_field)
            if asked.min_tokens > room:
                raise refused(f"min_tokens is {asked.min_tokens}, and there are {room} at most", param="min_tokens")
            jobs += [Job(prompt, asked.params(choice, room, asked.top)) for choice in range(asked.n)]
        return jobs

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        refuse_broken(prompt)
        ids: list[int] = self.target.tokenizer.encode(prompt, verbose=False)
        return ids
