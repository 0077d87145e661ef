"""GSM8K: grade-school mathematics in words (Cobbe et al. 2021); the answer is a number."""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.final_answer import boxed, last_number, same
from dspine.evaluate.tasks.task import Hub, Record, Task, step_by_step


def _from_hub(record: Record, place: int) -> Row:
    final = record["answer"].rsplit("####", 1)[-1].strip().replace(",", "")
    return Row(f"gsm8k/test/{place}", (record["question"],), record["answer"], "math", {"final_answer": final})


def _matches(row: Row, answer: str) -> bool:
    """The boxed number, or the last one where nothing is boxed, is the final one."""
    inside = boxed(answer)
    said = last_number(answer if inside is None else inside)
    return said is not None and same(said, str(row.meta["final_answer"]))


TASK = Task(
    name="gsm8k",
    file="gsm8k.jsonl",
    wording=step_by_step,
    hub=Hub("openai/gsm8k", "test", _from_hub, config="main"),
    matches=_matches,
)
