"""Replies that end when their client goes away.

One rule: a reply closes its call however it ends: told to the end, failed, or left by its client before or while it is
told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dspine.decode.records import Completion
from dspine.serve.http.bodies import Form
from dspine.serve.http.faults import as_fault
from dspine.serve.http.service import Call

T = TypeVar("T")

GONE = 499  # nginx' number for a client that closed its connection; nobody reads it


def event(value: Mapping[str, Any] | str) -> str:
    """One server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n"


class EventReply(StreamingResponse):
    """Server-sent events of one call.

    Args:
        call: closed at the end, also where the client left before the first event.
        events: what is told; a fault becomes the last event, for the status is out by then.
    """

    def __init__(self, call: Call, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_to_the_end(events), media_type="text/event-stream", headers=headers)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.close()


async def whole_reply(request: Request, call: Call, form: Form) -> Response:
    """The whole answer at once."""
    try:
        answers = await while_connected(request, call.all)
    finally:
        call.close()
    if answers is None:
        return Response(status_code=GONE)
    body = json.dumps(form.whole(answers), ensure_ascii=False).encode()
    return Response(body, media_type="application/json")


async def chunks(call: Call, form: Form) -> AsyncIterator[str]:
    """The events of a streamed answer."""
    for each in form.opening(len(call.jobs)):
        yield event(each)
    answers: dict[int, Completion] = {}
    while (told := await call.step()) is not None:
        index, step = told
        if step.update.completion is not None:
            answers[index] = step.update.completion
        chunk = form.chunk(index, step.update)
        if chunk is not None:
            yield event(chunk)
    for each in form.closing([answers[index] for index in range(len(call.jobs))]):
        yield event(each)
    yield event("[DONE]")


async def while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do `work`, unless the client goes away first: then it is cancelled, and the result is None."""
    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _to_the_end(events: AsyncIterator[str]) -> AsyncIterator[str]:
    try:
        async for each in events:
            yield each
    except Exception as error:  # noqa: BLE001  whatever it is, the client is told in the form that it reads
        yield event(as_fault(error).body())
