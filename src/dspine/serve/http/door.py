"""What stands before every route: the key, and the size of a body.

One rule: a request without the right key, or with too large a body, costs nothing but its refusal.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine.serve.http.faults import ApiFault
from dspine.serve.http.metrics import Metrics

OPEN_PATHS = ("/health", "/ready")  # for supervisors, which carry no key


class KeyCheck:
    """Asks for `Authorization: Bearer KEY`; keys are compared in constant time.

    Args:
        app: what is behind the door.
        key: the right one.
        open_paths: paths that need none; nothing below them.
    """

    def __init__(self, app: ASGIApp, key: str, open_paths: tuple[str, ...] = OPEN_PATHS) -> None:
        self._app = app
        self._digest = _digest(key.encode())
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open and not self._right(Headers(scope=scope)):
            fault = ApiFault(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await fault.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _right(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        sent = given.strip().encode("latin-1")  # what starlette reads headers as
        return hmac.compare_digest(_digest(sent), self._digest) and scheme.lower() == "bearer"


class BodyLimit:
    """Refuses bodies above a number of bytes, whether they say so or turn out so.

    Args:
        app: what is behind the door.
        limit: bytes.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdigit() and int(length) > self._limit:
            fault = ApiFault(413, self._message(), code="request_too_large")
            await fault.response()(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise HTTPException(413, self._message())
            return message

        await self._app(scope, counted, send)

    def _message(self) -> str:
        return f"the body is larger than the {self._limit} bytes that this server reads"


class StatusCount:
    """Counts responses by status.

    Args:
        app: what is behind the door.
        metrics: where they are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(message["status"])
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


def _digest(key: bytes) -> bytes:
    """Digests have one length, so that comparing them tells nothing of the key's."""
    return hashlib.sha256(key).digest()
