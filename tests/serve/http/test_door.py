"""The key, the size of a body, and who is told to come back later."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from dspine.serve.http.door import BodyLimit, KeyCheck
from dspine.serve.http.faults import ApiFault, install
from dspine.serve.http.gate import Gate
from dspine.serve.http.limits import Limits


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    install(app)

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/health")
    async def health() -> str:
        return "ok"

    return app


def test_the_key(app):
    app.add_middleware(KeyCheck, key="geheim-ü")
    client = TestClient(app)
    right = {"Authorization": "Bearer geheim-ü".encode()}
    assert client.post("/echo", headers=right).status_code == 200
    assert client.get("/health").status_code == 200
    for header in ({}, {"Authorization": "Bearer geheim"}, {"Authorization": "geheim-ü".encode()}, {"api-key": "x"}):
        response = client.post("/echo", headers=header)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_a_body_that_is_too_large_whether_it_says_so_or_not(app):
    app.add_middleware(BodyLimit, limit=1000)
    client = TestClient(app)
    assert client.post("/echo", content=b"x" * 1000).json() == 1000
    for body in (b"x" * 1001, (b"x" * 100 for _ in range(11))):
        response = client.post("/echo", content=body)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


def test_the_gate_counts_and_says_when_to_come_back():
    gate = Gate(Limits(slots=2, waiting=1))
    first = gate.enter(2)
    with pytest.raises(ApiFault) as caught:
        gate.enter(2)
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) >= 1
    assert gate.inside == 2  # a request is let in whole or not at all
    second = gate.enter(1)
    first.give_back(answered=True)
    first.give_back(answered=True)
    assert gate.inside == 1
    second.give_back(answered=True)
    gate.closed = True
    with pytest.raises(ApiFault) as caught:
        gate.enter(1)
    assert caught.value.status == 503


def test_only_answers_say_how_long_one_takes(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("dspine.serve.http.gate.monotonic", lambda: clock[0])
    gate = Gate(Limits(slots=1, waiting=1))
    for _ in range(50):
        claim = gate.enter(1)
        clock[0] += 20
        claim.give_back(answered=True)
    assert gate.retry_after() == 20
    for _ in range(50):  # refused at once, or left by their clients
        gate.enter(1).give_back(answered=False)
    assert gate.retry_after() == 20


def test_a_request_that_is_refused_says_nothing_of_how_long_an_answer_takes(server):
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    httpx.post(f"{server.url}/v1/chat/completions", json=body).raise_for_status()
    before = server.service.gate.mean_seconds
    for _ in range(3):
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"logit_bias": {"99999": 1}})
        assert refused.status_code == 400
    assert server.service.gate.mean_seconds == before
    httpx.post(f"{server.url}/v1/chat/completions", json=body).raise_for_status()
    assert server.service.gate.mean_seconds != before


def test_a_full_server_answers_429_and_is_not_ready(server):
    claim = server.service.gate.enter(server.service.limits.open)
    try:
        body = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}]}
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        claim.give_back(answered=False)
    assert httpx.get(f"{server.url}/ready").status_code == 200
