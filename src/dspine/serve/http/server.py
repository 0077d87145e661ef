"""One server from its start to its end.

One rule: a signal to stop lets no more requests in and lets those in progress end, for `Limits.drain_seconds`. Behind
that, or after a second Ctrl-C, the connections are closed, and each request ends as if its client had left. The
address is taken before the models are loaded, so that a taken one is told at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.decode.vocabulary import Vocabulary
from dspine.errors import ConfigError
from dspine.serve.http.app import make_app
from dspine.serve.http.gate import Gate
from dspine.serve.http.limits import Limits
from dspine.serve.http.metrics import Metrics
from dspine.serve.http.service import Service
from dspine.serve.http.thread import MAIN, EngineThread
from dspine.target.model import Target

_WARM_TOKENS = 8  # of each answer before the first request
_HANGING = 10  # seconds that a request may take to end without its connection; then its task is cancelled


@dataclass(frozen=True)
class Served:
    """What is served.

    engine: answers; its `max_batch` is the number of slots.
    name: what clients call the model.
    measured_on: what an answer depends on beside the request, for its fingerprint.
    plain: decodes beside it, for the page that shows answers round by round; None: no such page.
    thinking: whether the chat template is asked to let the model think.
    """

    target: Target
    engine: Engine
    name: str
    measured_on: Mapping[str, object]
    plain: Engine | None = None
    thinking: bool = False


def bind(host: str, port: int) -> socket.socket:
    """Take an address; nobody can connect before the server listens.

    Args:
        port: 0 takes any that is free.

    Raises:
        ConfigError: it is taken, or not this machine's.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, proto)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}", "Choose another host or port.") from error
    return taken


def build(served: Served, limits: Limits, key: str | None = None) -> FastAPI:
    """The application over an engine; its thread starts and ends with the application."""
    metrics = Metrics()
    lanes = {MAIN: served.engine} | ({} if served.plain is None else {"plain": served.plain})
    service = Service(
        target=served.target,
        thread=EngineThread(lanes, metrics),
        gate=Gate(limits),
        limits=limits,
        metrics=metrics,
        vocabulary=Vocabulary(served.target.tokenizer),
        name=served.name,
        measured_on=served.measured_on,
        thinking=served.thinking,
    )
    app = make_app(service, key, inspect=served.plain is not None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        try:
            yield
        finally:
            service.thread.stop()

    app.router.lifespan_context = lifespan
    return app


def warm_up(engine: Engine, slots: int) -> None:
    """Answer something with 1, 2, 4, ... slots, so that what the first rounds cost is not the first clients' wait."""
    params = SamplingParams(max_new_tokens=_WARM_TOKENS, ignore_eos=True)
    count = 1
    while count <= slots:
        engine.generate([[0]] * count, params)
        count = min(2 * count, slots) if count < slots else slots + 1


def serve(taken: socket.socket, app: FastAPI, limits: Limits, listening: Callable[[], object] = lambda: None) -> None:
    """Serve until a signal says to stop.

    Args:
        taken: of `bind`.
        listening: called when requests are let in.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=limits.drain_seconds + _HANGING,
        server_header=False,
    )
    server = _Server(config, app.state.service.gate, limits.drain_seconds, listening)
    # uvicorn raises the signal again once it has ended; by then it has been obeyed.
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[taken])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Server(uvicorn.Server):
    """uvicorn, that closes the gate as soon as it is told to stop, and then the connections rather than the tasks."""

    def __init__(self, config: uvicorn.Config, gate: Gate, drain: float, listening: Callable[[], object]) -> None:
        super().__init__(config)
        self._gate = gate
        self._drain = drain
        self._listening = listening
        self._told = 0  # signals to stop
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        patience = asyncio.get_running_loop().call_later(self._drain, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            patience.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gate.closed = True
        self._told += 1
        if self._told == 2 and sig == signal.SIGINT and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hang_up)
        else:
            super().handle_exit(sig, frame)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
