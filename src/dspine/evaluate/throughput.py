"""Throughput and latency of a contest, or of a server, at several numbers of requests at once.

One rule: what was measured is on disk before the next measurement begins, and the same call goes on after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from dspine.endpoint import Endpoint
from dspine.evaluate.contest import WARM_UP_TOKENS, Contest, run_key
from dspine.evaluate.results import THROUGHPUT, ResultFile, file_name
from dspine.evaluate.server_load import serve_from
from dspine.progress import say

SERVER = "server"


def result_file(out: Path, name: str, measured_on: Mapping[str, Any]) -> ResultFile:
    """The file of such a measurement in a folder: one for every head."""
    return ResultFile.beside(out, f"throughput-{file_name(name)}", THROUGHPUT, measured_on)


def measure_contest(contest: Contest, levels: Sequence[int], foreseen: Sequence[int], file: ResultFile) -> None:
    """Measure what the file does not hold yet.

    Args:
        levels: numbers of requests at once.
        foreseen: others at which the speed-up is predicted from the cost table.

    Raises:
        RequestError: a prompt or parameters that cannot be honoured.
        DataError: the file cannot be written.
    """
    for concurrency in levels:
        for lines in contest.laps(concurrency, file.lines):
            file.add(lines)
            say(f"concurrency {concurrency}: " + ", ".join(_said(line) for line in lines))
        file.add(contest.ratios(concurrency, file.lines))
    if foreseen:
        file.add(contest.predictions(foreseen, file.lines))


def measure_server(
    endpoint: Endpoint,
    texts: Sequence[str],
    levels: Sequence[int],
    file: ResultFile,
    *,
    max_new_tokens: int,
    temperature: float,
    waves: int,
    runs: int,
) -> None:
    """Measure a server as it runs: the same load as a contest's, `runs` times at each concurrency after a warm-up.

    Raises:
        DataError: the server cannot be measured, or the file cannot be written.
    """
    for concurrency in levels:
        open_runs = [run for run in range(runs) if run_key(concurrency, run, SERVER) not in file.lines]
        load = list(islice(cycle(texts), concurrency * waves))
        if open_runs:
            few = min(WARM_UP_TOKENS, max_new_tokens)
            first = load[:concurrency]
            serve_from(endpoint, first, max_new_tokens=few, temperature=temperature, concurrency=concurrency)
        for run in open_runs:
            served = serve_from(
                endpoint, load, max_new_tokens=max_new_tokens, temperature=temperature, concurrency=concurrency
            )
            head = {"key": run_key(concurrency, run, SERVER), "kind": "run", "concurrency": concurrency, "lap": run}
            line = {**head, "who": SERVER, **served.numbers()}
            file.add([line])
            say(f"concurrency {concurrency}: {_said(line)}")


def _said(line: Mapping[str, Any]) -> str:
    if line["kind"] == "run":
        return f"{line['who']} {line['tokens_per_second']:.1f} tokens/s"
    return f"{line['who']}: time of a round"
