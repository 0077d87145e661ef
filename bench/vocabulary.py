"""What a restricted draft vocabulary costs in acceptance length.

    python bench/vocabulary.py --data-dir DATA

The weights of a drafter do not depend on the ids that it may propose, so one drafter is run with several lists: its
own, the whole vocabulary of the target, and parts of its own list, likeliest ids first by how often the target wrote
them in --responses. tau on the tuning split, greedy; "covered": share of the answers' tokens that the list holds.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table

from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter import DSpine
from dspine.evaluate.acceptance import tau
from dspine.evaluate.sources import Source, task_prompts
from dspine.evaluate.tasks import find_task
from dspine.target import Target, load_target
from dspine.target.chat import render
from dspine.train.responses import read_responses
from dspine.train.vocabulary import coverage


def with_vocabulary(drafter: DSpine, target: Target, ids: torch.Tensor | None) -> DSpine:
    """The same network, proposing from another list of ids."""
    other = DSpine(drafter.config, target.embedding, target.head_weight.detach(), drafter.space, ids)
    other.load_state_dict({name: value.to(target.dtype) for name, value in drafter.state_dict().items()}, assign=True)
    other.eval().pack()
    return other


def vocabularies(drafter: DSpine, responses: Path | None, sizes: list[int]) -> dict[str, torch.Tensor | None]:
    own = drafter.draft_ids
    lists: dict[str, torch.Tensor | None] = {"whole": None}
    if own is None:
        return lists
    lists[f"own, {len(own)}"] = own
    if responses is not None:
        counts = Counter(token for row in read_responses(responses) for token in row.response_ids)
        ranked = sorted(own.tolist(), key=lambda token: (-counts[token], token))
        for size in sizes:
            lists[str(size)] = torch.tensor(sorted(ranked[:size]))
    return lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--tasks", default="gsm8k,math500,humaneval,mbpp,mt_bench,arena_hard")
    parser.add_argument("--count", type=int, default=10, help="prompts a task, of the tuning split")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--responses", type=Path, help="the training responses, to rank the drafter's own ids")
    parser.add_argument("--sizes", default="2048,4096", help="parts of its own list")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    target = load_target(args.target, dtype=getattr(torch, args.dtype))
    drafter = load_drafter(args.drafter, target, packed=False)
    source = Source("folder", args.data_dir)
    chosen = [task_prompts(find_task(name), source, "tune", args.count) for name in args.tasks.split(",")]
    texts = [prompt.text for prompts in chosen for prompt in prompts]
    prompts = [render(target, [{"role": "user", "content": text}]) for text in texts]
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    table, report = Table("draft vocabulary", "covered", "tau", "rounds"), []
    sizes = [int(size) for size in args.sizes.split(",")]
    for name, ids in vocabularies(drafter, args.responses, sizes).items():
        answers = Engine(target, with_vocabulary(drafter, target, ids), max_batch=8).generate(prompts, params)
        covered = 1.0 if ids is None else coverage([answer.token_ids for answer in answers], ids)
        rounds = [answer.rounds for answer in answers]
        row = {"vocabulary": name, "covered": covered, "tau": tau(rounds), "rounds": sum(map(len, rounds))}
        report.append(row)
        table.add_row(name, f"{covered:.1%}", f"{row['tau']:.3f}", str(row["rounds"]))
    Console().print(table, {"prompts": len(prompts), "max_new_tokens": args.max_new_tokens, "dtype": args.dtype})
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
