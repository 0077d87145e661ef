"""A server of OpenAI's completions interface on this machine, which fails on demand.

It answers every prompt with a text that depends on the prompt's ids alone, one fault at a time off its list first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any


def text_for(prompt: list[int]) -> str:
    """What the server answers to a prompt."""
    return "said " + sha256(str(prompt).encode()).hexdigest()[:6]


class CompletionsServer(ThreadingHTTPServer):
    """Attributes:
    faults: what happens to the next requests: a status, "close", "text" (no JSON), "abort" or "empty".
    bodies: of all requests that came in; keys: their Authorization headers.
    most: requests that were under way at once; together: the first answer waits until so many are.
    ids: whether answers carry token ids as vLLM's do, made by this function of the text.
    refused: names of fields that requests with them are refused for, one at a time.
    gate: requests wait until it is set; held_after: it closes behind so many.
    """

    daemon_threads = True

    def __init__(self, model: str = "served", length: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.length = model, length
        self.faults: list[int | str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.headers: dict[str, str] = {}
        self.ids: Any = None
        self.refused: list[str] = []
        self.finish = "stop"
        self.held_after: int | None = None
        self.gate = Event()
        self.gate.set()
        self.lock = Lock()
        self.under_way = self.most = self.together = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are expected here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    server: CompletionsServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        entry = {"id": self.server.model} | ({"max_model_len": self.server.length} if self.server.length else {})
        self._send(200, {"object": "list", "data": [entry]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.keys.append(self.headers["Authorization"])
            fault = server.faults.pop(0) if server.faults else None
            if server.held_after is not None and len(server.bodies) > server.held_after:
                server.gate.clear()
            held = not server.gate.is_set()
            server.under_way += 1
            server.most = max(server.most, server.under_way)
        try:
            until = monotonic() + 10
            while server.most < server.together and monotonic() < until:
                sleep(0.001)
            if held:
                server.gate.wait(10)
            self._answer(body, fault)
        finally:
            with server.lock:
                server.under_way -= 1

    def _answer(self, body: dict[str, Any], fault: int | str | None) -> None:
        unknown = [name for name in self.server.refused if name in body]
        if unknown:
            self._send(400, {"error": {"message": f"unknown parameter: {unknown[0]}"}})
        elif fault == "close":
            self.close_connection = True
            self.connection.close()
        elif fault == "text":
            self._send(200, b"<html>")
        elif isinstance(fault, int):
            self._send(fault, {"error": {"message": f"fault {fault}"}}, self.server.headers)
        else:
            text = "" if fault == "empty" else text_for(body["prompt"])
            finish = {"abort": "abort", "empty": "length"}.get(str(fault), self.server.finish)
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
            if self.server.ids is not None:
                choice["token_ids"] = self.server.ids(text)
            self._send(200, {"choices": [choice]})

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def completions_server(**options: Any) -> Iterator[CompletionsServer]:
    """A running server."""
    server = CompletionsServer(**options)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
