"""The same load on a server of OpenAI's API (SGLang, vLLM, our own): streamed answers, timed by the client.

One rule: what the server does not say is not guessed. The number of tokens is the one that it reports at the end of a
stream, since a piece may hold several tokens. Source: OpenAI's chat completions with `stream_options.include_usage`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import httpx

from dspine.endpoint import Endpoint
from dspine.errors import DataError
from dspine.evaluate.served import Load, Served

_REMEDIES = {  # by status
    401: "Put the server's key into OPENAI_API_KEY.",
    404: "Give the address of the interface, which mostly ends in /v1, and the model by the name that it has there.",
    429: "The server has no room for so many requests at once: fewer of them (--concurrency), or a longer queue there.",
}


def serve_from(
    endpoint: Endpoint, texts: Sequence[str], *, max_new_tokens: int, temperature: float, concurrency: int
) -> Load:
    """Ask for answers to user messages (at least one), `concurrency` at a time.

    Raises:
        DataError: the server cannot be reached, refuses, or does not say how many tokens an answer has.
    """
    asked = {
        "model": endpoint.model,
        "max_tokens": max_new_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        return asyncio.run(_serve(endpoint, texts, asked, concurrency))
    except httpx.HTTPError as error:
        raise DataError(f"{endpoint.url}: {error or type(error).__name__}", "Is the server up?") from error


async def _serve(endpoint: Endpoint, texts: Sequence[str], asked: Mapping[str, Any], concurrency: int) -> Load:
    gate = asyncio.Semaphore(concurrency)
    async with endpoint.client(concurrency) as client:

        async def one(text: str) -> Served:
            async with gate:
                return await _answer(client, endpoint, {**asked, "messages": [{"role": "user", "content": text}]})

        start = perf_counter()
        tasks = [asyncio.create_task(one(text)) for text in texts]
        try:
            served = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return Load(perf_counter() - start, tuple(served))


async def _answer(client: httpx.AsyncClient, endpoint: Endpoint, body: Mapping[str, Any]) -> Served:
    sent = perf_counter()
    pieces: list[float] = []
    tokens: int | None = None
    async with client.stream("POST", endpoint.at("chat/completions"), json=body) as response:
        if response.status_code != 200:
            said = (await response.aread()).decode(errors="replace")[:300]
            raise DataError(
                f"{endpoint.url} answered {response.status_code}: {said}", _REMEDIES.get(response.status_code)
            )
        async for event in _events(response, endpoint):
            if _speaks(event):
                pieces.append(perf_counter() - sent)
            usage = event.get("usage")
            if isinstance(usage, dict):
                tokens = int(usage["completion_tokens"])
    if tokens is None:
        raise DataError(
            f"{endpoint.url} does not say how many tokens an answer has",
            "It must honour stream_options.include_usage, as SGLang and vLLM do.",
        )
    if not pieces:  # an answer of nothing but an end token
        pieces.append(perf_counter() - sent)
    return Served(tokens, tuple(pieces))


async def _events(response: httpx.Response, endpoint: Endpoint) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream of server-sent events."""
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        try:
            event = json.loads(data)
        except ValueError as error:
            raise DataError(f"{endpoint.url} sent no JSON: {data[:100]}") from error
        if "error" in event:
            raise DataError(f"{endpoint.url} broke off: {event['error']}")
        yield event


def _speaks(event: Mapping[str, Any]) -> bool:
    """Whether an event brings text, be it the answer or what the model thinks before."""
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return any(delta.get("content") or delta.get("reasoning_content") for delta in deltas)
