"""What ways to choose the number of candidates gain or lose against the plain path, alone and eight at a time.

    python bench/verify.py --runs 3 --max-new-tokens 128

The same prompts with the same cap for all; EOS is ignored, so that all do the same work. An engine and the plain one
take turns step by step, in changing order, each step timed, so that a machine whose speed drifts slows both alike;
ratios of tokens a second are taken run by run: of the whole run, and of its part while no place of the batch is empty.
(Rows that gain by different amounts end at different times, and the last ones go on alone: the fewer requests there
are, the more that weighs.) The clock is the wall's, or with `--cpu-time` (one thread on a busy machine) that of the
process. The costs are measured anew first.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.checkpoint import load_drafter
from dspine.decode.costbook import CostBook
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.demo import PROMPTS
from dspine.evaluate.prompts import TaskPrompt, texts_digest
from dspine.evaluate.sources import Source, task_prompts
from dspine.evaluate.tasks import find_task
from dspine.target import load_target
from dspine.target.chat import render


@dataclass
class Side:
    """One of two engines at work: seconds and tokens, of the whole and while no place of its batch was empty."""

    engine: Engine
    seconds: float = 0.0
    full_seconds: float = 0.0
    full_tokens: int = 0
    ended: dict[int, Completion] = field(default_factory=dict)

    def step(self, batch: int, clock: Callable[[], float]) -> None:
        """Take one step."""
        full = self.engine.pending >= batch
        start = clock()
        updates = self.engine.step()
        spent = clock() - start
        self.seconds += spent
        if full:
            self.full_seconds += spent
            self.full_tokens += sum(len(update.token_ids) for update in updates)
        self.ended |= {u.request_id: u.completion for u in updates if u.completion is not None}

    @property
    def answers(self) -> list[Completion]:
        """In the order of the requests."""
        return [self.ended[number] for number in sorted(self.ended)]


def side_by_side(
    one: Engine, other: Engine, prompts: list[list[int]], params: SamplingParams, batch: int, clock: Callable[[], float]
) -> tuple[Side, Side]:
    """Both engines over all prompts, in turns."""
    sides = (Side(one), Side(other))
    turns = list(sides)
    for side in sides:
        for prompt in prompts:
            side.engine.add(prompt, params)
    while any(side.engine.pending for side in sides):
        turns.reverse()
        for side in turns:
            if side.engine.pending:
                side.step(batch, clock)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--verify", default="full,auto", help="policies, with commas")
    parser.add_argument("--data-dir", type=Path, help="prompts of --task; else the demo's, over and over")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.count < max(map(int, args.batches.split(","))):
        parser.error("--count: fewer prompts than the largest of --batches, so that its batch would never be full")

    clock = process_time if args.cpu_time else perf_counter
    target = load_target(args.target, dtype=getattr(torch, args.dtype))
    drafter = load_drafter(args.drafter, target)
    gc.freeze()  # what imports made: looking through it takes a second, in whoever's step that falls
    chosen = [TaskPrompt(name, text) for name, text in islice(cycle(PROMPTS.items()), args.count)]
    if args.data_dir is not None:
        chosen = task_prompts(find_task(args.task), Source("folder", args.data_dir), "tune", args.count)
    prompts = [render(target, [{"role": "user", "content": prompt.text}]) for prompt in chosen]
    params = SamplingParams(
        max_new_tokens=args.max_new_tokens, ignore_eos=True, temperature=args.temperature, top_p=args.top_p
    )
    table = Table("batch", "verify", "ratio to plain (median)", "(min-max)", "while full", "verified a round", "tau")
    report: list[dict[str, object]] = []
    for batch in map(int, args.batches.split(",")):
        book = CostBook(target, drafter, capacity=batch, anew=True)
        start = perf_counter()
        costs = book.covering(batch)
        measured = perf_counter() - start
        for fewer in range(batch - 1, 0, -1):  # rows end one by one, and what they cost is not to be measured meanwhile
            book.covering(fewer)
        plain = Engine(target, max_batch=batch)
        engines = {
            verify: Engine(target, drafter, max_batch=batch, verify=verify, costs=book)
            for verify in args.verify.split(",")
        }
        for engine in (plain, *engines.values()):
            engine.generate(prompts[:batch], SamplingParams(max_new_tokens=4, ignore_eos=True))
        for name, engine in engines.items():
            ratios, full = [], []
            for _ in range(args.runs):
                slow, fast = side_by_side(plain, engine, prompts, params, batch, clock)
                ratios.append(slow.seconds / fast.seconds)
                full.append(fast.full_tokens / fast.full_seconds * slow.full_seconds / slow.full_tokens)
            wanted, got = slow.answers, fast.answers
            rounds = [record for completion in got for record in completion.rounds]
            row = {
                "batch": batch,
                "verify": name,
                "ratio": round(statistics.median(ratios), 3),
                "spread": [round(min(ratios), 3), round(max(ratios), 3)],
                "while_full": round(statistics.median(full), 3),
                "verified": round(sum(r.verified for r in rounds) / len(rounds), 2),
                "tau": round(sum(r.kept for r in rounds) / len(rounds), 2),
                "same_output": sum(a.token_ids == b.token_ids for a, b in zip(got, wanted, strict=True)),
            }
            report.append(row)
            table.add_row(
                str(batch), name, str(row["ratio"]), f"{min(ratios):.2f}-{max(ratios):.2f}", str(row["while_full"]),
                str(row["verified"]), str(row["tau"]),
            )  # fmt: skip
        report[-1]["costs"] = costs.numbers()
        report[-1]["measuring_seconds"] = round(measured, 2)
        print(f"batch {batch}: costs measured in {measured:.2f} s: {costs.numbers()}")
    facts = {
        "target": target.name,
        "drafter": args.drafter,
        "prompts": len(prompts),
        "digest": texts_digest(chosen)[:12],
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_new_tokens": args.max_new_tokens,
        "dtype": str(target.dtype),
        "threads": torch.get_num_threads(),
        "clock": clock.__name__,
        "runs": args.runs,
    }
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
