"""Answers from a server of OpenAI's completions interface, as SGLang and vLLM have it.

One rule: what is asked is ids, rendered here by the target's own template, and every sampling parameter is said, so
that no default of the server's takes part. A passing fault (a lost connection, a busy or failing server) is waited out;
a lasting one ends the run after the answers that were under way have come in.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from dspine.decode.sampling import SamplingParams
from dspine.endpoint import Endpoint
from dspine.errors import ConfigError, DataError, DspineError, RequestError
from dspine.target.model import Target
from dspine.train.questions import Question
from dspine.train.reply import Passing, Reply, read_reply

PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # states of a server that may be over soon
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before a second try, and before any
SEEDS = 2**31  # servers keep a seed in 32 bits
SENT = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
# Extensions of SGLang's and vLLM's that leave the law alone: a server that refuses one by name is asked without it.
EXTENSIONS = {"skip_special_tokens": False, "return_token_ids": True}
UNSENT = ("logit_bias", "min_new_tokens")


@dataclass(frozen=True)
class Server:
    """Where a server is and how it is asked.

    url: of the interface, "http://host:port/v1".
    model: the name that the server knows the target by.
    concurrency: requests under way at once.
    retries: further tries of a request after passing faults.
    timeout: seconds until an answer must be there.
    api_key_env: environment variable that holds the key, where one is asked for.
    """

    url: str
    model: str
    concurrency: int = 64
    retries: int = 8
    timeout: float = 600.0
    api_key_env: str | None = None
    first_wait: float = field(default=FIRST_WAIT, repr=False)


def served_answers(
    server: Server, target: Target, questions: Sequence[Question], params: SamplingParams
) -> Generator[tuple[Question, Reply]]:
    """Yield answers as they come in; a server that nothing is asked of need not be there.

    Args:
        target: whose tokenizer makes text into ids where the server gives text alone.
        params: of all rows, each with the seed that its id gives it.

    Raises:
        DataError: no server, one without the model, or one that refuses, fails for longer than the retries last, or
            answers nonsense.
        ConfigError: the variable that should hold the key is not set.
    """
    if questions:
        yield from _Asking(server, target).answers(questions, params)


class _Asking:
    """Requests to one server that was found to have the model."""

    def __init__(self, server: Server, target: Target) -> None:
        self.server, self.target = server, target
        self.endpoint = Endpoint(server.url, server.model, _key(server), server.timeout)
        self.extensions: dict[str, bool] = dict(EXTENSIONS)
        self.limit = min(target.context_limit, self._served_length() or target.context_limit)

    def answers(self, questions: Sequence[Question], params: SamplingParams) -> Generator[tuple[Question, Reply]]:
        waiting, live = deque(questions), dict[asyncio.Task[Reply], Question]()
        fault: DspineError | None = None
        with asyncio.Runner() as runner:
            client = self.endpoint.client(self.server.concurrency)
            try:
                while live or (waiting and fault is None):
                    while waiting and fault is None and len(live) < self.server.concurrency:
                        question = waiting.popleft()
                        asking = self._ask(client, question, params.keyed(question.id))
                        live[runner.get_loop().create_task(asking)] = question
                    for task in runner.run(_first(live)):
                        question = live.pop(task)
                        try:
                            reply = task.result()
                        except DspineError as error:
                            fault = fault or error
                        else:
                            yield question, reply
                if fault is not None:
                    raise fault
            finally:
                runner.run(_leave(client, live))

    def _served_length(self) -> int | None:
        """Tokens of prompt and answer that the server takes, where it says so; checks that it has the model."""
        url, model = self.server.url, self.server.model
        start = "Start it first; the address ends in /v1, as in http://localhost:30000/v1."
        try:
            response = httpx.get(self.endpoint.at("models"), timeout=30.0, headers=self.endpoint.headers)
            response.raise_for_status()
            served = {str(entry["id"]): entry.get("max_model_len") for entry in response.json()["data"]}
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DataError(f"no model server answers at {url}: {error}", start) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.endpoint.at('models')} is no list of models: {error}", start) from error
        if model not in served:
            raise DataError(f"{url} does not serve {model}", f"It serves: {', '.join(served) or 'nothing'}.")
        length = served[model]
        return length if isinstance(length, int) else None

    def _body(self, question: Question, params: SamplingParams) -> dict[str, Any]:
        room = self.limit - len(question.prompt_ids)
        if room < 1:
            raise DataError(
                f"the prompt of {question.id!r} has {len(question.prompt_ids)} tokens; {self.server.url} takes "
                f"{self.limit}",
                "Serve it with a longer context, or lower max_prompt_tokens.",
            )
        seed = {} if params.seed is None else {"seed": params.seed % SEEDS}
        return {
            "model": self.server.model,
            "prompt": question.prompt_ids,
            "max_tokens": min(params.max_new_tokens, room),
            **{name: getattr(params, name) for name in SENT},
            "top_k": params.top_k or self.target.vocab_size,  # "off" is 0 to some servers and -1 to others
            **seed,
        }

    async def _ask(self, client: httpx.AsyncClient, question: Question, params: SamplingParams) -> Reply:
        body = self._body(question, params)
        for tried in range(self.server.retries + 1):
            try:
                return read_reply(await self._post(client, body), self.target)
            except Passing as fault:
                if tried == self.server.retries:
                    raise DataError(
                        f"{self.server.url} failed {tried + 1} times on {question.id!r}, last: {fault}",
                        "What was answered is in the file: run the same command again once the server is well.",
                    ) from fault
                await asyncio.sleep(self._pause(tried, fault.after))
        raise AssertionError("unreachable")

    def _pause(self, tried: int, asked: float | None) -> float:
        """Seconds to wait: doubling from try to try, and not the same for all requests; at least what was asked."""
        longest = min(self.server.first_wait * 2.0**tried, LONGEST_WAIT)
        drawn = longest * (0.5 + random.random() / 2)
        return max(drawn, min(asked or 0.0, LONGEST_WAIT))

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> Any:
        sent = dict(self.extensions)
        try:
            response = await client.post(self.endpoint.at("completions"), json=body | sent)
        except httpx.TransportError as error:
            raise Passing(str(error) or type(error).__name__) from error
        if response.status_code in PASSING:
            raise Passing(f"HTTP {response.status_code}", _seconds(response.headers.get("Retry-After")))
        if refused := {name for name in sent if response.is_error and name in response.text}:
            self.extensions = {name: value for name, value in self.extensions.items() if name not in refused}
            return await self._post(client, body)
        if response.is_error:
            said = " ".join(response.text.split())[:300]
            raise DataError(f"{self.server.url} refuses with HTTP {response.status_code}: {said}")
        try:
            return response.json()
        except ValueError as error:
            raise Passing(f"an answer that is not JSON: {error}") from error


def _key(server: Server) -> str | None:
    """The key that the server is shown, from the variable that holds it."""
    name = server.api_key_env
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise ConfigError(f"the environment variable {name} is not set", f"It should hold {server.url}'s key.")
    return key


def refuse_unsent(params: SamplingParams) -> None:
    """Refuse what a server cannot be trusted to honour.

    Raises:
        RequestError: naming it.
    """
    fields = type(params).model_fields
    changed = [name for name in UNSENT if getattr(params, name) != fields[name].get_default(call_default_factory=True)]
    if changed:
        raise RequestError(
            f"a server is not asked with {', '.join(changed)}", "Leave it out, or answer without a server."
        )


async def _first(live: dict[asyncio.Task[Reply], Question]) -> list[asyncio.Task[Reply]]:
    """Wait for the next answers; in the order in which they were asked."""
    done, _ = await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
    return [task for task in live if task in done]


async def _leave(client: httpx.AsyncClient, live: dict[asyncio.Task[Reply], Question]) -> None:
    """Drop what is under way."""
    for task in live:
        task.cancel()
    await asyncio.gather(*live, return_exceptions=True)
    await client.aclose()


def _seconds(header: str | None) -> float | None:
    """The wait of a Retry-After header; a date, which servers of models do not give, says nothing to us."""
    try:
        return float(header) if header else None
    except ValueError:
        return None
