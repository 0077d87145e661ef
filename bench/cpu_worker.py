"""A decoding engine in a process of its own, which answers one prompt at a time over a pipe.

One rule: OpenMP reads its thread count once, before torch or llama.cpp is loaded, so an engine at another thread count
is another process. `cpu_process.py` starts this file; a request and a reply are one line of JSON each.

An answer is {"tokens", "decode_tokens", "decode_seconds", "seconds", "rounds"}: `seconds` from the prompt to the last
token, prefill included; the decode figures leave out the prefill and what came with it. `rounds` holds a
[verified candidates, kept tokens] each.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

Json = dict[str, Any]


class Dspine:
    """Our own engine, drafted and plain over one target."""

    def __init__(self, asked: Json) -> None:
        import dspine  # noqa: F401  before torch

        # isort: split
        import torch

        from dspine.target import load_target

        self._drafter_name = asked["drafter"]
        self._engines: dict[str | None, Any] = {}
        self._target = load_target(asked["target"], dtype=getattr(torch, asked["weights"]), device="cpu")
        _expect_threads(torch.get_num_threads(), asked)
        self.facts = {"torch": torch.__version__, "torch_capability": torch.backends.cpu.get_cpu_capability()}

    @cached_property
    def _drafter(self) -> Any:
        from dspine.checkpoint import load_drafter

        return load_drafter(self._drafter_name, self._target)

    def _engine(self, verify: str | None) -> Any:
        """The engine that verifies so; None: the plain one."""
        from dspine.decode.engine import Engine

        if verify not in self._engines:
            drafted = {} if verify is None else {"drafter": self._drafter, "verify": verify}
            self._engines[verify] = Engine(self._target, max_batch=1, **drafted)
        return self._engines[verify]

    def answer(self, ids: list[int], cap: int, options: Json) -> Json:
        from dspine.decode.sampling import SamplingParams

        verify = options.get("verify")
        engine = self._engine(verify)
        start = perf_counter()
        times, completion = [], None
        for update in engine.stream(ids, SamplingParams(max_new_tokens=cap)):
            times.append((perf_counter(), len(update.token_ids)))
            completion = update.completion
        assert completion is not None
        rounds = [[r.verified, r.kept] for r in completion.rounds] if verify else []
        return _answer(list(completion.token_ids), start, times, rounds)

    def stages(self, prompts: list[list[int]], cap: int, verify: str = "full") -> Json:
        """Seconds by stage, over all rounds of drafted answers, and the number of rounds."""
        from dspine.decode.sampling import SamplingParams
        from dspine.stages import StageClock

        clock = StageClock()
        with clock:
            done = [self._engine(verify).generate([ids], SamplingParams(max_new_tokens=cap)) for ids in prompts]
        seconds = {stage.name: stage.seconds for stage in clock.table() if not stage.name.startswith("prefill")}
        return {"seconds": seconds, "rounds": sum(len(completion.rounds) for [completion] in done)}

    def cost(self, ids: list[int], kinds: list[tuple[int, bool]], repeats: int) -> Json:
        """See `cpu_cost.forward_seconds`."""
        from cpu_cost import forward_seconds

        taps = self._drafter.target_layer_ids if any(tapped for _, tapped in kinds) else ()
        return {"seconds": forward_seconds(self._target, ids, kinds, repeats, taps)}


class Transformers:
    """`generate` of transformers with its own attention and cache, its defaults."""

    def __init__(self, asked: Json) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        kind = transformers.AutoModelForCausalLM
        self._model = kind.from_pretrained(asked["folder"], dtype=getattr(torch, asked["weights"])).eval()
        self._eos = asked["eos"]
        _expect_threads(torch.get_num_threads(), asked)
        self.facts = {"transformers": transformers.__version__}

    def answer(self, ids: list[int], cap: int, options: Json) -> Json:
        import torch

        options = dict(options)
        if "num_assistant_tokens" in options:  # read from the assistant's own configuration
            self._model.generation_config.num_assistant_tokens = options.pop("num_assistant_tokens")
        prompt = torch.tensor([ids])
        streamer = Streamer()
        start = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=cap,
                do_sample=False,
                eos_token_id=self._eos,
                pad_token_id=self._eos[0],
                streamer=streamer,
                **options,
            )
        return _answer(out[0, len(ids) :].tolist(), start, streamer.times[1:], [])  # the first is the prompt


class Streamer:
    """What transformers tells of tokens as they come: when, and how many."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []

    def put(self, tokens: Any) -> None:
        self.times.append((perf_counter(), tokens.numel()))

    def end(self) -> None:
        pass


class LlamaCpp:
    """llama.cpp's server by xllamacpp, asked over its own port."""

    def __init__(self, asked: Json) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = asked["gguf"]
        params.n_ctx = asked["context"]
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
        params.cache_ram_mib = 0  # no prompt is seen twice
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        self._address = self._server.listening_address.removeprefix("http://")
        version = importlib.metadata.version("xllamacpp")
        self.facts = {"xllamacpp": version, "llama.cpp": xllamacpp.get_system_info().strip(" |")}

    def answer(self, ids: list[int], cap: int, options: Json) -> Json:
        # Of its samplers only the one that greedy decoding needs.
        body = {"prompt": ids, "n_predict": cap, "temperature": 0, "samplers": ["top_k"], "top_k": 1}
        connection = http.client.HTTPConnection(self._address)
        start = perf_counter()
        connection.request("POST", "/completion", json.dumps({**body, "cache_prompt": False, "return_tokens": True}))
        response = connection.getresponse()
        reply = json.loads(response.read())
        seconds = perf_counter() - start
        connection.close()
        if response.status != http.client.OK:
            raise RuntimeError(f"llama.cpp answered {response.status}: {reply}")
        # Its own clock, which leaves out the server around it; the first token is counted but not timed there.
        timings = reply["timings"]
        return {
            "tokens": reply["tokens"],
            "decode_tokens": timings["predicted_n"] - 1,
            "decode_seconds": timings["predicted_ms"] / 1e3,
            "seconds": seconds,
            "rounds": [],
        }


KINDS: dict[str, Callable[[Json], Any]] = {"dspine": Dspine, "transformers": Transformers, "llama.cpp": LlamaCpp}


def _answer(tokens: list[int], start: float, times: Sequence[tuple[float, int]], rounds: list[list[int]]) -> Json:
    """From the times at which tokens came: what came first belongs to the prefill."""
    (first, _), (last, _) = times[0], times[-1]
    return {
        "tokens": tokens,
        "decode_tokens": sum(count for _, count in times[1:]),
        "decode_seconds": last - first,
        "seconds": last - start,
        "rounds": rounds,
    }


def _expect_threads(found: int, asked: Json) -> None:
    if found != asked["threads"]:
        raise SystemExit(f"torch runs {found} threads where {asked['threads']} were set")


def main() -> None:
    # Whatever a library prints goes to standard error: the pipe carries replies alone.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path(__file__).parent))
    asked = json.loads(sys.argv[1])
    engine = KINDS[asked["kind"]](asked)
    print(json.dumps(engine.facts), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        task = request.pop("task")
        print(json.dumps(getattr(engine, task)(**request)), file=replies, flush=True)


if __name__ == "__main__":
    main()
