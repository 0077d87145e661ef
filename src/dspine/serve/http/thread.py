"""The thread that owns the engines.

One rule: nobody else touches an engine. Requests and aborts come in as commands through a queue; updates go out to the
event loop that asked, all those of a step at once.

Several engines may share the thread (`lanes`). A step goes to the busy one that has had least of the thread's time,
so that lanes which run side by side are given equal time, and a lane's clock counts nothing but its own steps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import perf_counter

from dspine.decode.engine import Engine
from dspine.decode.records import Update
from dspine.decode.sampling import SamplingParams
from dspine.serve.http.faults import ApiFault
from dspine.serve.http.metrics import Metrics

log = logging.getLogger("dspine.serve")

MAIN = "main"  # the lane that clients are served by; what others do stands in no metric but the number in progress
_PATIENCE = 2  # steps that may fail in a row before the requests in progress are given up


@dataclass(frozen=True)
class Job:
    """What an engine is asked: prompt ids, parameters, and in which lane."""

    prompt: Sequence[int]
    params: SamplingParams
    lane: str = MAIN


@dataclass(frozen=True)
class Step:
    """What one step gave one request.

    update: the engine's own.
    seconds: of its lane's clock since the request came in.
    others: further requests in the lane.
    """

    update: Update
    seconds: float
    others: int


Mail = asyncio.Queue[tuple[int, Step | Exception]]


@dataclass(eq=False)
class Ticket:
    """A request on its way; belongs to the event loop that made it, but for the fields of the thread.

    index: which of its client's requests it is.
    mail: where its steps go, or the exception that ends it.
    """

    index: int
    job: Job
    mail: Mail
    loop: asyncio.AbstractEventLoop
    admitted: asyncio.Future[None]
    asked_at: float = field(default_factory=perf_counter)
    number: int | None = None  # of the thread: the engine's id
    clock: float = 0.0  # of the thread: the lane's when it came in
    started: bool = False  # of the thread: whether it has a token


@dataclass
class _Lane:
    engine: Engine
    metrics: Metrics | None  # None: it stands beside what is served, for comparison
    clock: float = 0.0
    failures: int = 0
    tickets: dict[int, Ticket] = field(default_factory=dict)


class EngineThread:
    """One thread, one or several engines.

    Args:
        lanes: engines by name.
        metrics: is told what happens in the lane MAIN, and how many requests are in any.
    """

    def __init__(self, lanes: Mapping[str, Engine], metrics: Metrics) -> None:
        self._lanes = {name: _Lane(engine, metrics if name == MAIN else None) for name, engine in lanes.items()}
        self._metrics = metrics
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        self._closed = False  # nobody reads commands any more
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="dspine-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Give up what is in progress, and wait until the thread has ended."""
        self._send(self._stop)
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    async def submit(self, index: int, job: Job, mail: Mail) -> Ticket:
        """Hand over a request; its steps arrive in `mail` under `index`.

        Raises:
            RequestError: what the engine refuses.
            ApiFault: the thread is not running.
        """
        loop = asyncio.get_running_loop()
        ticket = Ticket(index, job, mail, loop, loop.create_future())
        if not self._send(partial(self._add, ticket)):
            raise _gone()
        try:
            await ticket.admitted
        except asyncio.CancelledError:
            self.abort(ticket)
            raise
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """End a request if it has not ended; no further step of it is posted once the thread has read this."""
        self._send(partial(self._abort, ticket))

    def _send(self, command: Callable[[], None]) -> bool:
        """Queue a command; False if the thread has ended, or is past reading it."""
        with self._closing:
            if not self._closed:
                self._commands.put(command)
            return not self._closed

    # ---------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                lane = self._next_lane()
                if lane is not None and not self._stopping:
                    self._step(lane)
        except BaseException:  # nobody above would see it; /health tells
            log.exception("the engine's thread has died")
        finally:
            with self._closing:
                self._closed = self._stopping = True
            for lane in self._lanes.values():
                self._give_up(lane, _gone())
            while not self._commands.empty():
                self._commands.get()()  # requests that came too late are refused

    def _obey(self) -> None:
        """Run the commands that wait; with nothing else to do, wait for one."""
        if not any(lane.tickets for lane in self._lanes.values()):
            self._commands.get()()
        while not self._commands.empty() and not self._stopping:
            self._commands.get()()

    def _next_lane(self) -> _Lane | None:
        busy = [lane for lane in self._lanes.values() if lane.tickets]
        return min(busy, key=lambda lane: lane.clock, default=None)

    def _add(self, ticket: Ticket) -> None:
        if self._stopping:
            _settle(ticket, _gone())
            return
        lane = self._lanes[ticket.job.lane]
        try:
            ticket.number = lane.engine.add(ticket.job.prompt, ticket.job.params)
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's, and its client is told
            _settle(ticket, error)
            return
        if not lane.tickets:  # an idle lane has no claim to the time in which it had nothing to do
            others = [each.clock for each in self._lanes.values() if each.tickets]
            lane.clock = max([lane.clock, *([min(others)] if others else [])])
        ticket.clock = lane.clock
        lane.tickets[ticket.number] = ticket
        self._count()
        _settle(ticket, None)

    def _abort(self, ticket: Ticket) -> None:
        lane = self._lanes[ticket.job.lane]
        if ticket.number is not None and lane.tickets.pop(ticket.number, None) is not None:
            lane.engine.abort(ticket.number)
            if lane.metrics is not None:
                lane.metrics.aborted()
            self._count()

    def _step(self, lane: _Lane) -> None:
        start = perf_counter()
        try:
            updates = lane.engine.step()
            lane.failures = 0
        except Exception:
            # Every row stands at its last committed token, and the next step goes on from there. If it fails too,
            # so would all others: better to end what is in progress than to turn for ever.
            log.exception("a step of the engine failed")
            self._metrics.failed_step()
            lane.failures += 1
            if lane.failures >= _PATIENCE:
                lane.failures = 0
                self._give_up(lane, ApiFault(500, "the engine failed; the server's log says why", code="engine_failed"))
            return
        finally:
            lane.clock += perf_counter() - start
        self._post(lane, updates)

    def _post(self, lane: _Lane, updates: Sequence[Update]) -> None:
        others = len(lane.tickets) - 1
        letters: list[tuple[Ticket, Step | Exception]] = []
        for update in updates:
            ticket = lane.tickets[update.request_id]
            seconds = perf_counter() - ticket.asked_at
            if lane.metrics is not None:
                lane.metrics.updated(update, seconds, first=not ticket.started)
            ticket.started = True
            if update.finished:
                del lane.tickets[update.request_id]
            letters.append((ticket, update.error or Step(update, lane.clock - ticket.clock, others)))
        _post_all(letters)
        self._count()

    def _give_up(self, lane: _Lane, fault: ApiFault) -> None:
        tickets, lane.tickets = list(lane.tickets.values()), {}
        for ticket in tickets:
            assert ticket.number is not None
            lane.engine.abort(ticket.number)
            if lane.metrics is not None:
                lane.metrics.failed()
        _post_all([(ticket, fault) for ticket in tickets])
        self._count()

    def _stop(self) -> None:
        self._stopping = True

    def _count(self) -> None:
        tickets = [ticket for lane in self._lanes.values() for ticket in lane.tickets.values()]
        started = sum(ticket.started for ticket in tickets)
        self._metrics.open(started, len(tickets) - started)


def _gone() -> ApiFault:
    return ApiFault(503, "the engine is not running", code="engine_stopped")


def _settle(ticket: Ticket, error: Exception | None) -> None:
    """Tell the one who waits in `submit` whether the request is in."""

    def tell() -> None:
        if ticket.admitted.done():  # cancelled meanwhile: nobody asks any more
            return
        if error is None:
            ticket.admitted.set_result(None)
        else:
            ticket.admitted.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
        ticket.loop.call_soon_threadsafe(tell)


def _post_all(letters: Sequence[tuple[Ticket, Step | Exception]]) -> None:
    """Put steps into their mailboxes, with one wake-up of each event loop."""

    def deliver(mine: Sequence[tuple[Ticket, Step | Exception]]) -> None:
        for ticket, letter in mine:
            ticket.mail.put_nowait((ticket.index, letter))

    for loop in {ticket.loop for ticket, _ in letters}:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, [each for each in letters if each[0].loop is loop])
