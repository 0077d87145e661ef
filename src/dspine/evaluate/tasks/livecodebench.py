"""LiveCodeBench: competition programs (Jain et al. 2024), release 6, in the benchmark's own wording.

Not scored: the local rows have no tests, and the set's own are hidden in the hub's archive.
"""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.task import Hub, Record, Task

EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program."
)
STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT."
)


def _wording(row: Row) -> str:
    starter = row.meta.get("starter_code")
    ask, body = (STARTER, starter) if starter else (STDIN, "# YOUR CODE HERE")
    answer = "### Answer: (use the provided format with backticks)"
    question = f"### Question:\n{row.turns[0]}"
    return f"{EXPERT}\n\n{question}\n\n### Format: {ask}\n```python\n{body}\n```\n\n{answer}\n\n"


def _from_hub(record: Record, place: int) -> Row:
    starter = record["starter_code"]
    kind = "functional" if starter else "stdin"
    return Row(f"livecodebench/{place:04d}", (record["question_content"],), None, kind, {"starter_code": starter})


TASK = Task(
    name="livecodebench",
    file="livecodebench.jsonl",
    wording=_wording,
    hub=Hub("livecodebench/code_generation_lite", "train", _from_hub, files="test*.jsonl"),
)
