"""Options that say which prompts a measurement asks, and the prompts that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dspine.evaluate.sources import Asked

PROMPTS = "The prompts"
COUNT = 50  # prompts a task, where there are so many

TasksOption = Annotated[
    str,
    typer.Option(
        help="Tasks, with commas: gsm8k, math500, humaneval, mbpp, livecodebench, mt_bench, arena_hard, or JSONL files "
        'of your own with rows {"prompt": "..."} or {"turns": ["...", "..."]}.',
        rich_help_panel=PROMPTS,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the benchmarks as JSONL files.", rich_help_panel=PROMPTS, show_default=False),
]
HubOption = Annotated[
    bool, typer.Option("--hub", help="Take the benchmarks from the hub (needs `datasets`).", rich_help_panel=PROMPTS)
]
SplitOption = Annotated[
    str,
    typer.Option(
        metavar="report|tune|all",
        help="report: the first 50 of the seeded shuffle; tune: the others, to choose a drafter on; all: the whole set "
        "in that order.",
        rich_help_panel=PROMPTS,
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Prompts a task. Default: 50, or all where there are fewer.",
        rich_help_panel=PROMPTS,
        show_default=False,
    ),
]


def read_tasks(tasks: str, *, data_dir: Path | None, hub: bool, split: str, count: int | None) -> list[Asked]:
    """The prompts of the named tasks.

    Raises:
        typer.BadParameter: options that contradict each other, or a task that is named twice.
        DataError: an unknown task, or prompts that cannot be had.
    """
    from dspine.evaluate.prompts import SPLITS
    from dspine.evaluate.sources import Asked, Source, task_prompts
    from dspine.evaluate.tasks import find_task

    if hub and data_dir is not None:
        raise typer.BadParameter("--hub and --data-dir exclude each other")
    part = next((known for known in SPLITS if known == split), None)
    if part is None:
        raise typer.BadParameter(f"--split {split}: give one of {', '.join(SPLITS)}")
    found = [find_task(name.strip()) for name in tasks.split(",")]
    names = [task.name for task in found]
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"--tasks {tasks}: a task is named twice")
    source = Source("hub") if hub else Source("folder", data_dir) if data_dir else Source()
    asked = []
    for task in found:
        prompts = task_prompts(task, source, part, count)
        asked.append(Asked(task, source.named(task), prompts if count else prompts[:COUNT]))
    return asked
