"""MT-Bench: 80 conversations of two turns (Zheng et al. 2023); the first turn alone unless more are asked for."""

from __future__ import annotations

from dspine.evaluate.rows import Row
from dspine.evaluate.tasks.task import Hub, Record, Task, as_it_is


def _from_hub(record: Record, place: int) -> Row:
    name = f"mt_bench/{record['prompt_id']}"
    return Row(name, tuple(record["prompt"]), record.get("reference") or None, record["category"])


TASK = Task(
    name="mt_bench",
    file="mt_bench.jsonl",
    wording=as_it_is,
    hub=Hub("HuggingFaceH4/mt_bench_prompts", "train", _from_hub),
)
