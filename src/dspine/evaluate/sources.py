"""Where the prompts of a task come from: the samples in the package, a folder of JSONL files, or the hub.

One rule: the source is chosen by whoever asks and is said with every figure; none stands in for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from dspine.errors import DataError
from dspine.evaluate.prompts import Split, TaskPrompt, chosen
from dspine.evaluate.rows import Row, read_rows
from dspine.evaluate.tasks import TASKS
from dspine.evaluate.tasks.task import Hub, Task

Kind = Literal["samples", "folder", "hub"]
SAMPLES = Path(__file__).with_name("tasks") / "samples"


@dataclass(frozen=True)
class Source:
    """Where rows are read.

    kind: "samples" are ten prompts a task of our own writing, for runs without data at hand: no benchmark's figures.
    folder: of the JSONL files, where that is the kind.
    """

    kind: Kind = "samples"
    folder: Path | None = None

    def named(self, task: Task) -> str:
        """How a figure says where its prompts came from: "samples", "folder", "hub", or "file" for one's own."""
        return self.kind if task.name in TASKS else "file"

    def rows(self, task: Task) -> list[Row]:
        """All rows of a task.

        Raises:
            DataError: a file that is missing or broken, or a set that the hub does not give.
        """
        if task.name not in TASKS:
            return read_rows(Path(task.file))
        if self.kind == "hub":
            return hub_rows(task)
        if self.kind == "samples":
            return read_rows(SAMPLES / f"{task.name}.jsonl")
        path = (self.folder or Path()) / task.file
        if not path.is_file():
            raise DataError(
                f"{path} is missing", f"A folder of data holds {', '.join(t.file for t in TASKS.values())}."
            )
        return read_rows(path)


@dataclass(frozen=True)
class Asked:
    """The prompts of a task; `source` says where they came from."""

    task: Task
    source: str
    prompts: list[TaskPrompt]


def task_prompts(task: Task, source: Source, split: Split, count: int | None) -> list[TaskPrompt]:
    """`count` prompts of a task (None: all), worded, in the shuffled order of `split`.

    Raises:
        DataError: as `Source.rows`, and for more prompts than there are.
    """
    prompts = [TaskPrompt.of(task, row) for row in source.rows(task)]
    try:
        return chosen(prompts, split, count)
    except DataError as error:
        raise DataError(f"{task.name} ({source.named(task)}): {error.what}", error.fix) from error


def hub_rows(task: Task, load: Callable[..., Iterable[dict[str, Any]]] | None = None) -> list[Row]:
    """The rows of a task's set on the hub, through `datasets` (or another `load` of its signature).

    Raises:
        DataError: the set cannot be had or has other columns, or `datasets` is not installed.
    """
    hub = task.hub
    if hub is None:
        raise DataError(f"the hub has no set for {task.name}", "Give a folder: --data-dir DIR")
    try:
        records = _loaded(hub, load or _loader())
        return [hub.row(record, place) for place, record in enumerate(records)]
    except KeyError as error:
        raise DataError(
            f"{hub.path} has no column {error}", "The set has changed: give a folder, --data-dir."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # what datasets raises for what it cannot get or read
        raise DataError(f"cannot load {hub.path}: {error}", "Without the network, give a folder: --data-dir") from error


def _loader() -> Callable[..., Iterable[dict[str, Any]]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError("the package `datasets` is not installed", "pip install 'dspine[eval]'") from error
    load: Callable[..., Iterable[dict[str, Any]]] = load_dataset
    return load


def _loaded(hub: Hub, load: Callable[..., Iterable[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    if hub.files:
        return load("json", data_files=f"hf://datasets/{hub.path}/{hub.files}", split=hub.split)
    return load(hub.path, hub.config, split=hub.split)


def mixed(tasks: Sequence[Asked]) -> list[TaskPrompt]:
    """The prompts of several tasks, one of each in turn, so that the beginning of the list is of all of them."""
    columns = zip_longest(*(asked.prompts for asked in tasks))
    return [prompt for column in columns for prompt in column if prompt is not None]
