"""Where a round's time goes, by stage, and what drafting gains over the plain path in the same process.

    python bench/round.py --max-new-tokens 96

Stage times are the host's wall clock, summed over the rounds of the demo's prompts, one request at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from time import perf_counter

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table

from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.demo import PROMPTS
from dspine.stages import StageClock
from dspine.target import load_target
from dspine.target.chat import render


def timed(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[float, Completion]:
    start = perf_counter()
    [completion] = engine.generate([prompt], params)
    return perf_counter() - start, completion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    target = load_target(args.target, dtype=getattr(torch, args.dtype))
    drafted = Engine(target, load_drafter(args.drafter, target), max_batch=1)
    plain = Engine(target, max_batch=1)
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    prompts = [render(target, [{"role": "user", "content": text}]) for text in PROMPTS]
    for engine in (drafted, plain):
        engine.generate([prompts[0]], SamplingParams(max_new_tokens=8))

    clock, ratios, rounds, kept = StageClock(), [], 0, 0
    for run in range(args.runs):
        for prompt in prompts:
            with clock:
                with_drafter, completion = timed(drafted, prompt, params)
            without, _ = timed(plain, prompt, params)
            ratios.append(without / with_drafter)
            rounds += len(completion.rounds)
            kept += sum(r.kept for r in completion.rounds)
        print(f"run {run + 1} of {args.runs}: median speed-up so far {statistics.median(ratios):.2f}")

    stages = [s for s in clock.table() if not s.name.startswith("prefill")]
    total = sum(s.seconds for s in stages)
    table = Table("stage", "ms a round", "share")
    for s in stages:
        table.add_row(s.name, f"{1e3 * s.seconds / rounds:.2f}", f"{s.seconds / total:.1%}")
    table.add_row("sum", f"{1e3 * total / rounds:.2f}", "100 %")
    facts = {
        "target": target.name,
        "drafter": args.drafter,
        "dtype": str(target.dtype),
        "threads": torch.get_num_threads(),
        "tau": round(kept / rounds, 3),
        "speedup_median": round(statistics.median(ratios), 3),
        "speedup_spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }
    Console().print(table, facts)
    if args.json is not None:
        rows = [{"stage": s.name, "ms_per_round": 1e3 * s.seconds / rounds, "share": s.seconds / total} for s in stages]
        args.json.write_text(json.dumps({"facts": facts, "stages": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
