"""Faults as OpenAI's clients know them: a status, and `{"error": {"message", "type", "param", "code"}}`.

One rule: a fault of the client names the field and what would be right; a fault of ours shows no inside.
Source: OpenAI API reference, error codes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from dspine.errors import DspineError

log = logging.getLogger("dspine.serve")

_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
_STATUS_CODES = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


class ApiFault(Exception):
    """A fault with its place in HTTP.

    Args:
        status: HTTP status.
        message: what is wrong, and what would be right.
        code: OpenAI's word for it.
        param: the field of the request that is at fault.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object of the response, and of the last event of a stream that fails."""
        return {"error": {"message": self.message, "type": _kind(self.status), "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole response, in ASCII: a message may quote half a character, which UTF-8 cannot hold."""
        return Response(json.dumps(self.body()), self.status, self.headers, "application/json")


def refused(message: str, *, code: str = "invalid_value", param: str | None = None) -> ApiFault:
    """A request that cannot be honoured (400)."""
    return ApiFault(400, message, code=code, param=param)


def as_fault(error: Exception) -> ApiFault:
    """Any exception as a fault: what a user can mend is his (400), anything else is logged and ours (500)."""
    if isinstance(error, ApiFault):
        return error
    if isinstance(error, DspineError):
        return refused(f"{error.what}. {error.fix}" if error.fix else error.what)
    log.error("a request failed", exc_info=error)
    return ApiFault(500, "the server failed while it worked on this request; its log says why", code="internal_error")


def install(app: FastAPI) -> None:
    """Let every fault of `app` leave in this form."""
    app.add_exception_handler(ApiFault, _known)
    app.add_exception_handler(DspineError, _known)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _known)


async def _known(_: Request, error: Exception) -> Response:
    return as_fault(error).response()


async def _malformed(_: Request, error: Exception) -> Response:
    """The first thing that is wrong with a body."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    param = ".".join(str(part) for part in fault["loc"] if part != "body") or None
    if fault["type"] == "json_invalid":
        return refused(f"the body is not JSON: {fault['ctx']['error']}", code="invalid_json").response()
    if fault["type"] == "string_unicode":
        return refused(f"{param or 'the body'} holds half a character: give Unicode", param=param).response()
    if param is None:
        return refused("the body must be a JSON object, sent as Content-Type: application/json").response()
    code = _CODES.get(fault["type"], "invalid_value")
    words = {"extra_forbidden": f"unrecognized request argument: {param}", "missing": f"{param} is missing"}
    message = words.get(fault["type"], f"{param}: {fault['msg'].removeprefix('Value error, ')}")
    return refused(message, code=code, param=param).response()


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _STATUS_CODES.get(error.status_code, "invalid_request")
    return ApiFault(error.status_code, str(error.detail), code=code, headers=error.headers).response()


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 401:
        return "authentication_error"
    return "server_error" if status >= 500 else "invalid_request_error"
