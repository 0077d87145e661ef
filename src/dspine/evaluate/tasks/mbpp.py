"""MBPP, sanitized: short Python tasks (Austin et al. 2021), asked without their tests, as the drafters' papers do."""

from __future__ import annotations

import re

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.code import code_of, defines, last_function
from dspine.evaluate.tasks.task import Hub, Record, Task, as_it_is

_CALLED = re.compile(r"assert\s+\(?\s*(?:(?:math|set|sorted|list|tuple|len|str|abs)\s*[.(]\s*(?:isclose\()?)*(\w+)\(")


def _from_hub(record: Record, place: int) -> Row:
    meta = {key: record[key] for key in ("task_id", "test_list", "test_imports")}
    return Row(f"mbpp_sanitized/{record['task_id']}", (record["prompt"],), record["code"], "code", meta)


def _program(row: Row, answer: str) -> str:
    """The answer's code and the set's assertions.

    The prompt does not say what the function is to be called, so where the name that the tests call is not defined,
    the answer's last function answers to it.
    """
    called = _CALLED.search(row.meta["test_list"][0])
    name = called[1] if called else None
    code = code_of(answer, name)
    other = last_function(code)
    alias = f"{name} = {other}\n" if name and other and not defines(code, name) else ""
    imports = "\n".join(row.meta.get("test_imports") or ())
    return f"{imports}\n{code}\n\n{alias}" + "\n".join(row.meta["test_list"]) + "\n"


TASK = Task(
    name="mbpp",
    file="mbpp_sanitized.jsonl",
    wording=as_it_is,
    hub=Hub("google-research-datasets/mbpp", "test", _from_hub, config="sanitized"),
    program=_program,
)
