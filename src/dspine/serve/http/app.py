"""The routes.

One rule: a route reads a request, opens a call and hands back a reply; what it means is said elsewhere.
"""

from __future__ import annotations

import time

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from dspine import __version__
from dspine.serve.http import faults
from dspine.serve.http.bodies import ChatForm, CompletionForm, Form
from dspine.serve.http.door import OPEN_PATHS, BodyLimit, KeyCheck, StatusCount
from dspine.serve.http.inspection import PAGE_PATHS, add_page
from dspine.serve.http.replies import EventReply, chunks, whole_reply
from dspine.serve.http.requests import Asked, ChatRequest, CompletionRequest
from dspine.serve.http.service import Call, Service


def make_app(service: Service, key: str | None = None, *, inspect: bool = False) -> FastAPI:
    """The application.

    Args:
        key: what clients have to show; None: nothing.
        inspect: whether there is the page that shows answers round by round; the thread has a lane "plain" then.
    """
    # FastAPI's own pages fetch their scripts from elsewhere; /openapi.json says the same.
    app = FastAPI(title="dspine", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    faults.install(app)
    app.add_middleware(BodyLimit, limit=service.limits.body_bytes)
    if key is not None:
        app.add_middleware(KeyCheck, key=key, open_paths=(*OPEN_PATHS, *(PAGE_PATHS if inspect else ())))
    app.add_middleware(StatusCount, metrics=service.metrics)
    _add_answers(app, service)
    _add_models(app, service)
    _add_state(app, service)
    if inspect:
        add_page(app, service)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        call = await service.open(await service.chat_jobs(asked))
        return await _reply(request, asked, call, ChatForm(service, asked, call.jobs))

    @app.post("/v1/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        call = await service.open(await service.completion_jobs(asked))
        return await _reply(request, asked, call, CompletionForm(service, asked, call.jobs))


async def _reply(request: Request, asked: Asked, call: Call, form: Form) -> Response:
    if asked.stream:
        return EventReply(call, chunks(call, form))
    return await whole_reply(request, call, form)


def _add_models(app: FastAPI, service: Service) -> None:
    started = int(time.time())

    def described() -> dict[str, object]:
        return {
            "id": service.name,
            "object": "model",
            "created": started,
            "owned_by": "dspine",
            "max_model_len": service.target.context_limit,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [described()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, object]:
        service.check_name(name)
        return described()


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process is worth keeping."""
        alive = service.thread.alive
        return JSONResponse({"status": "ok" if alive else "the engine has stopped"}, 200 if alive else 503)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a request would be let in now."""
        if not service.thread.alive or service.gate.closed:
            return JSONResponse({"status": "stopping"}, 503)
        if service.gate.inside >= service.limits.open:
            return JSONResponse({"status": "full"}, 503, {"Retry-After": str(service.gate.retry_after())})
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
