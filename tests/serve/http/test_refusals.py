"""What cannot be honoured is refused by name, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

CHAT = "/v1/chat/completions"
HELLO = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize(
    ("field", "value", "param", "code"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}], "tools", "unsupported_parameter"),
        ("response_format", {"type": "json_object"}, "response_format", "unsupported_parameter"),
        ("best_of", 2, "best_of", "unsupported_parameter"),
        ("chat_template_kwargs", {}, "chat_template_kwargs", "unknown_parameter"),
        ("mystery", None, "mystery", "unknown_parameter"),
        ("temperature", 2.5, "temperature", "invalid_value"),
        ("temperature", "0.5", "temperature", "invalid_value"),
        ("temperature", True, "temperature", "invalid_value"),
        ("n", 0, "n", "invalid_value"),
        ("n", 17, "n", "invalid_value"),
        ("seed", -1, "seed", "invalid_value"),
        ("stop", [""], "stop.0", "invalid_value"),
        ("logit_bias", {"x": 1}, "logit_bias.x.[key]", "invalid_value"),
        ("top_logprobs", 2, "top_logprobs", "invalid_value"),
        ("stream_options", {"include_usage": True}, "stream_options", "invalid_value"),
        ("max_completion_tokens", 3, "max_completion_tokens", "invalid_value"),
        ("max_tokens", 257, "max_tokens", "invalid_value"),
        ("max_tokens", 1024, "max_tokens", "context_length_exceeded"),
        ("messages", [], "messages", "invalid_value"),
        ("messages", [{"role": "tool", "content": "x"}], "messages.0.role", "invalid_value"),
        ("messages", [{"role": "user", "content": "x", "name": "y"}], "messages.0.name", "unknown_parameter"),
        ("messages", [{"role": "user", "content": 5}], "messages.0.content", "invalid_value"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content", "invalid_value"),
        ("messages", [{"role": "assistant", "content": None}], "messages.0.content", "invalid_value"),
        ("min_tokens", 3, "min_tokens", "invalid_value"),  # above max_tokens
        ("logit_bias", {"99999": 1}, None, "invalid_value"),  # outside the vocabulary: the engine's refusal
    ],
)
def test_by_name(server, field, value, param, code):
    fault = error(httpx.post(server.url + CHAT, json=HELLO | {field: value}))
    assert (fault["param"], fault["code"], fault["type"]) == (param, code, "invalid_request_error")
    assert field in fault["message"]
    assert server.service.gate.inside == 0


@pytest.mark.parametrize("prompt", [{"a": 1}, 5, [1, "a"], ["a", [1]], [1.5], [True], [[True]], [None]])
def test_what_is_no_prompt_is_told_what_one_is(server, prompt):
    asked = {"model": "nano", "prompt": prompt}
    fault = error(httpx.post(f"{server.url}/v1/completions", json=asked))
    assert fault["param"] == "prompt"
    assert "a text, a list of token ids" in fault["message"]


@pytest.mark.parametrize("field", ["model", "\ud800"])
def test_half_a_character_in_a_name_is_a_fault_of_the_client(server, field):
    body = json.dumps(HELLO | {field: "\ud800"})
    response = httpx.post(server.url + CHAT, content=body, headers={"Content-Type": "application/json"})
    fault = error(response, 404 if field == "model" else 400)
    assert "application/json" not in fault["message"]  # it is JSON, and an object


@pytest.mark.parametrize("body", [b'{"seed": ' + b"1" * 5000 + b"}", b"[" * 100_000, b'{"model": "\xff"}'])
def test_json_that_cannot_be_read_is_called_so(server, body):
    fault = error(httpx.post(server.url + CHAT, content=body, headers={"Content-Type": "application/json"}))
    assert fault["code"] == "invalid_json"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False, "user": "me"},
        {"stop": None, "seed": None, "audio": None, "logit_bias": None, "n": 1, "temperature": 0},
    ],
)
def test_a_value_that_asks_for_nothing_passes(server, fields):
    assert httpx.post(server.url + CHAT, json=HELLO | fields).status_code == 200


def test_bodies_that_are_no_request(server):
    say = {"Content-Type": "application/json"}
    assert error(httpx.post(server.url + CHAT, content=b"{", headers=say))["code"] == "invalid_json"
    assert "JSON object" in error(httpx.post(server.url + CHAT, json=[1]))["message"]
    assert "application/json" in error(httpx.post(server.url + CHAT, content=b"{}"))["message"]
    assert error(httpx.post(server.url + CHAT, json={}))["code"] == "missing_required_parameter"
    assert error(httpx.get(server.url + CHAT), 405)["code"] == "method_not_allowed"
    assert error(httpx.get(server.url + "/v1/nothing"), 404)["code"] == "not_found"
    other = error(httpx.post(server.url + CHAT, json=HELLO | {"model": "gpt"}), 404)
    assert (other["param"], other["code"]) == ("model", "model_not_found")


def test_prompts_that_do_not_fit(server, client):
    with pytest.raises(openai.BadRequestError, match="leave no room") as caught:
        client.completions.create(model="nano", prompt=[5] * 1024, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.completions.create(model="nano", prompt="")
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        client.completions.create(model="nano", prompt=[99999])
    assert server.service.gate.inside == 0
