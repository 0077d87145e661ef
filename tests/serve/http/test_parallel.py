"""32 clients at once, some of which go away: nothing is lost, nothing mixed up, nothing left behind."""

from __future__ import annotations

import asyncio
import random
import time

import httpx
import openai
import pytest
from tests.serve.http.conftest import Running

from dspine.decode.sampling import SamplingParams
from dspine.target.chat import render
from dspine.train.nano.corpus import prompts

CLIENTS = 32
LENGTH = 24


def settled(server: Running) -> None:
    """Wait until the engine has put everything away."""
    for _ in range(600):
        text = httpx.get(f"{server.url}/metrics").text
        if "dspine_running 0.0" in text and "dspine_waiting 0.0" in text and server.service.gate.inside == 0:
            return
        time.sleep(0.1)
    pytest.fail("answers are still in progress though nobody waits for them")


def test_32_clients_with_random_aborts(server, make_engine, target):
    chance = random.Random(0)
    asked = []
    for number, row in zip(range(CLIENTS), prompts(1, CLIENTS), strict=True):
        sampled = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0}
        asked.append((row["messages"], sampled, number % 3 == 0, chance.randrange(1, 6) if number % 4 == 3 else None))
    params = [SamplingParams(max_new_tokens=LENGTH, **sampled) for _, sampled, _, _ in asked]
    own = make_engine(max_batch=8).generate([render(target, list(messages)) for messages, *_ in asked], params)

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        messages, sampled, whole, leaves = asked[number]
        common = {"model": "nano", "messages": list(messages), "max_tokens": LENGTH, **sampled}
        if whole and leaves is None:
            answer = await client.chat.completions.create(**common)
            return answer.choices[0].message.content
        text = ""
        async with await client.chat.completions.create(**common, stream=True) as stream:
            async for count, chunk in aenumerate(stream):
                text += chunk.choices[0].delta.content or ""
                if count == leaves:
                    break
        return text

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(CLIENTS)))

    given = asyncio.run(all_at_once())
    for (_, _, _, leaves), text, wanted in zip(asked, given, own, strict=True):
        assert text == wanted.text if leaves is None else wanted.text.startswith(text)
    assert len({wanted.text for wanted in own}) > CLIENTS // 2  # answers that differ, so that a mix-up would show
    settled(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_while_it_waits_frees_its_place(server, stream):
    """Six answers for four slots, and nobody reads one of them."""
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Hello"}],
        "n": 6,
        "stream": stream,
        "max_tokens": 256,
        "ignore_eos": True,
    }
    before = aborted(server)
    url = f"{server.url}/v1/chat/completions"
    if stream:
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=httpx.Timeout(60, read=0.3))
    settled(server)
    assert aborted(server) == before + 6


def aborted(server: Running) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith('dspine_answers_total{reason="abort"}'))


async def aenumerate(items):
    count = 0
    async for item in items:
        yield count, item
        count += 1
