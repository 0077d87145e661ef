"""The benchmarks by name, one small file each."""

from __future__ import annotations

from pathlib import Path

from dspine.errors import DataError
from dspine.evaluate.rows import NO_TOKENS
from dspine.evaluate.tasks import arena_hard, gsm8k, humaneval, livecodebench, math500, mbpp, mt_bench
from dspine.evaluate.tasks.task import Task, as_it_is

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK for module in (gsm8k, math500, humaneval, mbpp, livecodebench, mt_bench, arena_hard)
}
RANDOM = ("random", "random-ids", "random_ids", "random-tokens", "random_tokens")


def find_task(name: str) -> Task:
    """A benchmark by its name, or a JSONL file of one's own as a task, named after the file.

    Raises:
        DataError: no such benchmark and no such file, or random tokens.
    """
    if name in TASKS:
        return TASKS[name]
    if name.lower() in RANDOM:
        raise DataError(f"{name!r} is no task", NO_TOKENS)
    path = Path(name)
    if path.suffix == ".jsonl" and path.stem not in TASKS:
        return Task(name=path.stem, file=name, wording=as_it_is)
    if path.suffix == ".jsonl":
        fix = f"Rename it, or give its folder: --tasks {path.stem} --data-dir {path.parent}"
        raise DataError(f"{name} is named like the benchmark {path.stem!r}", fix)
    raise DataError(f"there is no task {name!r}", f"Known are {', '.join(TASKS)}, and JSONL files: ours.jsonl")
