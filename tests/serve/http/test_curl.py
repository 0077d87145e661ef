"""What curl sees: plain bodies, server-sent events, headers."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

BODY = {"model": "nano", "messages": [{"role": "user", "content": "Name two colors."}], "max_tokens": 8, "seed": 1}


@pytest.fixture
def curl(server):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    def call(path: str, body: dict | None = None, *words: str) -> str:
        data = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        command = ["curl", "-sS", "--noproxy", "*", "--max-time", "60", *words, *data, server.url + path]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return call


def test_a_stream_is_server_sent_events(curl):
    whole = json.loads(curl("/v1/chat/completions", BODY))["choices"][0]["message"]["content"]
    lines = curl("/v1/chat/completions", BODY | {"stream": True}, "-N", "-i").replace("\r", "").split("\n")
    assert "content-type: text/event-stream; charset=utf-8" in lines
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    told = [json.loads(each)["choices"][0] for each in events[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in told) == whole
    assert told[-1]["finish_reason"] == "length"


def test_state_and_metrics(curl):
    assert json.loads(curl("/health")) == {"status": "ok"}
    assert json.loads(curl("/ready")) == {"status": "ok"}
    assert "dspine_tau " in curl("/metrics")
    assert "/v1/chat/completions" in json.loads(curl("/openapi.json"))["paths"]
