"""MATH-500: competition problems (Hendrycks et al. 2021; Lightman et al. 2023); the answer is an expression."""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.final_answer import boxed, same
from dspine.evaluate.tasks.task import Hub, Record, Task, step_by_step


def _from_hub(record: Record, place: int) -> Row:
    name = record["unique_id"].removesuffix(".json")
    return Row(f"math500/{name}", (record["problem"],), record["answer"], record["subject"], {"level": record["level"]})


def _matches(row: Row, answer: str) -> bool:
    """The boxed expression is the reference, both written in one form."""
    said = boxed(answer)
    return said is not None and same(said, str(row.reference))


TASK = Task(
    name="math500",
    file="math500.jsonl",
    wording=step_by_step,
    hub=Hub("HuggingFaceH4/MATH-500", "test", _from_hub),
    matches=_matches,
)
