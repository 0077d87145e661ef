"""llama.cpp in a process of its own, whose log says which tokens it drafted.

python -m tests.llamacpp.llama TARGET.gguf [DRAFTER.gguf TYPE N] < prompts.json    # prompts as ids; answers as JSON
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTH = 24
_DRAFTED = re.compile(r"generate_draft: .*#draft=(\d+)")
_BEST = re.compile(r"draft candidate\s+0, pos\s+(\d+):\s+(\d+) ")
_ANSWER = re.compile(r"ANSWER (\[[\d, ]*\])")  # lines of the log may begin or end in the same line


@dataclass(frozen=True)
class Answer:
    """What llama.cpp answered.

    tokens: of the answer. blocks: that were drafted for it, in order; DFlash2's are not in the log.
    drafted: tokens of all blocks together.
    """

    tokens: list[int]
    blocks: list[list[int]]
    drafted: int


def ask(
    prompts: Sequence[list[int]], target: Path, drafter: Path | None = None, kind: str = "", places: int = 0
) -> list[Answer]:
    """Greedy answers of `LENGTH` tokens.

    Args:
        kind: llama.cpp's name of the way to draft. places: how many tokens at once.
    """
    command = [sys.executable, "-m", "tests.llamacpp.llama", str(target)]
    command += [] if drafter is None else [str(drafter), kind, str(places)]
    done = subprocess.run(
        command, input=json.dumps(prompts).encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, output[-3000:]
    answers: list[Answer] = []
    blocks: list[list[int]] = []
    drafted = 0
    for line in output.splitlines():
        if found := _DRAFTED.search(line):
            drafted += int(found[1])
        if found := _BEST.search(line):
            if found[1] == "0":
                blocks.append([])
            blocks[-1].append(int(found[2]))
        if found := _ANSWER.search(line):
            answers.append(Answer(json.loads(found[1]), blocks, drafted))
            blocks, drafted = [], 0
    return answers


def main(target: str, drafter: str = "", kind: str = "", places: str = "0") -> None:
    """Start a server and ask it, one prompt after the other."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = 1024
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = 0
    params.warmup = False
    kinds, flash = xllamacpp.ggml_type, xllamacpp.llama_flash_attn_type
    params.cache_type_k = params.cache_type_v = kinds.GGML_TYPE_F32  # as our engine computes; else ties fall otherwise
    params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.verbosity = 9  # what is drafted is said nowhere else
    if drafter:
        types = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}")]
        params.speculative.draft.mparams.path = drafter
        params.speculative.draft.n_max = int(places)
        params.speculative.draft.p_min = 0.0
        params.speculative.draft.cache_type_k = params.speculative.draft.cache_type_v = kinds.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    for ids in json.load(sys.stdin):
        answer = _complete(server.listening_address.removeprefix("http://"), ids)
        print(f"\nANSWER {json.dumps(answer['tokens'])}", flush=True)


def _complete(address: str, ids: list[int]) -> Any:
    body = {"prompt": ids, "n_predict": LENGTH, "temperature": 0, "samplers": ["top_k"], "top_k": 1}
    connection = http.client.HTTPConnection(address)
    request = {**body, "cache_prompt": False, "return_tokens": True, "ignore_eos": True}
    connection.request("POST", "/completion", json.dumps(request))
    return json.loads(connection.getresponse().read())


if __name__ == "__main__":
    main(*sys.argv[1:])
