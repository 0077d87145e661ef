"""The parent's side of `cpu_worker.py`: starting engines when they are first needed, and asking them.

One rule: idle engines sleep on their pipe and their OpenMP threads wait passively, so that only the one that was asked
uses the processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpu_contestants import Contestant, Setting

WARM_UP_TOKENS = 8


class Worker:
    """One engine process.

    Raises:
        SystemExit: it ended; what went wrong is on standard error.
    """

    def __init__(self, asked: Mapping[str, Any], threads: int) -> None:
        self._name = f"{asked['kind']} ({asked['weights']}, threads: {threads})"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        environment.pop("MKL_NUM_THREADS", None)  # it would win over the former
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cpu_worker.py")), json.dumps({**asked, "threads": threads})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )
        self.facts = self._reply()

    def ask(self, task: str, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what is missing then is the reply
            print(json.dumps({"task": task, **request}), file=self._process.stdin, flush=True)
        return self._reply()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # a request that an engine which died never read
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self._name} ended with {self._process.wait()}: see above")
        reply: dict[str, Any] = json.loads(line)
        return reply


@dataclass
class Pool:
    """Engines by what they are and their thread count; contestants with the same engine share its process.

    Args:
        places: what every worker is told: target, drafter, folder, eos, context, and the GGUF file by weights.
    """

    places: Mapping[str, Any]
    gguf: Mapping[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    _workers: dict[tuple[str, str, int], Worker] = field(default_factory=dict)
    _warm: set[tuple[str, int, str]] = field(default_factory=set)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.close()

    def worker(self, contestant: Contestant, threads: int) -> Worker:
        key = (contestant.kind, contestant.weights, threads)
        if key not in self._workers:
            file = {"gguf": self.gguf[contestant.weights]} if contestant.kind == "llama.cpp" else {}
            asked = {"kind": contestant.kind, "weights": contestant.weights, **self.places, **file}
            self._workers[key] = Worker(asked, threads)
            self.facts.update(self._workers[key].facts)
        return self._workers[key]

    def answer(self, setting: Setting, ids: Sequence[int], cap: int) -> dict[str, Any]:
        """One timed answer; the first of a setting is preceded by a short one that is not counted."""
        worker = self.worker(setting.contestant, setting.threads)
        request = {"ids": list(ids), "options": dict(setting.options)}
        state = (setting.contestant.name, setting.threads, setting.label)
        if state not in self._warm:
            self._warm.add(state)
            worker.ask("answer", cap=WARM_UP_TOKENS, **request)
        return worker.ask("answer", cap=cap, **request)

    def keep(self, chosen: Sequence[Setting]) -> None:
        """End the engines that no chosen setting uses."""
        used = {(s.contestant.kind, s.contestant.weights, s.threads) for s in chosen}
        for key in self._workers.keys() - used:
            self._workers.pop(key).close()
