"""SGLang servers of nano on this machine's CPU, and what tests ask of them.

python -m tests.sglang.serving      # start both, and say how tests find them
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspine.target.builtin import shipped

NANO = shipped("nano")
RUNNING = "DSPINE_SGLANG_SERVERS"  # URLs of a plain and a drafted server that run already
START = 600  # seconds
CONTEXT = 1024
CHUNK = 64  # tokens of a prefill: most prompts of the tests take several

# float32, so that greedy answers can be equal; a small chunk, so that prefills are chunked; and what a CPU lacks.
FLAGS = (
    *("--model-path", str(NANO / "target"), "--device", "cpu", "--host", "127.0.0.1"),
    *("--dtype", "float32", "--attention-backend", "plain", "--disable-overlap-schedule"),
    *("--context-length", str(CONTEXT), "--chunked-prefill-size", str(CHUNK), "--max-running-requests", "16"),
    *("--max-total-tokens", "24576", "--mem-fraction-static", "0.05", "--skip-server-warmup", "--random-seed", "1"),
    "--sleep-on-idle",  # else the server that is not asked takes a core from the one that is
)
DRAFTED = ("--speculative-algorithm", "DSPINE", "--speculative-draft-model-path", str(NANO / "drafter"))
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",  # the kernel of sampled verification is Triton's
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than it saves here
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Server:
    """A running server; `log` is what it printed, None if somebody else started it."""

    url: str
    log: Path | None = None

    def post(self, path: str, body: dict[str, Any], timeout: float = 600) -> Any:
        """The answer, as JSON; an HTTP error as {"status": code, "body": text}."""
        try:
            with self._open(path, body, timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": error.code, "body": error.read().decode()}

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer."""
        with self._open(path, body | {"stream": True}, 600) as answer:
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data:") and not text.endswith("[DONE]"):
                    yield json.loads(text.removeprefix("data:"))

    def generate(self, ids: Sequence[int], body: dict[str, Any] | None = None, **sampling: Any) -> dict[str, Any]:
        """One answer to prompt ids."""
        params = {"temperature": 0, **sampling}
        return self.post("/generate", {"input_ids": list(ids), "sampling_params": params, **(body or {})})

    def together(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[dict[str, Any]]:
        """Answers to prompts that are sent at once."""
        with ThreadPoolExecutor(max_workers=len(prompts)) as threads:
            return list(threads.map(lambda ids: self.generate(ids, **sampling), prompts))

    def flush(self) -> None:
        """Forget every prefix; it works only while nothing runs and nothing was leaked."""
        for _ in range(100):
            request = urllib.request.Request(f"{self.url}/flush_cache", method="POST", data=b"")
            try:
                with urllib.request.urlopen(request, timeout=60):
                    return
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise AssertionError("the server does not come to rest")

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _open(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout)


@contextmanager
def both(folder: Path) -> Iterator[tuple[Server, Server]]:
    """A plain and a drafted server, started side by side; or those that run already."""
    if named := os.environ.get(RUNNING):
        plain, drafted = named.split(",")
        yield Server(plain), Server(drafted)
        return
    with ExitStack() as stack:
        begun = [stack.enter_context(_process(folder / name, flags)) for name, flags in _SERVERS]
        yield _ready(*begun[0]), _ready(*begun[1])


_SERVERS: tuple[tuple[str, tuple[str, ...]], ...] = (("plain.log", ()), ("drafted.log", DRAFTED))


@contextmanager
def _process(log: Path, flags: Sequence[str]) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", *FLAGS, "--port", str(port), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )
        try:
            yield Server(f"http://127.0.0.1:{port}", log), process
        finally:
            process.terminate()  # SGLang ends its own children
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    """A port that nobody has, and that no connection of a server that starts beside takes by chance.

    A server binds it some twenty seconds later; the system gives out ports from 32768 on by itself.
    """
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("none of a hundred ports is free")


def _ready(server: Server, process: subprocess.Popen[bytes]) -> Server:
    until = time.monotonic() + START
    while time.monotonic() < until:
        if server.healthy():
            return server
        if process.poll() is not None:
            break
        time.sleep(1)
    assert server.log is not None
    raise AssertionError(f"the server did not start:\n{server.log.read_text(errors='replace')[-4000:]}")


if __name__ == "__main__":
    with both(Path(tempfile.mkdtemp())) as (plain, drafted):
        print(f"export {RUNNING}={plain.url},{drafted.url}", flush=True)
        input("Enter ends both servers. ")
