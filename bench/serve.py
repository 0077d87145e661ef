"""The built-in server under load: many clients at once, with the drafter and without, every answer checked.

    python bench/serve.py --target nano
    python bench/serve.py --target smollm2 --prompts PROMPTS.jsonl --max-tokens 128

Two servers run, one plain, and the load goes to one after the other in every repeat, so that a disturbance meets both.
Beforehand each request is answered alone: that is what every answer under load has to be, to the letter, and what
those that are broken off have to begin with. Half of the requests are greedy, half sampled with a seed. "lost" are
requests without a whole answer, "mixed" those with another one. Tokens are those returned to clients that stayed; times
to the first token run from the request to its first piece of text, waiting for a slot included. `--prompts` has lines
{"messages": [...]}; nano has prompts of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class Given:
    """What a client got: text, tokens by the server's count (None: it left), seconds to the first text and in all."""

    text: str
    tokens: int | None
    first: float
    seconds: float


@dataclass
class Load:
    """One repeat against one server."""

    answers: list[Given | None]  # None: no whole answer
    seconds: float

    def tokens_per_second(self) -> float:
        return sum(given.tokens or 0 for given in self.answers if given) / self.seconds

    def first(self, share: float) -> float:
        times = sorted(given.first for given in self.answers if given)
        return times[min(len(times) - 1, round(share * (len(times) - 1)))]


def main() -> None:
    asked = arguments()
    requests = make_requests(asked)
    with server(asked, []) as drafted, server(asked, ["--no-drafter"]) as plain:
        print(f"answering {len(requests)} requests alone", file=sys.stderr)
        alone = {url: asyncio.run(load(url, requests, 1, {})).answers for url in (drafted, plain)}
        leaving = who_leaves(len(requests), asked.abort)
        loads: dict[str, list[Load]] = {drafted: [], plain: []}
        for repeat in range(asked.repeats):
            for url, found in loads.items():
                print(f"repeat {repeat + 1} of {asked.repeats}: {url}", file=sys.stderr)
                found.append(asyncio.run(load(url, requests, asked.clients, leaving)))
        tau = metric(drafted, "dspine_tau")
    print(
        f"{asked.clients} clients, {asked.slots} slots, {len(requests)} requests of at most {asked.max_tokens} tokens,"
    )
    print(f"{len(leaving)} broken off; {asked.target}, tau {tau:.2f}; medians of {asked.repeats} interleaved repeats\n")
    print("| server | tokens/s | first token p50, s | p95, s | lost | mixed |\n|---|---|---|---|---|---|")
    faults = 0
    for name, url in (("drafted", drafted), ("plain", plain)):
        lost, mixed = check(loads[url], alone[url], leaving)
        faults += lost + mixed
        figures = [median(load.tokens_per_second() for load in loads[url])]
        figures += [median(load.first(share) for load in loads[url]) for share in (0.5, 0.95)]
        print(f"| {name} | {figures[0]:.1f} | {figures[1]:.3f} | {figures[2]:.3f} | {lost} | {mixed} |")
    pairs = zip(loads[drafted], loads[plain], strict=True)
    ratios = [one.tokens_per_second() / other.tokens_per_second() for one, other in pairs]
    print(f"\ndrafted / plain, tokens/s, repeat by repeat: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    sys.exit(1 if faults else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="nano")
    parser.add_argument("--prompts", type=Path, help="JSONL of {'messages': [...]}; needed unless the target is nano")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--abort", type=float, default=0.1, help="share of requests that are broken off")
    parser.add_argument("--dtype", help="of the target; default: the server's")
    parser.add_argument("--verify", help="of the drafted server; default: the server's")
    return parser.parse_args()


def make_requests(asked: argparse.Namespace) -> list[dict[str, Any]]:
    if asked.prompts:
        rows = [json.loads(line) for line in asked.prompts.read_text().splitlines() if line.strip()]
        conversations = [row["messages"] for row in rows]
    elif asked.target == "nano":
        from dspine.train.nano.corpus import prompts

        conversations = [row["messages"] for row in prompts(1, asked.requests)]
    else:
        sys.exit("--prompts is needed for this target")
    return [
        {
            "model": asked.target,
            "messages": conversations[number % len(conversations)],
            "max_tokens": asked.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}),
        }
        for number in range(asked.requests)
    ]


@contextmanager
def server(asked: argparse.Namespace, words: Sequence[str]) -> Iterator[str]:
    """`dspine serve` on a free port; yields the address of its API."""
    command = [sys.executable, "-m", "dspine", "serve", "--target", asked.target, "--port", "0", *words]
    command += ["--slots", str(asked.slots), "--queue", str(asked.clients)]
    command += ["--dtype", asked.dtype] if asked.dtype else []
    command += ["--verify", asked.verify] if asked.verify and not words else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            sys.exit("the server did not start; its message is above")
        try:
            yield url
        finally:
            process.terminate()


def who_leaves(count: int, share: float) -> dict[int, int]:
    """Which requests are broken off, and after how many pieces of text."""
    chance = random.Random(0)
    return {number: chance.randrange(1, 6) for number in range(count) if chance.random() < share}


async def load(url: str, requests: Sequence[dict[str, Any]], clients: int, leaving: dict[int, int]) -> Load:
    """All requests, `clients` of them at once, in their order."""
    answers: list[Given | None] = [None] * len(requests)
    waiting = iter(range(len(requests)))

    async def work(http: httpx.AsyncClient) -> None:
        for number in waiting:
            try:
                answers[number] = await ask(http, url, requests[number], leaving.get(number))
            except (httpx.HTTPError, ValueError) as error:
                print(f"request {number}: {error!r}", file=sys.stderr)

    async with httpx.AsyncClient(timeout=600, trust_env=False, limits=httpx.Limits(max_connections=clients)) as http:
        start = time.perf_counter()
        await asyncio.gather(*(work(http) for _ in range(clients)))
        return Load(answers, time.perf_counter() - start)


async def ask(http: httpx.AsyncClient, url: str, request: dict[str, Any], leave: int | None) -> Given:
    start = time.perf_counter()
    text, first, pieces, tokens = "", None, 0, None
    async with http.stream("POST", f"{url}/chat/completions", json=request) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                break
            if not line:
                continue
            told = json.loads(line.removeprefix("data: "))
            if "error" in told:
                raise ValueError(told["error"]["message"])
            if told["usage"]:
                tokens = told["usage"]["completion_tokens"]
                continue
            piece = told["choices"][0]["delta"].get("content") or ""
            if piece:
                first = first if first is not None else time.perf_counter() - start
                text, pieces = text + piece, pieces + 1
            if pieces == leave:
                break
        else:
            raise ValueError("the answer ended without its end")
    seconds = time.perf_counter() - start
    return Given(text, tokens, seconds if first is None else first, seconds)


def check(loads: Sequence[Load], alone: Sequence[Given | None], leaving: dict[int, int]) -> tuple[int, int]:
    """Requests without a whole answer, and those whose answer is not the one that they get alone."""
    lost = mixed = 0
    for found in loads:
        for number, (given, own) in enumerate(zip(found.answers, alone, strict=True)):
            if given is None or own is None:
                lost += 1
            elif number in leaving:
                mixed += not own.text.startswith(given.text)
            else:
                lost += given.tokens is None
                mixed += given.text != own.text
    return lost, mixed


def metric(url: str, name: str) -> float:
    lines = httpx.get(url.removesuffix("/v1") + "/metrics", trust_env=False).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def median(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    main()
