"""Tokens/s of the plain path (no drafter) against `transformers` `generate`, on the same prompts, in turn.

    python bench/plain.py --runs 5 --max-new-tokens 64

Both sides load the same weights in the same type and run with the same threads; `generate` runs transformers' own
model, attention and dynamic cache, its defaults. EOS is ignored on both sides, so that both do the same work. The ratio
is taken pair by pair; above 1 means that the plain path is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.demo import PROMPTS
from dspine.target import load_target
from dspine.target.chat import render


def transformers_seconds(model: Any, ids: list[list[int]], tokens: int) -> float:
    width = max(map(len, ids))
    pad = model.config.pad_token_id or 0
    padded = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    start = perf_counter()
    with torch.inference_mode():
        model.generate(
            input_ids=padded, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            pad_token_id=pad,
        )  # fmt: skip
    return perf_counter() - start


def our_seconds(engine: Engine, ids: list[list[int]], tokens: int) -> float:
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    start = perf_counter()
    engine.generate(ids, params)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    dtype = getattr(torch, args.dtype)
    target = load_target(args.target, dtype=dtype)
    model = load_target(args.target, dtype=dtype, packed=False).model
    model.set_attn_implementation("sdpa")
    prompts = [render(target, [{"role": "user", "content": text}]) for text in PROMPTS]
    table = Table("batch", "dspine tokens/s", "transformers tokens/s", "ratio (median)", "ratio (min-max)")
    report = []
    for batch in (1, 8):
        ids = [prompts[i % len(prompts)] for i in range(batch)]
        engine = Engine(target, max_batch=batch)
        our_seconds(engine, ids, 4), transformers_seconds(model, ids, 4)
        pairs = []
        for run in range(args.runs):
            if run % 2:
                theirs = transformers_seconds(model, ids, args.max_new_tokens)
                ours = our_seconds(engine, ids, args.max_new_tokens)
            else:
                ours = our_seconds(engine, ids, args.max_new_tokens)
                theirs = transformers_seconds(model, ids, args.max_new_tokens)
            pairs.append((ours, theirs))
        work = batch * args.max_new_tokens
        ratios = [theirs / ours for ours, theirs in pairs]
        row = {
            "batch": batch,
            "dspine": round(work / statistics.median(o for o, _ in pairs), 1),
            "transformers": round(work / statistics.median(t for _, t in pairs), 1),
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        report.append(row)
        table.add_row(
            str(batch), str(row["dspine"]), str(row["transformers"]), str(row["ratio"]),
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        )  # fmt: skip
    facts = {"target": target.name, "dtype": str(target.dtype), "threads": torch.get_num_threads(), "runs": args.runs}
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
