"""Start and end of a server, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serve.http.conftest import running

from dspine.errors import ConfigError
from dspine.serve.http.limits import Limits
from dspine.serve.http.server import bind

BODY = {"model": "nano", "messages": [{"role": "user", "content": "Name two colors."}], "ignore_eos": True}


def test_an_address_that_is_taken_is_told():
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("127.0.0.1", taken.getsockname()[1])
    taken.close()
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("no-such-host.invalid", 0)


def test_with_a_key_only_the_supervisor_needs_none(target, make_engine):
    with running(target, make_engine(max_batch=1), Limits(slots=1), key="secret") as it:
        assert it.client(api_key="secret").models.list().data[0].id == "nano"
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert httpx.get(it.url + path).status_code == 401
        for path in ("/health", "/ready"):
            assert httpx.get(it.url + path).status_code == 200


@contextmanager
def serving(folder: Path, drain: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`dspine serve --target nano`, and its address; what it says goes to the file `said`."""
    command = [sys.executable, "-m", "dspine", "serve", "--target", "nano", "--port", "0", "--slots", "2"]
    command += ["--verify", "full", "--drain", str(drain)]
    env = os.environ | {"XDG_CACHE_HOME": str(folder), "DSPINE_CACHE": str(folder)}
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=env) as it,
    ):
        assert it.stdout is not None
        yield it, it.stdout.readline().strip()
        it.kill()


@pytest.fixture
def process(tmp_path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving(tmp_path, drain=60) as it:
        yield it


def test_the_signal_to_stop_lets_answers_end(process):
    server, url = process
    assert url.startswith("http://127.0.0.1:")
    told: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = BODY | {"stream": True, "max_tokens": 200}
        with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                told.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    server.send_signal(signal.SIGTERM)
    reader.join(60)
    assert server.wait(60) == 0
    events = [line.removeprefix("data: ") for line in told if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models")


@pytest.mark.parametrize("impatient", [True, False], ids=["a second interrupt", "the end of the drain"])
def test_what_has_not_ended_is_cut_without_a_traceback(tmp_path, impatient):
    body = BODY | {"stream": True, "n": 16}
    with (
        serving(tmp_path, drain=60 if impatient else 1) as (server, url),
        httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()  # kept: without it the response is closed, and there is nothing to wait for
        next(lines)
        server.send_signal(signal.SIGINT)
        if impatient:
            time.sleep(0.3)
            server.send_signal(signal.SIGINT)
        with pytest.raises(httpx.HTTPError):
            list(lines)
        assert server.wait(60) == 0
    said = (tmp_path / "said").read_text()
    assert "Ctrl-C stops" in said
    assert "Traceback" not in said
    assert "Exception" not in said
