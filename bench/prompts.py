"""Prompts of the benchmark families, from local JSONL files, in the field's wording.

One rule: the first `count` rows after a shuffle by seed 980406, first turn only, thinking off; the digest of what was
chosen is printed with every figure.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

SEED = 980406
STEP_BY_STEP = "{0}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
MAKE_IT_PASS = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{0}\n```"
FAMILIES = {
    "gsm8k": ("gsm8k.jsonl", STEP_BY_STEP),
    "humaneval": ("humaneval.jsonl", MAKE_IT_PASS),
    "mbpp": ("mbpp_sanitized.jsonl", "{0}"),
    "mt_bench": ("mt_bench.jsonl", "{0}"),
}


def family_prompts(data_dir: Path, family: str, count: int) -> list[str]:
    """`count` user messages of a family."""
    name, wording = FAMILIES[family]
    path = data_dir / name
    if not path.is_file():
        raise SystemExit(f"{path} is missing: --data-dir must hold {', '.join(f for f, _ in FAMILIES.values())}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    random.Random(SEED).shuffle(rows)
    if len(rows) < count:
        raise SystemExit(f"{path} has {len(rows)} rows, {count} were asked for")
    return [wording.format(row["turns"][0]) for row in rows[:count]]


def digest(prompts: list[str]) -> str:
    """First 12 hex digits of the sha256 of a list of prompts."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:12]
