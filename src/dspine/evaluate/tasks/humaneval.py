"""HumanEval: Python functions to be completed from their docstrings (Chen et al. 2021)."""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.code import code_of, defines
from dspine.evaluate.tasks.task import Hub, Record, Task


def _wording(row: Row) -> str:
    """As DFlash's and DeepSpec's evaluators ask it."""
    ask = "Write a solution to the following problem and make sure that it passes the tests:"
    return f"{ask}\n```python\n{row.turns[0]}\n```"


def _from_hub(record: Record, place: int) -> Row:
    meta = {"entry_point": record["entry_point"], "test": record["test"]}
    return Row(record["task_id"], (record["prompt"],), record["canonical_solution"], "code", meta)


def _program(row: Row, answer: str) -> str:
    """The answer's function, or the prompt continued by the answer's code, and the set's own check of it.

    What the prompt has before its function (imports, helpers) stands first either way.
    """
    name = row.meta["entry_point"]
    code = code_of(answer, name)
    before = row.turns[0].split(f"def {name}", 1)[0] if defines(code, name) else row.turns[0]
    return f"{before}\n{code}\n\n{row.meta['test']}\n\ncheck({name})\n"


TASK = Task(
    name="humaneval",
    file="humaneval.jsonl",
    wording=_wording,
    hub=Hub("openai/openai_humaneval", "test", _from_hub),
    program=_program,
)
