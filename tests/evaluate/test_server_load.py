"""A load on a server of OpenAI's API, played by a server of our own that counts who is there."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dspine.endpoint import Endpoint
from dspine.errors import DataError
from dspine.evaluate.results import read_results
from dspine.evaluate.server_load import serve_from
from dspine.evaluate.throughput import measure_server, result_file


class Handler(BaseHTTPRequestHandler):
    """Streams the server's pieces, then a usage, as SGLang and vLLM do."""

    def do_POST(self):
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state["lock"]:
            state["asked"].append((self.path, self.headers.get("Authorization"), body))
            state["now"] += 1
            state["most"] = max(state["most"], state["now"])
        self.send_response(state["status"])
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if state["status"] != 200:
            self.wfile.write(b'{"message": "no such model"}')
        else:
            self._stream(state)
        with state["lock"]:
            state["now"] -= 1

    def _stream(self, state):
        self._send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for piece in state["pieces"]:
            time.sleep(0.02)
            self._send(piece if isinstance(piece, dict) else {"choices": [{"delta": {"content": piece}}]})
        if state["usage"] is not None:
            self._send({"choices": [], "usage": {"completion_tokens": state["usage"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event):
        self.wfile.write(f": keep-alive\ndata: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.state = {"lock": threading.Lock(), "asked": [], "now": 0, "most": 0, "status": 200}
    found.state |= {"pieces": ["One", " two", " three"], "usage": 8}
    thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    found.endpoint = Endpoint(f"http://127.0.0.1:{found.server_port}/v1", "m", "secret")
    yield found
    found.shutdown()
    found.server_close()


def ask(server, texts=("a", "b", "c", "d"), concurrency=2):
    return serve_from(server.endpoint, texts, max_new_tokens=16, temperature=0.5, concurrency=concurrency)


def test_tokens_are_the_servers_and_times_the_clients(server):
    load = ask(server)
    assert load.tokens == 4 * 8
    assert all(len(request.pieces) == 3 for request in load.requests), "the empty first piece is none"
    assert all(request.first >= 0.02 for request in load.requests)
    assert load.tau is None
    assert server.state["most"] == 2
    path, key, body = server.state["asked"][0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["temperature"], body["stream"]) == ("m", 16, 0.5, True)
    assert sorted(body["messages"][0]["content"] for _, _, body in server.state["asked"]) == ["a", "b", "c", "d"]


def test_thinking_is_output_too(server):
    server.state["pieces"] = [{"choices": [{"delta": {"reasoning_content": "hm"}}]}, "so"]
    assert [len(request.pieces) for request in ask(server, ["a"]).requests] == [2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"usage": None}, "does not say how many tokens"),
        ({"status": 404}, "answered 404: .*no such model"),
        ({"pieces": [{"error": {"message": "out of memory"}}]}, "broke off: .*out of memory"),
    ],
)
def test_what_a_server_does_not_do_is_said(server, changes, said):
    server.state |= changes
    with pytest.raises(DataError, match=said):
        ask(server)


@pytest.mark.parametrize(
    ("status", "fix"), [(401, "OPENAI_API_KEY"), (404, "/v1"), (429, "--concurrency"), (418, None)]
)
def test_a_refusal_comes_with_what_to_do(server, status, fix):
    server.state |= {"status": status}
    with pytest.raises(DataError) as fault:
        ask(server)
    assert fix is fault.value.fix or fix in fault.value.fix


def test_a_server_that_is_not_there_is_named():
    gone = Endpoint("http://127.0.0.1:9/v1", "m")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9") as fault:
        serve_from(gone, ["a"], max_new_tokens=4, temperature=0.0, concurrency=1)
    assert fault.value.fix == "Is the server up?"


def test_a_measurement_warms_up_and_goes_on(server, tmp_path):
    def measure(runs):
        file = result_file(tmp_path, "m", {"endpoint": "e"})
        measure_server(
            server.endpoint, ["a", "b"], [1, 2], file, max_new_tokens=16, temperature=0.0, waves=2, runs=runs
        )
        return file

    file = measure(1)
    caps = [body["max_tokens"] for _, _, body in server.state["asked"]]
    assert caps == [8, 16, 16, 8, 8, 16, 16, 16, 16]
    measure(2)
    assert len(server.state["asked"]) == 2 * len(caps), "one more run at each concurrency, each after its warm-up"
    keys = [line["key"] for line in read_results(file.path)[1]]
    assert keys == [f"run/{c}/{run}/server" for run in (0, 1) for c in (1, 2)]
