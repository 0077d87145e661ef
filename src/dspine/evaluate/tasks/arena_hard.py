"""Arena-Hard v0.1: 500 hard prompts of real users (Li et al. 2024)."""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.task import Hub, Record, Task, as_it_is


def _from_hub(record: Record, place: int) -> Row:
    text = record["prompt"] if "prompt" in record else record["turns"][0]["content"]
    uid = record["uid"] if "uid" in record else record["question_id"]
    return Row(f"arena_hard_v0.1/{uid}", (text,), None, record.get("cluster"))


TASK = Task(
    name="arena_hard",
    file="arena_hard.jsonl",
    wording=as_it_is,
    hub=Hub("lmarena-ai/arena-hard-auto", "train", _from_hub, files="data/arena-hard-v0.1/question.jsonl"),
)
