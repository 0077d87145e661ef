"""Prompts of the benchmark families, from local JSONL files, in the field's wording.

One rule: first turn only, thinking off, and the wording that the field's evaluators put around a row. Which rows are
taken is decided in `dspine.evaluate.prompts`.
"""

from __future__ import annotations

import json
from pathlib import Path

from dspine.errors import DataError
from dspine.evaluate.prompts import Split, TaskPrompt, chosen

STEP_BY_STEP = "{0}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
MAKE_IT_PASS = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{0}\n```"
FAMILIES = {
    "gsm8k": ("gsm8k.jsonl", STEP_BY_STEP),
    "math500": ("math500.jsonl", STEP_BY_STEP),
    "humaneval": ("humaneval.jsonl", MAKE_IT_PASS),
    "mbpp": ("mbpp_sanitized.jsonl", "{0}"),
    "mt_bench": ("mt_bench.jsonl", "{0}"),
    "arena_hard": ("arena_hard.jsonl", "{0}"),
}


def family_prompts(data_dir: Path, family: str, split: Split, count: int) -> list[TaskPrompt]:
    """`count` user messages of a family.

    Raises:
        DataError: no such family or file, or fewer rows than are asked for.
    """
    if family not in FAMILIES:
        raise DataError(f"there is no family {family!r}", f"Known are {', '.join(FAMILIES)}.")
    name, wording = FAMILIES[family]
    path = data_dir / name
    if not path.is_file():
        raise DataError(
            f"{path} is missing", f"--data-dir must hold {', '.join(file for file, _ in FAMILIES.values())}."
        )
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = [TaskPrompt(row["id"], wording.format(row["turns"][0])) for row in rows]
    try:
        return chosen(prompts, split, count)
    except DataError as error:
        raise DataError(f"{path}: {error.what}", error.fix) from error
