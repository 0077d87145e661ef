"""The engine's thread, and what it does when the engine fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dspine.decode.records import Completion, RoundRecord, Update
from dspine.decode.sampling import SamplingParams
from dspine.errors import RequestError
from dspine.serve.http.faults import ApiFault
from dspine.serve.http.metrics import Metrics
from dspine.serve.http.thread import EngineThread, Job, Mail, Step

pytestmark = pytest.mark.anyio
GREEDY = SamplingParams()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeEngine:
    """Gives every request one token a step, `length` times; step k raises where `faults` says so."""

    def __init__(self, length: int = 3, faults: dict[int, Exception] | None = None) -> None:
        self.length = length
        self.faults = faults or {}
        self.steps = 0
        self.live: dict[int, int] = {}
        self.aborted: list[int] = []
        self.numbers = 0

    def add(self, prompt: Any, params: SamplingParams) -> int:
        if not prompt:
            raise RequestError("the prompt is empty")
        self.numbers += 1
        self.live[self.numbers] = 0
        return self.numbers

    def abort(self, number: int) -> None:
        self.aborted.append(number)
        self.live.pop(number, None)

    def step(self) -> list[Update]:
        self.steps += 1
        if self.steps in self.faults:
            raise self.faults[self.steps]
        updates = []
        for number in list(self.live):
            self.live[number] += 1
            done = None
            if self.live[number] == self.length:
                del self.live[number]
                done = Completion(number, (1,), (7,) * self.length, "", "length", (RoundRecord(2, 0, 1),))
            updates.append(Update(number, "", (7,), completion=done))
        return updates


@asynccontextmanager
async def working(**engines: FakeEngine) -> AsyncIterator[EngineThread]:
    thread = EngineThread(engines, Metrics())  # type: ignore[arg-type]  it asks for no more than the fake can do
    thread.start()
    try:
        yield thread
    finally:
        await asyncio.to_thread(thread.stop)


async def read(mail: Mail) -> list[Step | Exception]:
    """Letters of one request, to its end."""
    letters: list[Step | Exception] = []
    while True:
        _, letter = await asyncio.wait_for(mail.get(), 20)
        letters.append(letter)
        if isinstance(letter, Exception) or letter.update.finished:
            return letters


async def test_steps_arrive_in_order_and_in_their_own_mailbox():
    async with working(main=FakeEngine()) as thread:
        boxes: list[Mail] = [asyncio.Queue() for _ in range(3)]
        for index, box in enumerate(boxes):
            await thread.submit(index, Job([1], GREEDY), box)
        for index, box in enumerate(boxes):
            assert len(await read(box)) == 3
            assert box.empty(), index


async def test_a_refused_request_is_told_to_who_asked():
    async with working(main=FakeEngine()) as thread:
        with pytest.raises(RequestError, match="empty"):
            await thread.submit(0, Job([], GREEDY), asyncio.Queue())


async def test_a_step_that_fails_once_costs_nobody_anything():
    async with working(main=FakeEngine(faults={2: RuntimeError("a hiccup")})) as thread:
        mail: Mail = asyncio.Queue()
        await thread.submit(0, Job([1], GREEDY), mail)
        assert all(isinstance(letter, Step) for letter in await read(mail))


async def test_steps_that_go_on_failing_end_what_is_in_progress_and_no_more():
    engine = FakeEngine(faults={2: RuntimeError("broken"), 3: RuntimeError("broken")})
    async with working(main=engine) as thread:
        mail: Mail = asyncio.Queue()
        await thread.submit(0, Job([1], GREEDY), mail)
        last = (await read(mail))[-1]
        assert isinstance(last, ApiFault)
        assert last.status == 500
        assert engine.aborted == [1]
        await thread.submit(0, Job([1], GREEDY), mail)
        assert len(await read(mail)) == 3
        assert thread.alive


async def test_a_thread_that_dies_tells_everybody():
    async with working(main=FakeEngine(faults={1: SystemExit()})) as thread:  # type: ignore[dict-item]
        mail: Mail = asyncio.Queue()
        await thread.submit(0, Job([1], GREEDY), mail)
        last = (await read(mail))[-1]
        assert isinstance(last, ApiFault)
        assert last.status == 503
        with pytest.raises(ApiFault):
            await thread.submit(0, Job([1], GREEDY), mail)
        assert not thread.alive


async def test_stopping_ends_what_is_in_progress():
    engine = FakeEngine(length=1 << 60)
    mail: Mail = asyncio.Queue()
    async with working(main=engine) as thread:
        await thread.submit(0, Job([1], GREEDY), mail)
    assert isinstance((await read(mail))[-1], ApiFault)
    assert engine.aborted == [1]


async def test_lanes_have_clocks_of_their_own_and_equal_time():
    engines = {name: FakeEngine(length=40) for name in ("main", "plain")}
    async with working(**engines) as thread:
        boxes: dict[str, Mail] = {name: asyncio.Queue() for name in engines}
        for name, box in boxes.items():
            await thread.submit(0, Job([1], GREEDY, name), box)
        last = {name: (await read(box))[-1] for name, box in boxes.items()}
    for step in last.values():
        assert isinstance(step, Step)
        assert 0 < step.seconds < 20
        assert step.others == 0
