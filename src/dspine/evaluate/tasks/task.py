"""What a benchmark is made of: where its rows come from, the wording around them, and how an answer is scored.

One rule: a task holds facts and pure functions. It loads nothing, runs nothing, and knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dspine.evaluate.rows import Row

Record = Mapping[str, Any]  # a row as the hub has it


@dataclass(frozen=True)
class Hub:
    """A set on the hub.

    path, config, split: as `datasets.load_dataset` takes them.
    row: a record of it, and its place from 0 on, as a row with the id that local files give it.
    files: for a folder of JSON files without a loader of its own: which of them.
    """

    path: str
    split: str
    row: Callable[[Record, int], Row]
    config: str | None = None
    files: str | None = None


@dataclass(frozen=True)
class Task:
    """A benchmark.

    name: what the command line calls it.
    file: of a local folder of JSONL files.
    wording: the first user message that is made of a row; later turns are asked as they are.
    hub: None for a set that is not there.
    matches: whether an answer's text is right, where that can be read off it.
    program: a Python program that ends without a fault if and only if the answer's code is right, where that can only
        be seen by running it.
    """

    name: str
    file: str
    wording: Callable[[Row], str]
    hub: Hub | None = None
    matches: Callable[[Row, str], bool] | None = None
    program: Callable[[Row, str], str] | None = None


def as_it_is(row: Row) -> str:
    """The first turn without any wording around it."""
    return row.turns[0]


def step_by_step(row: Row) -> str:
    """A question of mathematics, in the wording of DFlash's and DeepSpec's evaluators."""
    return f"{row.turns[0]}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
