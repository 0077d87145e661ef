"""A server of the nano target in float64, on a free port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
import uvicorn

from dspine import load_drafter, load_target
from dspine.decode.engine import Engine
from dspine.serve.http.limits import Limits
from dspine.serve.http.server import Served, bind, build
from dspine.serve.http.service import Service
from dspine.target.model import Target

QUESTIONS = ["Write a function that adds two numbers.", "Name two colors.", "Tom has 3 apples and buys 4. How many?"]


@dataclass
class Running:
    """A server that runs: where, and its inside."""

    url: str
    service: Service

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("nano", dtype=torch.float64)


@pytest.fixture(scope="session")
def make_engine(target: Target) -> Callable[..., Engine]:
    drafter = load_drafter("nano", target)
    return lambda **options: Engine(target, drafter, **options)


@contextmanager
def running(
    target: Target, engine: Engine, limits: Limits, *, key: str | None = None, plain: Engine | None = None
) -> Iterator[Running]:
    """Serve until the block ends."""
    app = build(Served(target, engine, "nano", {"target": "nano"}, plain), limits, key)
    taken = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
    started = threading.Event()
    startup = server.startup

    async def telling(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = telling  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, args=([taken],))
    thread.start()
    try:
        assert started.wait(30)
        yield Running(f"http://127.0.0.1:{taken.getsockname()[1]}", app.state.service)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def server(target: Target, make_engine: Callable[..., Engine]) -> Iterator[Running]:
    """One that most tests share; four slots, so that clients have to wait for each other."""
    with running(target, make_engine(max_batch=4), Limits(slots=4, waiting=60, max_tokens=256)) as it:
        yield it


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return server.client()
