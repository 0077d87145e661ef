"""The page that shows an answer round by round, drafted and plain side by side.

One rule: the page shows what the engine's records say. A token of a round is a candidate that stood ("accepted"), or
the target's own: in place of the first candidate that fell ("corrected"), or after a whole block that stood ("bonus");
"plain" is one of a round without candidates, "first" that of the prefill. Speeds are by each lane's own clock, which
counts nothing but that lane's steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from dspine.decode.records import Update, kinds
from dspine.decode.sampling import SamplingParams
from dspine.decode.text import Detokenizer
from dspine.serve.http.replies import EventReply, event
from dspine.serve.http.service import Call, Service
from dspine.serve.http.thread import MAIN, Job, Step
from dspine.target.chat import render

# What a browser fetches before it can be asked for the key: they hold nothing.
PAGE_PATHS = ("/", "/inspect", "/inspect/", "/inspect/inspect.js", "/inspect/inspect.css")
_TYPES = {"index.html": "text/html", "inspect.js": "text/javascript", "inspect.css": "text/css"}
_HEADERS = {"Content-Security-Policy": "default-src 'self'; img-src data:", "Cache-Control": "no-cache"}

LANES = (MAIN, "plain")  # of the choices 0 and 1


class InspectRequest(BaseModel):
    """POST /inspect/answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: Annotated[str, Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0, le=2**53)] = 0  # what a number of JavaScript holds
    max_tokens: Annotated[int, Field(ge=1)] = 128
    plain: bool = True


class Lane:
    """One answer as the page is told of it."""

    def __init__(self, service: Service, name: str) -> None:
        self._name = name
        self._vocabulary = service.vocabulary
        self._text = Detokenizer(service.target.tokenizer)

    def told(self, step: Step) -> dict[str, Any]:
        """The event of one step."""
        update = step.update
        marked = zip(update.token_ids, kinds(update.rounds, len(update.token_ids)), strict=True)
        tokens = [{"text": self._shown(token), "kind": kind} for token, kind in marked]
        if update.finished and tokens:
            tokens[-1]["text"] += self._text.flush()
        return {
            "lane": self._name,
            "tokens": tokens,
            "rounds": [
                {
                    "proposed": r.proposed,
                    "reached": r.reached,
                    "landed": r.landed,
                    "kept": r.kept,
                    "looked_up": r.looked_up,
                }
                for r in update.rounds
            ],
            "seconds": step.seconds,
            "others": step.others,
            "finish": _finish(update),
        }

    def _shown(self, token: int) -> str:
        """The token's piece of text; a special token by its name, part of a character as nothing until it is whole."""
        return self._vocabulary.name(token) if self._vocabulary.special(token) else self._text.push(token)


def add_page(app: FastAPI, service: Service) -> None:
    """Add the page, its files and its stream of events to the routes."""

    @app.get("/", include_in_schema=False)
    @app.get("/inspect", include_in_schema=False)
    async def start() -> Response:
        return RedirectResponse("/inspect/")

    @app.get("/inspect/info")
    async def info() -> dict[str, object]:
        """What the figures of the page are measured on."""
        return {**service.measured_on, "name": service.name, "max_tokens": service.limits.max_tokens}

    @app.post("/inspect/answer")
    async def inspected(asked: InspectRequest) -> Response:
        """An answer as it comes to be, as server-sent events."""
        prompt = render(service.target, [{"role": "user", "content": asked.prompt}], thinking=service.thinking)
        params = SamplingParams(
            temperature=asked.temperature,
            seed=asked.seed if asked.temperature else None,
            max_new_tokens=service.room(prompt, asked.max_tokens, "max_tokens"),
        )
        lanes = LANES if asked.plain else LANES[:1]
        call = await service.open([Job(prompt, params, lane) for lane in lanes])
        return EventReply(call, _events(service, call, greedy=params.greedy))

    @app.get("/inspect/{name:path}", include_in_schema=False)
    async def file(name: str) -> Response:
        name = name or "index.html"
        if name not in _TYPES:
            return Response("Not found", 404)
        content = files("dspine.serve.http").joinpath("page", name).read_bytes()
        return Response(content, media_type=_TYPES[name], headers=_HEADERS)


async def _events(service: Service, call: Call, *, greedy: bool) -> AsyncIterator[str]:
    lanes = [Lane(service, job.lane) for job in call.jobs]
    whole: dict[int, tuple[int, ...]] = {}
    while (told := await call.step()) is not None:
        index, step = told
        if step.update.completion is not None:
            whole[index] = step.update.completion.token_ids
        yield event(lanes[index].told(step))
    # Sampled answers follow the same law, but are drawn differently.
    same = whole[0] == whole[1] if greedy and len(whole) == len(LANES) else None
    yield event({"end": True, "same": same})


def _finish(update: Update) -> str | None:
    return None if update.completion is None else update.completion.finish_reason
